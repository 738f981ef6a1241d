//! Functional units of the base driver: remote registers, windows, register files, events.

use super::expected::{NOTHING_THERE, REFUSED};
use super::fabric::TORUS;
use super::node::{extoll, node};
use super::userland::{json, server};
use super::PAIR;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::{probe_order, Scenario};
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Two nodes with two NICs each. NIC k of node n has number 2n + k.
const TWO_NICS: Spec = Spec::new(2).topology("ring:4").nics(2);

/// Register map with which the names of the files are compared.
const MAP: &str = include_str!("../../../../wire/data/tourmalet-registers.csv");

/// Changes to the directory of the register files of the only NIC.
const RF: &str = "cd /sys/bus/pci/drivers/extoll/0000:*/extoll_rf";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = Scenario::new;
    vec![
        s("units::sysfs_names", PAIR, names),
        s("units::sysfs_read_write", PAIR, read_write).finds(REFUSED),
        s("units::sysfs_open_at_unbind", PAIR, open_at_unbind).finds(REFUSED),
        s("units::debugfs_dump", PAIR, dump).finds(REFUSED),
        s("units::rra_errors", PAIR, rra_errors).finds(REFUSED),
        s("units::smfu_memory", PAIR, smfu_memory).finds(REFUSED),
        s("units::smfu_order", PAIR, smfu_order).finds(REFUSED),
        s("units::smfu_timeout", PAIR, smfu_timeout).finds(REFUSED),
        s("units::smfu_no_export", PAIR, smfu_no_export).finds(NOTHING_THERE),
        s("units::link_events", PAIR, link_events).gate(),
        s("units::event_mask", PAIR, event_mask),
        s("units::two_nics", TWO_NICS, two_nics),
        s("units::two_nics_programs", TWO_NICS, two_nics_programs).finds(REFUSED),
        s("units::rra_everywhere", TORUS, rra_everywhere).seconds(900),
    ]
}

/// Returns the file names that follow from the map: two names for each register that software can
/// access. A register array has two names for each 128 elements.
fn expected() -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for line in MAP.lines().skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        if f[8] == "hw" {
            continue;
        }
        let entries: u32 = f[3].parse().unwrap_or(1);
        let parts: Vec<String> = match entries {
            0..=128 => vec![f[0].to_string()],
            n => (0..n.div_ceil(128))
                .map(|p| format!("{}_p{p}", f[0]))
                .collect(),
        };
        for part in parts {
            out.insert(format!("{part}_raw"));
            out.insert(part);
        }
    }
    out
}

/// sysfs has exactly the register files of the map, and only root may use them.
fn names(lab: &Lab) -> Result<()> {
    let found: BTreeSet<String> = lab
        .ok(0, &format!("{RF} && ls"))?
        .lines()
        .map(str::to_string)
        .collect();
    let want = expected();
    let missing: Vec<_> = want.difference(&found).take(5).collect();
    let extra: Vec<_> = found.difference(&want).take(5).collect();
    ensure!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, unexpected {extra:?}"
    );
    // Modes of a read-only, a readable and writable, and a write-only register file. Only root has
    // access.
    let modes = lab.ok(0, &format!("{RF} && stat -c '%a %n' extoll_rf_info_rf_driver extoll_rf_info_rf_node extoll_rf_atu_rf_cmd_interface"))?;
    let want = "400 extoll_rf_info_rf_driver\n600 extoll_rf_info_rf_node\n200 extoll_rf_atu_rf_cmd_interface";
    ensure!(modes.trim() == want, "{modes}");
    Ok(())
}

