// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Device Lending.

use crate::{bytes, Input};
use protocol::pci::config::{Filter, Layout, Space, Verdict};
use protocol::pci::Reach;
use wire::pci::{
    Bar, Body, Borrow, Device, Grant, Incarnation, LeaseId, Message, Numbers, ParseError, Reason,
    Register, Role, Status,
};

/// Reads tag, length and quadwords of a message, and parses the message.
fn read(data: &[u8]) -> (u8, u16, Vec<u64>, Result<Message, ParseError>) {
    let mut input = Input(data);
    let (tag, len) = (input.u8(), u16::from(input.u8()));
    let words: Vec<u64> = (0..15).map(|_| input.u64()).collect();
    let message = Message::parse(tag, len, |i| words.get(i).copied().unwrap_or(0));
    (tag, len, words, message)
}

/// Input: tag, length, quadwords. Parses a message.
///
/// A parsed message yields the same words again.
pub fn fuzz_pci_message(data: &[u8]) {
    let (tag, len, words, message) = read(data);
    match message {
        Ok(message) => {
            let said = message.words();
            assert_eq!(said.as_slice(), &words[..said.as_slice().len()]);
            assert_eq!(message.kind().tag(), tag);
            assert_eq!(said.bytes(), len);
            if let Body::Device(device) = message.body {
                assert!(device.has_valid_bars());
            }
        }
        Err(reject) => assert!(!reject.to_string().is_empty()),
    }
}

/// Input: registers of a function, then accesses. Tests the registers that a borrower sees and the
/// accesses that a lender permits.
///
/// Chains of capabilities end for any contents, and BARs are never written.
pub fn fuzz_pci_config(data: &[u8]) {
    let mut input = Input(data);
    let first: Vec<u32> = (0..64).map(|_| input.u64() as u32).collect();
    let extended: Vec<u32> = (0..32).map(|_| input.u64() as u32).collect();
    let word = |at: u16| match usize::from(at) / 4 {
        i @ 0..64 => first[i],
        i => extended[(i - 64) % 32],
    };
    let Ok(layout) = Layout::read(word) else {
        return;
    };
    // The capabilities that are shown form a finite chain.
    let (mut at, mut steps) = (layout.first(), 0);
    while at != 0 {
        at = layout.at(at).expect("a capability").next;
        steps += 1;
        assert!(steps <= 64);
    }
    let bar = Bar {
        log2: 14,
        is_64bit: true,
        prefetchable: false,
    };
    let bars = [Some(bar), None, None, None, None, None];
    let mut space = Space::new(&layout, &bars, &[0x8000_0000; 6]);
    let mut filter = Filter::new(Reach::new(0xfe00_0000, 4096));
    while !input.is_empty() {
        let raw = input.u64();
        let Some(register) = Register::new(raw as u16 & 0xfff, 1 << ((raw >> 16) & 3)) else {
            continue;
        };
        let value = (raw >> 32) as u32 & register.ones();
        assert_eq!(space.seen(register, value) & !register.ones(), 0);
        let _ = (space.read(register), space.write(register, value));
        let _ = filter.read(&layout, register);
        if let Verdict::Write(write) = filter.write(&layout, register, value) {
            assert!(!(0x10..0x28).contains(&register.dword()) && register.dword() != 0x30);
            let accessed = Filter::accessed_register(register);
            assert_eq!(accessed.dword(), register.dword());
            assert_eq!((write.value | write.keep) & !accessed.ones(), 0);
            assert_eq!(write.value & write.keep, 0);
            filter.executed(&layout, accessed);
        }
    }
}

fn lease() -> LeaseId {
    LeaseId::new(5, 6)
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let register = Register::new(4, 2).expect("a register");
    let bar = Bar {
        log2: 14,
        is_64bit: true,
        prefetchable: false,
    };
    let device = Device {
        count: 1,
        bars: [Some(bar), None, None, None, None, None],
        ..Device::default()
    };
    let numbers = Numbers {
        bars: [1, 0, 0, 0, 0, 0],
        dma: 2,
        interrupts: 3,
    };
    let grant = Grant {
        lease: lease(),
        generation: 1,
        timeout_ms: 4000,
        numbers,
        dma: 0x1000,
        interrupts: 0x2000,
        borrower: Incarnation(9),
    };
    let borrow = Borrow {
        windows: 2,
        targets: 12,
        dma: 4096,
        ..Borrow::default()
    };
    let alive = |to| Body::Alive {
        lease: lease(),
        to,
        answer: false,
    };
    let bodies = [
        (1, Body::List(0)),
        (1, Body::Device(device)),
        (5, Body::Borrow(borrow)),
        (5, Body::Grant(grant)),
        (1, Body::Refuse(Reason::Lent, LeaseId::NONE)),
        (1, Body::Read(lease(), register)),
        (1, Body::Write(lease(), register, 6)),
        (1, Body::Done(lease(), Status::Done, 6)),
        (1, Body::Reset(lease())),
        (0, Body::Return(lease())),
        (0, Body::Returned(lease())),
        (0, Body::Revoke(lease(), 1000)),
        (0, Body::Revoked(lease())),
        (1, alive(Role::Lender)),
        (1, alive(Role::Borrower)),
    ];
    let seed = |(number, body): (u32, Body)| {
        let message = Message {
            number,
            sender: Incarnation(7),
            body,
        };
        let words = message.words();
        let mut seed = vec![message.kind().tag(), words.bytes() as u8];
        seed.extend(bytes(words.as_slice()));
        seed
    };
    bodies.into_iter().map(seed).collect()
}

pub(crate) fn config_seeds() -> Vec<Vec<u8>> {
    let mut words = vec![0u64; 96];
    words[0] = 0x0010_1b36;
    words[1] = 0x0010_0000;
    words[0x34 / 4] = 0x40;
    // Capabilities: 64-bit MSI, power management, an unknown capability, PCI Express.
    words[0x40 / 4] = 0x0080_5005;
    words[0x50 / 4] = 0x0003_6001;
    words[0x60 / 4] = 0x0000_8003;
    words[0x80 / 4] = 0x0002_0010;
    // Extended capabilities: an unknown capability, then a serial number.
    words[64] = 0x1101_0001;
    words[64 + 0x10 / 4] = 0x0001_0003;
    let accesses = [
        0xfe00_0000_0002_0044,
        0x0000_0000_0002_0048,
        0x0081_0000_0002_0040,
        0xffff_ffff_0002_0010,
        0x0000_0006_0001_0004,
        0x0000_8000_0001_0088,
    ];
    words.extend(accesses);
    vec![bytes(&words)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_pci_are_messages_of_all_kinds() {
        let mut kinds = std::collections::HashSet::new();
        for seed in super::message_seeds() {
            let (.., message) = super::read(&seed);
            kinds.insert(message.expect("a seed is a message").kind());
        }
        assert_eq!(kinds.len(), wire::pci::Kind::ALL.len());
    }
}
