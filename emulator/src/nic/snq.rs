//! System notification queue (SNQ): trigger events, micro-programs, ring in host memory, and
//! interrupt (HW §6, G4…G6).

use super::dma::MSI_RANGE;
use super::random_delay::RandomDelay;
use super::{LossyRing, Nic, NicConfig, SnqRestart};
use crate::env::{Accessor, Env, Stream};
use crate::seed::Purpose;
use wire::ids::RegOffset;
use wire::regs::snq::{self as regs, Execute, IrqWatermark, QueueBalt};
use wire::snq::{Entry, Header, InstructionWord, Opcode, END, ENTRY_BYTES, PAYLOAD_WORDS};

pub use wire::snq::TriggerEvent as Te;

/// Maximum number of instructions that a program executes. A program that executes more contains a
/// loop.
const MAX_STEPS: u32 = 512;
const NS_PER_TICK: u64 = 1;
/// Command of an interrupt packet: a posted write of doublewords (HW §6.2).
const POSTED_DWORD: u64 = 0x2D;

/// A program that is running, or that waits for a free entry of the ring.
struct Running {
    event: u8,
    pc: u8,
    steps: u32,
    /// True if the instruction at `pc` has performed its reads and waits for a free entry.
    emitting: bool,
}

pub(super) struct Snq {
    delay: RandomDelay,
    /// Time at which the programs of pending events begin; `None` if no time has been drawn.
    begin: Option<u64>,
    enable: u32,
    once: u32,
    pending: u32,
    balt: u64,
    mslt: u16,
    wplt: u16,
    rplt: u16,
    flip: bool,
    watermark: u64,
    armed: bool,
    execute: bool,
    program: Option<Box<[u64; 256]>>,
    words: [u64; PAYLOAD_WORDS],
    /// Payload of the entry that was written last, for [`NicConfig::snq_stale_words`].
    last: [u64; PAYLOAD_WORDS],
    running: Option<Running>,
}

impl Snq {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            delay: RandomDelay::new(cfg, Purpose::Events, cfg.snq_program_ns),
            begin: None,
            enable: 0,
            once: 0,
            pending: 0,
            balt: 0,
            mslt: 0,
            wplt: 0,
            rplt: 0,
            flip: false,
            watermark: 0,
            armed: false,
            execute: false,
            program: None,
            words: [0; PAYLOAD_WORDS],
            last: [0; PAYLOAD_WORDS],
            running: None,
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.delay.reseed(seed);
    }

    /// Returns the time at which the programs of pending events begin.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.begin.filter(|_| self.is_ready())
    }

    /// Returns true if programs may begin now. Programs begin some time after an event, and report
    /// all changes until they begin (G4).
    fn may_begin(&mut self, now: u64) -> bool {
        if self.delay.is_off() || self.running.is_some() {
            return true;
        }
        let delay = &mut self.delay;
        let at = *self.begin.get_or_insert_with(|| now + delay.draw());
        if at <= now {
            self.begin = None;
        }
        at <= now
    }

    fn entries(&self) -> u32 {
        u32::from(self.mslt) + 1
    }

    /// Returns the number of entries from `from` to `to`, cyclically.
    fn distance(&self, from: u16, to: u16) -> u32 {
        let n = self.entries();
        (u32::from(to) % n + n - u32::from(from) % n) % n
    }

    fn full(&self) -> bool {
        u32::from(self.wplt) % self.entries() == u32::from(self.rplt) % self.entries()
    }

    /// Returns true if a program can begin or continue.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.execute
            && (self.pending & (self.enable | self.once) != 0 || self.running.is_some())
            && !self.full()
    }

    /// Returns true if the watermark is armed and reached (G6).
    fn due(&self) -> bool {
        let first = self.rplt.wrapping_add(1);
        let mark = IrqWatermark(self.watermark).watermark();
        let n = self.entries();
        let first = (u32::from(first) % n) as u16;
        self.armed && self.distance(first, self.wplt) >= self.distance(first, mark)
    }

    fn raise(&mut self, event: Te) {
        self.pending |= 1 << event.number();
    }

    fn set_execute(&mut self, on: bool, cfg: &NicConfig) {
        if on == self.execute {
            return;
        }
        self.execute = on;
        self.begin = None;
        if cfg.snq_restart == SnqRestart::ResetPointer {
            self.wplt = 0;
        }
        self.running = None;
        if on {
            self.flip = true;
            self.pending = 0;
        }
    }

    fn program_index(offset: RegOffset) -> Option<usize> {
        let i = (offset.0.checked_sub(regs::program_ram(0).0)? / 8) as usize;
        (i < 256).then_some(i)
    }

    pub(super) fn read(&self, offset: RegOffset) -> Option<u64> {
        Some(match offset {
            regs::TRIGGER_ENABLE => self.enable.into(),
            regs::TRIGGER_NOW => 0,
            regs::TRIGGER_ONCE => self.once.into(),
            regs::QUEUE_BALT => self.balt,
            regs::QUEUE_MSLT => self.mslt.into(),
            regs::QUEUE_WPLT => self.wplt.into(),
            regs::QUEUE_RPLT => self.rplt.into(),
            regs::IRQ_WATERMARK => self.watermark,
            regs::EXECUTE => self.execute.into(),
            _ => {
                let i = Self::program_index(offset)?;
                self.program.as_ref().map_or(0, |p| p[i])
            }
        })
    }

    /// Returns the address and the flip bit of the entry at the write pointer, and advances the
    /// write pointer.
    fn take_slot(&mut self) -> (u64, bool) {
        let n = self.entries();
        let at = u32::from(self.wplt) % n;
        let flip = self.flip;
        if at + 1 == n {
            self.flip = !self.flip;
        }
        self.wplt = ((at + 1) % n) as u16;
        let base = QueueBalt(self.balt).address_div_1024() << 10;
        (base.wrapping_add(u64::from(at) * ENTRY_BYTES as u64), flip)
    }
}

