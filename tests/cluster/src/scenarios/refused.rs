//! NICs and parameters that the driver must reject. Each rejection is counted and logged with its
//! reason in one line, and has no other effect. A valid NIC works afterwards.

use super::expected::OF_INPUT;
use super::leaks;
use super::node::{node, Options, DEV};
use super::on_pair;
use crate::cluster::{modules, Lab, LogMark, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

/// Two nodes whose modules the scenario loads.
const BARE: Spec = Spec::pair().no_modules();

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("hostile::dma_mask", dma_mask).finds(OF_INPUT),
        Scenario::new("hostile::pci_identity", BARE, pci_identity).finds(OF_INPUT),
        Scenario::new("hostile::parameters", BARE, parameters).finds(OF_INPUT),
    ]
}

/// Number of attempts to bind a rejected device.
const TRIES: u32 = 10;

fn sh(lab: &Lab, script: &str) -> Result<String> {
    node(lab, 1).ok(&format!("{DEV}{script}"))
}

/// Returns the counters of rejected devices by reason.
fn refusals(lab: &Lab) -> Result<Vec<u64>> {
    let text = lab.ok(1, "cat /sys/kernel/debug/extoll/refusals")?;
    text.lines()
        .enumerate()
        .map(|(n, line)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            ensure!(
                words.len() > 3 && words[0] == "reason" && words[1] == n.to_string(),
                "not the line of reason {n}: {line}"
            );
            words[2].parse().with_context(|| line.to_string())
        })
        .collect()
}

/// Checks that the NIC of node 1 was rejected `times` times since the mark, for reason `number`
/// only.
fn was_refused(
    lab: &Lab,
    mark: &LogMark,
    before: &[u64],
    number: usize,
    text: &str,
    times: u64,
) -> Result<()> {
    let mut expected = before.to_vec();
    expected[number] += times;
    let counted = refusals(lab)?;
    ensure!(
        counted == expected,
        "rejections rose from {before:?} to {counted:?} instead of {expected:?}"
    );
    let dev = sh(lab, "echo $dev")?;
    let log = lab.log_since(mark)?;
    // Selects the lines of the driver and the driver core. The PCI core may report that it enables
    // the device.
    let said: Vec<&str> = log
        .lines()
        .filter_map(|l| l.split_once(&format!("extoll {}: ", dev.trim())))
        .map(|(_, said)| said)
        .filter(|said| !said.starts_with("enabling device"))
        .collect();
    let head = format!("refused, reason {number}: {text} (");
    ensure!(
        said.len() as u64 == times && said.iter().all(|l| l.starts_with(&head)),
        "not {times} times '{head}…)' in the log:\n{log}"
    );
    // The device is neither bound nor enabled, and no BAR, vector, child or file remains.
    sh(
        lab,
        "d=/sys/bus/pci/devices/$dev; fail() { echo \"$*\" >&2; exit 1; }; \
         [ ! -e $d/driver ] || fail bound; \
         [ \"$(cat $d/enable)\" = 0 ] || fail \"enabled $(cat $d/enable) times\"; \
         ! grep extoll /proc/iomem >&2 || fail claimed; \
         ! grep extoll /proc/interrupts >&2 || fail interrupt; \
         [ ! -e $d/msi_irqs ] || fail vectors; \
         [ -z \"$(ls /sys/bus/auxiliary/devices | grep extoll)\" ] || fail children; \
         [ ! -e /sys/kernel/debug/extoll-$dev ] || fail files; \
         [ ! -e /sys/class/net/exn0 ] || fail exn0",
    )
    .map(drop)
}

/// Tries to bind the NIC [`TRIES`] times and checks that the failed attempts leak no resource.
fn bind_in_vain(lab: &Lab) -> Result<()> {
    leaks::watch(node(lab, 1), TRIES, |tries| {
        let script = format!(
            "for i in $(seq {tries}); do ! echo $dev >/sys/bus/pci/drivers/extoll/bind 2>/dev/null || exit 1; done"
        );
        sh(lab, &script).map(drop)
    })
}

