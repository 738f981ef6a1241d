//! RMA requester, which checks and executes commands (HW §10.2…10.5).

use super::rma::RmaCommand;
use super::rma_engine::{Flow, Task, Transfer};
use super::rma_mem::{FaultKind, Note, Space};
use super::rma_regs::{Half, Reader, RmaError};
use super::{Body, Nic, RmaKind, RmaMessage, UnalignedQw};
use crate::env::{Dest, Env, NetPort, Packet};
use wire::ids::{NodeId, Unit};
use wire::regs::rma as regs;
use wire::rma::{
    Command, Descriptor, DescriptorError, DescriptorWord, LockTarget, Mode, NotificationType,
    NotifySpec, Operation, FRAGMENT,
};

/// Returns the words with all bits cleared that the command does not use. A descriptor with random
/// values in these bits is therefore still executed.
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
    /// Queues a descriptor. It is executed after the earlier descriptors of its VPID and traffic
    /// class (HW §10.8).
    pub(super) fn rma_execute(&mut self, command: &RmaCommand, env: &Env<'_>) {
        let flow = Flow::Requester {
            vpid: command.vpid,
            tc: command.options.traffic_class,
        };
        let now = env.host.now_ns();
        self.rma.engine.push(flow, Task::Command(*command), now);
    }

    /// Begins a command. Returns a transfer if the command must send packets step by step.
    pub(super) fn rma_begin(
        &mut self,
        command: &RmaCommand,
        env: &mut Env<'_>,
    ) -> Option<Transfer> {
        let vpid = command.vpid;
        self.wcbuf_left(Unit::Rma, vpid, env);
        let word0 = DescriptorWord(command.words[0]);
        let n = &mut self.counters.rma.commands[usize::from(word0.command() & 15)];
        *n = n.wrapping_add(1);
        if !self.rma_vpid(vpid).vpid_enable() {
            self.counters.drops.vpid_disabled = self.counters.drops.vpid_disabled.wrapping_add(1);
            self.rma_error(RmaError::RequesterCommand);
            self.diagnose(env, || {
                format!("RMA descriptor of VPID {vpid}, which is not enabled")
            });
            return None;
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
                return None;
            }
        };
        let m = d.modifiers;
        if m.era || m.ewa {
            self.rma_illegal(
                command,
                RmaError::RequesterAccelerator,
                "accelerator modes are not supported",
                env,
            );
            None
        } else if m.multicast {
            self.rma_illegal(
                command,
                RmaError::RequesterCommand,
                "RMA has no multicast",
                env,
            );
            None
        } else {
            self.rma_request(command, &d, env)
        }
    }

    /// Rejects a whole command. Writes a requester notification with an error bit if the command
    /// requests one (G14).
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

    fn rma_request(
        &mut self,
        command: &RmaCommand,
        d: &Descriptor,
        env: &mut Env<'_>,
    ) -> Option<Transfer> {
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
                return None;
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
                return Some(Transfer {
                    by: Reader::Requester,
                    half,
                    note,
                    wanted,
                    space: local,
                    from,
                    to: remote,
                    len,
                    done: 0,
                    source: None,
                    number: self.rma.engine.number(),
                    message: self.rma_message(command, d),
                    node: d.node.0,
                    tc: command.options.traffic_class,
                });
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
                    self.notify_sent(note, to, len, env);
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
        None
    }

    /// Returns the content that all packets of a command have in common. `kind` is a placeholder.
    fn rma_message(&self, c: &RmaCommand, d: &Descriptor) -> RmaMessage {
        RmaMessage {
            origin_vpid: c.vpid,
            peer_vpid: d.vpid.get() as u8,
            protection: self.rma_vpid(c.vpid).prot_desc(),
            command: d.command(),
            notify: d.notify,
            mode: Mode::of(c.options, d.modifiers),
            kind: RmaKind::Notify { class: 0, value: 0 },
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
            kind,
            ..self.rma_message(c, d)
        };
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(d.node.0)),
            port,
            tc: c.options.traffic_class,
            bytes,
            body: Body::Rma(Box::new(message)),
        };
        // The packet bypasses the queue of its lane, because the caller ensures the order.
        self.inject(packet, env);
    }

    /// Counts a failed transfer.
    pub(super) fn rma_transfer_error(&mut self, error: RmaError, fault: FaultKind) {
        let drops = &mut self.counters.drops;
        let n = match fault {
            FaultKind::Illegal => &mut drops.rma_bad_command,
            FaultKind::Translation => &mut drops.translation,
            FaultKind::Dma => &mut drops.dma,
        };
        *n = n.wrapping_add(1);
        self.rma_error(error);
    }
}

/// Returns word 0 and the size field of the requester notification of a rejected command. Both are
/// those of the first fragment.
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

/// Returns word 0 of the notification of a lock operation.
pub(super) fn lock_word(number: u32, success: bool, value: i32) -> u64 {
    wire::rma::LockResult(0)
        .with_number(number)
        .with_result(success.into())
        .with_value(value as u32)
        .raw()
}
