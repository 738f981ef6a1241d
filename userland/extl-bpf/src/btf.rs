// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reader of the kernel's type information (BTF, `/sys/kernel/btf/vmlinux`).

use std::fmt;

/// Kind number of a structure in BTF.
const STRUCT: u32 = 4;
const FUNC: u32 = 12;

/// Reason why BTF cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The data is not BTF or is truncated.
    Broken,
    /// A type has this kind, which the program does not know. The kernel may be newer.
    Kind(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => write!(f, "not in the format of BTF"),
            Self::Kind(kind) => write!(f, "types of unknown kind {kind}"),
        }
    }
}

impl std::error::Error for Error {}

/// Type: its number, and the bytes after its header.
struct Type<'a> {
    number: u32,
    name: u32,
    kind: u32,
    rest: &'a [u8],
}

/// Type information of a kernel.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Result<u32, Error> {
    let word = bytes.get(at..at + 4).ok_or(Error::Broken)?;
    Ok(u32::from_le_bytes(
        word.try_into().map_err(|_| Error::Broken)?,
    ))
}

/// Returns the number of bytes after the header of a type of this kind with `members` members.
fn behind(kind: u32, members: usize) -> Result<usize, Error> {
    Ok(match kind {
        // These kinds are pointer, forward, typedef, volatile, const, restrict, function, float,
        // type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // These kinds are integer, variable and declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // These kinds are structure, union, section and enumeration of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // These kinds are enumeration and prototype.
        6 | 13 => 8 * members,
        _ => return Err(Error::Kind(kind)),
    })
}

impl<'a> Btf<'a> {
    /// Parses the content of the file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        if word(bytes, 0)? & 0xffff != 0xeb9f {
            return Err(Error::Broken);
        }
        let header = word(bytes, 4)? as usize;
        let part = |at: usize| -> Result<&'a [u8], Error> {
            let (from, len) = (word(bytes, at)? as usize, word(bytes, at + 4)? as usize);
            let from = header.checked_add(from).ok_or(Error::Broken)?;
            let to = from.checked_add(len).ok_or(Error::Broken)?;
            bytes.get(from..to).ok_or(Error::Broken)
        };
        Ok(Self {
            types: part(8)?,
            strings: part(16)?,
        })
    }

    fn is_called(&self, at: u32, name: &str) -> bool {
        let rest = self.strings.get(at as usize..).unwrap_or(&[]);
        let rest = rest.strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Returns the first type for which `test` is true.
    fn find(&self, test: impl Fn(&Type<'a>) -> bool) -> Result<Option<Type<'a>>, Error> {
        let (mut at, mut number) = (0, 0);
        while at < self.types.len() {
            number += 1;
            let info = word(self.types, at + 4)?;
            // Older kernels use fewer bits for both fields. All other bits are 0.
            let (kind, members) = ((info >> 24) & 0x7f, info & 0x00ff_ffff);
            let end = at + 12 + behind(kind, members as usize)?;
            let found = Type {
                number,
                name: word(self.types, at)?,
                kind,
                rest: self.types.get(at + 12..end).ok_or(Error::Broken)?,
            };
            if test(&found) {
                return Ok(Some(found));
            }
            at = end;
        }
        Ok(None)
    }

    /// Returns the type number of a function.
    pub fn function(&self, name: &str) -> Result<Option<u32>, Error> {
        let found = self.find(|t| t.kind == FUNC && self.is_called(t.name, name))?;
        Ok(found.map(|t| t.number))
    }

    /// Returns the byte offset of a member of a structure. Returns `None` if the member is missing
    /// or not byte-aligned.
    pub fn offset(&self, structure: &str, member: &str) -> Result<Option<u32>, Error> {
        let found = self.find(|t| t.kind == STRUCT && self.is_called(t.name, structure))?;
        for m in found.map_or(&[][..], |t| t.rest).chunks_exact(12) {
            if self.is_called(word(m, 0)?, member) {
                let bits = word(m, 8)?;
                return Ok((bits % 8 == 0).then_some(bits / 8));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a small BTF with an integer, `struct s { a; b; }` and `f()`.
    fn sample(kind: u32) -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0f\0fun\0";
        let types: &[u32] = &[
            1,
            1 << 24,
            4,
            32, // int
            5,
            (4 << 24) | 2,
            8,
            7,
            1,
            0,
            9,
            1,
            32, // s
            0,
            13 << 24,
            1, // prototype
            13,
            kind << 24,
            3, // fun
            11,
            12 << 24,
            3, // f
        ];
        let mut out = Vec::new();
        let header = [
            0x0001_eb9f,
            24,
            0,
            4 * types.len(),
            4 * types.len(),
            strings.len(),
        ];
        let words = header.map(|w| w as u32);
        for word in words.iter().chain(types) {
            out.extend(word.to_le_bytes());
        }
        out.extend(strings);
        out
    }

    #[test]
    fn functions_and_members_are_found() {
        let bytes = sample(12);
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.function("f"), Ok(Some(5)));
        assert_eq!(btf.function("fun"), Ok(Some(4)));
        assert_eq!(btf.function("fu"), Ok(None));
        assert_eq!(btf.function("int"), Ok(None));
        assert_eq!(btf.offset("s", "a"), Ok(Some(0)));
        assert_eq!(btf.offset("s", "b"), Ok(Some(4)));
        assert_eq!(btf.offset("s", "c"), Ok(None));
        assert_eq!(btf.offset("f", "a"), Ok(None));
    }

    #[test]
    fn what_is_broken_is_refused() {
        let bytes = sample(12);
        for len in 0..bytes.len() {
            // Truncated data must never cause a panic. The names are at the end of the data, so
            // that some types may still be found.
            if let Ok(btf) = Btf::parse(&bytes[..len]) {
                let _ = (btf.function("f"), btf.offset("s", "b"));
            }
        }
        assert!(Btf::parse(&bytes[1..]).is_err());
        let unknown = sample(25);
        let btf = Btf::parse(&unknown).unwrap();
        assert_eq!(btf.function("f"), Err(Error::Kind(25)));
        // This type lacks members.
        let mut cut = sample(12);
        cut[12] = 40;
        let btf = Btf::parse(&cut).unwrap();
        assert_eq!(btf.function("f"), Err(Error::Broken));
    }

    #[test]
    fn the_kernel_of_this_machine_can_be_read() {
        // Only kernels with BTF have this file.
        if let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") {
            let btf = Btf::parse(&bytes).unwrap();
            assert_eq!(btf.offset("list_head", "next"), Ok(Some(0)));
        }
    }
}
