//! Guest memory for DMA: ranges of bus addresses that files of the client back.
//!
//! The mappings come from `vm-memory`, whose volatile slices allow the guest to change memory at
//! any time. If a client truncated its file, an access would cause SIGBUS. The file is therefore
//! sealed against shrinking if possible. Each file is mapped only once, regardless of the number of
//! its ranges, because a guest with an IOMMU maps thousands of pages.

use super::proto::MAX_DMA_MAPS;
use super::{words, DmaMapRequest};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, SealFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder};
use vm_memory::FileOffset;

/// Linux values of flags of `mmap`.
const PROT_READ: i32 = 1;
const PROT_WRITE: i32 = 2;
const MAP_SHARED: i32 = 1;
const MAP_NORESERVE: i32 = 0x4000;

struct Mapping {
    size: u64,
    writable: bool,
    /// Mapped file, and offset of the range in the file. `None` for memory without a file, for
    /// which DMA fails.
    region: Option<(Arc<MmapRegion>, usize)>,
}

/// Identity of a mapped file: device, inode, and true if it is mapped for writing.
type FileId = (u64, u64, bool);

/// All DMA mappings of a client.
#[derive(Default)]
pub struct GuestMemory {
    maps: BTreeMap<u64, Mapping>,
    /// Mapped files. Each file is mapped from its beginning.
    files: BTreeMap<FileId, Weak<MmapRegion>>,
}

impl GuestMemory {
    /// Adds a mapping. A mapping of exactly the same range replaces the old mapping.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for an empty range, a range that wraps, or a file that is too short;
    /// * `EEXIST` if the range overlaps another mapping;
    /// * `ENOSPC` above the maximum number of mappings;
    /// * errors of `mmap`.
    pub fn map(&mut self, req: DmaMapRequest, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let end = req.iova.checked_add(req.size).ok_or(Errno::INVAL)?;
        if req.size == 0 {
            return Err(Errno::INVAL);
        }
        let same = self.maps.get(&req.iova).is_some_and(|m| m.size == req.size);
        if !same && self.overlapping(req.iova, end).next().is_some() {
            return Err(Errno::EXIST);
        }
        if !same && self.maps.len() >= MAX_DMA_MAPS {
            return Err(Errno::NOSPC);
        }
        let region = fd.map(|fd| self.file(req, fd)).transpose()?;
        self.maps.insert(
            req.iova,
            Mapping {
                size: req.size,
                writable: req.writable,
                region,
            },
        );
        Ok(())
    }

    /// Returns the mapped file of a range, and the offset of the range in it.
    fn file(&mut self, req: DmaMapRequest, fd: OwnedFd) -> Result<(Arc<MmapRegion>, usize), Errno> {
        if let Ok(seals) = fcntl_get_seals(&fd) {
            if !seals.contains(SealFlags::SHRINK) {
                // Sealing fails for files that were created without permission to seal. The client
                // is then trusted not to truncate the file.
                let _ = fcntl_add_seals(&fd, SealFlags::SHRINK);
            }
        }
        // The size is checked, because an access beyond the end of the file would cause SIGBUS.
        let stat = fstat(&fd)?;
        let end = req.offset.checked_add(req.size).ok_or(Errno::INVAL)?;
        let file_size = u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?;
        if end > file_size {
            return Err(Errno::INVAL);
        }
        let offset = usize::try_from(req.offset).map_err(|_| Errno::INVAL)?;
        let size = usize::try_from(file_size).map_err(|_| Errno::INVAL)?;
        let id = (stat.st_dev, stat.st_ino, req.writable);
        let known = self.files.get(&id).and_then(Weak::upgrade);
        // A file that has grown since its mapping is mapped again.
        if let Some(region) = known.filter(|r| end <= r.size() as u64) {
            return Ok((region, offset));
        }
        let region = Arc::new(Self::mmap(File::from(fd), size, req.writable)?);
        self.files.retain(|_, region| region.strong_count() != 0);
        self.files.insert(id, Arc::downgrade(&region));
        Ok((region, offset))
    }

    fn mmap(file: File, size: usize, writable: bool) -> Result<MmapRegion, Errno> {
        let prot = if writable {
            PROT_READ | PROT_WRITE
        } else {
            PROT_READ
        };
        MmapRegionBuilder::new(size)
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(prot)
            .with_mmap_flags(MAP_SHARED | MAP_NORESERVE)
            .build()
            .map_err(|e| match e {
                vm_memory::mmap::MmapRegionError::Mmap(e) => {
                    Errno::from_io_error(&e).unwrap_or(Errno::INVAL)
                }
                _ => Errno::INVAL,
            })
    }