/// Register files read and write registers, and reject invalid input.
fn read_write(lab: &Lab) -> Result<()> {
    let id = lab.ok(1, &format!("{RF} && cat extoll_rf_info_rf_node"))?;
    ensure!(id.contains("id [39:24] : 1;"), "{id}");
    let raw = lab.ok(1, &format!("{RF} && cat extoll_rf_info_rf_node_raw"))?;
    let raw = u64::from_str_radix(raw.trim(), 16).with_context(|| raw.clone())?;
    ensure!((raw >> 24) & 0xFFFF == 1, "{raw:#x}");
    let scratch = "extoll_rf_info_rf_scratchpad_scratchpad";
    let text = lab.ok(
        0,
        &format!(
            "{RF} && echo '5 0xabc' > {scratch} && echo 6 1000 > {scratch}_raw && cat {scratch}"
        ),
    )?;
    ensure!(text.contains("Entry    5:              abc;"), "{text}");
    ensure!(text.contains("Entry    6:              3e8;"), "{text}");
    for bad in ["8 1", "5", "5 x", "5 1 1", ""] {
        let out = lab.sh_for(0, &format!("{RF} && echo '{bad}' > {scratch}"), PATIENCE)?;
        ensure!(out.status != 0, "'{bad}' was accepted");
    }
    // A register with a read side effect is read only after the command "read" was written to its
    // file.
    let fifo = "extoll_rf_pcie_rf_bridge_rf_pcie_to_htoc_backdoor_data";
    let out = lab.sh_for(0, &format!("{RF} && cat {fifo}"), PATIENCE)?;
    ensure!(out.status != 0, "{fifo} can be read: {}", out.stdout);
    lab.ok(
        0,
        &format!("{RF} && echo read > {fifo} && cat {fifo} {fifo}_raw"),
    )?;
    // A write takes effect: debugfs shows the network state that the write selects.
    let state = |text: &str| format!("{RF} && echo '3 {text}' > {scratch}");
    lab.ok(0, &state("2"))?;
    let is = |want: &'static str| {
        move |l: &Lab| {
            Ok(l.ok(0, "cat /sys/kernel/debug/extoll-*/status")?
                .contains(want))
        }
    };
    lab.until("the network is stopped", PATIENCE, is("network Stopped"))?;
    lab.ok(0, &state("1"))?;
    lab.until("the network runs", PATIENCE, is("network Running"))?;
    node(lab, 0).back()
}

/// Open register files return an error after the NIC is unbound.
fn open_at_unbind(lab: &Lab) -> Result<()> {
    let script = "cd /sys/bus/pci/drivers/extoll; d=$(basename $(echo 0000:*)); exec 5< $d/extoll_rf/extoll_rf_info_rf_node 6< /sys/kernel/debug/extoll-$d/events
        echo $d > unbind; cat <&5 && echo still; cat <&6 && echo still; exec 5<&- 6<&-; echo $d > bind; ls $d/extoll_rf | wc -l";
    let out = lab.sh_for(0, script, Duration::from_secs(120))?;
    ensure!(!out.stdout.contains("still"), "{}", out.stdout);
    let want = expected().len().to_string();
    ensure!(
        out.stdout.trim() == want,
        "{} instead of {want} files",
        out.stdout
    );
    node(lab, 0).back()
}

/// The debugfs dump shows registers. It reads no register that has side effects.
fn dump(lab: &Lab) -> Result<()> {
    lab.run("trace", &["on"], PATIENCE)?;
    let text = lab.ok_for(
        0,
        "cat /sys/kernel/debug/extoll-*/registers/*",
        Duration::from_secs(240),
    );
    lab.run("trace", &["off"], PATIENCE)?;
    let text = text?;
    ensure!(
        text.contains(" info_rf_node ") && text.contains(" id=0x0 "),
        "no node register"
    );
    ensure!(
        text.lines().count() > 2000,
        "{} lines only",
        text.lines().count()
    );
    let options = ["print", "--host-only", "--nic", "0", "--kind", "reg-read"];
    let trace = lab.run("trace", &options, PATIENCE)?;
    let read: BTreeSet<u32> = probe_order::parse(&trace)
        .iter()
        .map(|a| a.offset)
        .collect();
    for forbidden in [0x5600, 0x5608, 0x0120_0020, 0x0160_0020, 0xC008] {
        ensure!(!read.contains(&forbidden), "the dump read {forbidden:#x}");
    }
    ensure!(read.contains(&0x8008), "the trace does not show the dump");
    Ok(())
}

/// Runs a command of extoll_bench, which must fail. Returns its error line.
pub(super) fn refused(lab: &Lab, node: usize, command: &str) -> Result<String> {
    let script =
        format!("exec 3<>/dev/extoll_bench || exit; printf %s '{command}' >&3 && exit 9; cat <&3");
    let text = lab.ok_for(node, &script, Duration::from_secs(60))?;
    text.lines()
        .find_map(|l| l.strip_prefix("error "))
        .map(str::to_string)
        .with_context(|| format!("no error in {text}"))
}

