//! The node's first process: mounts file systems, sets the host name, starts the bring-up script
//! and the command server, and reaps orphans.

use crate::kmsg;
use rustix::mount::{mount, MountFlags};
use rustix::process::{wait as wait_any, Pid, WaitOptions};
use std::collections::HashMap;
use std::ffi::CStr;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Path of the bring-up script, which the lab's initramfs contains.
const BRINGUP: &str = "/usr/lib/lab/bringup";
/// File that the bring-up script creates when it finishes. It contains "ok" or the reason of the
/// failure.
pub const RESULT: &str = "/run/lab/bringup";
/// `PATH` of every program that runs in a node.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn mount_all() {
    let list: [(&CStr, &str, &CStr, MountFlags, &CStr); 8] = [
        (c"tmpfs", "/run", c"tmpfs", MountFlags::NOSUID, c"mode=755"),
        (c"tmpfs", "/tmp", c"tmpfs", MountFlags::NOSUID, c"mode=1777"),
        (
            c"devpts",
            "/dev/pts",
            c"devpts",
            MountFlags::NOSUID,
            c"mode=620,ptmxmode=666",
        ),
        (
            c"shm",
            "/dev/shm",
            c"tmpfs",
            MountFlags::NOSUID,
            c"mode=1777",
        ),
        (
            c"cgroup2",
            "/sys/fs/cgroup",
            c"cgroup2",
            MountFlags::NOSUID,
            c"",
        ),
        (
            c"debugfs",
            "/sys/kernel/debug",
            c"debugfs",
            MountFlags::empty(),
            c"",
        ),
        (
            c"tracefs",
            "/sys/kernel/tracing",
            c"tracefs",
            MountFlags::empty(),
            c"",
        ),
        (c"mqueue", "/dev/mqueue", c"mqueue", MountFlags::NOSUID, c""),
    ];
    for (source, target, kind, flags, data) in list {
        // The directory may exist already. If it cannot be created, the mount fails and is logged.
        let _ = std::fs::create_dir_all(target);
        if let Err(e) = mount(source, target, kind, flags, Some(data)) {
            kmsg::log(&format!("cannot mount {target}: {e}"));
        }
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(target, format!("/dev/{link}"));
    }
    for dir in ["/run/lab", "/run/sshd", "/run/lock"] {
        let _ = std::fs::create_dir_all(dir);
    }
}

/// Returns the `lab.NAME=VALUE` words of the kernel command line as `LAB_NAME` variables.
fn parameters(command_line: &str) -> HashMap<String, String> {
    command_line
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("lab.")?.split_once('='))
        .map(|(k, v)| (format!("LAB_{}", k.to_uppercase()), v.to_owned()))
        .collect()
}

fn spawn(program: &str, arguments: &[&str], env: &HashMap<String, String>) -> Option<Pid> {
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .envs(env)
        .current_dir("/root")
        .stdin(Stdio::null())
        .spawn();
    match child {
        // The loop in `run` reaps the child.
        Ok(child) => Some(Pid::from_child(&child)),
        Err(e) => {
            kmsg::log(&format!("cannot start {program}: {e}"));
            None
        }
    }
}

/// Mounts file systems, starts the command server and the bring-up script, and reaps orphans.
/// Returns only if this is not process 1.
pub fn run() -> ExitCode {
    if rustix::process::getpid() != Pid::INIT {
        eprintln!("lab-agent init: must run as the first process of a node");
        return ExitCode::from(2);
    }
    mount_all();
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let env = parameters(&command_line);
    let name = format!("node{}", env.get("LAB_NODE").map_or("?", String::as_str));
    if let Err(e) = rustix::system::sethostname(name.as_bytes()) {
        kmsg::log(&format!("cannot set the host name {name}: {e}"));
    }
    let agent = std::env::current_exe().unwrap_or_else(|_| "/usr/sbin/lab-agent".into());
    let agent = agent.to_string_lossy().into_owned();
    let mut server = spawn(&agent, &["serve"], &env);
    let bringup = spawn("/bin/sh", &[BRINGUP], &env);
    loop {
        match wait_any(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                if Some(pid) == server {
                    kmsg::log(&format!(
                        "the command server ended ({status:?}); starting it again"
                    ));
                    // Avoids a tight loop if the server ends immediately.
                    std::thread::sleep(Duration::from_millis(500));
                    server = spawn(&agent, &["serve"], &env);
                } else if Some(pid) == bringup && !std::path::Path::new(RESULT).exists() {
                    let text = format!("the bring-up script ended without a result ({status:?})");
                    kmsg::log(&text);
                    let _ = std::fs::write(RESULT, text);
                }
            }
            Ok(None) => {}
            // The command server could not be started, so there is no child. Try again.
            Err(_) => {
                std::thread::sleep(Duration::from_secs(1));
                server = spawn(&agent, &["serve"], &env);
            }
        }
    }
}

/// Waits until the bring-up script has written its result, and prints it. There is no time limit;
/// `lab` ends this command after its own timeout.
pub fn wait() -> ExitCode {
    loop {
        if let Ok(text) = std::fs::read_to_string(RESULT) {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[cfg(test)]
mod tests {
    use super::parameters;

    #[test]
    fn parameters_come_from_the_command_line() {
        let p = parameters("console=ttyS0 lab.node=3 quiet lab.bringup=net lab.broken x.lab.y=1");
        assert_eq!(p.get("LAB_NODE").map(String::as_str), Some("3"));
        assert_eq!(p.get("LAB_BRINGUP").map(String::as_str), Some("net"));
        assert_eq!(p.len(), 2);
    }
}