    /// Removes every mapping inside the range, or all mappings for `None`. Returns the number of
    /// bytes removed.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range wraps or splits a mapping, `ENOENT` if it contains no mapping.
    pub fn unmap(&mut self, range: Option<(u64, u64)>) -> Result<u64, Errno> {
        let Some((iova, size)) = range else {
            let sum = self.maps.values().map(|m| m.size).sum();
            self.maps.clear();
            return Ok(sum);
        };
        let end = iova.checked_add(size).ok_or(Errno::INVAL)?;
        let mut found = Vec::new();
        let mut sum = 0;
        for (start, m) in self.overlapping(iova, end) {
            if start < iova || start + m.size > end {
                return Err(Errno::INVAL);
            }
            found.push(start);
            sum += m.size;
        }
        if found.is_empty() {
            return Err(Errno::NOENT);
        }
        for start in found {
            self.maps.remove(&start);
        }
        Ok(sum)
    }

    /// Removes all mappings of a client that disconnected.
    pub fn clear(&mut self) {
        self.maps.clear();
    }

    /// Returns the number of mappings, and their total size in bytes.
    pub fn totals(&self) -> (usize, u64) {
        (self.maps.len(), self.maps.values().map(|m| m.size).sum())
    }

    fn overlapping(&self, iova: u64, end: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        let first = self
            .maps
            .range(..=iova)
            .next_back()
            .map_or(iova, |(&s, _)| s);
        self.maps
            .range(first..end.max(first))
            .filter(move |(&s, m)| s < end && s + m.size > iova)
            .map(|(&s, m)| (s, m))
    }

    /// Calls `f(file, offset in the file, offset in the buffer, length)` for each mapping that the
    /// range includes. Returns `false` without any call if a byte of the range is not accessible.
    fn pieces(
        &self,
        addr: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(&MmapRegion, usize, usize, usize),
    ) -> bool {
        let Some(end) = addr.checked_add(len as u64) else {
            return false;
        };
        let find = |at: u64| {
            let (&start, m) = self.maps.range(..=at).next_back()?;
            let (region, offset) = m.region.as_ref()?;
            let inside = at < start + m.size && (m.writable || !write);
            inside.then_some((start, m.size, &**region, *offset))
        };
        let mut at = addr;
        while at < end {
            let Some((start, size, ..)) = find(at) else {
                return false;
            };
            at = end.min(start + size);
        }
        at = addr;
        while at < end {
            let Some((start, size, region, offset)) = find(at) else {
                return false;
            };
            let next = end.min(start + size);
            f(
                region,
                offset + (at - start) as usize,
                (at - addr) as usize,
                (next - at) as usize,
            );
            at = next;
        }
        true
    }