fn value(lab: &Lab, node: usize, command: &str) -> Result<u64> {
    let result = lab.raw(node, command)?;
    let text = result.get("value").with_context(|| format!("{result:?}"))?;
    Ok(text.parse()?)
}

/// Numbers of reasons of the base driver, and the VPID of its port for remote registers
/// (docs/driver.md).
const RRA_VPID: u8 = 252;
const RRA_TIMEOUT: u32 = 23;
const LATE_ANSWER: u32 = 26;
const SMFU_TIMEOUT: u32 = 28;
const LINK_UP: u32 = 29;
const LINK_DOWN: u32 = 30;

pub(super) fn bench(lab: &Lab) -> Result<()> {
    for node in 0..lab.spec().nodes {
        lab.ok(node, "modprobe extoll_bench")?;
        rra_ready(lab, node)?;
    }
    Ok(())
}

/// Waits until a node's port for remote registers works. The port stays disabled for a while if
/// reads were unanswered when the NIC was unbound.
fn rra_ready(lab: &Lab, node: usize) -> Result<()> {
    let other = (node + 1) % lab.spec().nodes;
    let command = format!("rra node={other} offset=0x8008 timeout_us=5000000");
    let script = format!(
        "exec 3<>/dev/extoll_bench || exit; printf %s '{command}' >&3 2>/dev/null; cat <&3"
    );
    // The first read opens the port and returns `Busy` while the VPID is disabled. A read that
    // waits for the port may have no time left for its answer, so only the second read must be
    // answered.
    let read = || lab.ok_for(node, &script, Duration::from_secs(60));
    let mut text = read()?;
    if text.contains("Busy") || text.contains("TimedOut") {
        lab.until("the port works again", Duration::from_secs(90), |lab| {
            Ok(self::node(lab, node).disabled_ms(RRA_VPID)? == 0)
        })?;
        text = read()?;
    }
    ensure!(!text.contains("error"), "{text}");
    Ok(())
}

/// Errors of remote register access are reported in time, and late answers are not mistaken for
/// later ones.
fn rra_errors(lab: &Lab) -> Result<()> {
    bench(lab)?;
    const PATIENT: &str = "timeout_us=5000000";
    let before = (
        node(lab, 0).reason(RRA_TIMEOUT)?,
        node(lab, 0).reason(LATE_ANSWER)?,
    );
    for (command, want) in [
        ("rra node=65535 offset=0x8008", "BadNode"),
        ("rra node=1 method=local offset=0x8008", "BadNode"),
        ("rra node=1 offset=0x8004", "BadOffset"),
        ("rra node=1 offset=0x2000000", "BadOffset"),
        ("rra node=77 offset=0x8008 timeout_us=20000", "TimedOut"),
    ] {
        let error = refused(lab, 0, command)?;
        ensure!(error.contains(want), "{command}: {error} instead of {want}");
    }
    ensure!(
        node(lab, 0).reason(RRA_TIMEOUT)? == before.0 + 1,
        "not counted"
    );
    // Late answers must not complete later requests.
    lab.fault(&["freeze", "1"])?;
    for _ in 0..3 {
        let error = refused(lab, 0, "rra node=1 offset=0x8008 timeout_us=5000")?;
        ensure!(error.contains("TimedOut"), "{error}");
    }
    lab.fault(&["thaw", "1"])?;
    for i in 0..20 {
        lab.raw(
            0,
            &format!("rra op=write node=1 offset=0x8058 value={i} {PATIENT}"),
        )?;
        let got = value(lab, 0, &format!("rra node=1 offset=0x8058 {PATIENT}"))?;
        ensure!(got == i, "{got} instead of {i}");
    }
    ensure!(
        node(lab, 0).reason(LATE_ANSWER)? == before.1 + 3,
        "late answers not recognised"
    );
    Ok(())
}

