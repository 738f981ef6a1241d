//! Removal and return of modules, devices and nodes under traffic.

use super::expected::{REFUSED, TORN};
use super::leaks;
use super::node::{node, volume, Node, Options, DEV};
use super::on_pair;
use crate::cluster::{rounds, Lab, Running, PATIENCE};
use crate::scenarios::eth::traffic::both_ways;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("churn::reload_under_traffic", reload).finds(REFUSED),
        on_pair("churn::unbind_bind", unbind).finds(REFUSED),
        on_pair("churn::debugfs_open_files", debugfs_open_files).finds(REFUSED),
        on_pair("churn::interface_down_up", down_up),
        on_pair("churn::power_off_in_mid_transfer", power_off)
            .gate()
            .finds(TORN),
    ]
}

/// Endless traffic of frames of all sizes from node 1 to node 0, also while node 0 is away.
pub(super) struct Load<'a> {
    lab: &'a Lab,
    running: Running,
}

/// Number of frames that must arrive before the traffic counts as running.
const FRAMES: u64 = 100;

impl<'a> Load<'a> {
    /// Starts the traffic. Node 1 gets a permanent neighbour entry of node 0, so that it keeps
    /// sending while node 0 is away.
    pub(super) fn start(lab: &'a Lab) -> Result<Self> {
        lab.ok(
            1,
            "ip neigh replace 10.2.0.1 lladdr 2e:87:04:07:00:00 nud permanent dev exn0; rm -f /tmp/load-ends",
        )?;
        // Without answers, ping sends no more than 100 packets per second.
        let script = "while [ ! -e /tmp/load-ends ]; do for size in 56 3000 20000; do ping -q -f -s $size -w 1 node0; done; done >/dev/null 2>&1; true";
        let running = lab.spawn(1, script)?;
        Ok(Self { lab, running })
    }

    /// Waits until frames arrive at node 0.
    pub(super) fn arrives(&self) -> Result<()> {
        let node = node(self.lab, 0);
        let start = node.net("rx_packets")?;
        self.lab.until("the load arrives", PATIENCE, |_| {
            Ok(node.net("rx_packets")? >= start + FRAMES)
        })
    }

    /// Stops the traffic. Fails if it ended early.
    pub(super) fn end(mut self) -> Result<()> {
        let ran = self.running.is_running();
        self.lab.ok(1, "touch /tmp/load-ends")?;
        let out = self.running.wait(PATIENCE)?;
        self.lab.ok(1, "ip neigh del 10.2.0.1 dev exn0")?;
        ensure!(ran && out.status == 0, "the load ended early: {out:?}");
        Ok(())
    }
}

/// Runs `cycle` on node 0 repeatedly under traffic from node 1. Traffic must arrive between any two
/// cycles, and no resource of node 0 may leak.
fn under_load(lab: &Lab, cycles: u32, mut cycle: impl FnMut(Node<'_>) -> Result<()>) -> Result<()> {
    let mut part = |cycles: u32| -> Result<()> {
        let load = Load::start(lab)?;
        let mut run = || -> Result<()> {
            for n in 0..cycles {
                load.arrives()
                    .and_then(|()| cycle(node(lab, 0)))
                    .with_context(|| format!("cycle {n}"))?;
            }
            load.arrives().context("after the last cycle")
        };
        let ran = run();
        let ended = load.end();
        ran?;
        ended?;
        node(lab, 0).back()?;
        node(lab, 1).back()
    };
    part(1)?;
    leaks::watch(node(lab, 0), cycles, part)
}

/// The modules can be unloaded and loaded again under traffic without loss of memory or
/// connectivity.
fn reload(lab: &Lab) -> Result<()> {
    under_load(lab, rounds(volume(14, 50)), |node| {
        node.unload()?;
        node.load(Options::default())?;
        node.address_back()
    })
}

/// The device can be unbound and bound again under traffic without loss of memory or connectivity.
fn unbind(lab: &Lab) -> Result<()> {
    under_load(lab, rounds(volume(8, 20)), |node| {
        node.unbind()?;
        node.bind()?;
        node.address_back()
    })
}

/// Files stay open while the device is unbound and, if the kernel permits it, the modules are
/// unloaded.
///
/// Descriptors 3 to 5 belong to files of extoll, descriptors 6 and 7 to files of exn.
const OPEN_FILES: &str = r#"
fail() { echo "$*" >&2; exit 1; }
count() { cat /sys/module/$1/refcnt; }
in_use() {
    said=$(rmmod $1 2>&1) && fail "rmmod $1 succeeded $2"
    case $said in *"in use"*) ;; *) fail "rmmod $1 $2: $said" ;; esac
}
gone() {
    for fd in $1; do
        said=$(cat <&$fd 2>&1) && fail "descriptor $fd gives $(echo "$said" | wc -c) bytes $2"
        case $said in *"Input/output error"*) ;; *) fail "descriptor $fd $2: $said" ;; esac
    done
}
# af_extl also keeps extoll loaded.
rmmod af_extl || fail "rmmod af_extl"
base=/sys/kernel/debug/extoll-$dev eth=/sys/kernel/debug/exn-$dev
for f in $base/status $base/counters $base/ports $base/atu $eth/state $eth/reasons; do [ -f $f ] || fail "$f is missing"; done
b=$(count extoll) e=$(count exn)
exec 3<$base/status 4<$base/counters 5<$base/ports 6<$eth/state 7<$eth/reasons || fail "cannot open"
[ $(count extoll) = $((b + 3)) ] || fail "extoll is used $(count extoll) times, not $b + 3"
[ $(count exn) = $((e + 2)) ] || fail "exn is used $(count exn) times, not $e + 2"
in_use exn "with open files"
# When the device is unbound, some files are partly read, others not at all.
for fd in 4 6; do [ -n "$(dd bs=1 count=1 status=none <&$fd)" ] || fail "descriptor $fd is empty"; done
echo $dev >/sys/bus/pci/drivers/extoll/unbind || fail "unbind"
[ ! -e $base ] && [ ! -e $eth ] || fail "files are left"
gone "3 4 5 6 7" "after unbind"
in_use exn "with files of a device that is gone"
echo $dev >/sys/bus/pci/drivers/extoll/bind || fail "bind"
gone "3 4 5 6 7" "after bind"
# The interface is down, so `ports` is empty.
for f in $base/status $base/counters $eth/state $eth/reasons; do
    [ -n "$(cat $f)" ] || fail "$f is empty"
