//! Tools for unmodified programs and for administrators of AF_EXTL: extlctl, extlss, sysctls,
//! tracepoints. The programs inside the nodes are `guest/extl_plain.py` and a statically linked
//! one.

use crate::cluster::{Lab, Running, PATIENCE};
use crate::scenarios::ds::sockets::{bypass, configured, known, PATIENT, REMOVED};
use crate::scenarios::{
    guest,
    node::{node, same, value, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::time::Duration;

/// Maximum duration of one exchange.
const LONG: Duration = Duration::from_secs(200);
/// A statically linked program: its path in the build root and in a node. Its name selects the
/// applet.
const STATIC: [&str; 2] = ["/bin/busybox", "/tmp/busybox"];

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::switch_static", |lab| clean(lab, switch_static))
            .gate()
            .stock_only(),
        on_pair("af_extl::switch_names", |lab| clean(lab, switch_names)).stock_only(),
        on_pair("af_extl::switch_cgroup", |lab| clean(lab, switch_cgroup)).stock_only(),
        on_pair("af_extl::switch_without_module", |lab| {
            clean(lab, switch_without_module)
        })
        .stock_only(),
        on_pair("af_extl::extlss", |lab| clean(lab, extlss)).gate(),
        on_pair("af_extl::data_path", |lab| clean(lab, data_path)),
        on_pair("af_extl::tracepoints", |lab| clean(lab, tracepoints)),
    ]
}

/// Runs `f` and restores the nodes.
fn clean(lab: &Lab, f: fn(&Lab) -> Result<()>) -> Result<()> {
    for n in 0..2 {
        guest::install(lab, n)?;
    }
    let done = (0..2)
        .try_for_each(|n| bypass(lab, n))
        .and_then(|()| known(lab))
        .and_then(|()| f(lab));
    for n in 0..2 {
        let line = format!(
            "extlctl disable --all; rm -f /etc/modprobe.d/extl.conf /etc/modprobe.d/tuned.conf; {REMOVED} && modprobe af_extl"
        );
        lab.ok(n, &line)?;
    }
    done
}

fn set_data_path(lab: &Lab, number: usize, on: bool) -> Result<()> {
    let line = format!("sysctl -qw net.extl.data_path={}", u32::from(on));
    lab.ok(number, &line).map(drop)
}

