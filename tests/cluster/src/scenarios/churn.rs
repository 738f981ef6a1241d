//! Modules, devices and nodes that go away and come back, under traffic.

use super::{on_pair, SETTLE};
use crate::cluster::{field, rounds, Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("churn::reload_under_traffic", reload),
        on_pair("churn::unbind_bind", unbind),
        on_pair("churn::debugfs_open_files", debugfs_open_files),
        on_pair("churn::interface_down_up", down_up),
        on_pair("churn::power_off_in_mid_transfer", power_off),
    ]
}

/// What must not grow: kernel memory that the driver could leak, in objects or KiB.
#[derive(Debug)]
pub(super) struct Usage {
    skbs: u64,
    available_kib: u64,
    /// Open VELO and RMA ports, each of which holds a VPID.
    ports: u64,
}

/// What node `node` uses now.
pub(super) fn usage(lab: &Lab, node: usize) -> Result<Usage> {
    let text = lab.ok(
        node,
        &format!(
            "{SETTLE}; awk '/^skbuff_head_cache/ {{print \"skbs: \" $2}}' /proc/slabinfo; \
             awk '/^MemAvailable/ {{print \"available: \" $2}}' /proc/meminfo; \
             echo ports: $(cat /sys/kernel/debug/extoll-*/ports | grep -c vpid)"
        ),
    )?;
    Ok(Usage {
        skbs: field(&text, "skbs").context("no skbuff_head_cache in slabinfo")?,
        available_kib: field(&text, "available").context("no MemAvailable")?,
        ports: field(&text, "ports").context("no count of ports")?,
    })
}

/// Fails if more is in use after than before.
pub(super) fn no_growth(before: &Usage, after: &Usage) -> Result<()> {
    // Caches keep some objects per CPU; a leak per cycle or frame is far above these limits.
    ensure!(
        after.skbs < before.skbs + 1000,
        "sk_buffs grew: {before:?} -> {after:?}"
    );
    ensure!(
        after.ports == before.ports,
        "VPIDs are left: {before:?} -> {after:?}"
    );
    ensure!(
        after.available_kib + 24 * 1024 > before.available_kib,
        "memory shrank: {before:?} -> {after:?}"
    );
    Ok(())
}

/// Loads the modules on `node` and waits until it reaches its peer.
pub(super) fn back(lab: &Lab, node: usize) -> Result<()> {
    lab.until("exn0 has a carrier", PATIENCE, |l| {
        let out = l.sh_for(
            node,
            &format!(
                "ip addr replace 10.2.0.{}/24 dev exn0; ip link set exn0 up; ip link show exn0",
                node + 1
            ),
            PATIENCE,
        )?;
        Ok(out.stdout.contains("LOWER_UP"))
    })?;
    let peer = 1 - node;
    lab.until("the peer answers", PATIENCE, |l| {
        Ok(
            l.sh_for(node, &format!("ping -q -c 1 -W 1 node{peer}"), PATIENCE)?
                .status
                == 0,
        )
    })
}

fn reload(lab: &Lab) -> Result<()> {
    lab.ok(1, "pkill iperf3; iperf3 -s -D")?;
    lab.ok(0, "pkill iperf3; iperf3 -s -D")?;
    // Once before measuring: the first load fills caches.
    lab.ok(0, "rmmod exn extoll && modprobe exn")?;
    back(lab, 0)?;
    let before = usage(lab, 0)?;
    // Traffic from the peer all the time, UDP so that it does not pause while the node is away.
    let mut load = lab.spawn(
        1,
        "ip neigh replace 10.2.0.1 lladdr 2e:87:04:07:00:00 dev exn0; end=$(($(date +%s) + 900)); \
         while [ $(date +%s) -lt $end ]; do ping -q -f -s 3000 -w 2 node0 >/dev/null 2>&1; timeout 10 iperf3 -c node0 -t 2 >/dev/null 2>&1; done",
    )?;
    let mut run = || -> Result<()> {
        for round in 0..rounds(50) {
            lab.ok(0, "rmmod exn extoll && modprobe exn")
                .with_context(|| format!("round {round}"))?;
            let up = lab.sh_for(
                0,
                "ip addr replace 10.2.0.1/24 dev exn0; ip link set exn0 up; sleep 0.3",
                PATIENCE,
            )?;
            ensure!(up.status == 0, "round {round}: {}", up.stderr);
        }
        ensure!(load.is_running(), "the load from the peer has ended early");
        Ok(())
    };
    let result = run();
    load.stop();
    lab.sh_for(
        1,
        "ip neigh del 10.2.0.1 dev exn0; pkill ping; true",
        PATIENCE,
    )?;
    result?;
    back(lab, 0)?;
    back(lab, 1)?;
    lab.ok(0, "pkill iperf3; true")?;
    no_growth(&before, &usage(lab, 0)?)
}

