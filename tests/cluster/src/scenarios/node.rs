//! Access to a node of a cluster: modules, NIC, interface, counters.

pub use crate::cluster::full;
use crate::cluster::{as_slow, modules, Lab, WrongData, PATIENCE};
use anyhow::{bail, ensure, Context, Result};
use std::time::Duration;

/// Sets `dev` of a shell script to the PCI address of the node's first NIC, even if no driver is
/// bound.
pub const DEV: &str =
    "dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}'); [ -n \"$dev\" ] || { echo no NIC >&2; exit 9; }; ";

/// Maximum duration of one series of pings.
const PINGING: Duration = Duration::from_secs(40);

/// Returns the amount of work of a test: `usual`, or `all` in a full run.
pub fn volume<T>(usual: T, all: T) -> T {
    if full() {
        all
    } else {
        usual
    }
}

/// Fails with an error that no repetition excuses if two hashes, of sent and of received data,
/// differ.
pub fn same(sent: &str, received: &str) -> Result<()> {
    match sent.trim() == received.trim() {
        true => Ok(()),
        false => Err(WrongData::error(format!(
            "{sent} was sent, {received} arrived"
        ))),
    }
}

/// Returns the number after `name` in one of the lines, with or without a colon. Counters of
/// ethtool, debugfs and `/proc/meminfo` all have this form. `name` may consist of several words
/// (`reason 9`).
pub fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        let number = rest.strip_prefix([' ', '\t'])?;
        number.split_whitespace().next()?.parse().ok()
    })
}

/// Module options for loading.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Options of `extoll`.
    pub extoll: &'a str,
    /// Options of `exn`.
    pub exn: &'a str,
}

/// Returns options for `extoll` alone.
pub fn extoll(options: &str) -> Options<'_> {
    Options {
        extoll: options,
        exn: "",
    }
}

/// An open VELO or RMA port as shown by debugfs.
#[derive(Debug)]
pub struct Port {
    line: String,
    /// True for VELO, false for RMA.
    pub is_velo: bool,
    /// VPID of the port.
    pub vpid: u64,
}

impl Port {
    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let vpid = words.get(2).and_then(|w| w.parse().ok());
        Ok(Self {
            is_velo: words[0] == "Velo",
            vpid: vpid.with_context(|| format!("no port: {line}"))?,
            line: line.to_owned(),
        })
    }

    /// Returns a counter of the port.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let mut words = self.line.split(' ').skip_while(|w| *w != name);
        words
            .nth(1)
            .and_then(|n| n.parse().ok())
            .with_context(|| format!("no {name} in {}", self.line))
    }

    /// Returns true unless the port belongs to the kernel (docs/driver.md, VPIDs).
    pub fn is_user(&self) -> bool {
        self.vpid < 251
    }
}

/// A node of a cluster.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    lab: &'a Lab,
    /// Number of the node.
    pub number: usize,
}

/// Returns a node of the cluster.
pub fn node(lab: &Lab, number: usize) -> Node<'_> {
    Node { lab, number }
}

