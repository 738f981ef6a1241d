//! The register accesses of a probe, compared one by one with the reference list (HW §3).
//!
//! The list is written here as plain numbers, independent of `wire`, so that a wrong constant in
//! `wire` is found. Accesses of the driver beyond the reference (docs/driver.md) are checked by
//! separate functions, marked "Addition".

use anyhow::{bail, ensure, Context, Result};

/// One register access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// True for a write, false for a read.
    pub write: bool,
    /// Byte offset in the register file.
    pub offset: u32,
    /// Value read or written.
    pub value: u64,
}

/// Parses the register accesses in the output of `trace print`. Other lines are skipped.
pub fn parse(text: &str) -> Vec<Access> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Access> {
    let (before, after) = line.split_once(" RF+0x")?;
    let write = match before.chars().last()? {
        'W' => true,
        'R' => false,
        _ => return None,
    };
    let (offset, after) = after.split_once(' ')?;
    let value = after.split_once("0x")?.1.split_whitespace().next()?;
    Some(Access {
        write,
        offset: u32::from_str_radix(offset, 16).ok()?,
        value: u64::from_str_radix(value, 16).ok()?,
    })
}

/// Position in a list of accesses.
struct Walk {
    accesses: Vec<Access>,
    at: usize,
    /// Function that makes up a missing access, to generate a reference list. It returns the value
    /// of an access that the list leaves open.
    invent: Option<fn(bool, u32, usize) -> u64>,
}

impl Walk {
    fn next(&mut self, write: bool, offset: u32, value: Option<u64>) -> Result<u64> {
        let want = || {
            let value = value.map_or_else(String::new, |v| format!(" = {v:#x}"));
            format!("{} RF+{offset:#x}{value}", if write { 'W' } else { 'R' })
        };
        let at = self.at;
        if let (true, Some(invent)) = (at == self.accesses.len(), self.invent) {
            let value = value.unwrap_or_else(|| invent(write, offset, at));
            self.accesses.push(Access {
                write,
                offset,
                value,
            });
        }
        let Some(found) = self.accesses.get(at) else {
            bail!("access {at} is missing: {}", want());
        };
        let fits = found.write == write
            && found.offset == offset
            && value.is_none_or(|v| v == found.value);
        if !fits {
            bail!("access {at} is {found:x?}, the reference has {}", want());
        }
        self.at += 1;
        Ok(found.value)
    }

    fn w(&mut self, offset: u32, value: u64) -> Result<()> {
        self.next(true, offset, Some(value)).map(drop)
    }

    fn any(&mut self, offset: u32) -> Result<u64> {
        self.next(true, offset, None)
    }

    fn r(&mut self, offset: u32) -> Result<u64> {
        self.next(false, offset, None)
    }

    /// Expects a read, then a write of `f` applied to the value read.
    fn rmw(&mut self, offset: u32, f: impl Fn(u64) -> u64) -> Result<()> {
        let value = self.r(offset)?;
        self.w(offset, f(value))
    }
}

const WINDOW: u64 = 0x0200_0000;
const WCBUF_KEPT: u64 = 0x00FF_FFFF_FF00_0000;

/// Checks the last probe in `accesses` (128-byte slots, default interrupt packet). Returns its
/// number of accesses.
pub fn check(accesses: &[Access]) -> Result<usize> {
    let start = accesses
        .iter()
        .rposition(|a| a.write && a.offset == 0x9200)
        .context("no probe in the trace")?
        .checked_sub(STOPPED.len() + 1)
        .context("nothing was stopped before the probe")?;
    let mut t = Walk {
        accesses: accesses[start..].to_vec(),
        at: 0,
        invent: None,
    };
    probe(&mut t)?;
    Ok(t.at)
}

/// Number of accesses in the reference, and number of accesses that the driver adds.
pub const REFERENCE: usize = 8721;
pub const ADDED: usize = STOPPED.len() + 1 + 258 + 64 + 2;

