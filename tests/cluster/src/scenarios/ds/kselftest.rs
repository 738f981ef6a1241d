//! Unmodified selftests of the kernel, with all sockets of both nodes switched to AF_EXTL. Direct
//! connections must pass the selftests that TCP passes. The selftests are compiled from the kernel
//! source package that the modules are built from.

use crate::cluster::Lab;
use crate::scenarios::ds::users::{counter, switched};
use crate::scenarios::node::{node, volume};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maximum duration of one selftest.
const LONG: Duration = Duration::from_secs(200);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::kselftest_mptcp_connect", |lab| {
            switched(lab, 8, mptcp_connect)
        })
        .stock_only(),
        on_pair("af_extl::kselftest_msg_zerocopy", |lab| {
            switched(lab, 6, msg_zerocopy)
        })
        .stock_only(),
        on_pair("af_extl::kselftest_tcp_inq", |lab| {
            // The selftest uses only addresses of lo, so TCP carries the data.
            lab.ok(0, "modprobe af_extl && extlctl enable")?;
            let done = counter(lab, 0, "fallback-no-route").and_then(|before| {
                tcp_inq(lab)?;
                let new = counter(lab, 0, "fallback-no-route")? - before;
                ensure!(new >= 2, "{new} connections of switched sockets");
                Ok(())
            });
            lab.ok(0, "extlctl disable")?;
            done
        })
        .stock_only(),
    ]
}

/// Returns the directory of the selftests in the kernel source.
fn sources() -> Result<PathBuf> {
    let all = std::fs::read_dir("/kernel").context("no kernel source: scripts/setup")?;
    for entry in all {
        let path = entry?.path();
        let tests = path.join("tools/testing/selftests/net");
        let named = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("linux-source-"));
        if named && tests.is_dir() {
            return Ok(tests);
        }
    }
    bail!("no selftests in the kernel's source")
}

/// Compiles a selftest and copies it to /tmp of both nodes.
fn build(lab: &Lab, source: &str) -> Result<()> {
    let sources = sources()?;
    let from = sources.join(source);
    let name = Path::new(source)
        .file_stem()
        .and_then(|n| n.to_str())
        .context("name")?;
    let dir = tempfile::tempdir()?;
    let to = dir.path().join(name);
    let out = Command::new("gcc")
        .args(["-O2", "-w", "-pthread", "-I"])
        .arg(sources.join("../../../include"))
        .arg("-o")
        .args([&to, &from])
        .output()?;
    ensure!(
        out.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let to = to.to_str().context("path")?;
    for n in 0..2 {
        lab.run("cp", &[to, &format!("node{n}:/tmp/{name}")], LONG)?;
    }
    Ok(())
}

/// Both ends send a file and receive the other's: by read and write, mmap, sendfile and splice,
/// with peeking, with messages about unread bytes, and over several connections in a row.
fn mptcp_connect(lab: &Lab) -> Result<()> {
    build(lab, "mptcp/mptcp_connect.c")?;
    let mut port = 7820;
    for options in [
        "-m poll",
        "-m mmap",
        "-m sendfile",
        "-m splice",
        "-P saveWithPeek",
        "-P saveAfterPeek",
        "-c TCPINQ",
        "-R 16384 -S 16384",
    ] {
        // The selftest reports at most 1 KiB as unread.
        let size = match options {
            "-c TCPINQ" => 1001,
            _ => volume(700_001, 20_000_001),
        };
        let file = format!("head -c {size} /dev/urandom >/tmp/in && sha256sum </tmp/in");
        let sums = [lab.ok(0, &file)?, lab.ok(1, &file)?];
        let common = format!("-t 60000 -p {port} -s TCP {options}");
        let server = lab.spawn(
            1,
            &format!("exec /tmp/mptcp_connect -l {common} 0.0.0.0 </tmp/in >/tmp/out 2>/tmp/err"),
        )?;
        let listens = format!("ss -ltn | grep -q ':{port} '");
        node(lab, 1).until("it listens", &listens)?;
        let line = format!(
            "/tmp/mptcp_connect {common} 10.2.0.2 </tmp/in >/tmp/out 2>/tmp/err || {{ cat /tmp/err; exit 1; }}"
        );
        lab.ok_for(0, &line, LONG)
            .with_context(|| options.to_owned())?;
        let ended = server.wait(LONG)?;
        let said = lab.ok(1, "cat /tmp/err")?;
        ensure!(ended.status == 0, "{options}: the server: {said}");
        for n in 0..2 {
            let got = lab.ok(n, "sha256sum </tmp/out")?;
            ensure!(got == sums[1 - n], "{options}: node {n} got something else");
        }
        port += 1;
    }
    Ok(())
}

/// Sends in small and large chunks, with and without `MSG_ZEROCOPY`. Each call with the flag must
/// get its completion.
fn msg_zerocopy(lab: &Lab) -> Result<()> {
    build(lab, "msg_zerocopy.c")?;
    let seconds = volume(1, 10);
    let mut port = 7840;
    for options in [
        "",
        "-z",
        "-z -s 100",
        "-z -s 1400",
        "-z -s 60000",
        "-z -l 16",
    ] {
        let common = format!("-4 -p {port} -t {seconds}");
        // The server ends by itself.
        let longer = format!("-4 -p {port} -t {}", seconds + 8);
        let server = lab.spawn(
            1,
            &format!(
                "exec /tmp/msg_zerocopy {longer} -S 10.2.0.1 -D 10.2.0.2 -r tcp >/tmp/err 2>&1"
            ),
        )?;
        let listens = format!("ss -ltn | grep -q ':{port} '");
        node(lab, 1).until("it listens", &listens)?;
        let line = format!("/tmp/msg_zerocopy {common} -S 10.2.0.1 -D 10.2.0.2 {options} tcp 2>&1");
        let said = lab.ok_for(0, &line, LONG)?;
        let count = |name: &str| {
            let rest = said.split_whitespace().find_map(|w| w.strip_prefix(name));
            rest.and_then(|n| n.parse::<u64>().ok())
        };
        let (sent, ended) = (count("tx="), count("txc="));
        ensure!(sent.is_some_and(|n| n > 0), "{options}: {said}");
        if options.contains("-z") {
            ensure!(ended == sent, "{options}: not told all ends: {said}");
        }
        let ended = server.wait(LONG)?;
        let said = lab.ok(1, "cat /tmp/err")?;
        ensure!(ended.status == 0, "{options}: the receiver: {said}");
        port += 1;
    }
    Ok(())
}

/// The number of unread bytes arrives as a control message with the data.
fn tcp_inq(lab: &Lab) -> Result<()> {
    build(lab, "tcp_inq.c")?;
    for version in ["-4", "-6"] {
        let said = lab.ok_for(0, &format!("/tmp/tcp_inq {version} 2>&1"), LONG)?;
        ensure!(said.contains("PASSED"), "{version}: {said}");
    }
    Ok(())
}