impl Node<'_> {
    /// Runs a script, which must succeed.
    pub fn ok(self, script: &str) -> Result<String> {
        self.lab.ok(self.number, script)
    }

    /// Returns true if a script succeeds.
    pub fn is_so(self, script: &str) -> Result<bool> {
        Ok(self.lab.sh_for(self.number, script, PATIENCE)?.status == 0)
    }

    /// Waits until a script succeeds.
    pub fn until(self, what: &str, script: &str) -> Result<()> {
        let what = format!("{what} on node{}", self.number);
        self.lab.until(&what, PATIENCE, |_| self.is_so(script))
    }

    /// Waits until a file exists.
    pub fn until_file(self, path: &str) -> Result<()> {
        self.until(&format!("{path} is there"), &format!("[ -e {path} ]"))
    }

    /// Returns the PCI address of the first NIC.
    pub fn pci(self) -> Result<String> {
        Ok(self.ok(&format!("{DEV}echo $dev"))?.trim().to_owned())
    }

    // Modules and device.

    /// Unloads the modules.
    pub fn unload(self) -> Result<()> {
        // Some scenarios load extoll_bench and leave it loaded for the next scenario.
        let bench = "if [ -e /sys/module/extoll_bench ]; then rmmod extoll_bench; fi";
        self.ok(&format!("{bench} && {}", modules::unload()))
            .map(drop)
    }

    /// Loads the modules. The interface stays down.
    pub fn load(self, options: Options<'_>) -> Result<()> {
        let options = [("extoll", options.extoll), ("exn", options.exn)];
        self.ok(&modules::load(&options)).map(drop)
    }

    /// Unloads and loads the modules, and waits until the peer answers.
    pub fn reload(self, options: Options<'_>) -> Result<()> {
        self.unload()?;
        self.load(options)?;
        self.back()
    }

    /// Unloads and loads only exn, and waits until the peer answers.
    pub fn reload_exn(self, options: &str) -> Result<()> {
        let load = modules::modprobe("exn", options);
        self.ok(&format!("rmmod exn && {load}"))?;
        self.back()
    }

    /// Unbinds the NIC and checks that its device files and interface are removed.
    pub fn unbind(self) -> Result<()> {
        let script = format!(
            "{DEV}echo $dev >/sys/bus/pci/drivers/extoll/unbind && [ ! -e /dev/extoll/rma2 ] && [ ! -e /sys/class/net/exn0 ]"
        );
        self.ok(&script).map(drop)
    }

    /// Binds the NIC. The interface stays down.
    pub fn bind(self) -> Result<()> {
        self.ok(&format!("{DEV}echo $dev >/sys/bus/pci/drivers/extoll/bind"))
            .map(drop)
    }

    // Interface.

    /// Returns the other node of a pair, or the next node of a larger cluster.
    pub fn peer(&self) -> Node<'_> {
        node(self.lab, (self.number + 1) % self.lab.spec().nodes)
    }

    /// Waits for the interface, assigns its address and sets it up.
    pub fn address_back(self) -> Result<()> {
        self.until("exn0", "[ -e /sys/class/net/exn0 ]")?;
        let address = format!(
            "ip addr replace 10.2.0.{}/24 broadcast + dev exn0 && ip link set exn0 up",
            self.number + 1
        );
        self.ok(&address).map(drop)
    }

    /// Returns true if the interface has a carrier.
    pub fn has_carrier(self) -> Result<bool> {
        Ok(self.ok("ip link show exn0")?.contains("LOWER_UP"))
    }

    /// Waits until another node answers a ping.
    pub fn reaches(self, other: Node<'_>) -> Result<()> {
        self.until(
            &format!("node{} answers", other.number),
            &format!("ping -q -c 1 -W 1 node{}", other.number),
        )
    }

    /// Waits until the interface is up with its address and carrier, and the peer answers.
    ///
    /// If frames were unanswered when the driver was unbound, exn's VPID stays disabled for up to a
    /// minute.
    pub fn back(self) -> Result<()> {
        self.address_back()?;
        let what = format!("exn0 of node{} has a carrier", self.number);
        self.lab
            .until(&what, 2 * PATIENCE, |_| self.has_carrier())?;
        self.reaches(self.peer())
    }

    /// Sends pings to the peer; see [`Node::pings_to`].
    pub fn pings(self, count: usize, options: &str) -> Result<()> {
        let peer = self.peer().number;
        self.pings_to(&format!("node{peer}"), count, options)
    }

    /// Sends pings. Each of the answers 1 to `count` must arrive exactly once.
    ///
    /// The command sends a few more pings, because with -w ping keeps sending while an answer is
    /// late and ends after the given number of answers. Answers out of order thus don't count as
    /// lost. Long pings ([`is_long`]) are sent one by one, each by its own ping, which does not
    /// detect duplicates.
    pub fn pings_to(self, target: &str, count: usize, options: &str) -> Result<()> {
        let more = count + 2 + count / 10;
        let patience = as_slow(PINGING).as_secs();
        let command = match is_long(options) {
            false => format!("ping -c {more} -w {patience} {options} {target}"),
            true => format!(
                "for i in $(seq {count}); do one=$(ping -c 1 -W {patience} {options} {target}); ok=$?; \
                 echo \"$one\" | sed \"s/icmp_seq=1 /icmp_seq=$i /\"; [ $ok = 0 ] || break; done"
            ),
        };
        let out = self.lab.sh_for(self.number, &command, 2 * PINGING)?;
        if out.stdout.contains("wrong data byte") {
            return Err(WrongData::error(format!("{command}: {}", out.stdout)));
        }
        let times = answers(&out.stdout, count);
        if let Some(wrong) = times.iter().position(|n| *n != 1) {
            let (n, answer, count) = (self.number, wrong + 1, times[wrong]);
            let lost = [0, 1].map(|n| format!("\nnode{n}: {}", node(self.lab, n).losses()));
            let lost = lost.concat();
            bail!(
                "node{n}# {command}: answer {answer} came {count} times{lost}\n{}{}",
                out.stdout,
                out.stderr
            );
        }
        ensure!(!out.stdout.contains("DUP!"), "duplicates: {}", out.stdout);
        Ok(())
    }

    /// Returns exn's counters of losses, for error messages.
    pub fn losses(self) -> String {
        let script = "awk '$2 > 0' ORS=', ' /sys/kernel/debug/exn-*/reasons";
        self.ok(script).unwrap_or_else(|e| format!("{e:#}"))
    }

    /// Sends one ping to the peer, which must be answered.
    pub fn one_ping(self, options: &str) -> Result<()> {
        let patience = as_slow(PINGING).as_secs();
        let peer = self.peer().number;
        self.lab
            .ok_for(
                self.number,
                &format!("ping -c 1 -W {patience} {options} node{peer}"),
                2 * PINGING,
            )
            .map(drop)
    }

    // Counters.

    /// Returns a debugfs file of the NIC.
    pub fn debugfs(self, name: &str) -> Result<String> {
        self.ok(&format!("cat /sys/kernel/debug/extoll-*/{name}"))
    }

    fn number_in(self, file: &str, name: &str) -> Result<u64> {
        let text = self.debugfs(file)?;
        value(&text, name).with_context(|| format!("no {name} in {file}: {text}"))
    }

    /// Returns a counter or gauge of `ethtool -S`.
    pub fn ethtool(self, name: &str) -> Result<u64> {
        let text = self.ok("ethtool -S exn0")?;
        value(&text, name).with_context(|| format!("no {name} in {text}"))
    }

    /// Returns a counter of the interface by the name of its sysfs file.
    pub fn net(self, name: &str) -> Result<u64> {
        let text = self.ok(&format!("cat /sys/class/net/exn0/statistics/{name}"))?;
        text.trim().parse().with_context(|| text)
    }

    /// Returns a counter of the network stack in `/proc/net/snmp`.
    pub fn snmp(self, protocol: &str, name: &str) -> Result<u64> {
        let text = self.ok("cat /proc/net/snmp")?;
        let head = format!("{protocol}: ");
        let mut lines = text.lines().filter_map(|l| l.strip_prefix(&head));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        names
            .split(' ')
            .zip(values.split(' '))
            .find(|(n, _)| *n == name)
            .and_then(|(_, v)| v.parse().ok())
            .with_context(|| format!("no {name} in {text}"))
    }

    /// Returns the number of interrupts of the NIC.
    pub fn interrupts(self) -> Result<u64> {
        self.number_in("counters", "interrupts")
    }

    /// Returns the number of occurrences of a reason of the base driver.
    pub fn reason(self, number: u32) -> Result<u64> {
        self.number_in("counters", &format!("reason {number}"))
    }

    /// Returns the numbers of occurrences of all reasons of the base driver.
    pub fn reasons(self) -> Result<Vec<u64>> {
        let text = self.debugfs("counters")?;
        let all: Vec<u64> = (0..)
            .map_while(|n| value(&text, &format!("reason {n}")))
            .collect();
        ensure!(!all.is_empty(), "no reasons in {text}");
        Ok(all)
    }

    /// Returns the number of occurrences of a trigger event. The file lists only events that
    /// occurred.
    pub fn event(self, number: u8) -> Result<u64> {
        let text = self.debugfs("counters")?;
        ensure!(value(&text, "interrupts").is_some(), "no counters: {text}");
        Ok(value(&text, &format!("event {number}")).unwrap_or(0))
    }

    /// Returns a gauge of registered memory.
    pub fn atu(self, name: &str) -> Result<u64> {
        self.number_in("atu", name)
    }

    /// Returns a gauge of memory in quarantine for late answers.
    pub fn held(self, name: &str) -> Result<u64> {
        self.number_in("quarantine", name)
    }

    /// Returns the milliseconds for which a VPID stays disabled; 0 if it is enabled.
    pub fn disabled_ms(self, vpid: u8) -> Result<u64> {
        let text = self.debugfs("quarantine")?;
        ensure!(value(&text, "objects").is_some(), "no gauges: {text}");
        Ok(value(&text, &format!("disabled_vpid_{vpid}")).map_or(0, |ms| ms.max(1)))
    }

    /// Returns the open ports.
    pub fn ports(self) -> Result<Vec<Port>> {
        self.debugfs("ports")?.lines().map(Port::parse).collect()
    }

    /// Returns the sum of a counter over the open ports.
    pub fn port_counter(self, name: &str) -> Result<u64> {
        let ports = self.ports()?;
        ensure!(!ports.is_empty(), "no port is open");
        ports.iter().map(|p| p.counter(name)).sum()
    }

    /// Waits until no process has an open port and all their registered memory is released.
    pub fn is_vacant(self) -> Result<()> {
        let what = format!("no port, no registered memory on node{}", self.number);
        self.lab.until(&what, PATIENCE, |_| {
            let atu = self.debugfs("atu")?;
            let none = |name| value(&atu, name).with_context(|| atu.clone());
            let left = none("regions")? + none("pages")? + none("quarantined")?;
            Ok(left == 0 && !self.ports()?.iter().any(Port::is_user))
        })
    }

    /// Waits until no frame is in flight or incomplete and exn's quarantine is empty, which may
    /// take a minute.
    pub fn is_at_rest(self) -> Result<()> {
        const GAUGES: &str = "objects|(tx_rdv_in_flight|tx_rdv_quarantined|rx_rdv_in_flight|rx_rdv_waiting|rx_partial_frames):";
        let script = format!(
            "! {{ cat /sys/kernel/debug/extoll-*/quarantine; ethtool -S exn0; }} 2>/dev/null | grep -E '^ *({GAUGES}) ' | grep -v ' 0$'"
        );
        let what = format!("node{} is at rest", self.number);
        self.lab.until(&what, 2 * PATIENCE, |_| self.is_so(&script))
    }

    /// Waits until the network state of the NIC is "running".
    pub fn runs(self) -> Result<()> {
        self.until(
            "the network runs",
            "grep -qx 'network Running' /sys/kernel/debug/extoll-*/status",
        )
    }
}

