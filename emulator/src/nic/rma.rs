//! RMA requester: descriptors from the host (HW §10.1…10.5).

use super::rma_mem::{FaultKind, MemFault, Note, Space};
use super::rma_regs::{Half, Reader, RmaError};
use super::tx::Job;
use super::wcbuf::{Kept, WcError};
use super::{wcflight, Body, Nic, RmaKind, RmaMessage, UnalignedQw};
use crate::env::{Dest, Env, NetPort, Packet, TraceEvent};
use wire::ids::{NodeId, Unit, Vpid};
use wire::regs::rma as regs;
use wire::rma::{
    fragment_count, Command, Descriptor, DescriptorError, DescriptorWord, LockTarget, Mode,
    NotificationType, NotifySpec, Operation, PageOptions, RequesterAddr, FRAGMENT,
};

const BYTES: usize = 24;
const PAGES: usize = 32;
/// Offset bits that a requester page decodes: a descriptor takes 24 of 32 bytes.
const WINDOW: usize = 32;

/// Descriptor that software is storing.
#[derive(Clone, Copy)]
struct Assembly {
    bytes: [u8; BYTES],
    /// One bit per byte that was stored.
    valid: u32,
    /// When the last one was, in ns.
    since: u64,
}

impl Assembly {
    const EMPTY: Self = Self {
        bytes: [0; BYTES],
        valid: 0,
        since: 0,
    };
    const COMPLETE: u32 = (1 << BYTES) - 1;

    fn words(&self) -> [u64; 3] {
        let mut words = [0; 3];
        for (word, raw) in words.iter_mut().zip(self.bytes.chunks_exact(8)) {
            *word = raw.try_into().map(u64::from_le_bytes).unwrap_or(0);
        }
        words
    }
}

/// A complete descriptor.
pub(super) struct RmaCommand {
    vpid: u8,
    options: PageOptions,
    words: [u64; 3],
}

pub(super) struct Rma {
    assembly: Vec<Option<Box<[Assembly; PAGES]>>>,
    pub(super) vpid_table: Box<[u64; 256]>,
}

impl Default for Rma {
    fn default() -> Self {
        Self {
            assembly: vec![None; 256],
            vpid_table: Box::new([0; 256]),
        }
    }
}

/// Clears bits that mean nothing for the command, so that a descriptor with garbage in them still executes.
fn without_reserved(words: [u64; 3]) -> [u64; 3] {
    let [raw, word1, word2] = words;
    let word0 = DescriptorWord(raw & DescriptorWord::KNOWN);
    match Command::from_code(word0.command()) {
        Some(Command::NotificationPut) => [word0.with_count(word0.count() & 0xFF).raw(), word1, 0],
        Some(Command::ImmediatePut) => [word0.with_count(word0.count() & 7).raw(), word1, word2],
        Some(Command::Lock) => [
            word0.with_count(word0.count() & 1).raw(),
            word1 & !0xFF00_0000,
            word2 & !0xFFFF_FFFF,
        ],
        _ => [word0.raw(), word1, word2],
    }
}