/// The module `dma_mask_refuse` simulates a host that permits neither DMA mask, or only the smaller
/// mask.
fn dma_mask(lab: &Lab) -> Result<()> {
    const BIND: &str = "echo $dev >/sys/bus/pci/drivers/extoll/bind";
    const UNBIND: &str = "echo $dev >/sys/bus/pci/drivers/extoll/unbind";
    const BITS: &str = "cat /sys/bus/pci/devices/$dev/dma_mask_bits";
    let traffic = || -> Result<()> {
        node(lab, 1).back()?;
        node(lab, 0).pings(20, "-i 0.02 -s 9000")
    };
    let param = |name: &str| -> Result<u64> {
        let text = lab.ok(
            1,
            &format!("cat /sys/module/dma_mask_refuse/parameters/{name}"),
        )?;
        text.trim().parse().context("no number")
    };
    let bits = sh(lab, BITS)?;
    ensure!(bits.trim() == "52", "the DMA mask has {bits} bits");
    sh(lab, &format!("{UNBIND} && modprobe dma_mask_refuse && ! {BIND} 2>/dev/null && rmmod dma_mask_refuse && {BIND}"))?;
    traffic()?;
    sh(lab, UNBIND)?;
    lab.ok(1, "modprobe dma_mask_refuse")?;
    let (mark, before) = (lab.log_mark(1)?, refusals(lab)?);
    bind_in_vain(lab)?;
    was_refused(
        lab,
        &mark,
        &before,
        3,
        "DMA masks of 52 and of 32 bits not possible",
        TRIES.into(),
    )?;
    let refused = param("refused")?;
    ensure!(
        refused == 2 * u64::from(TRIES),
        "{refused} masks refused in {TRIES} attempts with two masks each"
    );

    // A mask of 32 bits is sufficient.
    lab.ok(1, "echo 32 >/sys/module/dma_mask_refuse/parameters/widest")?;
    sh(lab, BIND)?;
    ensure!(
        param("refused")? == refused + 1 && sh(lab, BITS)?.trim() == "32",
        "the driver did not ask for 52, then 32 bits"
    );
    traffic()?;
    sh(lab, &format!("{UNBIND} && rmmod dma_mask_refuse && {BIND}"))?;
    ensure!(sh(lab, BITS)?.trim() == "52", "not 52 bits any more");
    traffic()?;
    node(lab, 0).back()
}

