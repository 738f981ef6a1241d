//! Physical region pages (PRPs): addresses of a command's data in the host's memory (NVM Express
//! 1.4, 4.3).

use super::command::Status;

/// The only supported page size.
pub(super) const PAGE: u64 = 4096;
/// Size of an entry of a PRP list in bytes.
const ENTRY: u64 = 8;

/// Pages of a command's data that are known so far.
#[derive(Debug)]
pub(super) struct Pages {
    pieces: Vec<(u64, u32)>,
    /// Number of data bytes whose pages are not known yet. They begin at a page boundary.
    left: u32,
    /// Address of the next PRP list entry to read.
    list: u64,
}

impl Pages {
    /// Returns the pages of `len` bytes of data that begin at the first PRP entry of a command. If
    /// the second entry is the address of a list, the pages in the list are added later.
    pub fn new([first, second]: [u64; 2], len: u32) -> Result<Self, Status> {
        if first % 4 != 0 {
            return Err(Status::PRP_OFFSET);
        }
        let n = len.min((PAGE - first % PAGE) as u32);
        let mut pages = Self {
            pieces: vec![(first, n)],
            left: len - n,
            list: second,
        };
        if pages.left > PAGE as u32 {
            if second % ENTRY != 0 {
                return Err(Status::PRP_OFFSET);
            }
        } else if pages.left > 0 {
            pages.page(second)?;
        }
        Ok(pages)
    }

    fn page(&mut self, at: u64) -> Result<(), Status> {
        if at % PAGE != 0 {
            return Err(Status::PRP_OFFSET);
        }
        let n = self.left.min(PAGE as u32);
        self.pieces.push((at, n));
        self.left -= n;
        Ok(())
    }

    /// Returns the number of unknown pages, and the number of list entries up to the end of the
    /// memory page that contains the list.
    fn missing(&self) -> (u64, u64) {
        let pages = u64::from(self.left).div_ceil(PAGE);
        (pages, (PAGE - self.list % PAGE) / ENTRY)
    }

    /// Returns address and length in bytes of the next chunk of the list to read, or `None` if all
    /// pages are known.
    pub fn wanted(&self) -> Option<(u64, u32)> {
        let (pages, room) = self.missing();
        (pages > 0).then_some((self.list, (pages.min(room) * ENTRY) as u32))
    }

    /// Processes the chunk of the list that was [`wanted`](Self::wanted). If more chunks are
    /// needed, the last entry of a memory page contains the address of the next chunk.
    pub fn add_part(&mut self, part: &[u8]) -> Result<(), Status> {
        let (pages, room) = self.missing();
        let entries = part.chunks_exact(ENTRY as usize);
        let mut entries = entries.map(|e| e.try_into().map_or(0, u64::from_le_bytes));
        let here = if pages > room { room - 1 } else { pages };
        for _ in 0..here {
            let at = entries.next().ok_or(Status::TRANSFER)?;
            self.page(at)?;
        }
        if self.left > 0 {
            self.list = entries.next().ok_or(Status::TRANSFER)?;
            if self.list % PAGE != 0 {
                return Err(Status::PRP_OFFSET);
            }
        }
        Ok(())
    }

    /// Returns address and length in bytes of each chunk of the data, in order.
    pub fn pieces(&self) -> &[(u64, u32)] {
        &self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[u64]) -> Vec<u8> {
        entries.iter().flat_map(|e| e.to_le_bytes()).collect()
    }

    #[test]
    fn two_pages_need_no_list() {
        let p = Pages::new([0x1200, 0x5000], 4096).unwrap();
        assert_eq!(p.pieces(), [(0x1200, 0xE00), (0x5000, 0x200)]);
        assert_eq!(p.wanted(), None);
        let p = Pages::new([0x1200, 7], 512).unwrap();
        assert_eq!((p.pieces(), p.wanted()), (&[(0x1200, 512)][..], None));
        for prp in [[0x1002, 0x5000], [0x1200, 0x5004]] {
            assert_eq!(Pages::new(prp, 4096).unwrap_err(), Status::PRP_OFFSET);
        }
    }

    #[test]
    fn a_list_goes_on_in_its_last_entry() {
        // The list has two entries up to the end of its memory page, but describes four pages.
        let mut p = Pages::new([0x1000, 0x8FF0], 5 * 4096).unwrap();
        assert_eq!(p.wanted(), Some((0x8FF0, 16)));
        p.add_part(&list(&[0x2000, 0x9000])).unwrap();
        assert_eq!(p.wanted(), Some((0x9000, 24)));
        p.add_part(&list(&[0x3000, 0x4000, 0x5000])).unwrap();
        assert_eq!(p.wanted(), None);
        let at: Vec<u64> = p.pieces().iter().map(|p| p.0).collect();
        assert_eq!(at, [0x1000, 0x2000, 0x3000, 0x4000, 0x5000]);
        // The list ends exactly at the end of its memory page.
        let mut p = Pages::new([0x1000, 0x8FF0], 3 * 4096).unwrap();
        p.add_part(&list(&[0x2000, 0x3000])).unwrap();
        assert_eq!((p.wanted(), p.pieces().len()), (None, 3));
    }

    #[test]
    fn lists_are_checked() {
        assert!(Pages::new([0x1000, 0x8004], 3 * 4096).is_err());
        let with = |entries: &[u64]| {
            let mut p = Pages::new([0x1000, 0x8FF0], 5 * 4096).unwrap();
            p.add_part(&list(entries)).unwrap_err()
        };
        assert_eq!(with(&[0x2008, 0x9000]), Status::PRP_OFFSET);
        assert_eq!(with(&[0x2000, 0x9008]), Status::PRP_OFFSET);
        assert_eq!(with(&[0x2000]), Status::TRANSFER);
        // Each chunk of this list has one entry, which contains the address of the next chunk.
        let mut p = Pages::new([0x1000, 0x8FF8], 3 * 4096).unwrap();
        assert_eq!(p.wanted(), Some((0x8FF8, 8)));
        p.add_part(&list(&[0x9000])).unwrap();
        assert_eq!(p.wanted(), Some((0x9000, 16)));
    }
}
