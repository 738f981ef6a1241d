//! Invalid messages and notifications. Each kind increments the counter of its reason and no other,
//! is logged at a limited rate, and leaves nothing behind.

use crate::cluster::{Lab, LogMark, PATIENCE};
use crate::scenarios::expected::OF_INPUT;
use crate::scenarios::leaks::Usage;
use crate::scenarios::node::{node, value};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("hostile::messages", messages).finds(OF_INPUT),
        on_pair("hostile::endless_fragments", endless_fragments).finds(OF_INPUT),
    ]
}

/// A reason of exn: number, counter, text in the log (docs/exn.md).
struct Reason(u8, &'static str, &'static str);

const SOURCE: Reason = Reason(
    15,
    "rx_bad_source",
    "message from a source that is not the port of a network driver",
);
const TYPE: Reason = Reason(
    16,
    "rx_bad_type",
    "message of unknown type or with wrong tag",
);
const FRAGMENT: Reason = Reason(
    18,
    "rx_bad_fragment_length",
    "non-final fragment is not 120 bytes long",
);
const SEQUENCE: Reason = Reason(
    19,
    "rx_bad_sequence",
    "fragment sequence broken, partial frame discarded",
);
const TOO_LONG: Reason = Reason(
    20,
    "rx_too_long",
    "reassembled frame longer than 65,558 bytes",
);
const SHORT: Reason = Reason(21, "rx_short", "frame shorter than an Ethernet header");
const STALE: Reason = Reason(
    22,
    "rx_partial_timeout",
    "final fragment never arrived, partial frame discarded",
);
const PARTIALS: Reason = Reason(
    23,
    "rx_partials_full",
    "too many partial frames at once, oldest discarded",
);
const LENGTH: Reason = Reason(
    26,
    "rx_bad_announce_length",
    "announcement is not 16 bytes long",
);
const SIZE: Reason = Reason(
    27,
    "rx_bad_announce_size",
    "announced frame has an invalid length",
);
const BAD_NOTIFY: Reason = Reason(
    35,
    "notify_bad",
    "notification of an unexpected type or command",
);
const NOT_PENDING: Reason = Reason(
    36,
    "drop_unmatched",
    "peer says it dropped a frame that is not pending",
);

/// Maximum number of log lines per reason within one interval. exn gets the interval when it is
/// loaded.
const LINES: u64 = 4;
const INTERVAL_MS: u64 = 2000;
/// Time-out of GETs in ms. It is longer than a busy host may stall, because a shorter time-out
/// would also give up the frames of healthy traffic.
const TIMEOUT_MS: u64 = 4000;
/// Number of repetitions of bad input; far above the maximum number of log lines.
const BURST: u32 = 1500;

pub(super) fn velo(node: u16, vpid: u8, mtt: u8, tag: u8, data: &[u8]) -> String {
    let mut hex = String::new();
    for b in data {
        // Writing to a string can't fail.
        let _ = write!(hex, "{b:02x}");
    }
    format!(
        r#"{{"kind":"velo","src_node":{node},"src_vpid":{vpid},"vpid":254,"mtt":{mtt},"tag":{tag},"data":"{hex}"}}"#
    )
}

pub(super) fn announcement(node: u16, address: u64, length: u64) -> String {
    let mut data = address.to_le_bytes().to_vec();
    data.extend(length.to_le_bytes());
    velo(node, 254, 1, 0, &data)
}

/// Returns the first fragment of an eager frame, with the sender's address in the Ethernet header.
fn first_fragment(node: u16, tag: u8) -> String {
    let mut data = vec![0xff; 6];
    data.extend([0x2e, 0x87, 4, 7]);
    data.extend(node.to_be_bytes());
    data.extend([8, 0]);
    data.resize(120, 0);
    velo(node, 254, 0, tag, &data)
}

/// exn of node 1, under test.
struct Target<'a> {
    lab: &'a Lab,
    mark: LogMark,
    start: Instant,
}

/// Log lines of one reason.
struct Logged {
    lines: u64,
    suppressed: u64,
    last: String,
}

