//! RMA responder and completer, which process packets from the network (HW §10.5).

use super::dma::nth;
use super::rma_engine::Transfer;
use super::rma_mem::{FaultKind, Note, Space};
use super::rma_regs::{Half, Reader, RmaError};
use super::rma_requester::lock_word;
use super::{Body, Nic, Part, RmaKind, RmaMessage, RraVpid};
use crate::env::{Dest, Env, NetPort, Packet, Stream};
use wire::ids::NodeId;
use wire::regs::rma as regs;
use wire::rma::{Command, NotificationType};

/// Sub-unit that processes a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Responder,
    Completer,
}

impl Side {
    fn kind(self) -> NotificationType {
        match self {
            Side::Responder => NotificationType::Responder,
            Side::Completer => NotificationType::Completer,
        }
    }
}

/// A packet that the completer writes to memory.
struct Arrived<'a> {
    from: u16,
    part: Part,
    /// Content of the completer's notification.
    note: Note,
    /// True if the completer's notification is requested.
    wanted: bool,
    space: Space,
    addr: u64,
    data: &'a Result<Vec<u8>, u32>,
}

fn space(m: &RmaMessage, vpid: u8, remote: bool) -> Space {
    match (remote && m.mode.rra, m.mode.translate) {
        (true, _) => Space::Registers,
        (false, true) => Space::Nla(vpid),
        (false, false) => Space::Bus,
    }
}

fn qw(command: Command) -> bool {
    matches!(
        command,
        Command::QwGet | Command::QwPut | Command::QwGetResponse
    )
}

fn half(command: Command) -> Half {
    if qw(command) {
        Half::Low
    } else {
        Half::High
    }
}

