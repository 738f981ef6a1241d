//! RMA requester pages: assembly of descriptors from host stores (HW §10.1, §10.2).
//! `rma_requester.rs` executes them.

use super::rma_engine::Engine;
use super::wcbuf::{Kept, WcError};
use super::{wcflight, Nic, NicConfig};
use crate::env::{Env, NetPort, TraceEvent};
use crate::lane::Lane;
use wire::ids::{Unit, Vpid};
use wire::rma::{DescriptorWord, PageOptions, RequesterAddr};

const BYTES: usize = 24;
const PAGES: usize = 32;
/// Number of bytes at the start of a requester page that hold a descriptor. A descriptor uses 24 of
/// them. Higher offsets wrap around.
const WINDOW: usize = 32;

/// Descriptor that software is storing now.
#[derive(Clone, Copy)]
struct Assembly {
    bytes: [u8; BYTES],
    /// Set of the bytes that have been stored, one bit per byte.
    valid: u32,
    /// Time of the last store in ns.
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

/// A complete descriptor, with its VPID and page options.
#[derive(Clone, Copy)]
pub(super) struct RmaCommand {
    pub(super) vpid: u8,
    pub(super) options: PageOptions,
    pub(super) words: [u64; 3],
}

pub(super) struct Rma {
    assembly: Vec<Option<Box<[Assembly; PAGES]>>>,
    pub(super) vpid_table: Box<[u64; 256]>,
    pub(super) engine: Engine,
    /// Number of packets that arrived and were not the last packet of their transfer, for
    /// [`super::Faults::lose_inner_every`].
    pub(super) inner: u32,
}

impl Rma {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            assembly: vec![None; 256],
            vpid_table: Box::new([0; 256]),
            engine: Engine::new(cfg),
            inner: 0,
        }
    }
}

impl Nic {
    /// Processes a store of the host to a requester page. `data` does not cross a page boundary.
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

    /// Expires incomplete descriptors as [`Nic::velo_expire`] does.
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

    /// Returns true if the requester must reject the command now, because its lane or the
    /// destination's queue is congested.
    pub(super) fn rma_congested(&self, command: &RmaCommand) -> bool {
        let word0 = DescriptorWord(command.words[0]);
        self.tx_full(Lane::rma(command.options.traffic_class))
            || self.pressed(self.info.node_id(), Unit::Rma, command.vpid)
            || self.pressed(word0.node(), Unit::Rma, word0.vpid())
    }

    /// Executes a command that has left the write-combining buffer.
    pub(super) fn rma_take(&mut self, command: &RmaCommand, env: &Env<'_>) {
        self.rma_execute(command, env);
    }
}