impl Nic {
    /// Counts a trigger event and marks it as pending.
    pub(super) fn raise(&mut self, event: Te) {
        self.snq.raise(event);
        let n = &mut self.counters.events[usize::from(event.number())];
        *n = n.wrapping_add(1);
    }

    pub(super) fn snq_write(&mut self, offset: RegOffset, value: u64, env: &mut Env<'_>) -> bool {
        match offset {
            regs::TRIGGER_ENABLE => self.snq.enable = value as u32,
            regs::TRIGGER_NOW => {
                let now = value as u32 & self.snq.enable;
                for event in Te::ALL {
                    if now & (1 << event.number()) != 0 {
                        self.raise(event);
                    }
                }
            }
            regs::TRIGGER_ONCE_ENABLE => self.snq.once |= value as u32,
            regs::TRIGGER_ONCE => self.snq.once = value as u32,
            regs::QUEUE_BALT => self.snq.balt = value,
            regs::QUEUE_MSLT => self.snq.mslt = value as u16,
            regs::QUEUE_RPLT => self.snq.rplt = value as u16,
            regs::IRQ_WATERMARK => {
                self.snq.watermark = value;
                self.snq.armed = IrqWatermark(value).enable();
                self.snq_interrupt(env);
            }
            regs::EXECUTE => {
                let on = Execute(value).enable();
                if on && !self.snq.execute {
                    self.snq_check_setup(env);
                }
                self.snq.set_execute(on, &self.cfg);
            }
            _ => match Snq::program_index(offset) {
                Some(i) => self.snq.program.get_or_insert_with(|| Box::new([0; 256]))[i] = value,
                None => return false,
            },
        }
        true
    }

    /// Checks the registers when the queue starts. The interrupt packet must be a posted write of a
    /// doubleword to an interrupt address of the bridge, and the HTAX registers must route it to
    /// the host (HW §3.1 step 7, §6.2).
    fn snq_check_setup(&mut self, env: &mut Env<'_>) {
        let [packet, ways] = [regs::IRQ_0, regs::HTAX].map(|reg| self.storage.at(reg.0));
        let address = (packet >> 26) << 2;
        if packet & 0x3F != POSTED_DWORD || !MSI_RANGE.contains(&address) || ways != regs::HTAX_INIT
        {
            self.bad_setup(env, || {
                format!(
                    "SNQ starts with wrong interrupt packet {packet:#x} or HTAX set-up {ways:#x}"
                )
            });
        }
    }