/// Registers of each node can be read from each node by each method.
fn rra_everywhere(lab: &Lab) -> Result<()> {
    bench(lab)?;
    for method in ["rma", "smfu"] {
        for from in [0, 5] {
            for to in 0..lab.spec().nodes {
                let tag = format!("{}", 1000 + 100 * from + to);
                let way = format!("node={to} method={method} timeout_us=5000000");
                let node = value(lab, from, &format!("rra offset=0x8008 {way}"))?;
                ensure!(
                    (node >> 24) & 0xFFFF == to as u64,
                    "{method} {from} to {to}: {node:#x}"
                );
                lab.raw(
                    from,
                    &format!("rra op=write offset=0x8060 value={tag} {way}"),
                )?;
                let got = value(
                    lab,
                    to,
                    &format!("rra offset=0x8060 node={to} method=local"),
                )?;
                ensure!(
                    got.to_string() == tag,
                    "{method} {from} to {to}: {got} instead of {tag}"
                );
                let got = value(lab, from, &format!("rra offset=0x8060 {way}"))?;
                ensure!(
                    got.to_string() == tag,
                    "{method} {from} to {to}: read {got}"
                );
            }
        }
    }
    Ok(())
}

/// Stores to a window arrive in the exported memory of the target node, and loads return them.
fn smfu_memory(lab: &Lab) -> Result<()> {
    bench(lab)?;
    for (n, place) in ["interval=1", "interval=62", "bytes=65536", "map=wc"]
        .iter()
        .enumerate()
    {
        let (from, to) = (n % 2, 1 - n % 2);
        let number = 0x1122_3344_5566_0000 + n as u64;
        lab.raw(
            from,
            &format!("smfu op=write node={to} offset=256 value={number} {place}"),
        )?;
        let got = value(
            lab,
            from,
            &format!("smfu op=read node={to} offset=256 {place}"),
        )?;
        ensure!(got == number, "{place}: loaded {got:#x}");
        let got = value(lab, to, "smfu op=local offset=256")?;
        ensure!(got == number, "{place}: node {to} has {got:#x}");
    }
    for (command, want) in [
        ("smfu node=65534", "EINVAL"),
        ("smfu node=1 bytes=100", "EINVAL"),
        ("smfu node=1 interval=63", "EINVAL"),
        ("smfu node=1 bytes=0x20000000", "ENOSPC"),
        ("smfu node=1 offset=4096", "Outside"),
        ("smfu node=1 offset=4", "Outside"),
    ] {
        let error = refused(lab, 0, command)?;
        ensure!(error.contains(want), "{command}: {error} instead of {want}");
    }
    Ok(())
}