/// Addition before the reference begins: registers to which the driver writes 0, so that all units
/// stop (SNQ, n0 to n3, queue engines, ATU, SMFU). A read follows the writes.
const STOPPED: [u32; 9] = [
    0x10068, 0x9418, 0x9498, 0x9518, 0x9598, 0xC0_0000, 0xE0_0000, 0xC000, 0xA000,
];

fn quiesce(t: &mut Walk) -> Result<()> {
    for register in STOPPED {
        t.w(register, 0)?;
    }
    t.r(0x8000).map(drop)
}

/// Addition, after step 17: the translations of all VPIDs are flushed, followed by a fence and a
/// notification.
fn flush(t: &mut Walk) -> Result<()> {
    for v in 0..256 {
        t.w(0xC008, (2 << 60) | v)?;
    }
    for command in [3, 4] {
        let word = t.any(0xC008)?;
        ensure!(word >> 60 == command, "ATU command {word:#x}");
    }
    Ok(())
}

/// Addition, before step 24: all target bases are set to the later default, so that no base of an
/// earlier driver remains. The default must not be 0, which may mean the start of memory. Returns
/// the default.
fn targets(t: &mut Walk) -> Result<u64> {
    let base = t.any(0xA880)?;
    ensure!(base != 0, "target base 0");
    for i in 1..64 {
        t.w(0xA880 + 8 * i, base)?;
    }
    Ok(base)
}

fn probe(t: &mut Walk) -> Result<()> {
    quiesce(t)?;
    let smfu = base(t)?;
    notification_queue(t)?;
    buffer_queues(t)?;
    velo(t)?;
    atu(t)?;
    flush(t)?;
    rma(t)?;
    let base = targets(t)?;
    window(t, smfu, base)?;
    registers(t)
}

/// Checks HW §3.1 steps 3 to 5. Returns the address of BAR 2.
fn base(t: &mut Walk) -> Result<u64> {
    let rf = (t.any(0x9200)? << 12)
        .checked_sub(WINDOW)
        .context("register file below its size")?;
    t.w(0x9208, (rf >> 12) - 1)?;
    t.w(0x9210, 0xC107)?;
    for (i, control) in [(1u32, 0x4209), (2, 0x440B)] {
        let start = rf + u64::from(i) * WINDOW;
        t.w(0x9200 + 24 * i, (start + WINDOW) >> 12)?;
        t.w(0x9208 + 24 * i, (start >> 12) - 1)?;
        t.w(0x9210 + 24 * i, control)?;
    }
    let smfu = (t.any(0x9200 + 24 * 5)? << 12)
        .checked_sub(WINDOW)
        .context("SMFU window below its first part")?;
    t.w(0x9208 + 24 * 5, (smfu >> 12) - 1)?;
    t.w(0x9210 + 24 * 5, 0xE007)?;
    let rest = ((smfu + WINDOW) >> 12) - 1;
    let end = t.any(0x9200 + 24 * 3)?;
    t.w(0x9208 + 24 * 3, rest)?;
    t.w(0x9210 + 24 * 3, 0x6001)?;
    t.w(0x9200 + 24 * 4, end)?;
    t.w(0x9208 + 24 * 4, rest)?;
    t.w(0x9210 + 24 * 4, 0xA003)?;
    t.w(0x9290, 0x8088)?;
    t.r(0x8050)?;
    t.w(0x42_C290, 0x400_0000)?;
    Ok(smfu)
}

/// Checks steps 6 to 8.
fn notification_queue(t: &mut Walk) -> Result<()> {
    t.w(0x10068, 0)?;
    t.w(0x10028, 0xFF)?;
    let ring = t.any(0x10020)?;
    ensure!(ring != 0, "the ring is at address 0");
    let wp = t.r(0x10030)?;
    t.w(0x10038, wp.wrapping_sub(1) & 0xFF)?;
    t.w(0x10040, 0x10000 | (wp + 1) & 0xFF)?;
    for k in 0..256 {
        t.any(0x10800 + 8 * k)?;
    }
    t.w(0x10000, 0x1FED_DFFD)?;
    t.w(0x10048, 0xFD23_0000_0040_002D)?;
    t.w(0x10050, 0x0300_0100_0000)?;
    t.w(0x10058, 0)?;
    t.w(0x10070, 0x20_1201)?;
    t.w(0x10068, 1)?;
    t.r(0x8050)?;
    Ok(())
}

