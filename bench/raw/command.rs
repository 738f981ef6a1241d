// SPDX-License-Identifier: GPL-2.0-only

//! Parser of the command line (a verb and `key=value` words), and calls of the commands.

use crate::{
    attached::Registry,
    calls::{self, By},
    chunks, engines, handles, lists,
    many::{self, How},
    pingpong, ports,
    protocol::DEFAULT_VPID,
    regions::{self, Kind},
    remote,
    report::Report,
    stream,
    transfer::{self, Direction},
    wait::Mode,
};
use extoll_core::{atu::Access, rma::transfer::Notify};
use kernel::{prelude::*, time::Delta};
use kernel_ext::mem::PAGE;
use wire::{
    ids::{NodeId, Vpid},
    velo::MAX_LEN,
};

/// Maximum number of bytes that a command registers at a time.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum duration of a run in milliseconds.
const MAX_TIMEOUT_MS: u64 = 60_000;

/// Values of the words of all commands. Each word has a default except `node`.
pub(crate) struct Words {
    nic: u64,
    pub(crate) node: Option<u64>,
    pub(crate) vpid: u64,
    pub(crate) size: u64,
    pub(crate) count: u64,
    pub(crate) inflight: u64,
    pub(crate) timeout_ms: u64,
    mode: Mode,
    pub(crate) kind: Kind,
    pub(crate) access: Access,
    pub(crate) get: bool,
    /// Size of registered memory in bytes.
    pub(crate) bytes: u64,
    /// Length of a transfer in bytes; by default the size of the memory. If `first` is given:
    /// length of the registered memory in bytes.
    pub(crate) len: Option<u64>,
    /// Offset in bytes of registered memory in its first page.
    pub(crate) first: Option<u64>,
    /// Method of ending regions.
    pub(crate) how: How,
    pub(crate) nla: u64,
    pub(crate) offset: u64,
    pub(crate) seed: u64,
    pub(crate) tc: u64,
    /// Number of a lock. `compare` and `add` are the operands of the lock operation.
    pub(crate) number: u64,
    pub(crate) compare: u64,
    pub(crate) add: u64,
    /// For `rate`: number of messages that are sent together. For `lock`: number of timeouts that
    /// do not end the command.
    pub(crate) patience: u64,
    /// Maximum number of fragments of a list. This word and the words below are for commands with
    /// engines.
    pub(crate) frags: u64,
    pub(crate) notify: Notify,
    pub(crate) by: By,
    pub(crate) pause_ms: u64,
    pub(crate) listen: bool,
    pub(crate) slow_us: u64,
    pub(crate) shared: bool,
}

