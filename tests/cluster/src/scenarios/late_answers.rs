//! Answers that come when the port that asked is closed, open again, or another driver's.

use super::churn::back;
use super::on_pair;
use crate::cluster::{as_slow, pairs, Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("faults::late_answers", late_answers),
        on_pair("faults::late_answers_bounded", bounded),
        on_pair("faults::late_answers_without_exn", without_exn),
        on_pair("faults::late_answers_after_bind", after_bind),
    ]
}

/// exn's option for how long memory stays in quarantine.
fn keep(seconds: u64) -> String {
    let time = as_slow(Duration::from_secs(seconds));
    format!("rdv_quarantine_ms={}", time.as_millis())
}

/// Loads the modules of node 0 with these options.
fn load(lab: &Lab, extoll: &str, exn: &str) -> Result<()> {
    let script = format!("rmmod exn extoll && modprobe extoll {extoll} && modprobe exn {exn}");
    lab.ok(0, &script)?;
    back(lab, 0)?;
    back(lab, 1)
}

/// A gauge of the NIC of node 0; 0 if there is none.
fn held(lab: &Lab, name: &str) -> Result<u64> {
    let text = lab.ok(0, "cat /sys/kernel/debug/extoll-*/quarantine")?;
    Ok(pairs(&text)
        .get(name)
        .and_then(|v| v.parse().ok())
        .unwrap_or(0))
}

/// Freezes node 1 while node 0 waits for frames of it, and it for frames of node 0.
fn freeze(lab: &Lab) -> Result<()> {
    // What node 1 announces waits until node 1 can't answer any more.
    lab.fault(&["queue-full", "0", "--vpid", "254"])?;
    let ping = "ping -q -c 8 -i 0.05 -W 1 -s 60000 -p ff";
    let unanswered = lab.sh_for(1, &format!("{ping} node0"), PATIENCE)?;
    lab.fault(&["freeze", "1"])?;
    lab.fault(&["queue-full", "0", "--vpid", "254", "--off"])?;
    ensure!(unanswered.status == 1, "ping: {unanswered:?}");
    lab.sh_for(0, &format!("{ping} node1"), PATIENCE)?;
    // In time or not.
    lab.until("both directions are outstanding", PATIENCE, |l| {
        let sent = l.ethtool(0, "tx_rdv_in_flight")? + l.ethtool(0, "tx_rdv_quarantined")?;
        Ok(l.ethtool(0, "rx_rdv_in_flight")? > 0 && sent > 0)
    })
}

fn thaw(lab: &Lab) -> Result<()> {
    lab.fault(&["clear"]).map(drop)
}

fn empty(lab: &Lab) -> Result<()> {
    lab.until("the quarantine is empty", PATIENCE, |l| {
        Ok(held(l, "objects")? == 0 && held(l, "bytes")? == 0)
    })
}

fn carrier(lab: &Lab) -> Result<bool> {
    Ok(lab.ok(0, "ip link show exn0")?.contains("LOWER_UP"))
}

/// Fills pipes with zeros until little memory is left: kernel pages, as the buffers of frames were. Says how much, waits to be
/// told to go on, and fails if anything else comes out.
const FILL: &str = r#"
sync; echo 3 >/proc/sys/vm/drop_caches; rm -f /tmp/filled /tmp/go
cat >/tmp/fill.py <<'END'
import fcntl, os, resource, sys, time
MIB = 1 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
free = [int(l.split()[1]) >> 10 for l in open("/proc/meminfo") if l.startswith("MemAvailable")][0]
pipes = []
for _ in range(free - 60):
    r, w = os.pipe()
    fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, MIB)
    assert os.write(w, bytes(MIB)) == MIB
    pipes.append((r, w))
open("/tmp/filled.new", "w").write(str(len(pipes)))
os.rename("/tmp/filled.new", "/tmp/filled")
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
bad = 0
for r, w in pipes:
    n = 0
    while n < MIB:
        data = os.read(r, MIB - n)
        n += len(data)
        bad += len(data) - data.count(0)
sys.exit(f"{bad} bytes are not what was written" if bad else 0)
END
exec python3 /tmp/fill.py
"#;