done
exec 6<&- 7<&-
rmmod exn || fail "rmmod exn with only extoll's files open"
in_use extoll "with open files"
gone "3 4 5" "after rmmod exn"
exec 3<$base/status
exec 4<&- 5<&-
in_use extoll "with one open file"
grep -q '^node ' <&3 || fail "status has no node"
exec 3<&-
rmmod extoll || fail "rmmod extoll"
[ ! -e /sys/module/extoll ] || fail "extoll is still there"
modprobe exn && modprobe af_extl || fail "modprobe"
"#;

/// Reads all files continuously while the device is unbound and bound `$rounds` times.
const READ_DURING_UNBIND: &str = r#"
# The readers end by themselves. A killed shell would leave behind a cat with open files.
stop=$(mktemp -u)
for n in 1 2; do
    while [ ! -e $stop ]; do cat /sys/kernel/debug/extoll-*/* /sys/kernel/debug/exn-*/* >/dev/null 2>&1; done &
done
rc=0
for n in $(seq $rounds); do
    echo $dev >/sys/bus/pci/drivers/extoll/unbind || rc=1
    [ ! -e /sys/kernel/debug/extoll-$dev ] || rc=2
    echo $dev >/sys/bus/pci/drivers/extoll/bind || rc=3
    [ -n "$(cat /sys/kernel/debug/extoll-$dev/status)" ] || rc=4
done
touch $stop
wait
rm $stop
exit $rc
"#;

/// Open debugfs files neither crash nor leak when the device is unbound; reading them returns an
/// I/O error.
fn debugfs_open_files(lab: &Lab) -> Result<()> {
    lab.ok(0, &format!("{DEV}{OPEN_FILES}"))?;
    node(lab, 0).back()?;
    leaks::watch(node(lab, 0), rounds(volume(4, 10)), |rounds| {
        lab.ok(0, &format!("{DEV}rounds={rounds}\n{READ_DURING_UNBIND}"))?;
        node(lab, 0).unload()?;
        node(lab, 0).load(Options::default())?;
        node(lab, 0).back()?;
        node(lab, 1).back()
    })
}

/// The interface can be set down and up under traffic without leaks.
fn down_up(lab: &Lab) -> Result<()> {
    under_load(lab, rounds(volume(12, 40)), |node| {
        node.ok("ip link set exn0 down && ip link set exn0 up")
            .map(drop)
    })
}

/// A node survives the loss of power of its peer during a transfer and reaches the peer again after
/// its reboot.
fn power_off(lab: &Lab) -> Result<()> {
    const SERVE: &str = "pkill iperf3; iperf3 -s -D -p 5290";
    // Leaks on the node that loses its power can't be found afterwards.
    lab.assert_no_leaks()?;
    lab.ok(1, SERVE)?;
    node(lab, 1).until("iperf3 listens", "ss -ltn | grep -q :5290")?;
    let before = node(lab, 1).net("rx_bytes")?;
    let mut load = lab.spawn(0, "iperf3 -c node1 -p 5290 -t 300")?;
    lab.until("the transfer is in flight", PATIENCE, |_| {
        Ok(node(lab, 1).net("rx_bytes")? > before + (8 << 20))
    })?;
    ensure!(load.is_running(), "the transfer has ended");
    let given_up = node(lab, 0).ethtool("tx_rdv_timeout")?;
    let lost = node(lab, 0).net("tx_dropped")? + node(lab, 0).net("tx_errors")?;
    // A frozen peer stops fetching, so that frames are in flight when the peer loses power.
    lab.fault(&["freeze", "1"])?;
    lab.until("frames are in flight", PATIENCE, |_| {
        Ok(node(lab, 0).ethtool("tx_rdv_in_flight")? > 0)
    })?;
    lab.fault(&["power-off", "1"])?;
    // The surviving node stays usable: it gives up and counts its frames, and gets no answer to its
    // pings.
    let gone = lab.sh_for(0, "ping -q -c 3 -i 0.3 -W 1 node1", PATIENCE)?;
    ensure!(
        gone.status == 1 && gone.stdout.contains(" 0 received"),
        "a node without power answers: {gone:?}"
    );
    lab.until("frames are given up", PATIENCE, |_| {
        let dropped = node(lab, 0).net("tx_dropped")? + node(lab, 0).net("tx_errors")?;
        Ok(node(lab, 0).ethtool("tx_rdv_timeout")? > given_up && dropped > lost)
    })?;
    // The transfer must not succeed, because the peer can't have received all data.
    ensure!(load.is_running(), "the transfer ended without its peer");
    load.stop();
    lab.fault(&["power-on", "1"])?;
    node(lab, 0).back()?;
    node(lab, 1).back()?;
    node(lab, 0).pings(20, "-i 0.02 -s 9000")?;
    both_ways(lab, 8, Duration::from_secs(200))
}