fn unbind(lab: &Lab) -> Result<()> {
    let before = usage(lab, 0)?;
    for _ in 0..rounds(10) {
        let load = lab.spawn(1, "ping -q -f -s 8000 -w 5 node0")?;
        lab.ok(
            0,
            "dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}'); echo $dev >/sys/bus/pci/drivers/extoll/unbind && ! ip link show exn0 2>/dev/null && \
             echo $dev >/sys/bus/pci/drivers/extoll/bind",
        )?;
        back(lab, 0)?;
        load.stop();
    }
    back(lab, 1)?;
    no_growth(&before, &usage(lab, 0)?)
}

/// Files that stay open while the device and, as far as the kernel lets them, the modules go.
///
/// Descriptors 3 to 5 are extoll's files, 6 and 7 exn's.
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
dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}')
[ -n "$dev" ] || fail "no NIC"
base=/sys/kernel/debug/extoll-$dev eth=/sys/kernel/debug/exn-$dev
for f in $base/status $base/counters $base/ports $base/atu $eth/state $eth/reasons; do [ -f $f ] || fail "$f is missing"; done
b=$(count extoll) e=$(count exn)
exec 3<$base/status 4<$base/counters 5<$base/ports 6<$eth/state 7<$eth/reasons || fail "cannot open"
[ $(count extoll) = $((b + 3)) ] || fail "extoll is used $(count extoll) times, not $b + 3"
[ $(count exn) = $((e + 2)) ] || fail "exn is used $(count exn) times, not $e + 2"
in_use exn "with open files"
# Some are half read, some not at all when the device goes.
for fd in 4 6; do [ -n "$(dd bs=1 count=1 status=none <&$fd)" ] || fail "descriptor $fd is empty"; done
echo $dev >/sys/bus/pci/drivers/extoll/unbind || fail "unbind"
[ ! -e $base ] && [ ! -e $eth ] || fail "files are left"
gone "3 4 5 6 7" "after unbind"
in_use exn "with files of a device that is gone"
echo $dev >/sys/bus/pci/drivers/extoll/bind || fail "bind"
gone "3 4 5 6 7" "after bind"
# The interface is down, so there are no ports to show.
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
modprobe exn || fail "modprobe"
"#;

/// Readers run all the time while the device comes and goes `$rounds` times.
const READ_DURING_UNBIND: &str = r#"
dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}')
# They end by themselves: a killed shell would leave a cat with open files behind.
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
rmmod exn extoll && modprobe exn || rc=5
exit $rc
"#;

fn debugfs_open_files(lab: &Lab) -> Result<()> {
    let before = usage(lab, 0)?;
    lab.ok(0, OPEN_FILES)?;
    back(lab, 0)?;
    lab.ok(0, &format!("rounds={}\n{READ_DURING_UNBIND}", rounds(10)))?;
    back(lab, 0)?;
    back(lab, 1)?;
    no_growth(&before, &usage(lab, 0)?)
}

fn down_up(lab: &Lab) -> Result<()> {
    let before = usage(lab, 0)?;
    let load = lab.spawn(1, "ping -q -f -s 20000 -w 30 node0")?;
    for _ in 0..20 {
        lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    }
    load.stop();
    back(lab, 0)?;
    back(lab, 1)?;
    no_growth(&before, &usage(lab, 0)?)
}

fn power_off(lab: &Lab) -> Result<()> {
    lab.ok(1, "pkill iperf3; iperf3 -s -D")?;
    let load = lab.spawn(0, "iperf3 -c node1 -t 60")?;
    std::thread::sleep(Duration::from_secs(3));
    lab.fault(&["power-off", "1"])?;
    // The survivor stays usable: it answers, its counters show the drops, its log is clean.
    let gone = lab.sh_for(0, "ping -q -c 3 -W 1 node1", PATIENCE)?;
    ensure!(
        gone.status != 0,
        "a node without power answers: {}",
        gone.stdout
    );
    lab.sh_for(0, "ping -q -c 20 -i 0.2 -s 9000 -W 1 node1", PATIENCE)?;
    lab.until("ifconfig counts drops", Duration::from_secs(60), |l| {
        let text = l.ok(0, "ifconfig exn0")?;
        let counted = |key: &str| {
            text.lines()
                .filter(|l| l.trim_start().starts_with("TX errors"))
                .any(|l| {
                    l.split_whitespace()
                        .collect::<Vec<_>>()
                        .windows(2)
                        .any(|w| w[0] == key && w[1].parse::<u64>().unwrap_or(0) > 0)
                })
        };
        Ok(counted("dropped") || counted("errors"))
    })?;
    load.stop();
    lab.fault(&["power-on", "1"])?;
    lab.until("the node is back", Duration::from_secs(120), |l| {
        Ok(l.sh_for(0, "ping -q -c 1 -W 1 node1", PATIENCE)?.status == 0)
    })?;
    lab.ok(1, "pkill iperf3; iperf3 -s -D -p 5290; for i in $(seq 100); do ss -ltn | grep -q :5290 && exit 0; sleep 0.1; done; exit 1")?;
    lab.ok(0, "iperf3 -c node1 -p 5290 -t 2")?;
    Ok(())
}
