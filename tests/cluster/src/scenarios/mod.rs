//! The scenarios, grouped by what they show.

mod accelerator;
mod checksums;
mod churn;
mod combining;
mod driver;
mod events;
mod fabric;
mod faults;
mod fuzz;
mod hostile;
mod iommu;
mod late;
mod late_answers;
mod libraries;
mod matrix;
mod memory;
mod numa;
mod raw;
mod recovery;
mod refused;
mod removal;
mod torus;
mod traffic;
mod uapi;
mod units;
mod userland;

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::Result;

/// Makes the kernel give back what it only keeps at hand, before memory in use is measured. KASAN of a debug kernel keeps
/// freed objects too, until their cache is shrunk.
pub const SETTLE: &str = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; \
     for c in /sys/kernel/slab/*/shrink; do echo 1 >$c; done 2>/dev/null";

/// Two nodes, one cable.
pub const PAIR: Spec = Spec {
    nodes: 2,
    args: &["--topology", "pair"],
};

/// A scenario in [`PAIR`].
fn on_pair(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario {
        name,
        spec: PAIR,
        run,
    }
}

/// Reloads the modules of a node of [`PAIR`] with these options of `extoll`; returns when the peer answers.
fn reload(lab: &Lab, node: usize, options: &str) -> Result<()> {
    let script = format!(
        "rmmod exn extoll && modprobe extoll {options} && modprobe exn && for i in $(seq 100); do [ -e /sys/class/net/exn0 ] && break; sleep 0.1; done; \
         ip addr replace 10.2.0.{}/24 broadcast + dev exn0 && ip link set exn0 up",
        node + 1
    );
    lab.ok(node, &script)?;
    let ping = format!("ping -q -c 1 -W 1 node{}", 1 - node);
    lab.until("the peer answers", PATIENCE, |lab| {
        Ok(lab.sh_for(node, &ping, PATIENCE)?.status == 0)
    })
}

/// Every scenario, those of one cluster specification side by side.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(traffic::all());
    all.extend(driver::all());
    all.extend(churn::all());
    all.extend(removal::all());
    all.extend(faults::all());
    all.extend(late_answers::all());
    all.extend(recovery::all());
    all.extend(hostile::all());
    all.extend(checksums::all());
    all.extend(refused::all());
    all.extend(raw::all());
    all.extend(memory::all());
    all.extend(fabric::all());
    all.extend(uapi::all());
    all.extend(late::all());
    all.extend(fuzz::all());
    all.extend(userland::all());
    all.extend(libraries::all());
    all.extend(units::all());
    all.extend(events::all());
    all.extend(matrix::all());
    all.extend(numa::all());
    all.extend(combining::all());
    all.extend(accelerator::all());
    let again = iommu::all(&all);
    all.extend(again);
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