impl Target<'_> {
    /// Delivers packets to the node `count` times.
    fn forge(&self, packets: &[String], count: u32) -> Result<()> {
        let count = count.to_string();
        let mut args = vec!["forge", "1", "--count", &count];
        args.extend(packets.iter().map(String::as_str));
        self.lab.fault(&args).map(drop)
    }

    fn count(&self, reason: &Reason) -> Result<u64> {
        node(self.lab, 1).ethtool(reason.1)
    }

    /// Waits until the counter reaches a value. Fails if it exceeds the value.
    fn reaches(&self, reason: &Reason, value: u64) -> Result<()> {
        let mut last = 0;
        self.lab
            .until(&format!("{} is {value}", reason.1), PATIENCE, |_| {
                last = self.count(reason)?;
                Ok(last >= value)
            })
            .with_context(|| format!("the counter is {last}"))?;
        ensure!(last == value, "{} is {last} instead of {value}", reason.1);
        Ok(())
    }

    /// Waits until no frame is in flight or in quarantine.
    fn is_idle(&self) -> Result<()> {
        const GAUGES: [&str; 5] = [
            "tx_rdv_in_flight",
            "tx_rdv_quarantined",
            "rx_rdv_in_flight",
            "rx_rdv_waiting",
            "rx_partial_frames",
        ];
        self.lab.until("exn of node 1 is idle", PATIENCE, |l| {
            let text = l.ok(1, "ethtool -S exn0")?;
            Ok(GAUGES.iter().all(|gauge| value(&text, gauge) == Some(0)))
        })
    }

    fn logged(&self, reason: &Reason) -> Result<Logged> {
        let Reason(number, _, text) = reason;
        let head = format!("exn reason {number}: ");
        let mut logged = Logged {
            lines: 0,
            suppressed: 0,
            last: String::new(),
        };
        for line in self.lab.log_since(&self.mark)?.lines() {
            let Some((_, said)) = line.split_once(&head) else {
                continue;
            };
            ensure!(
                said.starts_with(text),
                "reason {number} has other words: {line}"
            );
            // The number of suppressed lines follows the value in parentheses if it is not 0.
            let (_, end) = said.rsplit_once(')').context("a line without a value")?;
            logged.suppressed += match end.trim() {
                "" => 0,
                some => some
                    .strip_prefix(", ")
                    .and_then(|s| s.strip_suffix(" suppressed")?.parse::<u64>().ok())
                    .filter(|n| *n != 0)
                    .with_context(|| format!("no count in: {line}"))?,
            };
            logged.lines += 1;
            logged.last = line.to_string();
        }
        Ok(logged)
    }

    /// Delivers `packets` once. The reason must be counted `n` times, and a log line must name it
    /// and the node.
    fn once(&self, reason: &Reason, packets: &[String], node: u16, n: u64) -> Result<()> {
        let (count, before) = (self.count(reason)?, self.logged(reason)?);
        self.forge(packets, 1)?;
        self.reaches(reason, count + n)?;
        let after = self.logged(reason)?;
        ensure!(
            after.lines > before.lines && after.lines <= before.lines + n,
            "{n} bad inputs made {} log lines",
            after.lines - before.lines
        );
        ensure!(
            after.last.contains(&format!("(node {node}, ")),
            "the log line does not name node {node}: {}",
            after.last
        );
        Ok(())
    }

    /// Checks that the rate limit of the log holds.
    fn few_lines(&self, reason: &Reason) -> Result<()> {
        let limit = LINES * (self.start.elapsed().as_millis() as u64 / INTERVAL_MS + 2);
        let lines = self.logged(reason)?.lines;
        ensure!(
            lines <= limit,
            "{lines} lines of reason {}, not more than {limit} expected",
            reason.0
        );
        Ok(())
    }

    /// Waits until each reason may be logged again.
    fn next_interval(&self) -> Result<()> {
        let seconds = (INTERVAL_MS + 500) as f64 / 1000.0;
        self.lab.ok(1, &format!("sleep {seconds}")).map(drop)
    }

    /// Checks that each event either has a log line or is in the number of suppressed events of a
    /// later line. The last event must have been logged.
    fn all_accounted(&self, reason: &Reason) -> Result<()> {
        let (count, logged) = (self.count(reason)?, self.logged(reason)?);
        ensure!(
            logged.lines + logged.suppressed == count,
            "{} is {count}, the log tells of {} and {} suppressed",
            reason.1,
            logged.lines,
            logged.suppressed
        );
        Ok(())
    }

    /// Checks that no other reason was counted.
    fn only(&self, reasons: &[&Reason]) -> Result<()> {
        let text = self.lab.ok(1, "cat /sys/kernel/debug/exn-*/reasons")?;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            ensure!(words.len() > 3, "not number, count, name, text: {line}");
            // This reason does not come from the input: some fabrics return a sender's own
            // multicast frames (G21).
            if words[2].trim_end_matches(':') == "rx_own_multicast" {
                continue;
            }
            let expected = reasons.iter().any(|r| r.0.to_string() == words[0]);
            ensure!(
                expected == (words[1] != "0"),
                "the input moved other reasons than expected, see '{line}' among\n{}",
                text.lines()
                    .filter(|l| l.split_whitespace().nth(1) != Some("0"))
                    .collect::<Vec<_>>()
                    .join("\n")
            );
        }
        Ok(())
    }
}