/// Stores to a window arrive in order.
fn smfu_order(lab: &Lab) -> Result<()> {
    bench(lab)?;
    for map in ["uc", "wc"] {
        let options = format!("count=120 rounds=40 map={map}");
        std::thread::scope(|scope| -> Result<()> {
            let follower = scope.spawn(|| lab.raw(1, &format!("smfu op=follow {options}")));
            lab.raw(0, &format!("smfu op=lead node=1 {options}"))?;
            let result = follower
                .join()
                .map_err(|_| anyhow::anyhow!("the follower panicked"))??;
            ensure!(
                result.get("rounds").is_some_and(|n| n == "40"),
                "{result:?}"
            );
            ensure!(
                result.get("bad").is_some_and(|n| n == "0"),
                "stores overtook each other: {result:?}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// A load from a node that does not answer returns an error in time, and the window works
/// afterwards.
fn smfu_timeout(lab: &Lab) -> Result<()> {
    bench(lab)?;
    let before = node(lab, 0).reason(SMFU_TIMEOUT)?;
    // All ones are a valid value of memory.
    lab.raw(
        0,
        &format!("smfu op=write node=1 offset=512 value={}", u64::MAX),
    )?;
    let got = value(lab, 0, "smfu op=read node=1 offset=512")?;
    ensure!(got == u64::MAX, "{got:#x}");
    ensure!(
        node(lab, 0).reason(SMFU_TIMEOUT)? == before,
        "data were taken for a time-out"
    );
    lab.fault(&["link-down", "0", "0"])?;
    for command in [
        "smfu op=read node=1 offset=512",
        "rra node=1 method=smfu offset=0x8008",
    ] {
        let error = refused(lab, 0, command)?;
        ensure!(error.contains("TimedOut"), "{command}: {error}");
    }
    lab.fault(&["link-up", "0", "0"])?;
    ensure!(node(lab, 0).reason(SMFU_TIMEOUT)? > before, "not counted");
    lab.until("node 1 answers again", PATIENCE, |l| {
        Ok(value(l, 0, "smfu op=read node=1 offset=512")? == u64::MAX)
    })?;
    // The driver has cleared the time-out flag.
    let control = lab.ok(0, &format!("{RF} && cat extoll_rf_smfu_rf_timeout_control"))?;
    ensure!(control.contains("timeout_ERR [32:32] : 0;"), "{control}");
    Ok(())
}

/// A node that exports no memory is unreadable, including its physical memory from address 0 on.
fn smfu_no_export(lab: &Lab) -> Result<()> {
    node(lab, 1).reload(extoll("extoll.smfu_target_kib=0"))?;
    bench(lab)?;
    // The kernel's code is at these addresses.
    for offset in [0, 0x100_0000, 0x100_1000] {
        let command = format!("smfu op=read node=1 bytes=0x2000000 offset={offset}");
        match value(lab, 0, &command) {
            Ok(got) => ensure!(got == u64::MAX, "{offset:#x} of node 1: {got:#x}"),
            Err(e) => ensure!(format!("{e:#}").contains("TimedOut"), "{command}: {e:#}"),
        }
    }
    node(lab, 1).reload(extoll(""))?;
    bench(lab)?;
    lab.until("node 1 exports memory again", PATIENCE, |l| {
        l.raw(0, "smfu op=write node=1 offset=512 value=5")?;
        Ok(value(l, 0, "smfu op=read node=1 offset=512")? == 5)
    })
}

/// Returns the uevents sent while `act` runs, with one variable per line.
fn uevents(lab: &Lab, number: usize, act: impl FnOnce() -> Result<()>) -> Result<String> {
    lab.ok(number, "rm -f /tmp/uevents; socat -u SOCKET-RECV:16:3:15:x00000000000001000000 CREATE:/tmp/uevents >/dev/null 2>&1 & echo $! > /tmp/socat.pid")?;
    // The list shows netlink protocol 15 (uevents), the process of socat, and group 1.
    let bound = "awk -v pid=$(cat /tmp/socat.pid) '$2 == 15 && $3 == pid && $4 ~ /1$/ { n++ } END { exit !n }' /proc/net/netlink";
    node(lab, number).until("socat listens to uevents", bound)?;
    let done = act();
    let text = lab.ok(
        number,
        "kill $(cat /tmp/socat.pid); tr '\\0' '\\n' < /tmp/uevents",
    );
    done?;
    text
}

/// Changes of links and of the network state are counted and reported by uevents.
fn link_events(lab: &Lab) -> Result<()> {
    let links = |l: &Lab| node(l, 0).debugfs("links");
    let reasons = || -> Result<(u64, u64)> {
        Ok((
            node(lab, 0).reason(LINK_DOWN)?,
            node(lab, 0).reason(LINK_UP)?,
        ))
    };
    let before = reasons()?;
    let first = links(lab)?;
    ensure!(first.contains("link 0 up "), "{first}");
    ensure!(first.contains("neighbour 1 port 0 "), "{first}");
    // The driver sends the uevent after it has changed all other state.
    let told = |state: &str| {
        let text = format!("EXTOLL_LINK=0 STATE={state}");
        let script = format!("tr '\\0' ' ' </tmp/uevents | grep -qa '{text}'");
        node(lab, 0).until(&text, &script)
    };
    let heard = uevents(lab, 0, || {
        for state in ["down", "up"] {
            lab.fault(&[&format!("link-{state}"), "0", "0"])?;
            lab.until(&format!("link 0 is {state}"), PATIENCE, |l| {
                Ok(links(l)?.contains(&format!("link 0 {state} ")))
            })?;
            told(state)?;
        }
        Ok(())
    })?;
    for want in ["EXTOLL_LINK=0\nSTATE=down", "EXTOLL_LINK=0\nSTATE=up"] {
        ensure!(heard.contains(want), "no uevent {want:?} in\n{heard}");
    }
    let events = lab.ok(0, "cat /sys/kernel/debug/extoll-*/events")?;
    ensure!(events.contains("(LINK_PORT)"), "{events}");
    ensure!(
        events.contains("  nw_lp_top_rf_lp0_status.ready "),
        "no sub-cause in\n{events}"
    );
    let after = reasons()?;
    ensure!(
        after == (before.0 + 1, before.1 + 1),
        "counted {before:?} -> {after:?}"
    );
    // Tests uevents of the network state and of the node ID.
    let scratch = "extoll_rf_info_rf_scratchpad_scratchpad";
    let told = "for i in $(seq 300); do grep -qa $1 /tmp/uevents && exit; sleep 0.1; done; exit 1";
    let heard = uevents(lab, 0, || {
        for (state, name) in [(2, "Stopped"), (1, "Running")] {
            lab.ok(0, &format!("{RF} && echo '3 {state}' > {scratch}"))?;
            let script = told.replace("$1", &format!("EXTOLL_NETWORK={name}"));
            lab.ok(0, &script).with_context(|| name)?;
        }
        Ok(())
    })?;
    ensure!(
        heard.contains("EXTOLL_NODE=0"),
        "no EXTOLL_NODE in\n{heard}"
    );
    node(lab, 0).back()
}

/// The event mask can be changed. Masked events are not reported.
fn event_mask(lab: &Lab) -> Result<()> {
    let mask = "cd /sys/kernel/debug/extoll-*; cat event_mask";
    let default = lab.ok(0, mask)?;
    for bad in ["0", "x", "0x12345678901"] {
        let out = lab.sh_for(
            0,
            &format!("cd /sys/kernel/debug/extoll-*; echo {bad} > event_mask"),
            PATIENCE,
        )?;
        ensure!(out.status != 0, "{bad} was accepted");
    }
    // With the link events masked, a cut cable is not reported.
    lab.ok(
        0,
        "cd /sys/kernel/debug/extoll-*; echo 0x1feddffd > event_mask",
    )?;
    ensure!(
        lab.ok(0, mask)?.trim() == "0x1feddffd",
        "the mask is not what was written"
    );
    let register = lab.ok(
        0,
        &format!("{RF} && cat extoll_rf_snq_rf_trigger_enable_raw"),
    )?;
    ensure!(register.trim() == "1feddffd", "{register}");
    let set = |mask: &str| {
        let script = format!("cd /sys/kernel/debug/extoll-*; echo {mask} > event_mask");
        lab.ok(0, &script).map(drop)
    };
    let masked = flap_reports(lab)?;
    set(default.trim())?;
    ensure!(masked == 0, "a masked event was reported {masked} times");
    let reported = flap_reports(lab)?;
    ensure!(reported > 0, "an event that is not masked was not reported");
    node(lab, 0).back()
}

/// Returns the number of link events that were reported while the cable was pulled and plugged in.
/// A later timer event shows that the driver has handled them.
fn flap_reports(lab: &Lab) -> Result<u64> {
    const LINK_PORT: u8 = 17;
    const TIMER: u8 = 7;
    let node = node(lab, 0);
    let before = (node.event(LINK_PORT)?, node.event(TIMER)?);
    for fault in ["link-down", "link-up"] {
        lab.fault(&[fault, "0", "0"])?;
    }
    lab.fault(&["event", "0", &TIMER.to_string()])?;
    lab.until("the event behind it is handled", PATIENCE, |_| {
        Ok(node.event(TIMER)? > before.1)
    })?;
    Ok(node.event(LINK_PORT)? - before.0)
}

/// Two NICs in a node are independent: files, registers, removal.
fn two_nics(lab: &Lab) -> Result<()> {
    bench(lab)?;
    let dirs = lab.ok(0, "ls -d /sys/kernel/debug/extoll-0000:* | wc -l; ls -d /sys/bus/pci/drivers/extoll/0000:*/extoll_rf | wc -l")?;
    ensure!(dirs.split_whitespace().eq(["2", "2"]), "{dirs}");
    // The NICs have separate registers, and each NIC reaches all nodes.
    for nic in 0..2 {
        for to in 0..4 {
            let command = format!("rra nic={nic} node={to} offset=0x8008 timeout_us=5000000");
            let node = value(lab, 0, &command)?;
            ensure!((node >> 24) & 0xFFFF == to, "NIC {nic} to {to}: {node:#x}");
        }
        lab.raw(
            0,
            &format!(
                "rra nic={nic} node={nic} op=write offset=0x8060 value={} method=local",
                70 + nic
            ),
        )?;
    }
    let text = lab.ok(0, "cat /sys/bus/pci/drivers/extoll/0000:*/extoll_rf/extoll_rf_info_rf_scratchpad_scratchpad_raw")?;
    let values: BTreeSet<&str> = text.split_whitespace().collect();
    ensure!(values.contains("46") && values.contains("47"), "{text}");
    // The first NIC stays bound when the second NIC is unbound.
    let script = "cd /sys/bus/pci/drivers/extoll; set -- 0000:*; echo $2 > unbind; ls -d 0000:*/extoll_rf | wc -l; cat $1/extoll_rf/extoll_rf_info_rf_node_raw; echo $2 > bind; ls -d 0000:*/extoll_rf | wc -l";
    let text = lab.ok(0, script)?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(
        lines.len() == 3 && lines[0] == "1" && lines[2] == "2",
        "{text}"
    );
    Ok(())
}

/// Returns the PCI addresses of a node's NICs. Their device files are in /dev/extoll and
/// /dev/extoll1. Their node IDs are 2n and 2n + 1.
fn addresses(lab: &Lab, node: usize) -> Result<Vec<String>> {
    let list = json(&lab.ok(node, "extollctl --json list")?)?;
    let mut out = Vec::new();
    for (k, dir) in ["/dev/extoll", "/dev/extoll1"].into_iter().enumerate() {
        let nic = &list["nics"][k];
        ensure!(nic["device"] == dir, "{list}");
        let id = (2 * node + k).to_string();
        ensure!(nic["status"]["node"] == id.as_str(), "{list}");
        out.push(nic["pci"].as_str().context("address")?.to_string());
    }
    Ok(out)
}

/// Returns command lines for root and for ordinary users, each with another option that selects the
/// second NIC.
fn second_nic(pci: &str, program: &str) -> [String; 3] {
    [
        format!("{program} -N {pci}"),
        format!("setpriv --reuid=1000 --regid=1000 --clear-groups -- {program} -d /dev/extoll1"),
        format!("env EXTOLL_DEV=/dev/extoll1 {program}"),
    ]
}

/// Programs can select the NIC to use.
fn two_nics_programs(lab: &Lab) -> Result<()> {
    let here = addresses(lab, 0)?;
    let there = addresses(lab, 1)?;
    two_nics_extollctl(lab, &here)?;
    for (serve, ask) in second_nic(&there[1], "extoll-ping")
        .iter()
        .zip(second_nic(&here[1], "extoll-ping"))
    {
        let (running, words) = server(lab, 1, &format!("{serve} --listen"), "listening")?;
        let id = words.last().context("no address")?;
        ensure!(id.starts_with("3/"), "{serve}: listening on {id}");
        let out = lab.ok(0, &format!("{ask} -c 5 -i 0.05 -W 10 {id}"))?;
        ensure!(out.contains(&format!("extoll-ping {id} from 1/")), "{out}");
        ensure!(out.contains("5 sent, 5 received, 0% lost"), "{out}");
        // The port belongs to the second NIC only.
        for (pci, want) in [(&there[0], false), (&there[1], true)] {
            let ports = json(&lab.ok(1, &format!("extollctl --json -N {pci} ports"))?)?;
            let ports = ports.as_array().context("ports")?;
            ensure!(ports.iter().all(|p| p["nic"] == pci.as_str()), "{ports:?}");
            let is_user = |p: &Value| p["vpid"].as_u64() < Some(251);
            ensure!(
                ports.iter().any(is_user) == want,
                "{pci} of node 1: {ports:?}"
            );
        }
        lab.ok(1, "pkill -x extoll-ping")?;
        running.wait(PATIENCE)?;
    }
    for (serve, ask) in second_nic(&there[1], "extoll-perf")
        .iter()
        .zip(second_nic(&here[1], "extoll-perf"))
    {
        let (running, words) = server(lab, 1, &format!("{serve} serve"), "serving")?;
        ensure!(words[..4] == ["serving", "on", "node", "3"], "{words:?}");
        for test in [
            "velo-lat node1 -n 20 -w 2",
            "put-bw node1 -n 40 -s 64k -t 8",
            "get-lat node1 -n 10 -w 2 -e",
        ] {
            let command = format!("{ask} run {test} --timeout 30 --json");
            let result = json(&lab.ok_for(0, &command, Duration::from_secs(120))?)?;
            ensure!(result["client"] == 1 && result["server"] == 3, "{result}");
            ensure!(
                result["results"][0]["iterations"].as_u64() > Some(0),
                "{result}"
            );
        }
        lab.ok(0, &format!("{ask} reg -s 64k -n 5"))?;
        lab.ok(1, "pkill -x extoll-perf")?;
        running.wait(PATIENCE)?;
    }
    Ok(())
}

fn two_nics_extollctl(lab: &Lab, pci: &[String]) -> Result<()> {
    const PAD: &str = "info_rf_scratchpad_scratchpad";
    let ctl = |nic: usize, what: &str| -> Result<Value> {
        let text = lab.ok(0, &format!("extollctl --json -N {} {what}", pci[nic]))?;
        json(&text)
    };
    let offset = ctl(1, &format!("reg read {PAD}"))?["offset"]
        .as_u64()
        .context("offset")?;
    for (nic, address) in pci.iter().enumerate() {
        let list = ctl(nic, "list")?;
        ensure!(
            list["nics"].as_array().map(Vec::len) == Some(1),
            "-N {address}: {list}"
        );
        ensure!(list["nics"][0]["pci"] == address.as_str(), "{list}");
        let dir = ["/dev/extoll/", "/dev/extoll1/"][nic];
        let files = list["device_files"].as_array().context("files")?;
        ensure!(
            files.len() == 5
                && files
                    .iter()
                    .all(|f| f.as_str().is_some_and(|f| f.starts_with(dir))),
            "{list}"
        );
        let id = ctl(nic, "reg read 0x8008")?["value"].as_u64();
        ensure!(
            id.map(|v| (v >> 24) & 0xFFFF) == Some(nic as u64),
            "NIC {nic}: {id:x?}"
        );
        // Checks the neighbours in the ring of four NICs.
        let links = ctl(nic, "links")?;
        let mut neighbours: Vec<Option<u64>> = links
            .as_array()
            .context("links")?
            .iter()
            .filter(|l| l["state"] == "up")
            .map(|l| l["remote_node"].as_u64())
            .collect();
        neighbours.sort_unstable();
        let want = [[Some(1), Some(3)], [Some(0), Some(2)]][nic];
        ensure!(neighbours == want, "NIC {nic}: {links}");
        for counter in ctl(nic, "counters -a")?.as_array().context("counters")? {
            ensure!(counter["nic"] == address.as_str(), "{counter}");
        }
        // Writes element 6 by the array's name and element 7 by its offset.
        ctl(nic, &format!("reg write {PAD} --index 6 {}", 0x600 + nic))?;
        ctl(
            nic,
            &format!("reg write {offset:#x} --index 7 {}", 0x700 + nic),
        )?;
    }
    for (nic, address) in pci.iter().enumerate() {
        let rf = format!("/sys/bus/pci/devices/{address}/extoll_rf");
        let text = lab.ok(0, &format!("cat {rf}/extoll_rf_{PAD}"))?;
        for index in [6, 7] {
            let value = 0x100 * index + nic as u64;
            let read = ctl(nic, &format!("reg read {PAD} --index {index}"))?;
            ensure!(read["value"] == value, "NIC {nic}: {read}");
            let line = text
                .lines()
                .find(|l| l.contains(&format!("Entry    {index}:")));
            ensure!(
                line.is_some_and(|l| l.contains(&format!(" {value:x};"))),
                "NIC {nic}: {text}"
            );
        }
        // Reads a register of another node through each of the two NICs.
        let read = ctl(nic, "reg read 0x8008 --node 3")?["value"].as_u64();
        ensure!(
            read.map(|v| (v >> 24) & 0xFFFF) == Some(3),
            "NIC {nic}: {read:x?}"
        );
    }
    // With several NICs, the NIC must be named.
    for what in ["links", "reg read 0x8008", "reg write 0x8058 1"] {
        let out = lab.sh_for(0, &format!("extollctl {what}"), PATIENCE)?;
        ensure!(
            out.status == 2 && out.stderr.contains("several NICs"),
            "{what}: {out:?}"
        );
    }
    Ok(())
}