    /// Reads memory. Returns `false` and reads nothing if any byte is outside the mappings. The
    /// bytes of an aligned 8-byte word are read at once.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        self.pieces(addr, buf.len(), false, |region, at, off, n| {
            words::load(region, at, &mut buf[off..off + n]);
        })
    }

    /// Returns true if [`GuestMemory::read`] would succeed now.
    pub fn readable(&self, addr: u64, len: usize) -> bool {
        self.pieces(addr, len, false, |_, _, _, _| {})
    }

    /// Returns true if [`GuestMemory::write`] would succeed now.
    pub fn writable(&self, addr: u64, len: usize) -> bool {
        self.pieces(addr, len, true, |_, _, _, _| {})
    }

    /// Writes memory. Returns `false` and writes nothing if any byte is outside the mappings or
    /// read only. The bytes of an aligned 8-byte word become visible at once, and words become
    /// visible in ascending order.
    pub fn write(&self, addr: u64, data: &[u8]) -> bool {
        self.pieces(addr, data.len(), true, |region, at, off, n| {
            words::store(region, at, &data[off..off + n]);
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use std::sync::atomic::Ordering;

    pub(in super::super) fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    pub(in super::super) fn req(iova: u64, size: u64) -> DmaMapRequest {
        DmaMapRequest {
            iova,
            size,
            offset: 0,
            writable: true,
        }
    }

    #[test]
    fn accesses_cross_adjacent_mappings_and_stop_at_holes() {
        let mut m = GuestMemory::default();
        m.map(req(0x1000, 0x1000), Some(memfd(0x1000))).unwrap();
        m.map(req(0x2000, 0x1000), Some(memfd(0x1000))).unwrap();
        assert!(m.write(0x1ffc, &[1, 2, 3, 4, 5, 6, 7, 8]));
        let mut b = [0; 8];
        assert!(m.read(0x1ffc, &mut b));
        assert_eq!(b, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!m.write(0x2ffc, &b), "ends outside");
        let mut tail = [9; 4];
        assert!(m.read(0x2ffc, &mut tail));
        assert_eq!(tail, [0; 4], "a failed write changes no byte");
        assert!(!m.read(0xfff, &mut b));
        assert!(!m.read(u64::MAX - 3, &mut b), "wrapping range");
    }

    #[test]
    fn words_are_never_seen_in_part() {
        let mut m = GuestMemory::default();
        let fd = memfd(0x1000);
        m.map(req(0, 0x1000), Some(fd)).unwrap();
        // The arrays are 9 bytes apart, so one of them has an odd address.
        let sources = [[0u8; 9], [0xFF; 9]];
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..200_000 {
                    let from = &sources[i % 2];
                    let odd = usize::from(from.as_ptr() as usize % 2 == 0);
                    assert!(m.write(0x40, &from[odd..odd + 8]));
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut seen = [0u8; 9];
            while !done.load(Ordering::Relaxed) {
                let odd = usize::from(seen.as_ptr() as usize % 2 == 0);
                let seen = &mut seen[odd..odd + 8];
                assert!(m.read(0x40, seen));
                assert!(seen.iter().all(|b| *b == seen[0]), "{seen:x?}");
            }
        });
    }

    #[test]
    fn bad_mappings_are_refused() {
        let mut m = GuestMemory::default();
        assert_eq!(m.map(req(0, 0), Some(memfd(0x1000))), Err(Errno::INVAL));
        assert_eq!(
            m.map(req(u64::MAX, 2), Some(memfd(0x1000))),
            Err(Errno::INVAL)
        );
        assert!(
            m.map(req(0, 0x2000), Some(memfd(0x1000))).is_err(),
            "file too short"
        );
        m.map(req(0x1000, 0x1000), Some(memfd(0x1000))).unwrap();
        assert_eq!(
            m.map(req(0x1800, 0x1000), Some(memfd(0x1000))),
            Err(Errno::EXIST)
        );
        assert_eq!(
            m.map(req(0x1000, 0x1000), Some(memfd(0x1000))),
            Ok(()),
            "identical range replaces"
        );
        assert_eq!(
            m.unmap(Some((0x1000, 0x800))),
            Err(Errno::INVAL),
            "cuts a mapping"
        );
        assert_eq!(m.unmap(Some((0, 0x1000))), Err(Errno::NOENT));
        assert_eq!(m.unmap(Some((0, 0x2000))), Ok(0x1000));
        assert_eq!(m.totals(), (0, 0));
    }

    #[test]
    fn read_only_and_fileless_memory() {
        let mut m = GuestMemory::default();
        m.map(
            DmaMapRequest {
                writable: false,
                ..req(0, 0x1000)
            },
            Some(memfd(0x1000)),
        )
        .unwrap();
        m.map(req(0x1000, 0x1000), None).unwrap();
        let mut b = [0; 4];
        assert!(m.read(0, &mut b));
        assert!(!m.write(0, &b));
        assert!(!m.read(0x1000, &mut b));
        assert_eq!(m.unmap(None), Ok(0x2000));
    }

    #[test]
    fn ranges_of_one_file_share_a_mapping() {
        let fd = memfd(0x4000);
        let mut m = GuestMemory::default();
        let mut map = |iova, offset, writable| {
            let at = DmaMapRequest {
                offset,
                writable,
                ..req(iova, 0x1000)
            };
            m.map(at, Some(fd.try_clone().unwrap()))
        };
        map(0x10_0000, 0x3000, true).unwrap();
        map(0x20_0000, 0x1000, true).unwrap();
        map(0x30_0000, 0x3000, false).unwrap();
        assert_eq!(map(0x40_0000, 0x3800, true), Err(Errno::INVAL), "too short");
        assert_eq!(m.files.len(), 2, "one for writing, one for reading");
        assert!(m.write(0x10_0ffc, &[1, 2, 3, 4]));
        let mut b = [0; 4];
        assert!(m.read(0x30_0ffc, &mut b));
        assert_eq!(b, [1, 2, 3, 4], "the same page");
        assert!(m.read(0x20_0ffc, &mut b));
        assert_eq!(b, [0; 4], "another page");
        assert!(!m.write(0x30_0ffc, &b));
        m.unmap(Some((0x10_0000, 0x1000))).unwrap();
        assert!(!m.read(0x10_0000, &mut b));
        assert!(m.write(0x20_0000, &b));
        // The file grows, and its mapping must be extended.
        ftruncate(&fd, 0x8000).unwrap();
        let more = DmaMapRequest {
            offset: 0x7000,
            ..req(0x50_0000, 0x1000)
        };
        m.map(more, Some(fd.try_clone().unwrap())).unwrap();
        assert!(m.write(0x50_0ffc, &[7; 4]));
    }

    #[test]
    fn the_file_cannot_be_truncated_under_us() {
        let fd = memfd(0x1000);
        let mut m = GuestMemory::default();
        m.map(req(0, 0x1000), Some(fd.try_clone().unwrap()))
            .unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert!(m.write(0, &[1]));
    }
}