/// Returns true if answers are so long that each ping must wait for the previous answer. Two long
/// answers fill the socket from which the kernel sends answers, until the peer fetches them. The
/// kernel drops a third answer (`IcmpOutErrors`).
fn is_long(options: &str) -> bool {
    let size = options.split_whitespace().skip_while(|w| *w != "-s").nth(1);
    size.and_then(|s| s.parse::<u32>().ok()) >= Some(40_000)
}

/// Returns the number of times that each of the answers 1 to `count` is in ping's output.
fn answers(text: &str, count: usize) -> Vec<u32> {
    let mut times = vec![0; count];
    for line in text.lines().filter(|l| l.contains(" bytes from ")) {
        let number = line
            .split_once("icmp_seq=")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        if let Some(slot) = number.and_then(|n| times.get_mut(n.checked_sub(1)?)) {
            *slot += 1;
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_all_forms() {
        let ethtool = "NIC statistics:\n     rx_frames: 12\n     rx_frames_eager: 7\n";
        assert_eq!(value(ethtool, "rx_frames"), Some(12));
        assert_eq!(value(ethtool, "rx_frames_eager"), Some(7));
        assert_eq!(value(ethtool, "rx"), None);
        let counters = "interrupts 3\nreason 1 5 (x)\nreason 12 6 (y)\nevent 1 9 (z)\n";
        assert_eq!(value(counters, "reason 1"), Some(5));
        assert_eq!(value(counters, "reason 12"), Some(6));
        assert_eq!(value(counters, "reason 2"), None);
        assert_eq!(value("MemFree:    77 kB\n", "MemFree"), Some(77));
    }

    #[test]
    fn a_port_has_counters() -> Result<()> {
        let port = Port::parse("Rma vpid 7 attached true tx open sent 2 lost 4 throttled 1")?;
        assert!(!port.is_velo && port.vpid == 7 && port.is_user());
        assert_eq!(port.counter("lost")?, 4);
        assert!(port.counter("nothing").is_err());
        assert!(Port::parse("").is_err());
        Ok(())
    }

    #[test]
    fn long_answers_are_known() {
        assert!(!is_long("-i 0.02 -s 3000"));
        assert!(!is_long("-i 0.02"));
        assert!(is_long("-i 0.02 -s 65507 -M do"));
    }

    #[test]
    fn lost_and_repeated_answers_are_seen() {
        let line = |n| format!("64 bytes from 10.2.0.2: icmp_seq={n} ttl=64 time=1 ms\n");
        let text: String = [1, 3, 3, 4, 9].into_iter().map(line).collect();
        assert_eq!(answers(&text, 4), [1, 0, 2, 1]);
        assert_eq!(
            answers("From 10.2.0.1 icmp_seq=1 Destination Host Unreachable", 1),
            [0]
        );
    }
}
