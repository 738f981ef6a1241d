//! Byte stuffing: frames whose boundaries can be found from any point of the stream.

/// Boundary of a frame.
const FLAG: u8 = 0x7e;
/// Escape character: the following byte was XORed with [`FLIP`].
const ESC: u8 = 0x7d;
const FLIP: u8 = 0x20;
/// Size of a frame's kind and length fields in bytes.
const HEADER: usize = 5;

/// Maximum payload in bytes. Arguments and environment of a command may be long.
pub const MAX_PAYLOAD: usize = 4 * 1024 * 1024;

/// A message whose payload is not decoded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the message.
    pub kind: u8,
    /// Encoded content of the message.
    pub payload: Vec<u8>,
}

/// Reason why bytes between two boundaries were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The frame is shorter than a header, or than its length field says.
    Cut,
    /// The frame is longer than its length field says.
    Long,
    /// The payload is longer than [`MAX_PAYLOAD`].
    TooBig,
}

/// Appends a frame to `out`.
pub fn encode(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(payload.len() + payload.len() / 64 + 16);
    out.push(FLAG);
    let len = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    stuff(&[kind, len[0], len[1], len[2], len[3]], out);
    stuff(payload, out);
    out.push(FLAG);
}

fn stuff(mut data: &[u8], out: &mut Vec<u8>) {
    while let Some(i) = memchr::memchr2(FLAG, ESC, data) {
        out.extend_from_slice(&data[..i]);
        out.extend_from_slice(&[ESC, data[i] ^ FLIP]);
        data = &data[i + 1..];
    }
    out.extend_from_slice(data);
}

/// Decoder that finds frames in a byte stream.
#[derive(Debug, Default)]
pub struct Decoder {
    input: Vec<u8>,
    at: usize,
    frame: Vec<u8>,
    escaped: bool,
    overflow: bool,
}

impl Decoder {
    /// Creates a decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or the reason why a frame was dropped; `None` if more bytes
    /// are needed.
    pub fn next_frame(&mut self) -> Option<Result<Frame, FrameError>> {
        while self.at < self.input.len() {
            let rest = &self.input[self.at..];
            if self.escaped {
                self.escaped = false;
                if rest[0] != FLAG {
                    let byte = rest[0] ^ FLIP;
                    self.at += 1;
                    self.take(&[byte]);
                    continue;
                }
            }
            let n = memchr::memchr2(FLAG, ESC, rest).unwrap_or(rest.len());
            let special = rest.get(n).copied();
            let (from, to) = (self.at, self.at + n);
            self.at = to + usize::from(special.is_some());
            if self.frame.len() + n > HEADER + MAX_PAYLOAD {
                self.overflow = true;
            } else {
                self.frame.extend_from_slice(&self.input[from..to]);
            }
            match special {
                Some(ESC) => self.escaped = true,
                Some(_) => {
                    if let Some(done) = self.finish() {
                        return Some(done);
                    }
                }
                None => {}
            }
        }
        None
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.frame.len() + bytes.len() > HEADER + MAX_PAYLOAD {
            self.overflow = true;
        } else {
            self.frame.extend_from_slice(bytes);
        }
    }

    /// Ends a frame at a boundary. Returns `None` for the empty gap between two frames.
    fn finish(&mut self) -> Option<Result<Frame, FrameError>> {
        let frame = std::mem::take(&mut self.frame);
        if std::mem::take(&mut self.overflow) {
            return Some(Err(FrameError::TooBig));
        }
        let [kind, l0, l1, l2, l3, payload @ ..] = frame.as_slice() else {
            return (!frame.is_empty()).then_some(Err(FrameError::Cut));
        };
        let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        Some(match payload.len().cmp(&len) {
            std::cmp::Ordering::Less => Err(FrameError::Cut),
            std::cmp::Ordering::Greater => Err(FrameError::Long),
            std::cmp::Ordering::Equal => Ok(Frame {
                kind: *kind,
                payload: payload.to_vec(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(d: &mut Decoder) -> Vec<Result<Frame, FrameError>> {
        std::iter::from_fn(|| d.next_frame()).collect()
    }

    proptest! {
            #[test]
            fn any_split_of_the_stream_gives_the_same_frames(
                frames in proptest::collection::vec((any::<u8>(), proptest::collection::vec(prop_oneof![Just(FLAG), Just(ESC), any::<u8>()], 0..200)), 1..8),
                step in 1usize..50,
            ) {
                let mut bytes = Vec::new();
                for (k, p) in &frames { encode(*k, p, &mut bytes); }
                let mut d = Decoder::new();
                let mut got = Vec::new();
                for piece in bytes.chunks(step) {
                    d.push(piece);
                    got.extend(drain(&mut d));
                }
                let want: Vec<_> = frames.into_iter().map(|(kind, payload)| Ok(Frame { kind, payload })).collect();
                prop_assert_eq!(got, want);
            }

            #[test]
            fn a_cut_frame_costs_only_itself(payload in proptest::collection::vec(any::<u8>(), 1..300), keep in 1usize..300) {
                let mut bytes = Vec::new();
                encode(3, &payload, &mut bytes);
                bytes.truncate(keep.min(bytes.len() - 1));
                encode(1, b"hello", &mut bytes);
                let mut d = Decoder::new();
                d.push(&bytes);
                let got = drain(&mut d);
                let want = Ok(Frame { kind: 1, payload: b"hello".to_vec() });
                prop_assert_eq!(got.last(), Some(&want));
    // The result before the last one is absent, an error, or the whole cut frame if only its
    // boundary is missing.
                let whole = Ok(Frame { kind: 3, payload });
                prop_assert!(got[..got.len() - 1].iter().all(|f| f.is_err() || *f == whole));
            }

            #[test]
            fn garbage_never_panics(bytes: Vec<u8>) {
                let mut d = Decoder::new();
                d.push(&bytes);
                drain(&mut d);
            }
        }

    #[test]
    fn an_endless_frame_is_dropped_with_bounded_memory() {
        let mut d = Decoder::new();
        d.push(&[FLAG]);
        for _ in 0..20 {
            d.push(&vec![1; MAX_PAYLOAD / 8]);
            assert_eq!(d.next_frame(), None);
            assert!(d.frame.len() <= HEADER + MAX_PAYLOAD);
        }
        d.push(&[FLAG]);
        assert_eq!(d.next_frame(), Some(Err(FrameError::TooBig)));
        let mut ok = Vec::new();
        encode(2, b"x", &mut ok);
        d.push(&ok);
        assert_eq!(
            d.next_frame(),
            Some(Ok(Frame {
                kind: 2,
                payload: b"x".to_vec()
            }))
        );
    }

    #[test]
    fn a_wrong_length_is_told_apart() {
        let mut d = Decoder::new();
        d.push(&[FLAG, 9, 1, 0, 0, 0, 5, 6, FLAG]);
        assert_eq!(d.next_frame(), Some(Err(FrameError::Long)));
        d.push(&[9, 3, 0, 0, 0, 5, 6, FLAG]);
        assert_eq!(d.next_frame(), Some(Err(FrameError::Cut)));
    }
}