/// Checks steps 9 to 11.
fn buffer_queues(t: &mut Walk) -> Result<()> {
    for unit in [0xC0_0000, 0xE0_0000] {
        for q in 0..256 {
            for register in [0x800, 0x1000, 0x1800, 0x2000, 0x2800] {
                t.w(unit + register + 8 * q, 0)?;
            }
            t.w(unit + 0x10_0000 + 0x1000 * q, 0)?;
        }
    }
    t.rmw(0xC0_0000, |v| v | 1)?;
    t.rmw(0xE0_0000, |v| v | 1)
}

/// Checks steps 12 to 15.
fn velo(t: &mut Walk) -> Result<()> {
    for v in 0..256 {
        let source = 0x120_0800 + 8 * v;
        t.rmw(source, |x| x & !0xFFFF)?;
        let node = (t.r(0x8008)? >> 24) & 0xFFFF;
        t.rmw(source, |x| {
            x & !0xFF_FFFF_0000 | (node << 16) | (u64::from(v) << 32)
        })?;
        let accept = 0x120_1000 + 8 * v;
        t.rmw(accept, |x| x & !0xFFFF)?;
        t.rmw(accept, |x| x & !0x1_0000)?;
        t.rmw(accept, |x| x & 0x1_FFFF)?;
        t.rmw(0x100_0000 + 0x1000 * v, |x| x & WCBUF_KEPT)?;
    }
    t.w(0x120_1800, 0x1_0000_0020)?;
    t.w(0x110_0000, 0x20_0000_0001)?;
    t.rmw(0x120_1808, |x| x & !0x1FF | 8)?;
    t.rmw(0x120_1808, |x| x | (1 << 9))?;
    t.w(0x9418, 81)
}

/// Checks steps 16 and 17: valid tables first, then zeros.
fn atu(t: &mut Walk) -> Result<()> {
    let mut ended = false;
    for i in 0..1024 {
        let base = t.any(0xE000 + 8 * i)?;
        ensure!(
            base == 0 || (!ended && base >> 31 == 1),
            "GAT base {i} is {base:#x}"
        );
        ended |= base == 0;
    }
    t.w(0xC000, 1)
}

/// Checks steps 18 to 23.
fn rma(t: &mut Walk) -> Result<()> {
    t.r(0x8008)?;
    for v in 0..256 {
        t.w(0x160_0800 + 8 * v, 0xF522)?;
        t.rmw(0x140_0000 + 0x1000 * v, |x| x & WCBUF_KEPT)?;
    }
    let config = t.any(0x160_0080)?;
    ensure!(config & 0xFFFF == 512, "RMA config {config:#x}");
    for shift in [16, 20] {
        let class = (config >> shift) & 0xF;
        ensure!(matches!(class, 1 | 2 | 4 | 8), "RMA config {config:#x}");
    }
    let locks = t.any(0x160_0088)?;
    ensure!(locks != 0 && locks & 0xFFF == 0, "lock base {locks:#x}");
    t.w(0x160_0090, 0x80_0000_0010)?;
    for register in [0x160_1000, 0x160_1028, 0x160_1058] {
        t.rmw(register, |x| x & 0xFF_FFFE)?;
    }
    t.rmw(0x160_0098, |x| x & !0xFFFF_FFFF | 0xA)?;
    t.rmw(0x160_0098, |x| x | (1 << 32))?;
    t.rmw(0x150_0000, |x| x & 0xFFFF_FFFF | (0x20 << 32))?;
    t.rmw(0x150_0000, |x| x | 1)?;
    t.w(0x9498, 0xFF)?;
    t.w(0x9518, 0xFF)
}

