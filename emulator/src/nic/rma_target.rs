//! RMA responder and completer: what arrives from the network (HW §10.5).

use super::rma::lock_word;
use super::rma_mem::{FaultKind, MemFault, Note, Space};
use super::rma_regs::{Half, Reader, RmaError};
use super::tx::Job;
use super::{Body, Nic, RmaKind, RmaMessage};
use crate::env::{Dest, Env, NetPort, Packet};
use crate::lane::Lane;
use wire::ids::NodeId;
use wire::regs::rma as regs;
use wire::rma::{fragment_count, Command, NotificationType};

/// Sub-unit that takes a packet.
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
    /// A request or response arrives.
    pub(super) fn rma_receive(&mut self, from: u16, tc: u8, m: RmaMessage, env: &mut Env<'_>) {
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
                if self.tx_blocked(Lane::RMA_RESPONSES, env) {
                    self.wait_tx(Job::Serve(from, tc, m));
                } else {
                    self.rma_serve(from, tc, m, env);
                }
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

    /// Checks the target VPID. Register access is always allowed (G19), but not what comes along on the same page.
    fn rma_admit(&mut self, from: u16, m: &RmaMessage, side: Side, env: &mut Env<'_>) -> bool {
        let table = self.rma_vpid(m.peer_vpid);
        let registers =
            m.mode.rra && !matches!(m.kind, RmaKind::Notify { .. } | RmaKind::LockRequest { .. });
        if registers || (table.vpid_enable() && table.prot_desc() == m.protection) {
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

    /// Note about a command of another node, for the VPID it names.
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

    /// Completer: put, immediate put, notification put.
    fn rma_complete(&mut self, from: u16, m: RmaMessage, env: &mut Env<'_>) {
        let note = Self::peer_note(&m, from, NotificationType::Completer);
        let space = space(&m, m.peer_vpid, true);
        let wanted = m.notify.completer;
        match m.kind {
            RmaKind::Put { addr, ref data } => {
                let len = data.len() as u32;
                self.rma_count(regs::PERF_COMPLETER_IN_0, half(m.command), 1);
                self.rma_count_bytes(regs::PERF_COMPLETER_IN_4, len.into());
                let result = self.rma_write(space, addr, data, env);
                if self.rma_settle(result, Side::Completer, wanted) {
                    self.notify_transfer(note, addr, len, result, env);
                }
            }
            RmaKind::Immediate { addr, len, value } => {
                self.rma_count(regs::PERF_COMPLETER_IN_1, Half::Low, 1);
                let raw = value.to_le_bytes();
                let data = &raw[..usize::from(len).clamp(1, 8)];
                let result = self.rma_write(space, addr, data, env);
                if self.rma_settle(result, Side::Completer, wanted) {
                    self.notify_transfer(note, addr, data.len() as u32, result, env);
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

    /// Counts a failure; returns whether to notify.
    fn rma_settle(&mut self, result: Result<(), MemFault>, side: Side, wanted: bool) -> bool {
        let Err(fault) = result else {
            return wanted;
        };
        let error = match (side, fault.kind) {
            (Side::Responder, FaultKind::Illegal) => RmaError::ResponderCommand,
            (Side::Responder, _) => RmaError::ResponderTranslation,
            (Side::Completer, FaultKind::Illegal) => RmaError::CompleterCommand,
            (Side::Completer, _) => RmaError::CompleterTranslation,
        };
        self.rma_transfer_error(error, fault);
        wanted || self.rma_force_errors()
    }

    /// Responder (or completer, for locks): get and lock requests. Answers and notifies.
    pub(super) fn rma_serve(&mut self, from: u16, tc: u8, m: RmaMessage, env: &mut Env<'_>) {
        match m.kind {
            RmaKind::GetRequest {
                read_addr,
                write_addr,
                len,
            } => {
                self.rma_count(regs::PERF_RESPONDER_IN_0, half(m.command), 1);
                let from_space = space(&m, m.peer_vpid, true);
                let read = self.rma_read(Reader::Responder, from_space, read_addr, len, env);
                let result = read.as_ref().map(drop).map_err(|fault| *fault);
                let wanted = self.rma_settle(result, Side::Responder, m.notify.responder);
                let bytes = if result.is_ok() { len } else { 0 };
                self.counters.rma.served_bytes =
                    self.counters.rma.served_bytes.wrapping_add(bytes.into());
                self.rma_count_bytes(regs::PERF_RESPONDER_OUT_4, bytes.into());
                let packets = fragment_count(bytes).max(1);
                self.rma_count(regs::PERF_RESPONDER_OUT_0, half(m.command), packets);
                let kind = RmaKind::GetResponse {
                    write_addr,
                    len,
                    data: read.map_err(|fault| fault.offset),
                };
                let note = Self::peer_note(&m, from, NotificationType::Responder);
                self.rma_respond(from, tc, &m, kind, env);
                if wanted {
                    self.notify_transfer(note, read_addr, len, result, env);
                }
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
                let locked = self.lock(m.peer_vpid, number, compare, add, env);
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
            }
            _ => {}
        }
    }

    fn rma_respond(&mut self, to: u16, tc: u8, m: &RmaMessage, kind: RmaKind, env: &mut Env<'_>) {
        let (command, bytes) = match &kind {
            RmaKind::GetResponse { data, .. } => {
                let bytes = data.as_ref().map_or(0, |d| d.len() as u32);
                let command = if qw(m.command) {
                    Command::QwGetResponse
                } else {
                    Command::ByteGetResponse
                };
                (command, bytes)
            }
            _ => (Command::LockResponse, 16),
        };
        let table = self.rma_vpid(m.peer_vpid);
        let tc = match tc {
            0 => table.tc0(),
            1 => table.tc1(),
            2 => table.tc2(),
            _ => table.tc3(),
        };
        let response = RmaMessage {
            command,
            kind,
            ..header(m)
        };
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(to)),
            port: NetPort::RmaCompleter,
            tc,
            bytes,
            body: Body::Rma(Box::new(response)),
        };
        self.inject(packet, env);
    }

    /// Completer at the origin: responses.
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
                len,
                ref data,
            } => {
                self.rma_count(regs::PERF_COMPLETER_IN_2, half(m.command), 1);
                let data = match data {
                    Ok(data) => data,
                    Err(offset) => {
                        // The responder has counted it (G17).
                        if m.notify.completer || self.rma_force_errors() {
                            let unit = NotificationType::Responder;
                            self.notify_failed(note, write_addr, len, *offset, unit, env);
                        }
                        return;
                    }
                };
                self.counters.rma.get_bytes = self.counters.rma.get_bytes.wrapping_add(len.into());
                self.rma_count_bytes(regs::PERF_COMPLETER_IN_4, len.into());
                let result = self.rma_write(space(&m, m.origin_vpid, false), write_addr, data, env);
                if self.rma_settle(result, Side::Completer, m.notify.completer) {
                    self.notify_transfer(note, write_addr, len, result, env);
                }
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

/// The message without its payload.
fn header(m: &RmaMessage) -> RmaMessage {
    RmaMessage {
        origin_vpid: m.origin_vpid,
        peer_vpid: m.peer_vpid,
        protection: m.protection,
        command: m.command,
        notify: m.notify,
        mode: m.mode,
        kind: RmaKind::Notify { class: 0, value: 0 },
    }
}