impl Words {
    fn parse<'a>(words: impl Iterator<Item = &'a str>, report: &mut Report<'_>) -> Result<Self> {
        let mut all = Self {
            nic: 0,
            node: None,
            vpid: u64::from(DEFAULT_VPID),
            size: 64,
            count: 1000,
            inflight: 8,
            timeout_ms: 10_000,
            mode: Mode::Irq,
            kind: Kind::Pages,
            access: Access::READ_WRITE,
            get: true,
            bytes: 0,
            len: None,
            first: None,
            how: How::All,
            nla: 0,
            offset: 0,
            seed: 1,
            tc: 0,
            number: 0,
            compare: i32::MAX as u64,
            add: 1,
            patience: 0,
            frags: 16,
            notify: Notify::Nothing,
            by: By::Cancel,
            pause_ms: 50,
            listen: false,
            slow_us: 0,
            shared: false,
        };
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return report.fail(EINVAL, fmt!("'{word}' is not of the form key=value"));
            };
            if key == "mode" {
                all.mode = match value {
                    "irq" => Mode::Irq,
                    "poll" => Mode::Poll,
                    _ => return report.fail(EINVAL, fmt!("mode is irq or poll, not '{value}'")),
                };
                continue;
            }
            if all.choose(key, value) {
                continue;
            }
            let max = match key {
                "nic" => 255,
                "node" => u64::from(NodeId::FIRST_RESERVED.0) - 1,
                "vpid" => u64::from(Vpid::USER_END.get()) - 1,
                "size" => transfer::MAX_SIZE as u64,
                "count" => 1_000_000,
                "inflight" => transfer::MAX_INFLIGHT as u64,
                "timeout_ms" => MAX_TIMEOUT_MS,
                "bytes" | "len" => MAX_BYTES,
                "first" => PAGE as u64 - 1,
                "nla" | "offset" | "seed" => u64::MAX,
                "tc" => 3,
                "number" => (1 << 24) - 1,
                "compare" | "add" => i32::MAX as u64,
                "patience" => 1000,
                "frags" => lists::MAX_FRAGMENTS as u64,
                "pause_ms" | "slow_us" => 10_000,
                _ => return report.fail(EINVAL, fmt!("unknown word '{key}'")),
            };
            let number = match value.parse::<u64>() {
                Ok(n) if n <= max => n,
                _ => {
                    return report.fail(
                        EINVAL,
                        fmt!("{key} is a number of 0 to {max}, not '{value}'"),
                    )
                }
            };
            match key {
                "nic" => all.nic = number,
                "node" => all.node = Some(number),
                "vpid" => all.vpid = number,
                "size" => all.size = number,
                "count" => all.count = number,
                "inflight" => all.inflight = number,
                "bytes" => all.bytes = number,
                "len" => all.len = Some(number),
                "first" => all.first = Some(number),
                "nla" => all.nla = number,
                "offset" => all.offset = number,
                "seed" => all.seed = number,
                "tc" => all.tc = number,
                "number" => all.number = number,
                "compare" => all.compare = number,
                "add" => all.add = number,
                "patience" => all.patience = number,
                "frags" => all.frags = number,
                "pause_ms" => all.pause_ms = number,
                "slow_us" => all.slow_us = number,
                _ => all.timeout_ms = number,
            }
        }
        Ok(all)
    }

    /// Returns offset and length in bytes of the registered memory if it does not fill its pages.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let first = self.first? as usize;
        let rest = (self.bytes as usize).saturating_sub(first);
        Some((first, self.len.map_or(rest, |len| len as usize)))
    }

    pub(crate) fn polls(&self) -> bool {
        self.mode == Mode::Poll
    }

    /// Parses a word whose value is a name.
    fn choose(&mut self, key: &str, value: &str) -> bool {
        match (key, value) {
            ("access", "r") => self.access = Access::READ,
            ("access", "w") => self.access = Access::WRITE,
            ("access", "rw") => self.access = Access::READ_WRITE,
            ("dir", "get") => self.get = true,
            ("dir", "put") => self.get = false,
            ("listen", "1") => self.listen = true,
            ("shared", "1") => self.shared = true,
            ("tell", name) => match engines::notify(name) {
                Some(notify) => self.notify = notify,
                None => return false,
            },
            ("by", name) => match By::parse(name) {
                Some(by) => self.by = by,
                None => return false,
            },
            ("kind", name) => match Kind::parse(name) {
                Some(kind) => self.kind = kind,
                None => return false,
            },
            ("how", name) => match How::parse(name) {
                Some(how) => self.how = how,
                None => return false,
            },
            _ => return false,
        }
        true
    }
}

/// Address of a server, and settings of a run.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) vpid: Vpid,
    pub(crate) timeout: Delta,
    pub(crate) timeout_ms: u64,
    pub(crate) mode: Mode,
}

/// Runs one command. Writes its output lines to `result`, even if the command fails. May sleep.
pub(crate) fn run(registry: &Registry, text: &[u8], result: &mut KVec<u8>) -> Result {
    let mut report = Report(result);
    let Ok(text) = core::str::from_utf8(text) else {
        return report.fail(EINVAL, fmt!("the command is not UTF-8"));
    };
    once(registry, text, &mut report)
}

