//! Searches kernel logs for signs of defects.

/// Texts that mean a defect anywhere in a kernel message.
const SIGNS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "BUG ",
    "Oops",
    "Call Trace",
    "Kernel panic",
    "general protection",
    "unable to handle",
    "refcount_t:",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "rcu: INFO",
    "rcu_preempt detected",
    "self-detected stall",
    "page allocation failure",
    "Out of memory",
    "NETDEV WATCHDOG",
    "possible recursive locking",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "unreferenced object",
    "kmemleak:",
    "scheduling while atomic",
    "sleeping function called",
    "DMA-API:",
    "DMAR: [",
    "DMAR: ERROR",
    "handling fault status",
    "Bad page",
    "list_del corruption",
    "list_add corruption",
    "slab-out-of-bounds",
    "use-after-free",
    "UBSAN:",
    "KCSAN:",
    "unregister_netdevice: waiting",
    "rust_kernel: panicked",
    "panicked at",
    "ODEBUG:",
    "nobody cared",
    // Lost messages may have reported a defect.
    "printk messages dropped",
    // Failures of unit tests in the kernel (KUnit).
    " not ok ",
    "ASSERTION FAILED at",
];

/// Messages of a healthy kernel that contain one of the signs.
const HARMLESS: &[&str] = &[
    "kmemleak: Kernel memory leak detector",
    "kmemleak: Automatic memory scanning",
    "DMA-API: preallocated",
    "DMA-API: debugging enabled",
    "use-after-free debug is enabled",
];

/// Returns true for a kernel message that reports a defect.
pub fn is_defect(line: &str) -> bool {
    SIGNS.iter().any(|s| line.contains(s)) && !HARMLESS.iter().any(|s| line.contains(s))
}

/// Returns the first defect in a log with some lines around it. Ignores lines that contain a text
/// of `expected`.
pub fn first_defect(log: &str, expected: &[&str]) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let bad = |l: &&str| is_defect(l) && !expected.iter().any(|e| l.contains(e));
    let at = lines.iter().position(bad)?;
    Some(lines[at.saturating_sub(3)..(at + 30).min(lines.len())].join("\n"))
}

/// Signs that a CPU did not run for some time. They appear in guests while the host itself stalls.
const STALLS: &[&str] = &[
    "soft lockup",
    "rcu: INFO",
    "rcu_preempt detected",
    "self-detected stall",
];

/// Returns true if a log contains defects and all of them are CPU stalls. Ignores lines that
/// contain a text of `expected`.
pub fn is_stall(log: &str, expected: &[&str]) -> bool {
    let is_defect = |l: &&str| is_defect(l) && !expected.iter().any(|e| l.contains(e));
    let of_stall = |l: &str| STALLS.iter().any(|s| l.contains(s));
    let mut defects = log.lines().filter(is_defect);
    defects.next().is_some_and(of_stall) && defects.all(|l| of_stall(l) || l.contains("Call Trace"))
}

/// Returns the last `n` lines of a text, each with a line break.
pub fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = lines[lines.len().saturating_sub(n)..].join("\n");
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defects_are_told_from_ordinary_messages() {
        for bad in [
            "[    3.1] WARNING: CPU: 0 PID: 1 at kernel/x.c:1 f+0x1",
            "[    3.1] BUG: kernel NULL pointer dereference, address: 0",
            "[  120.1] INFO: task exn:12 blocked for more than 120 seconds.",
            "[    3.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "** 17 printk messages dropped **",
            "[    9.1]     not ok 2 quota_is_per_user_and_given_back",
            "[    9.1]     # words_of_a_buffer: ASSERTION FAILED at kernel-ext/mem/pages.rs:1",
        ] {
            assert!(is_defect(bad), "{bad}");
        }
        for good in [
            "[    3.1] extoll: loading out-of-tree module taints kernel.",
            "[    3.1] extoll: module verification failed: signature and/or required key missing - tainting kernel",
            "[    0.0] Spectre V2 : WARNING-free line",
            "[    0.0] DMAR: Host address width 39",
            "[    3.4] DMA-API: debugging enabled by kernel config",
            "[    0.0] rcu: \tRCU callback double-/use-after-free debug is enabled.",
        ] {
            assert!(!is_defect(good), "{good}");
        }
    }

    #[test]
    fn stalls_are_told_from_other_defects() {
        let stall = "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!\nCall Trace:\n";
        assert!(is_stall(stall, &[]));
        assert!(!is_stall(&format!("{stall}WARNING: at x.c:1\n"), &[]));
        assert!(is_stall(&format!("{stall}WARNING: at x.c:1\n"), &["x.c"]));
        assert!(!is_stall("Call Trace:\n", &[]));
        assert!(!is_stall("fine\n", &[]));
    }

    #[test]
    fn a_defect_comes_with_its_surroundings() {
        let log = (0..100)
            .map(|i| {
                if i == 50 {
                    "BUG: x".into()
                } else {
                    format!("line {i}")
                }
            })
            .collect::<Vec<String>>()
            .join("\n");
        let found = first_defect(&log, &[]).unwrap();
        assert!(found.starts_with("line 47\nline 48\nline 49\nBUG: x\nline 51"));
        assert_eq!(first_defect("fine\n", &[]), None);
        assert_eq!(first_defect("BUG: known\n", &["known"]), None);
    }
}