/// NICs with the wrong revision, BARs or capabilities are rejected.
fn pci_identity(lab: &Lab) -> Result<()> {
    let cases = [
        (
            r#""revision":66"#,
            r#""revision":64"#,
            1,
            "PCI revision not supported",
        ),
        (r#""msi":false"#, r#""msi":true"#, 2, "no MSI capability"),
        (
            r#""bar0-size":67108864"#,
            r#""bar0-size":268435456"#,
            4,
            "BAR too small",
        ),
        (
            r#""bar2-size":1048576"#,
            r#""bar2-size":268435456"#,
            4,
            "BAR too small",
        ),
    ];
    let restart = |fields: &str| -> Result<()> {
        // Leaks are searched first, because they are lost when the node loses its power.
        lab.assert_no_leaks()?;
        lab.fault(&["power-off", "1"])?;
        lab.fault(&["pci", "1", &format!("{{{fields}}}")])?;
        lab.fault(&["power-on", "1"]).map(drop)
    };
    // The restart for the next case also reverts the change of the previous case.
    let mut before = String::new();
    for (bad, good, number, text) in cases {
        restart(&format!("{before}{bad}"))?;
        before = format!("{good},");
        let result = (|| -> Result<()> {
            let mark = lab.log_mark(1)?;
            node(lab, 1).load(Options::default())?;
            let zero = vec![0; refusals(lab)?.len()];
            was_refused(lab, &mark, &zero, number, text, 1)?;
            // Each further attempt to bind is rejected and counted.
            bind_in_vain(lab)?;
            was_refused(lab, &mark, &zero, number, text, 1 + u64::from(TRIES))?;
            node(lab, 1).unload()?;
            lab.assert_clean_log()
        })();
        result.with_context(|| bad.to_string())?;
    }
    restart(before.trim_end_matches(','))?;
    for n in 0..2 {
        node(lab, n).load(Options::default())?;
        node(lab, n).address_back()?;
    }
    // The lab's bring-up defines the names of other nodes, but skips nodes without modules.
    lab.until("the good NIC works", PATIENCE, |_| {
        node(lab, 0).is_so("ping -q -c 1 -W 1 10.2.0.2")
    })?;
    node(lab, 0).pings_to("10.2.0.2", 3, "-i 0.1")
}

/// A module with a parameter out of range is not loaded and logs the range. Valid values can be
/// read back.
fn parameters(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    // An earlier scenario may have left the modules loaded.
    node.ok("for m in af_extl exn extoll; do if [ -e /sys/module/$m ]; then rmmod $m; fi; done")?;
    for (module, parameter, range) in [
        ("extoll", "extoll.atu_gats=1025", "0 to 1024"),
        (
            "extoll",
            "extoll.atu_page_kib=16",
            "one of [4, 8, 64, 2048, 1048576]",
        ),
        ("extoll", "tables_per_user=0", "1 to 1024"),
        ("extoll", "slow=0", "1 to 100"),
        ("extoll", "slow=101", "1 to 100"),
        (
            "extoll",
            "extoll.smfu_target_kib=4000000000",
            "0 to 1048576",
        ),
        ("extoll", "vpids_per_user=257", "0 to 256"),
        ("extoll", "extoll.log_interval_ms=86400001", "0 to 86400000"),
        ("exn", "velo_threshold=30602", "0 to 30601"),
        ("exn", "default_nodeid=70000", "-1 to 65533"),
        ("exn", "mac=0xff870407", "bits 0x1000000 have to be 0"),
        ("exn", "exn.skip_tx_csum=2", "0 to 1"),
        ("exn", "exn.verify_rx_csum=9", "0 to 2"),
        ("exn", "exn.rdv_timeout_ms=199", "200 to 600000"),
        ("exn", "exn.rdv_quarantine_ms=7999", "8000 to 3600000"),
        ("exn", "exn.rdv_timeout_ms=58000", "63000 to 3600000"),
        ("af_extl", "family=2", "one of [13, 14, 18, 19, 22, 25]"),
        ("af_extl", "protocol=262", "257 to 261"),
    ] {
        let mark = lab.log_mark(0)?;
        // Tunables of extoll are checked when they are written, those of other modules when the
        // modules are loaded.
        let command = match (module, parameter.starts_with("extoll.")) {
            ("extoll", true) => modules::modprobe("extoll_bench", parameter),
            ("extoll", false) => format!("modprobe extoll {parameter}"),
            _ => modules::modprobe(module, parameter),
        };
        let refused = lab.sh_for(0, &command, PATIENCE)?;
        ensure!(
            refused.status != 0 && refused.stderr.contains("Invalid argument"),
            "{module} {parameter}: {refused:?}"
        );
        let log = lab.log_since(&mark)?;
        let line = format!("is out of range: {range}");
        ensure!(
            log.lines().filter(|l| l.contains(&line)).count() == 1,
            "{module} {parameter}: {log}"
        );
        if module != "extoll" {
            node.ok(&format!("! grep -q '^{module} ' /proc/modules"))?;
        }
        node.ok("if [ -e /sys/module/extoll ]; then rmmod extoll; fi")?;
    }
    node.ok(&modules::load(&[
        ("extoll", "extoll.atu_gats=3 extoll.velo_slots_64=1"),
        ("exn", "exn.rdv_timeout_ms=400 default_nodeid=7"),
        ("af_extl", "family=19 protocol=261"),
    ]))?;
    let shown = |module: &str| node.ok(&format!("cat /sys/kernel/debug/{module}/parameters"));
    for (module, lines) in [
        ("extoll", &["atu_gats 3", "velo_slots_64 1"][..]),
        (
            "exn",
            &[
                "rdv_timeout_ms 400",
                "default_nodeid 7",
                "rdv_quarantine_ms 60000",
            ],
        ),
        ("af_extl", &["family 19", "protocol 261"]),
    ] {
        let text = shown(module)?;
        for line in lines {
            ensure!(
                text.lines().any(|l| l == *line),
                "no line '{line}' in: {text}"
            );
        }
    }
    node.unload()
}