/// Returns a counter of `/proc/net/extl_stat`.
fn counter(lab: &Lab, number: usize, name: &str) -> Result<u64> {
    let text = lab.ok(number, "cat /proc/net/extl_stat")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Returns the command line of `guest/extl_plain.py`.
fn plain(words: &str) -> String {
    format!("{} {words}", guest::program("extl_plain"))
}

/// Starts a program that listens and returns the lists (`extl`, `tcp`) that show its socket.
fn listed(lab: &Lab, before: &str, port: u32) -> Result<String> {
    let said = lab.ok(0, &format!("{before}{}", plain(&format!("list {port}"))))?;
    Ok(said.trim().to_owned())
}

/// Starts a program and waits until it reports that it is ready.
fn ready(lab: &Lab, number: usize, line: &str) -> Result<Running> {
    lab.ok(number, "rm -f /tmp/ready")?;
    let running = lab.spawn(number, &format!("exec {line} >/tmp/ready"))?;
    node(lab, number).until("the program is ready", "grep -q ready /tmp/ready")?;
    Ok(running)
}

/// Returns the output of `extlctl status`.
fn status(lab: &Lab, number: usize) -> Result<Value> {
    Ok(serde_json::from_str(
        &lab.ok(number, "extlctl --json status")?,
    )?)
}

/// Returns the entry of the only socket that `extlss` shows with these options.
fn shown(lab: &Lab, number: usize, options: &str) -> Result<Value> {
    let said = lab.ok(number, &format!("extlss -j {options}"))?;
    let all: Vec<Value> = serde_json::from_str(&said).with_context(|| said.clone())?;
    ensure!(all.len() == 1, "{options}: {said}");
    Ok(all[0].clone())
}

/// A statically linked web server and its client bypass TCP while the switch is enabled, and use
/// TCP before and after.
fn switch_static(lab: &Lab) -> Result<()> {
    let [from, to] = STATIC;
    for n in 0..2 {
        lab.run("cp", &[from, &format!("node{n}:{to}")], PATIENCE)?;
    }
    lab.ok(
        1,
        "mkdir -p /tmp/www && head -c 300000 /dev/urandom >/tmp/www/blob",
    )?;
    let sum = lab.ok(1, "sha256sum </tmp/www/blob")?;
    let exchange = |port: u32| -> Result<[u64; 2]> {
        let before = [0, 1].map(|n| counter(lab, n, "Waiting+UseStreams"));
        let server = lab.spawn(1, &format!("exec {to} httpd -f -p {port} -h /tmp/www"))?;
        node(lab, 1).until("it listens", &format!("ss -ltn | grep -q :{port}"))?;
        let line =
            format!("{to} wget -q -O /tmp/got http://10.2.0.2:{port}/blob && sha256sum </tmp/got");
        let got = lab.ok_for(0, &line, LONG)?;
        same(&sum, &got)?;
        server.stop();
        let mut new = [0; 2];
        for (n, before) in before.into_iter().enumerate() {
            new[n] = counter(lab, n, "Waiting+UseStreams")? - before?;
        }
        Ok(new)
    };
    ensure!(
        exchange(7650)? == [0, 0],
        "bypassed TCP before it was enabled"
    );
    for n in 0..2 {
        lab.ok(n, "extlctl enable")?;
    }
    let new = exchange(7651)?;
    ensure!(new == [1, 1], "{new:?} connections bypassed TCP");
    for n in 0..2 {
        let said = lab.ok(n, "extlctl status")?;
        ensure!(
            said.starts_with("af_extl: loaded, data may bypass TCP\nthe system: "),
            "{said}"
        );
        ensure!(status(lab, n)?["switches"][0]["switched"] != 0, "{said}");
    }
    // Enabling twice leaves one switch.
    lab.ok(0, "extlctl enable")?;
    let now = status(lab, 0)?;
    ensure!(now["switches"].as_array().map(Vec::len) == Some(1), "{now}");
    for n in 0..2 {
        lab.ok(n, "extlctl disable")?;
    }
    ensure!(
        exchange(7652)? == [0, 0],
        "bypassed TCP after it was disabled"
    );
    let again = lab.sh_for(0, "extlctl disable", PATIENCE)?;
    ensure!(
        again.status == 2 && again.stderr.contains("nothing is enabled"),
        "{again:?}"
    );
    // Unprivileged users can't enable the switch.
    let line = "setpriv --reuid 1000 --clear-groups --inh-caps=-all extlctl enable";
    let other = lab.sh_for(0, line, PATIENCE)?;
    ensure!(other.status == 2, "{other:?}");
    ensure!(listed(lab, "", 7653)? == "tcp", "a user has enabled it");
    Ok(())
}

/// The switch can select and exclude programs by name.
fn switch_names(lab: &Lab) -> Result<()> {
    for (options, expected) in [
        ("", "extl tcp"),
        ("--only python3", "extl tcp"),
        ("--only redis-server,python", "tcp"),
        ("--not python3", "tcp"),
        ("--not python", "extl tcp"),
        ("--only python3 --not python3", "tcp"),
    ] {
        lab.ok(0, &format!("extlctl enable {options}"))?;
        let found = listed(lab, "", 7660)?;
        ensure!(found == expected, "{options}: {found}");
    }
    // A switched program exchanges data with itself, which uses TCP.
    lab.ok(0, "extlctl enable")?;
    let said = lab.ok(0, &plain("echo 7661 100000"))?;
    ensure!(said == "100000\n", "{said}");
    ensure!(
        counter(lab, 0, "fallback-no-route")? >= 2,
        "no socket of it"
    );
    Ok(())
}

/// A switch of a control group applies to programs in it and below it, whatever their namespaces,
/// and to no others.
fn switch_cgroup(lab: &Lab) -> Result<()> {
    const GROUP: &str = "/sys/fs/cgroup/extl-test";
    lab.ok(0, &format!("mkdir -p {GROUP}/below {GROUP}-other"))?;
    let inside = |group: &str| format!("echo $$ >{group}/cgroup.procs; ");
    lab.ok(0, &format!("extlctl enable --cgroup {GROUP}"))?;
    let checked = (|| {
        for (before, expected) in [
            (String::new(), "tcp"),
            (inside(&format!("{GROUP}-other")), "tcp"),
            (inside(GROUP), "extl tcp"),
            (inside(&format!("{GROUP}/below")), "extl tcp"),
            // The program runs in namespaces of its own, as in a container.
            (
                inside(&format!("{GROUP}/below")) + "unshare --net --mount --uts --ipc --cgroup ",
                "extl tcp",
            ),
        ] {
            let found = listed(lab, &before, 7670)?;
            ensure!(found == expected, "{before}: {found}");
        }
        // Another group can select other programs.
        let line = format!("extlctl enable --cgroup {GROUP}-other --not python3");
        lab.ok(0, &line)?;
        let found = listed(lab, &inside(&format!("{GROUP}-other")), 7671)?;
        ensure!(found == "tcp", "{found}");
        let said = lab.ok(0, "extlctl status")?;
        for part in [
            format!("cgroup {GROUP}: "),
            format!("cgroup {GROUP}-other: 0 sockets switched; not python3\n"),
        ] {
            ensure!(said.contains(&part), "{said}");
        }
        // The status shows a removed group as removed. Its switch can be disabled with all others.
        lab.ok(0, &format!("rmdir {GROUP}-other"))?;
        let said = lab.ok(0, "extlctl status")?;
        ensure!(said.contains("-other (removed): "), "{said}");
        lab.ok(0, &format!("extlctl disable --cgroup {GROUP}"))?;
        let found = listed(lab, &inside(GROUP), 7672)?;
        ensure!(found == "tcp", "{found}");
        let bad = lab.sh_for(0, "extlctl enable --cgroup /tmp", PATIENCE)?;
        ensure!(
            bad.status == 2 && bad.stderr.contains("no directory of cgroup2"),
            "{bad:?}"
        );
        Ok(())
    })();
    lab.ok(
        0,
        &format!("extlctl disable --all && rmdir {GROUP}/below {GROUP}"),
    )?;
    checked
}

/// Programs keep working when the module is missing, removed or loaded again.
fn switch_without_module(lab: &Lab) -> Result<()> {
    lab.ok(0, "extlctl enable && modprobe af_extl")?;
    ensure!(listed(lab, "", 7680)? == "extl tcp", "not switched");
    lab.ok(
        0,
        &format!("echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf; {REMOVED}"),
    )?;
    let checked = (|| {
        ensure!(listed(lab, "", 7681)? == "tcp", "without the module");
        let said = lab.ok(0, &plain("echo 7682 50000"))?;
        ensure!(said == "50000\n", "{said}");
        let now = status(lab, 0)?;
        ensure!(
            now["loaded"] == false && now["switches"][0]["absent"].as_u64() >= Some(2),
            "{now}"
        );
        // Enabling works without the module too.
        let again = lab.sh_for(0, "extlctl disable && extlctl enable", PATIENCE)?;
        ensure!(
            again.status == 0 && again.stderr.contains("can't be loaded"),
            "{again:?}"
        );
        Ok(())
    })();
    lab.ok(0, "rm -f /etc/modprobe.d/extl.conf && modprobe af_extl")?;
    checked?;
    ensure!(listed(lab, "", 7683)? == "extl tcp", "not switched again");
    // The module is removed and loaded while programs create sockets. No call fails.
    let seconds = volume(40, 200);
    let makers: Vec<Running> = (0..2)
        .map(|_| lab.spawn(0, &plain(&format!("make {seconds}"))))
        .collect::<Result<_>>()?;
    let rounds = lab.ok_for(
        0,
        &format!(
            "done=0; end=$(($(cut -d. -f1 /proc/uptime) + {})); \
             until [ $(cut -d. -f1 /proc/uptime) -gt $end ]; do rmmod af_extl 2>/dev/null && done=$((done + 1)); modprobe af_extl; done; echo $done",
            seconds - 5
        ),
        LONG + Duration::from_secs(seconds),
    )?;
    let mut made = 0;
    for maker in makers {
        let said = maker.wait(LONG)?;
        ensure!(
            said.status == 0,
            "a socket could not be created: {}",
            said.stderr
        );
        made += said.stdout.trim().parse::<u64>()?;
    }
    let rounds: u64 = rounds.trim().parse()?;
    println!("        {made} sockets, unloaded {rounds} times");
    ensure!(
        rounds >= 3 && made > 100,
        "{made} sockets in {rounds} rounds"
    );
    let now = status(lab, 0)?;
    ensure!(now["switches"][0]["switched"].as_u64() > Some(0), "{now}");
    Ok(())
}

/// extlss and extlctl stats show direct connections, connections of TCP with the reason, and
/// listeners.
fn extlss(lab: &Lab) -> Result<()> {
    const BYTES: u64 = 5000;
    let before = counter(lab, 0, "Waiting+UseStreams")?;
    let serving = ready(lab, 1, &format!("extl-run {}", plain("serve 7690")))?;
    let sending = ready(
        lab,
        0,
        &format!("extl-run {}", plain(&format!("send 10.2.0.2 7690 {BYTES}"))),
    )?;
    let client = shown(lab, 0, "-p --port 7690 --mode direct")?;
    ensure!(
        client["state"] == "established"
            && client["direct_sent"] == BYTES
            && client["sent"] == BYTES
            && client["reason"].is_null()
            && client["uid"] == 0
            && ["message_sent", "announced"]
                .iter()
                .filter_map(|n| client[n].as_u64())
                .sum::<u64>()
                >= BYTES
            && client["users"][0]
                .as_str()
                .is_some_and(|u| u.starts_with("(\"python3\",pid=")),
        "{client}"
    );
    // The server does not read.
    lab.until("the data have arrived", PATIENCE, |lab| {
        let server = shown(lab, 1, "--port 7690 --mode direct")?;
        let came = ["message_received", "fetched"].map(|n| server[n].as_u64().unwrap_or(0));
        Ok(server["unread"] == BYTES && server["received"] == 0 && came[0] + came[1] == BYTES)
    })?;
    let said = lab.ok(1, "extlss -lnp")?;
    let mut lines = said.lines();
    ensure!(
        lines.next().is_some_and(|l| l.starts_with("State ")),
        "{said}"
    );
    let line = lines.next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!(
        words[..6]
            == [
                "LISTEN",
                "0",
                "16",
                "0.0.0.0:7690",
                "0.0.0.0:*",
                "listening"
            ]
            && line.contains("users:((\"python3\",pid="),
        "{said}"
    );
    let said = lab.ok(0, "extlss -nH --mode direct")?;
    ensure!(
        said.starts_with("ESTAB ") && said.contains(" direct ") && said.lines().count() == 1,
        "{said}"
    );
    let said = lab.ok(0, "extlctl --json stats")?;
    let stats: Value = serde_json::from_str(&said)?;
    ensure!(
        stats["Waiting+UseStreams"].as_u64() == Some(before + 1),
        "{stats}"
    );
    let said = lab.ok(0, "extlctl --json stats -i 0.2 -c 2")?;
    ensure!(said.lines().count() == 2, "{said}");
    sending.stop();
    // First the peer has no data path, then its program has no socket of AF_EXTL.
    set_data_path(lab, 1, false)?;
    let reason = |port: u32, name: &str, words: &str| -> Result<()> {
        let line = format!("extl-run {}", plain(&format!("send 10.2.0.2 {port} 100")));
        let sending = ready(lab, 0, &line)?;
        let client = shown(lab, 0, &format!("--port {port} --reason {name}"))?;
        ensure!(
            client["mode"] == "tcp" && client["sent"] == 100 && client["direct_sent"] == 0,
            "{client}"
        );
        let said = lab.ok(0, &format!("extlss -n --port {port}"))?;
        ensure!(said.contains(words), "{said}");
        sending.stop();
        Ok(())
    };
    reason(7690, "peer-off", "(12) switched off on the peer")?;
    serving.stop();
    let serving = ready(lab, 1, &plain("serve 7691"))?;
    reason(7691, "no-listener", "(9) the peer's program uses plain TCP")?;
    serving.stop();
    // Without the module, extlss reports an error.
    lab.ok(
        0,
        &format!("echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf; {REMOVED}"),
    )?;
    let none = lab.sh_for(0, "extlss", PATIENCE)?;
    lab.ok(0, "rm -f /etc/modprobe.d/extl.conf && modprobe af_extl")?;
    ensure!(
        none.status == 2 && none.stderr.contains("is af_extl loaded?"),
        "{none:?}"
    );
    Ok(())
}

/// The sysctl `data_path` applies to new connections of one namespace.
fn data_path(lab: &Lab) -> Result<()> {
    let serving = ready(lab, 1, &format!("extl-run {}", plain("serve 7695")))?;
    for (on, options) in [
        (true, "--mode direct"),
        (false, "--reason off"),
        (true, "--mode direct"),
    ] {
        set_data_path(lab, 0, on)?;
        let line = format!("extl-run {}", plain("send 10.2.0.2 7695 100"));
        let sending = ready(lab, 0, &line)?;
        shown(lab, 0, &format!("--port 7695 {options}"))?;
        // Existing connections keep their path.
        set_data_path(lab, 0, !on)?;
        shown(lab, 0, &format!("--port 7695 {options}"))?;
        sending.stop();
    }
    serving.stop();
    // The module parameter sets the initial value of each namespace.
    let read = "cat /proc/sys/net/extl/data_path";
    let off = configured(&format!("{PATIENT} af_extl.data_path=0"));
    lab.ok(
        0,
        &format!("{REMOVED} && {off} && modprobe af_extl; [ $({read}) = 0 ]"),
    )?;
    set_data_path(lab, 0, true)?;
    let said = lab.ok(0, &format!("{read}; unshare --net {read}"))?;
    ensure!(said == "1\n0\n", "{said}");
    lab.ok(
        0,
        &format!(
            "{REMOVED} && {} && modprobe af_extl; [ $({read}) = 1 ]",
            configured(PATIENT)
        ),
    )?;
    let inner =
        format!("unshare --net sh -c '{read}; echo 0 >/proc/sys/net/extl/data_path; {read}'");
    let said = lab.ok(0, &format!("{inner}; {read}"))?;
    ensure!(said == "1\n0\n1\n", "{said}");
    for bad in ["2", "-1", "x"] {
        let line = format!("echo {bad} >/proc/sys/net/extl/data_path");
        ensure!(
            lab.sh_for(0, &line, PATIENCE)?.status != 0,
            "{bad} was taken"
        );
    }
    let said = lab.ok(0, read)?;
    ensure!(said == "1\n", "{said}");
    Ok(())
}

/// Tracepoints record sends, receives, shutdowns and fallbacks to TCP.
fn tracepoints(lab: &Lab) -> Result<()> {
    const TRACE: &str = "/sys/kernel/tracing/instances/extl-test";
    for n in 0..2 {
        let line = format!("mkdir -p {TRACE} && echo 1 >{TRACE}/events/extl/enable");
        lab.ok(n, &line)?;
    }
    let checked = (|| {
        let echo = guest::program("extl");
        let serving = lab.spawn(1, &format!("exec {echo} serve alias4 7697"))?;
        node(lab, 1).until("it listens", "ss -ltn | grep -q :7697")?;
        let client = format!("{echo} echo alias4 10.2.0.2 7697 3000");
        let said = lab.ok(0, &client)?;
        ensure!(said.trim() == "same 3 0", "{said}");
        set_data_path(lab, 0, false)?;
        let said = lab.ok(0, &client)?;
        ensure!(said.trim() == "same 2 3", "{said}");
        serving.stop();
        for (n, direction) in [(0, "dest=10.2.0.2:7697 "), (1, "src=10.2.0.2:7697 ")] {
            let trace = lab.ok(n, &format!("cat {TRACE}/trace"))?;
            let sum = |event: &str, end: &str| -> u64 {
                let lines = trace.lines().filter(|l| {
                    l.contains(&format!(" {event}: ")) && l.contains(direction) && l.ends_with(end)
                });
                lines
                    .filter_map(|l| {
                        l.split(" bytes=")
                            .nth(1)?
                            .split(' ')
                            .next()?
                            .parse::<u64>()
                            .ok()
                    })
                    .sum()
            };
            for event in ["extl_tx", "extl_rx"] {
                for end in ["direct=1", "direct=0"] {
                    let bytes = sum(event, end);
                    ensure!(bytes == 3000, "{event} {end}: {bytes} in {trace}");
                }
            }
            if n == 0 {
                ensure!(
                    trace.contains(" extl_shutdown: ") && trace.contains("how=1 direct=1"),
                    "{trace}"
                );
                let fell = trace.lines().find(|l| l.contains(" extl_fallback: "));
                ensure!(
                    fell.is_some_and(|l| l.ends_with("reason=3 name=off")),
                    "{trace}"
                );
            }
        }
        Ok(())
    })();
    for n in 0..2 {
        lab.ok(n, &format!("rmdir {TRACE}"))?;
    }
    checked
}