/// Runs a test on node 1 with exn loaded again and short time-outs, so that counters and rate
/// limits start from zero. Afterwards all received frames must be released.
fn on_fresh_exn(lab: &Lab, test: impl FnOnce(&Target<'_>) -> Result<()>) -> Result<()> {
    node(lab, 1).reload_exn(&format!(
        "exn.rdv_timeout_ms={TIMEOUT_MS} exn.rdv_quarantine_ms={} exn.log_interval_ms={INTERVAL_MS}",
        // Minimum quarantine time that exn permits with this time-out.
        TIMEOUT_MS + 5000
    ))?;
    let before = Usage::of(node(lab, 1))?;
    let target = Target {
        lab,
        mark: lab.log_mark(1)?,
        start: Instant::now(),
    };
    test(&target)?;
    before.is_back(node(lab, 1))?;
    node(lab, 0).pings(20, "-i 0.02 -s 3000")?;
    node(lab, 1).reload_exn("")?;
    node(lab, 0).back()
}

/// Each invalid message is dropped and counted with the right reason, and the log stays short.
fn messages(lab: &Lab) -> Result<()> {
    let frame = [0x2e, 0x87, 4, 7, 0, 1, 0x2e, 0x87, 4, 7, 0, 9, 8, 0, 1, 2];
    let notification =
        r#"{"kind":"notification","src_node":9,"src_vpid":254,"vpid":254,"value":305419896}"#;
    // The type tag has two bits, and all four values are defined. No driver sends frames of type 2.
    let cases: &[(&Reason, u16, String)] = &[
        (&SOURCE, 9, velo(9, 17, 3, 0, &frame)),
        (&SOURCE, 0xfffe, velo(0xfffe, 254, 3, 0, &frame)),
        (&SOURCE, 0xffff, velo(0xffff, 254, 1, 0, &[0; 16])),
        (&TYPE, 9, velo(9, 254, 2, 0, &[1])),
        (&TYPE, 9, velo(9, 254, 3, 4, &frame)),
        (&NOT_PENDING, 9, velo(9, 254, 2, 0, &[7; 8])),
        (&LENGTH, 9, velo(9, 254, 1, 0, &[0; 15])),
        (&LENGTH, 9, velo(9, 254, 1, 0, &[0; 17])),
        (&SIZE, 9, announcement(9, 0x1000, u64::MAX)),
        (&SIZE, 9, announcement(9, 0x1000, 65_559)),
        (&SHORT, 9, announcement(9, 0x1000, 0)),
        (&FRAGMENT, 9, velo(9, 254, 0, 3, &[0; 16])),
        // The short frame comes from node 8, because frames of node 9 after the broken fragment
        // count as its remainder.
        (&SHORT, 8, velo(8, 254, 3, 0, &[0; 5])),
        (&BAD_NOTIFY, 9, notification.into()),
    ];
    on_fresh_exn(lab, |target| {
        let mut total = BTreeMap::new();
        for (reason, node, packet) in cases {
            target
                .once(reason, std::slice::from_ref(packet), *node, 1)
                .with_context(|| packet.clone())?;
            *total.entry(reason.0).or_insert(0) += 1;
        }
        for (reason, _, packet) in cases {
            target.forge(std::slice::from_ref(packet), BURST)?;
            let total = total.entry(reason.0).or_insert(0);
            *total += u64::from(BURST);
            target
                .reaches(reason, *total)
                .and_then(|()| target.few_lines(reason))
                .with_context(|| format!("{BURST} times {packet}"))?;
        }
        target.next_interval()?;
        for (reason, node, packet) in cases {
            target.once(reason, std::slice::from_ref(packet), *node, 1)?;
        }
        let reasons: Vec<&Reason> = cases.iter().map(|(reason, ..)| *reason).collect();
        for reason in &reasons {
            target.all_accounted(reason)?;
            ensure!(
                target.logged(reason)?.suppressed > 0,
                "no line of {} was suppressed",
                reason.1
            );
        }
        target.only(&reasons)
    })
}

/// Fragments without a final fragment are discarded: after a time-out, when a new frame starts,
/// when too many sources send them, and when the frame gets too long. They are never prepended to
/// the next frame.
fn endless_fragments(lab: &Lab) -> Result<()> {
    on_fresh_exn(lab, |target| {
        let one = [first_fragment(9, 5)];
        let two = [first_fragment(9, 5), first_fragment(9, 5)];
        let rest = velo(9, 254, 0, 0, &[0; 120]);
        // 546 fragments make a frame of maximum size. The excess must not be taken for another
        // frame.
        let mut endless = vec![first_fragment(9, 255)];
        for k in 1..600_usize {
            let tag = 255 - (k % 256) as u8;
            endless.push(rest.replace(r#""tag":0"#, &format!(r#""tag":{tag}"#)));
        }
        let many: Vec<String> = (100..200).map(|node| first_fragment(node, 5)).collect();

        target.once(&STALE, &one, 9, 1)?;
        target.once(&SEQUENCE, &two, 9, 1)?;
        target.reaches(&STALE, 2)?;
        target.once(&TOO_LONG, &endless, 9, 1)?;
        // Each fragment is displaced by the next fragment, or by the time-out if the next fragment
        // is late.
        let sum =
            |a: &Reason, b: &Reason| -> Result<u64> { Ok(target.count(a)? + target.count(b)?) };
        target.forge(&one, BURST)?;
        lab.until("all fragments are discarded", PATIENCE, |_| {
            Ok(sum(&SEQUENCE, &STALE)? == 1 + 2 + u64::from(BURST))
        })?;
        target.forge(&endless, 10)?;
        target.reaches(&TOO_LONG, 11)?;
        target.is_idle()?;
        // Up to 64 sources may have partial frames. The fragment of a further source displaces the
        // oldest partial frame.
        let before = sum(&STALE, &PARTIALS)?;
        target.forge(&many, 1)?;
        lab.until("all partial frames are discarded", PATIENCE, |_| {
            Ok(sum(&STALE, &PARTIALS)? == before + many.len() as u64)
        })?;
        ensure!(
            target.count(&PARTIALS)? > 0 && target.logged(&PARTIALS)?.lines > 0,
            "no partial frame of {} sources was displaced",
            many.len()
        );
        for reason in [&STALE, &SEQUENCE, &TOO_LONG, &PARTIALS] {
            target.few_lines(reason)?;
        }
        target.next_interval()?;
        let stale = target.count(&STALE)?;
        target.once(&SEQUENCE, &two, 9, 1)?;
        target.reaches(&STALE, stale + 1)?;
        target.once(&STALE, &[first_fragment(10, 5)], 10, 1)?;
        target.once(&TOO_LONG, &endless, 9, 1)?;
        for reason in [&STALE, &SEQUENCE, &TOO_LONG] {
            target.all_accounted(reason)?;
        }
        target.only(&[&STALE, &SEQUENCE, &TOO_LONG, &PARTIALS])
    })
}