impl Nic {
    /// Host store to a requester page. `data` does not cross a page.
    pub(super) fn rma_store(&mut self, at: u32, data: &[u8], env: &mut Env<'_>) {
        let addr = RequesterAddr::decode(at);
        let vpid = addr.vpid.index() as u8;
        self.check_store(Unit::Rma, vpid, addr.offset, WINDOW, data.len(), env);
        let mut pos = usize::from(addr.offset) % WINDOW;
        let mut rest = data;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(WINDOW - pos));
            let (inside, beyond) = now.split_at(now.len().min(BYTES.saturating_sub(pos)));
            if !inside.is_empty() {
                self.rma_assemble(vpid, addr.options, pos, inside, env);
            }
            if !beyond.is_empty() {
                self.wcbuf_error(Unit::Rma, vpid, WcError::PktTooLong);
                self.diagnose(env, || {
                    format!("RMA VPID {vpid}: store beyond the three words of a descriptor")
                });
            }
            rest = later;
            pos = 0;
        }
    }

    fn rma_assemble(
        &mut self,
        vpid: u8,
        options: PageOptions,
        pos: usize,
        data: &[u8],
        env: &mut Env<'_>,
    ) {
        let now = env.host.now_ns();
        let slot = &mut self.rma.assembly[usize::from(vpid)];
        let pages = slot.get_or_insert_with(|| Box::new([Assembly::EMPTY; PAGES]));
        let a = &mut pages[usize::from(options.index()) % PAGES];
        let torn = pos < 8 && a.valid & 0xFF == 0xFF;
        if torn {
            a.valid = 0;
        }
        a.bytes[pos..pos + data.len()].copy_from_slice(data);
        a.valid |= ((1 << data.len()) - 1) << pos;
        a.since = now;
        let complete = a.valid == Assembly::COMPLETE;
        let words = a.words();
        if complete {
            a.valid = 0;
        }
        if torn {
            self.counters.drops.incomplete_descriptor =
                self.counters.drops.incomplete_descriptor.wrapping_add(1);
            self.wcbuf_error(Unit::Rma, vpid, WcError::QwLength);
            self.diagnose(env, || {
                format!("RMA VPID {vpid}: new descriptor before the old one was complete")
            });
        }
        if complete {
            self.rma_accept(
                RmaCommand {
                    vpid,
                    options,
                    words,
                },
                env,
            );
        } else {
            self.watch_incomplete(Unit::Rma, now);
        }
    }

    /// As [`Nic::velo_expire`].
    pub(super) fn rma_expire(&mut self, now: u64, patience: u64) -> (Vec<u8>, Option<u64>) {
        let mut late = Vec::new();
        let mut oldest = None;
        for (vpid, pages) in (0..).zip(&mut self.rma.assembly) {
            for a in pages.iter_mut().flat_map(|p| p.iter_mut()) {
                if wcflight::expire(&mut a.valid, a.since, now, patience, &mut oldest) {
                    late.push(vpid);
                }
            }
        }
        (late, oldest)
    }

    fn rma_accept(&mut self, command: RmaCommand, env: &mut Env<'_>) {
        let vpid = command.vpid;
        if env.trace.enabled() {
            env.trace.event(TraceEvent::Descriptor {
                port: NetPort::RmaCompleter,
                vpid: Vpid::from(vpid),
                words: &command.words,
            });
        }
        let word0 = DescriptorWord(command.words[0]);
        if word0.length_qws() != 3 {
            self.wcbuf_error(Unit::Rma, vpid, WcError::QwLength);
            self.counters.drops.rma_bad_command =
                self.counters.drops.rma_bad_command.wrapping_add(1);
            self.diagnose(env, || {
                format!("RMA VPID {vpid}: length field is {}", word0.length_qws())
            });
            return;
        }
        self.wcbuf_submit(Unit::Rma, vpid, Kept::Command(command), env);
    }

    /// True if there is no way for a command now.
    pub(super) fn rma_congested(&self, command: &RmaCommand) -> bool {
        let word0 = DescriptorWord(command.words[0]);
        self.tx_full()
            || self.pressed(self.info.node_id(), Unit::Rma, command.vpid)
            || self.pressed(word0.node(), Unit::Rma, word0.vpid())
    }

    /// Starts a command that the write-combining buffer gave out.
    pub(super) fn rma_take(&mut self, command: RmaCommand, env: &mut Env<'_>) {
        if self.tx_blocked(env) {
            self.wait_tx(Job::Command(command));
        } else {
            self.rma_execute(&command, env);
        }
    }

    /// Executes a descriptor.
    pub(super) fn rma_execute(&mut self, command: &RmaCommand, env: &mut Env<'_>) {
        let vpid = command.vpid;
        let word0 = DescriptorWord(command.words[0]);
        let n = &mut self.counters.rma.commands[usize::from(word0.command() & 15)];
        *n = n.wrapping_add(1);
        if !self.rma_vpid(vpid).vpid_enable() {
            self.counters.drops.vpid_disabled = self.counters.drops.vpid_disabled.wrapping_add(1);
            self.rma_error(RmaError::RequesterCommand);
            self.diagnose(env, || {
                format!("RMA descriptor of VPID {vpid}, which is not enabled")
            });
            return;
        }
        let strict = Descriptor::decode(command.words);
        if let Err(DescriptorError::Reserved(..)) = strict {
            self.counters.reserved_bits = self.counters.reserved_bits.wrapping_add(1);
            self.diagnose(env, || {
                format!("RMA VPID {vpid}: reserved bits set in {:x?}", command.words)
            });
        }
        let d = match Descriptor::decode(without_reserved(command.words)) {
            Ok(d) => d,
            Err(why) => {
                self.rma_illegal(command, RmaError::RequesterCommand, &why.to_string(), env);
                return;
            }
        };
        let m = d.modifiers;
        if m.era || m.ewa {
            self.rma_illegal(
                command,
                RmaError::RequesterAccelerator,
                "accelerator modes are not there",
                env,
            );
        } else if m.multicast {
            self.rma_illegal(
                command,
                RmaError::RequesterCommand,
                "RMA has no multicast",
                env,
            );
        } else {
            self.rma_request(command, &d, env);
        }
    }

    /// A command that is refused as a whole: requester notification with error bit if wanted (G14).
    fn rma_illegal(&mut self, command: &RmaCommand, error: RmaError, why: &str, env: &mut Env<'_>) {
        let vpid = command.vpid;
        self.counters.drops.rma_bad_command = self.counters.drops.rma_bad_command.wrapping_add(1);
        self.rma_error(error);
        self.diagnose(env, || {
            format!("RMA VPID {vpid}: {why} ({:x?})", command.words)
        });
        let word0 = DescriptorWord(command.words[0]);
        let spec = NotifySpec::from_bits(word0.notify());
        if !spec.requester && !self.rma_force_errors() {
            return;
        }
        let modifiers = wire::rma::Modifiers::from_bits(word0.modifiers());
        let words = wire::rma::NotificationWord(0)
            .with_vpid(word0.vpid())
            .with_node(word0.node())
            .with_kind(NotificationType::Requester.code())
            .with_command(word0.command())
            .with_mode(Mode::of(command.options, modifiers).bits())
            .with_error(NotificationType::Requester.code());
        let (told, size) = refused(command.words);
        let words = [told, words.with_size(size).raw()];
        self.notify_words(vpid, words, NotificationType::Requester, env);
    }

    fn rma_request(&mut self, command: &RmaCommand, d: &Descriptor, env: &mut Env<'_>) {
        let vpid = command.vpid;
        let mode = Mode::of(command.options, d.modifiers);
        let note = Note {
            vpid,
            kind: NotificationType::Requester,
            command: d.command(),
            mode,
            remote_node: d.node.0,
            remote_vpid: d.vpid.get() as u8,
        };
        let local = if mode.translate {
            Space::Nla(vpid)
        } else {
            Space::Bus
        };
        if let Operation::Get {
            qw: true,
            len,
            remote,
            local,
        }
        | Operation::Put {
            qw: true,
            len,
            local,
            remote,
        } = d.op
        {
            let unaligned = (u64::from(len) | remote | local) % 8 != 0;
            if unaligned && self.cfg.unaligned_qw == UnalignedQw::Error {
                self.rma_illegal(
                    command,
                    RmaError::RequesterCommand,
                    "unaligned quadword command",
                    env,
                );
                return;
            }
        }
        let wanted = d.notify.requester;
        match d.op {
            Operation::Put {
                qw,
                len,
                local: from,
                remote,
            } => {
                let half = if qw { Half::Low } else { Half::High };
                self.rma_count(regs::PERF_REQUESTER_IN_0, half, 1);
                match self.rma_read(Reader::Requester, local, from, len, env) {
                    Ok(data) => {
                        self.rma_count(regs::PERF_REQUESTER_OUT_0, half, fragment_count(len));
                        self.counters.rma.put_bytes =
                            self.counters.rma.put_bytes.wrapping_add(len.into());
                        self.rma_count_bytes(regs::PERF_REQUESTER_OUT_6, len.into());
                        let kind = RmaKind::Put { addr: remote, data };
                        self.rma_send(command, d, NetPort::RmaCompleter, len, kind, env);
                        if wanted {
                            self.notify_transfer(note, from, len, Ok(()), env);
                        }
                    }
                    Err(fault) => {
                        self.rma_transfer_error(RmaError::RequesterTranslation, fault);
                        if wanted || self.rma_force_errors() {
                            self.notify_transfer(note, from, len, Err(fault), env);
                        }
                    }
                }
            }
            Operation::Get {
                qw,
                len,
                remote,
                local: to,
            } => {
                let half = if qw { Half::Low } else { Half::High };
                self.rma_count(regs::PERF_REQUESTER_IN_2, half, 1);
                self.rma_count(regs::PERF_REQUESTER_OUT_2, half, 1);
                let kind = RmaKind::GetRequest {
                    read_addr: remote,
                    write_addr: to,
                    len,
                };
                self.rma_send(command, d, NetPort::RmaResponder, 24, kind, env);
                if wanted {
                    self.notify_transfer(note, to, len, Ok(()), env);
                }
            }
            Operation::ImmediatePut { len, remote, value } => {
                self.rma_count(regs::PERF_REQUESTER_IN_1, Half::Low, 1);
                self.rma_count(regs::PERF_REQUESTER_OUT_1, Half::Low, 1);
                let kind = RmaKind::Immediate {
                    addr: remote,
                    len,
                    value,
                };
                self.rma_send(command, d, NetPort::RmaCompleter, len.into(), kind, env);
                if wanted {
                    self.notify(note, value, u32::from(len) - 1, 0, env);
                }
            }
            Operation::NotificationPut { class, value } => {
                self.rma_count(regs::PERF_REQUESTER_IN_1, Half::High, 1);
                self.rma_count(regs::PERF_REQUESTER_OUT_1, Half::High, 1);
                self.rma_send(
                    command,
                    d,
                    NetPort::RmaCompleter,
                    8,
                    RmaKind::Notify { class, value },
                    env,
                );
                if wanted {
                    self.notify(note, value, class.into(), 0, env);
                }
            }
            Operation::Lock {
                at,
                number,
                compare,
                add,
            } => {
                let at_completer = at == LockTarget::Completer;
                let (half, port) = match at_completer {
                    true => (Half::High, NetPort::RmaCompleter),
                    false => (Half::Low, NetPort::RmaResponder),
                };
                self.rma_count(regs::PERF_REQUESTER_IN_3, half, 1);
                self.rma_count(regs::PERF_REQUESTER_OUT_3, half, 1);
                let kind = RmaKind::LockRequest {
                    at_completer,
                    number,
                    compare,
                    add,
                };
                self.rma_send(command, d, port, 16, kind, env);
                if wanted {
                    self.notify(note, lock_word(number, false, compare), 0, 0, env);
                }
            }
        }
    }

    fn rma_send(
        &mut self,
        c: &RmaCommand,
        d: &Descriptor,
        port: NetPort,
        bytes: u32,
        kind: RmaKind,
        env: &mut Env<'_>,
    ) {
        let message = RmaMessage {
            origin_vpid: c.vpid,
            peer_vpid: d.vpid.get() as u8,
            protection: self.rma_vpid(c.vpid).prot_desc(),
            command: d.command(),
            notify: d.notify,
            mode: Mode::of(c.options, d.modifiers),
            kind,
        };
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(d.node.0)),
            port,
            tc: c.options.traffic_class,
            bytes,
            body: Body::Rma(Box::new(message)),
        };
        // The caller has made sure that it is this command's turn, so nothing may overtake it here.
        self.inject(packet, env);
    }

    /// Counts a failed transfer.
    pub(super) fn rma_transfer_error(&mut self, error: RmaError, fault: MemFault) {
        let drops = &mut self.counters.drops;
        let n = match fault.kind {
            FaultKind::Illegal => &mut drops.rma_bad_command,
            FaultKind::Translation => &mut drops.translation,
            FaultKind::Dma => &mut drops.dma,
        };
        *n = n.wrapping_add(1);
        self.rma_error(error);
    }
}

/// Word 0 and size field of the requester notification of a command that is refused: those of its first fragment.
fn refused([word0, word1, word2]: [u64; 3]) -> (u64, u32) {
    let word0 = DescriptorWord(word0);
    let count = word0.count();
    match Command::from_code(word0.command()) {
        Some(Command::ByteGet | Command::QwGet) => (word2, count.min(FRAGMENT - 1)),
        Some(Command::BytePut | Command::QwPut) => (word1, count.min(FRAGMENT - 1)),
        Some(Command::ImmediatePut) => (word2, count & 7),
        Some(Command::NotificationPut) => (word1, count & 0xFF),
        Some(Command::Lock) => (lock_word(word1 as u32, false, (word1 >> 32) as i32), 0),
        _ => (word1, 0),
    }
}

/// Word 0 of a lock notification.
pub(super) fn lock_word(number: u32, success: bool, value: i32) -> u64 {
    wire::rma::LockResult(0)
        .with_number(number)
        .with_result(success.into())
        .with_value(value as u32)
        .raw()
}