/// Checks steps 24 to 26.
fn window(t: &mut Walk, smfu: u64, exported: u64) -> Result<()> {
    t.w(0xA058, smfu)?;
    t.w(0xA060, exported)?;
    t.w(0xA070, 0)?;
    t.w(0xA008, 0x223)?;
    t.w(0x9598, 0xFF)?;
    t.w(0xA000, 1)?;
    for i in 0..63 {
        for register in [0xA088, 0xA090, 0xA080] {
            t.w(register + 32 * i, 0)?;
        }
    }
    t.w(0xA080, 0x301)?;
    t.w(0xA088, smfu)?;
    t.w(0xA090, smfu + WINDOW)
}

/// Checks step 27: VPID 252 is opened by the sequence of HW §10.9, with a queue of two segments (HW
/// §7). The driver deviates in two points. It enables the VPID only after its queue is set up and
/// marks the entry as disabled until then; it also reads the entry before enabling it.
fn registers(t: &mut Walk) -> Result<()> {
    const VPID: u32 = 252;
    let (narrow, page) = (8 * VPID, 0x1000 * VPID);
    t.w(0x160_0800 + narrow, 0xF522)?;
    t.rmw(0x140_0000 + page, |x| x & WCBUF_KEPT)?;
    t.w(0xE0_0800 + narrow, 0x7FFF)?;
    let dcq = t.any(0xE0_1000 + narrow)?;
    ensure!(dcq & 0xFFFF == 1, "descriptor page {dcq:#x}");
    t.w(0xE0_2800 + narrow, 0)?;
    // The reference writes 0 here. The driver writes the last slot, because one slot stays unused
    // (docs/driver.md, receiving).
    t.w(0xF0_0000 + page, (1 << 32) | 0x7FFF)?;
    for register in [0xE0_1800, 0xE0_2000] {
        let segment = t.any(register + narrow)?;
        ensure!(segment >> 58 == 1, "segment {segment:#x}");
    }
    t.rmw(0x160_0800 + narrow, |x| x | 1)
}

/// Register layout of a unit's VPIDs.
struct Vpids {
    /// Offset of the entries that enable VPIDs.
    entries: u32,
    /// Bit of an entry that enables its VPID.
    enable: u64,
    /// Offset of the write pointers.
    pointers: u32,
    /// Offset of the current segments. A segment with the valid bit means that the VPID has a
    /// queue.
    segments: u32,
}

const VELO: Vpids = Vpids {
    entries: 0x120_1000,
    enable: 1 << 17,
    pointers: 0xC0_2800,
    segments: 0xC0_1800,
};
const RMA: Vpids = Vpids {
    entries: 0x160_0800,
    enable: 1,
    pointers: 0xE0_2800,
    segments: 0xE0_1800,
};
const VALID: u64 = 1 << 58;

impl Vpids {
    /// Returns how many times a VPID was enabled. Fails if a VPID was enabled without a queue, or
    /// if its queue changed while it was enabled. With `moves`, the owner of the VPID may change
    /// the write pointer.
    fn opened(&self, accesses: &[Access], moves: bool) -> Result<usize> {
        let index = |offset: u32, first: u32| {
            let vpid = offset.checked_sub(first)? / 8;
            (vpid < 256).then_some(vpid as usize)
        };
        let (mut open, mut queue, mut opened) = ([false; 256], [false; 256], 0);
        for a in accesses.iter().filter(|a| a.write) {
            if let Some(vpid) = index(a.offset, self.entries) {
                let enable = a.value & self.enable != 0;
                ensure!(
                    !enable || queue[vpid],
                    "VPID {vpid} is enabled without a queue"
                );
                opened += usize::from(enable && !open[vpid]);
                open[vpid] = enable;
            }
            let pointer = index(a.offset, self.pointers).filter(|_| !moves);
            let segment = index(a.offset, self.segments);
            if let Some(vpid) = pointer.or(segment).filter(|v| open[*v]) {
                bail!("the queue of VPID {vpid} is changed while it is enabled");
            }
            if let Some(vpid) = segment {
                queue[vpid] = a.value & VALID != 0;
            }
        }
        Ok(opened)
    }
}