impl Nic {
    /// Processes an RMA request or response from another node.
    pub(super) fn rma_receive(&mut self, from: u16, tc: u8, m: RmaMessage, env: &mut Env<'_>) {
        if self.rma_loses(&m) {
            return;
        }
        match m.kind {
            RmaKind::Put { .. } | RmaKind::Immediate { .. } | RmaKind::Notify { .. } => {
                if self.rma_admit(from, &m, Side::Completer, env) {
                    self.rma_complete(from, m, env);
                }
            }
            RmaKind::GetRequest { .. } | RmaKind::LockRequest { .. } => {
                let at_completer = matches!(
                    m.kind,
                    RmaKind::LockRequest {
                        at_completer: true,
                        ..
                    }
                );
                let side = if at_completer {
                    Side::Completer
                } else {
                    Side::Responder
                };
                if !self.rma_admit(from, &m, side, env) {
                    return;
                }
                self.rma_serve(from, tc, m, env);
            }
            RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. } => {
                if self.rma_vpid(m.origin_vpid).vpid_enable() {
                    self.rma_response(from, m, env);
                } else {
                    self.rma_refuse(from, &m, Side::Completer, false, env);
                }
            }
        }
    }

    /// Returns true if an injected fault loses the packet. The sender does not notice the loss,
    /// because the packet has left the network.
    fn rma_loses(&mut self, m: &RmaMessage) -> bool {
        let (RmaKind::Put { part, .. } | RmaKind::GetResponse { part, .. }) = m.kind else {
            return false;
        };
        let lost = !part.last && nth(&mut self.rma.inner, self.cfg.faults.lose_inner_every);
        let drops = &mut self.counters.drops.lost_inner;
        *drops = drops.wrapping_add(u64::from(lost));
        lost
    }

    /// Checks the VPID that a request or response addresses. Register accesses are checked only if
    /// the options require it (G19). Notifications and locks on a register-access page are always
    /// checked.
    fn rma_admit(&mut self, from: u16, m: &RmaMessage, side: Side, env: &mut Env<'_>) -> bool {
        let table = self.rma_vpid(m.peer_vpid);
        let registers =
            m.mode.rra && !matches!(m.kind, RmaKind::Notify { .. } | RmaKind::LockRequest { .. });
        let free = registers && self.cfg.rra_vpid == RraVpid::Any;
        if free || (table.vpid_enable() && table.prot_desc() == m.protection) {
            return true;
        }
        self.rma_refuse(from, m, side, table.vpid_enable(), env);
        false
    }

    fn rma_refuse(
        &mut self,
        from: u16,
        m: &RmaMessage,
        side: Side,
        enabled: bool,
        env: &mut Env<'_>,
    ) {
        let drops = &mut self.counters.drops;
        let (n, error, why) = match (enabled, side) {
            (true, Side::Responder) => (
                &mut drops.wrong_protection,
                RmaError::ResponderProtection,
                "protection",
            ),
            (true, Side::Completer) => (
                &mut drops.wrong_protection,
                RmaError::CompleterProtection,
                "protection",
            ),
            (false, Side::Responder) => (
                &mut drops.vpid_disabled,
                RmaError::ResponderVpid,
                "VPID disabled",
            ),
            (false, Side::Completer) => (
                &mut drops.vpid_disabled,
                RmaError::CompleterVpid,
                "VPID disabled",
            ),
        };
        *n = n.wrapping_add(1);
        self.rma_error(error);
        let vpid = Body::Rma(Box::new(m.clone())).target_vpid();
        self.diagnose(env, || {
            format!(
                "RMA {:?} from node {from} to VPID {vpid} dropped: {why}",
                m.command
            )
        });
    }

    /// Returns the notification of a command of another node, for the VPID that the command
    /// addresses.
    fn peer_note(m: &RmaMessage, from: u16, kind: NotificationType) -> Note {
        Note {
            vpid: m.peer_vpid,
            kind,
            command: m.command,
            mode: m.mode,
            remote_node: from,
            remote_vpid: m.origin_vpid,
        }
    }

    /// Completes a packet of a PUT, an immediate PUT or a notification PUT.
    fn rma_complete(&mut self, from: u16, m: RmaMessage, env: &mut Env<'_>) {
        let note = Self::peer_note(&m, from, NotificationType::Completer);
        let space = space(&m, m.peer_vpid, true);
        let wanted = m.notify.completer;
        match m.kind {
            RmaKind::Put {
                addr,
                part,
                ref data,
            } => {
                self.rma_count(regs::PERF_COMPLETER_IN_0, half(m.command), 1);
                let arrived = Arrived {
                    from,
                    part,
                    note,
                    wanted,
                    space,
                    addr,
                    data,
                };
                self.rma_store_part(arrived, env);
            }
            RmaKind::Immediate { addr, len, value } => {
                self.rma_count(regs::PERF_COMPLETER_IN_1, Half::Low, 1);
                let raw = value.to_le_bytes();
                let data = &raw[..usize::from(len).clamp(1, 8)];
                let result = self.rma_write(space, addr, data, env);
                let told = self.rma_settle(result, wanted);
                if told {
                    let error = result.err().map_or(0, |_| note.kind.code());
                    self.notify(note, addr, data.len() as u32 - 1, error, env);
                }
            }
            RmaKind::Notify { class, value } => {
                self.rma_count(regs::PERF_COMPLETER_IN_1, Half::High, 1);
                if wanted {
                    self.notify(note, value, class.into(), 0, env);
                }
            }
            _ => {}
        }
    }

    /// Counts a failure of the completer. Returns true if the completer must write a notification.
    fn rma_settle(&mut self, result: Result<(), FaultKind>, wanted: bool) -> bool {
        let Err(fault) = result else {
            return wanted;
        };
        let error = match fault {
            FaultKind::Illegal => RmaError::CompleterCommand,
            FaultKind::Translation | FaultKind::Dma => RmaError::CompleterTranslation,
        };
        self.rma_transfer_error(error, fault);
        wanted || self.rma_force_errors()
    }

    /// Completes a packet that contains data, or the error of the other side, which could not read
    /// the data. After a failure, the remaining packets of the transfer are discarded, so that
    /// there is a single error notification and no later success.
    fn rma_store_part(&mut self, arrived: Arrived<'_>, env: &mut Env<'_>) {
        let Arrived {
            from,
            part,
            note,
            wanted,
            space,
            addr,
            data,
        } = arrived;
        if self.rma.engine.leave_out(from, part) {
            return;
        }
        let data = match data {
            Ok(data) => data,
            Err(len) => {
                // The other side has already counted the error (G17).
                if wanted || self.rma_force_errors() {
                    let unit = match note.command {
                        Command::BytePut | Command::QwPut => NotificationType::Requester,
                        _ => NotificationType::Responder,
                    };
                    self.notify(note, addr, len.saturating_sub(1), unit.code(), env);
                }
                return;
            }
        };
        self.rma_count_bytes(regs::PERF_COMPLETER_IN_4, data.len() as u64);
        let result = self.rma_write(space, addr, data, env);
        if result.is_err() {
            self.rma.engine.fail(from, part);
        }
        let told = self.rma_settle(result, wanted);
        if told && (part.last || note.mode.ntr || result.is_err()) {
            let error = result.err().map_or(0, |_| note.kind.code());
            let size = (data.len() as u32).saturating_sub(1);
            self.notify(note, addr, size, error, env);
        }
    }

    /// Answers GET and lock requests on behalf of the responder (or of the completer, for locks),
    /// and writes their notifications. Returns the transfer of a GET, whose packets are sent step
    /// by step.
    pub(super) fn rma_answer(
        &mut self,
        from: u16,
        tc: u8,
        m: RmaMessage,
        env: &mut Env<'_>,
    ) -> Option<Transfer> {
        match m.kind {
            RmaKind::GetRequest {
                read_addr,
                write_addr,
                len,
            } => {
                self.rma_count(regs::PERF_RESPONDER_IN_0, half(m.command), 1);
                return Some(Transfer {
                    by: Reader::Responder,
                    half: half(m.command),
                    note: Self::peer_note(&m, from, NotificationType::Responder),
                    wanted: m.notify.responder,
                    space: space(&m, m.peer_vpid, true),
                    from: read_addr,
                    to: write_addr,
                    len,
                    done: 0,
                    source: None,
                    number: self.rma.engine.number(),
                    message: RmaMessage {
                        command: match qw(m.command) {
                            true => Command::QwGetResponse,
                            false => Command::ByteGetResponse,
                        },
                        ..m.bare()
                    },
                    node: from,
                    tc: self.response_tc(m.peer_vpid, tc),
                });
            }
            RmaKind::LockRequest {
                at_completer,
                number,
                compare,
                add,
            } => {
                let side = if at_completer {
                    Side::Completer
                } else {
                    Side::Responder
                };
                if at_completer {
                    self.rma_count(regs::PERF_COMPLETER_IN_3, Half::Low, 1);
                } else {
                    self.rma_count(regs::PERF_RESPONDER_IN_1, Half::Low, 1);
                    self.rma_count(regs::PERF_RESPONDER_OUT_1, Half::Low, 1);
                }
                // The notification must follow the write of the lock's value, which must follow all
                // earlier operations on the lock.
                let stream = Stream::Rma {
                    node: from,
                    vpid: m.origin_vpid,
                    tc,
                    response: false,
                };
                self.tx.stream = Some(stream);
                env.host.enter(stream);
                env.host.enter(Stream::Everything);
                let locked = self.lock(m.peer_vpid, number, compare, add, env);
                env.host.leave();
                let error = if locked.is_some() {
                    0
                } else {
                    side.kind().code()
                };
                if locked.is_none() {
                    self.rma_error(RmaError::ResponderLock);
                }
                let (success, value) = locked.map_or((false, 0), |l| (l.success, l.value));
                let kind = RmaKind::LockResponse {
                    number,
                    success,
                    value,
                    error,
                };
                self.rma_respond(from, tc, &m, kind, env);
                if m.notify.responder || (error != 0 && self.rma_force_errors()) {
                    let note = Self::peer_note(&m, from, NotificationType::Responder);
                    self.notify(note, lock_word(number, success, value), 0, error, env);
                }
                env.host.leave();
                self.tx.stream = None;
            }
            _ => {}
        }
        None
    }

    /// Returns the traffic class of the response to a request.
    fn response_tc(&self, vpid: u8, tc: u8) -> u8 {
        let table = self.rma_vpid(vpid);
        match tc {
            0 => table.tc0(),
            1 => table.tc1(),
            2 => table.tc2(),
            _ => table.tc3(),
        }
    }

    fn rma_respond(&mut self, to: u16, tc: u8, m: &RmaMessage, kind: RmaKind, env: &mut Env<'_>) {
        let response = RmaMessage {
            command: Command::LockResponse,
            kind,
            ..m.bare()
        };
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(to)),
            port: NetPort::RmaCompleter,
            tc: self.response_tc(m.peer_vpid, tc),
            bytes: 16,
            body: Body::Rma(Box::new(response)),
        };
        self.inject(packet, env);
    }

    /// Processes a response on behalf of the completer at the origin.
    fn rma_response(&mut self, from: u16, m: RmaMessage, env: &mut Env<'_>) {
        let note = Note {
            vpid: m.origin_vpid,
            kind: NotificationType::Completer,
            command: m.command,
            mode: m.mode,
            remote_node: from,
            remote_vpid: m.peer_vpid,
        };
        match m.kind {
            RmaKind::GetResponse {
                write_addr,
                part,
                ref data,
            } => {
                self.rma_count(regs::PERF_COMPLETER_IN_2, half(m.command), 1);
                let bytes = data.as_ref().map_or(0, Vec::len) as u64;
                let sum = &mut self.counters.rma.get_bytes;
                *sum = sum.wrapping_add(bytes);
                let arrived = Arrived {
                    from,
                    part,
                    note,
                    wanted: m.notify.completer,
                    space: space(&m, m.origin_vpid, false),
                    addr: write_addr,
                    data,
                };
                self.rma_store_part(arrived, env);
            }
            RmaKind::LockResponse {
                number,
                success,
                value,
                error,
            } => {
                self.rma_count(regs::PERF_COMPLETER_IN_3, Half::High, 1);
                if m.notify.completer || (error != 0 && self.rma_force_errors()) {
                    self.notify(note, lock_word(number, success, value), 0, error, env);
                }
            }
            _ => {}
        }
    }
}