    fn snq_interrupt(&mut self, env: &mut Env<'_>) {
        if self.snq.execute && self.snq.due() {
            self.snq.armed = false;
            env.host.enter(Stream::Snq);
            self.send_msi(env);
            env.host.leave();
        }
    }

    /// Runs the programs of pending events until no event is pending or the ring is full.
    pub(super) fn run_snq(&mut self, env: &mut Env<'_>) {
        if !self.snq.may_begin(env.host.now_ns()) {
            return;
        }
        while self.snq.is_ready() {
            let mut run = match self.snq.running.take() {
                Some(run) => run,
                None => {
                    let event = (self.snq.pending & (self.snq.enable | self.snq.once))
                        .trailing_zeros() as u8;
                    self.snq.pending &= !(1 << event);
                    self.snq.once &= !(1 << event);
                    self.snq.words = [0; PAYLOAD_WORDS];
                    Running {
                        event,
                        pc: event,
                        steps: 0,
                        emitting: false,
                    }
                }
            };
            if self.snq_program(&mut run, env) {
                self.snq.running = Some(run);
            }
        }
    }

    /// Runs a program. Returns true if it stopped because the ring is full.
    fn snq_program(&mut self, run: &mut Running, env: &mut Env<'_>) -> bool {
        while run.pc != END {
            run.steps += 1;
            if run.steps > MAX_STEPS {
                self.diagnose(env, || {
                    format!("SNQ program of event {} does not end", run.event)
                });
                return false;
            }
            let word = InstructionWord(
                self.snq
                    .program
                    .as_ref()
                    .map_or(0, |p| p[usize::from(run.pc)]),
            );
            let emit = match Opcode::from_code(word.opcode()) {
                Some(Opcode::Read) => {
                    if !run.emitting {
                        self.snq_read(word, run, env);
                    }
                    word.emit()
                }
                Some(Opcode::Emit) => true,
                Some(Opcode::NoProgram | Opcode::Idle) => return false,
                None => {
                    let (event, pc) = (run.event, run.pc);
                    self.diagnose(env, || {
                        format!(
                            "SNQ program of event {event}: opcode {} at address {pc}",
                            word.opcode()
                        )
                    });
                    return false;
                }
            };
            if emit {
                if self.snq.full() {
                    run.emitting = true;
                    return true;
                }
                run.emitting = false;
                self.snq_emit(run.pc, word.words(), env);
            }
            run.pc = word.next();
        }
        false
    }

    fn snq_read(&mut self, word: InstructionWord, run: &Running, env: &mut Env<'_>) {
        for i in 0..=word.len_minus_1() {
            let offset = word.addr_div_8().wrapping_add(i.into()).wrapping_mul(8);
            let value = self.rf_read(offset, Accessor::Snq, env);
            match self.snq.words.get_mut(usize::from(word.slot() + i)) {
                Some(to) => *to = value,
                None => {
                    let (event, pc) = (run.event, run.pc);
                    self.diagnose(env, || {
                        format!("SNQ program of event {event}: more than seven words of payload at address {pc}")
                    });
                }
            }
        }
    }

    /// Writes an entry, advances the write pointer, then sends the interrupt.
    fn snq_emit(&mut self, pc: u8, words: u8, env: &mut Env<'_>) {
        let n = usize::from(words).min(PAYLOAD_WORDS);
        let (at, flip) = self.snq.take_slot();
        let header = Header(0)
            .with_ts(env.host.now_ns() / NS_PER_TICK)
            .with_pc(pc.into())
            .with_flip(flip);
        let mut entry = Entry::with_words(&self.snq.words[..n], header);
        if self.cfg.snq_stale_words {
            entry.payload[..PAYLOAD_WORDS - n].copy_from_slice(&self.snq.last[..PAYLOAD_WORDS - n]);
        }
        self.snq.last = entry.payload;
        if self.lost_slots(LossyRing::Snq, 0, 1) == 0 {
            // `dma_write` counts and reports a failure. The ring advances even then, because the
            // chip's writes are posted.
            env.host.enter(Stream::Snq);
            let _ = self.dma_write(at, &entry.to_bytes(), env);
            env.host.leave();
        }
        self.counters.snq_entries = self.counters.snq_entries.wrapping_add(1);
        self.snq_interrupt(env);
    }
}