/// Checks that every VPID has a queue before it is enabled. Returns the number of times that VPIDs
/// were enabled, in VELO and in RMA. `moves` is true if processes move write pointers by ioctl.
pub fn enabled(accesses: &[Access], moves: bool) -> Result<[usize; 2]> {
    let velo = VELO.opened(accesses, moves).context("VELO")?;
    let rma = RMA.opened(accesses, moves).context("RMA")?;
    Ok([velo, rma])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_accesses_are_read() {
        let text = "  7.858 ms  nic 0   W RF+0x0008008 = 0x0001000000e00000  info_rf_node (management)\n\
                    noise\n  8.1 ms  nic 0   R RF+0x0008050 : 0x0000000000000001  info_rf_scratchpad[3]\n";
        let want = [
            Access {
                write: true,
                offset: 0x8008,
                value: 0x1_0000_00e0_0000,
            },
            Access {
                write: false,
                offset: 0x8050,
                value: 1,
            },
        ];
        assert_eq!(parse(text), want);
    }

    /// Returns a generated trace that follows the list.
    fn reference() -> Vec<Access> {
        fn value(write: bool, offset: u32, at: usize) -> u64 {
            match (write, offset) {
                // Fence and notification alternate.
                (true, 0xC008) => (3 + at as u64 % 2) << 60,
                (true, 0x9200) => 0xD2000,
                (true, 0x9278) => 0xE2000,
                (true, 0x9248) => 0xF0000,
                (true, 0x10020) => 1,
                (true, 0x160_0080) => 0x84_0200,
                (true, 0x160_0088) => 0x1000,
                (true, 0xA880) => 0x84_0000,
                (true, 0xE0_17E0) => 1,
                (true, 0xE0_1FE0 | 0xE0_27E0) => 1 << 58,
                _ => 0,
            }
        }
        let mut t = Walk {
            accesses: Vec::new(),
            at: 0,
            invent: Some(value),
        };
        probe(&mut t).unwrap();
        t.accesses
    }

    #[test]
    fn a_vpid_has_its_queue_before_it_is_enabled() {
        let write = |offset, value| Access {
            write: true,
            offset,
            value,
        };
        for (unit, at) in [(VELO, 0), (RMA, 1)] {
            let entry = |value| write(unit.entries + 8 * 7, value);
            let pointer = |vpid: u32| write(unit.pointers + 8 * vpid, 0);
            let segment = |value| write(unit.segments + 8 * 7, value);
            let good = [
                entry(0),
                pointer(7),
                segment(VALID),
                entry(unit.enable),
                pointer(8),
                entry(0),
                segment(0),
                pointer(7),
            ];
            assert_eq!(enabled(&good, false).unwrap()[at], 1);
            let bad = [
                vec![entry(unit.enable), segment(VALID)],
                vec![segment(VALID), entry(unit.enable), pointer(7)],
                vec![segment(VALID), entry(unit.enable), segment(0)],
            ];
            for (i, bad) in bad.iter().enumerate() {
                assert_eq!(enabled(bad, true).is_ok(), i == 1, "sequence {i}");
                assert!(enabled(bad, false).is_err(), "sequence {i}");
            }
        }
    }

    #[test]
    fn every_deviation_is_found() {
        let good = reference();
        assert_eq!(check(&good).unwrap(), good.len());
        assert_eq!(good.len(), REFERENCE + ADDED);
        for i in (1..good.len()).step_by(41) {
            let mut missing = good.clone();
            missing.remove(i);
            assert!(check(&missing).is_err(), "access {i} may be missing");
            let mut wrong = good.clone();
            wrong[i].write = !wrong[i].write;
            assert!(check(&wrong).is_err(), "access {i} may be reversed");
        }
    }
}