fn once(registry: &Registry, text: &str, report: &mut Report<'_>) -> Result {
    let mut words = text.split_ascii_whitespace();
    let verb = words.next().unwrap_or("");
    let index = words
        .clone()
        .find_map(|w| w.strip_prefix("nic=")?.parse().ok());
    if let Some(attached) = registry.get(index.unwrap_or(0)) {
        if let Some(done) = remote::run(&attached, verb, words.clone(), report) {
            return done;
        }
        if let Some(done) = ports::run(&attached, verb, words.clone(), report) {
            return done;
        }
    }
    let words = Words::parse(words, report)?;
    let Some(attached) = registry.get(words.nic as usize) else {
        return report.fail(ENODEV, fmt!("there is no NIC number {}", words.nic));
    };
    let vpid = Vpid::new(words.vpid as u16).ok_or(EINVAL)?;
    match verb {
        "pieces" => chunks::put(&attached, &words, report),
        "serve" => {
            if let Err(e) = attached.serve(vpid) {
                return report.fail(e, fmt!("cannot serve: {e:?}"));
            }
            report.number("vpid", words.vpid)
        }
        "stop" => match attached.stop() {
            Ok(()) => Ok(()),
            Err(e) => report.fail(e, fmt!("no server to stop")),
        },
        "status" => {
            let Some(nic) = attached.nic() else {
                return report.fail(ENODEV, fmt!("the NIC is gone"));
            };
            let status = nic.status();
            report.number("node", u64::from(status.node.0))?;
            report.number("up", u64::from(status.is_up()))?;
            let server = attached.server().and_then(|s| s.show());
            report.number("serving", u64::from(server.is_some()))?;
            if let Some((velo, rma, counts)) = server {
                report.number("velo_vpid", u64::from(velo.get()))?;
                report.number("rma_vpid", u64::from(rma.get()))?;
                report.number("served", counts.served)?;
                report.number("bad", counts.bad)?;
                report.number("data", counts.data)?;
                report.number("puts", counts.puts)?;
                report.number("wakeups", counts.wakeups)?;
            }
            Ok(())
        }
        "offer" => regions::offer(&attached, &words, report),
        "offered" => regions::offered(&attached, &words, report),
        "revoke" => regions::revoke(&attached, report),
        "withdraw" => regions::withdraw(&attached, report),
        "heard" => calls::received(&attached, report),
        "copy" | "handles" | "lock" | "register" | "end" | "reserve" | "buffers" | "lists"
        | "calls" | "give_up" | "flood" => {
            let timeout = Delta::from_millis(words.timeout_ms as i64);
            let run = match attached.begin(timeout) {
                Ok(run) => run,
                Err(e) => return report.fail(e, fmt!("cannot begin: {e:?}")),
            };
            let nic = run.nic()?;
            match verb {
                "copy" => regions::copy(&nic, &words, timeout, report),
                "handles" => handles::run(&nic, &words, report)
                    .or_else(|e| report.fail(e, fmt!("cannot hold regions: {e:?}"))),
                "lock" => regions::lock(&nic, &words, timeout, report),
                "end" => many::end(&nic, &words, report),
                "reserve" => many::reserve(&nic, &words, timeout, report),
                "buffers" => many::buffers(&nic, &words, timeout, report),
                "lists" | "calls" | "give_up" | "flood" if words.node.is_none() => {
                    report.fail(EINVAL, fmt!("node= is missing"))
                }
                "lists" => lists::lists(&attached, &run, &words, timeout, report),
                "calls" => calls::calls(&run, &words, timeout, report),
                "give_up" => calls::give_up(&run, &words, timeout, report),
                "flood" => calls::flood(&run, &words, report),
                _ => stream::register(&nic, &words, report)
                    .or_else(|e| report.fail(e, fmt!("cannot register: {e:?}"))),
            }
        }
        "pingpong" | "rate" | "get" | "put" | "stream" => {
            let Some(node) = words.node else {
                return report.fail(EINVAL, fmt!("node= is missing"));
            };
            let peer = Peer {
                node: NodeId(node as u16),
                vpid,
                timeout: Delta::from_millis(words.timeout_ms as i64),
                timeout_ms: words.timeout_ms,
                mode: words.mode,
            };
            let Words {
                size,
                count,
                inflight,
                ..
            } = words;
            if count == 0 || inflight == 0 {
                return report.fail(EINVAL, fmt!("count and inflight are at least 1"));
            }
            let mut run = match attached.begin(peer.timeout) {
                Ok(run) => run,
                Err(e) if e == EBUSY => {
                    return report.fail(e, fmt!("another run is active or has left memory in use"));
                }
                Err(e) => return report.fail(e, fmt!("cannot begin: {e:?}")),
            };
            let nic = run.nic()?;
            if !nic.status().is_up() {
                return report.fail(ENETDOWN, fmt!("the network is {:?}", nic.status().network));
            }
            let outcome = match verb {
                "pingpong" | "rate" if !(8..=u64::from(MAX_LEN)).contains(&size) => {
                    return report.fail(EINVAL, fmt!("size is 8 to {MAX_LEN}"));
                }
                "pingpong" => {
                    pingpong::run(&run, &nic, &peer, size as usize, count as usize, report)
                }
                "rate" => stream::rate(&run, &nic, &peer, size as usize, count, report),
                "stream" => stream::stream(&run, &nic, &peer, &words, report),
                _ if size < 8 || size % 8 != 0 => {
                    return report.fail(EINVAL, fmt!("size is a multiple of 8"));
                }
                _ => {
                    let direction = if verb == "get" {
                        Direction::Get
                    } else {
                        Direction::Put
                    };
                    let job = transfer::Job {
                        direction,
                        size: size as usize,
                        count,
                        inflight: inflight as usize,
                    };
                    transfer::run(&mut run, &nic, &peer, &job, report)
                }
            };
            outcome.or_else(|e| report.fail(e, fmt!("the run ended early: {e:?}")))
        }
        _ => report.fail(
            EINVAL,
            fmt!("unknown command '{verb}'; docs/bench.md has them"),
        ),
    }
}