/// The port is closed and opened while commands are outstanding; what came too late reaches no memory of others.
fn late_answers(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(40))?;
    freeze(lab)?;
    let late = lab.ethtool(0, "notify_late")?;
    lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    ensure!(held(lab, "objects")? > 0, "nothing is in quarantine");
    ensure!(held(lab, "bytes")? > 60_000, "no buffer is in quarantine");
    ensure!(carrier(lab)?, "the port is not enabled");
    let fill = lab.spawn(0, FILL)?;
    lab.until("memory is filled", PATIENCE, |l| {
        Ok(l.sh_for(0, "test -e /tmp/filled", PATIENCE)?.status == 0)
    })?;
    let filled: u64 = lab.ok(0, "cat /tmp/filled")?.trim().parse()?;
    ensure!(filled > 64, "only {filled} MiB were free");
    ensure!(held(lab, "objects")? > 0, "the quarantine ended too early");
    thaw(lab)?;
    let answered = lab.until("late answers come", Duration::from_secs(20), |l| {
        Ok(l.ethtool(0, "notify_late")? > late)
    });
    std::thread::sleep(Duration::from_secs(1));
    lab.ok(0, "touch /tmp/go")?;
    let out = fill.wait(PATIENCE)?;
    ensure!(
        out.status == 0,
        "late answers reached memory of others: {out:?}"
    );
    answered?;
    back(lab, 0)?;
    lab.ok(0, "ping -q -c 5 -i 0.2 -s 60000 -w 60 node1")?;
    empty(lab)
}

/// However often the port is opened, no more is held than the limit and what one port may have outstanding.
fn bounded(lab: &Lab) -> Result<()> {
    load(lab, "quarantine_kib=64", &keep(20))?;
    freeze(lab)?;
    lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    let (objects, bytes) = (held(lab, "objects")?, held(lab, "bytes")?);
    ensure!(
        objects > 0 && bytes > 64 << 10,
        "{objects} objects, {bytes} bytes"
    );
    ensure!(held(lab, "disabled_vpid_254")? > 0, "the port is enabled");
    for _ in 0..5 {
        lab.ok(
            0,
            "ping -q -c 1 -W 1 -s 20000 node1; ip link set exn0 down; ip link set exn0 up",
        )?;
        ensure!(!carrier(lab)?, "there is a carrier");
        ensure!(held(lab, "objects")? <= objects, "the quarantine grew");
    }
    thaw(lab)?;
    empty(lab)?;
    ensure!(held(lab, "total_objects")? == objects, "more was added");
    back(lab, 0)?;
    lab.ok(0, "ping -q -c 5 -i 0.2 -s 60000 -w 60 node1")?;
    load(lab, "", "")
}

/// What exn left is freed when it is not loaded any more.
fn without_exn(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(10))?;
    freeze(lab)?;
    lab.ok(0, "rmmod exn")?;
    ensure!(held(lab, "objects")? > 0, "nothing is in quarantine");
    empty(lab)?;
    thaw(lab)?;
    lab.ok(0, &format!("modprobe exn {}", keep(10)))?;
    back(lab, 0)?;
    // Both modules, with something held: all is freed at once.
    freeze(lab)?;
    lab.ok(0, "rmmod exn extoll && sleep 10 && modprobe exn")?;
    thaw(lab)?;
    back(lab, 0)?;
    back(lab, 1)
}

/// Unbinding frees; the next driver doesn't enable the VPID before late answers can't come any more.
fn after_bind(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(20))?;
    freeze(lab)?;
    let refused = |l: &Lab| -> Result<u64> {
        let status = l.status()?;
        let nic = &status["fabric"]["nics"][0]["counters"];
        nic["drops_vpid_disabled"]
            .as_u64()
            .context("drops_vpid_disabled")
    };
    lab.ok(
        0,
        "cd /sys/bus/pci/drivers/extoll; dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}'); \
         echo $dev >unbind && echo $dev >bind && \
         for i in $(seq 100); do [ -e /sys/class/net/exn0 ] && break; sleep 0.1; done; ip link set exn0 up",
    )?;
    ensure!(held(lab, "objects")? == 0, "memory outlived the driver");
    ensure!(held(lab, "disabled_vpid_254")? > 0, "the port is enabled");
    ensure!(!carrier(lab)?, "there is a carrier");
    let before = refused(lab)?;
    thaw(lab)?;
    lab.until("late answers are refused", PATIENCE, |l| {
        Ok(refused(l)? > before)
    })?;
    back(lab, 0)?;
    ensure!(
        held(lab, "disabled_vpid_254")? == 0,
        "the port is not enabled"
    );
    lab.ok(0, "ping -q -c 5 -i 0.2 -s 60000 -w 60 node1")?;
    load(lab, "", "")
}
