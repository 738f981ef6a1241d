// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Golden vectors of Ethernet over Extoll: every number that its reference specifies ("EXT §n").

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use wire::eth::{self, *};
use wire::ids::{NodeId, Vpid};
use wire::rma::{self, Command, Mode, Notification, NotificationType};
use wire::velo::{Mtt, SourceId, Status, Target};

#[test]
fn addresses() {
    let p = MacPrefix::DEFAULT;
    assert_eq!(p.mac(NodeId(1)), [0x2E, 0x87, 0x04, 0x07, 0x00, 0x01]);
    assert_eq!(p.mac(NodeId(0xABCD)), [0x2E, 0x87, 0x04, 0x07, 0xAB, 0xCD]);
    assert_eq!(
        p.node([0x2E, 0x87, 0x04, 0x07, 0x12, 0x34]),
        Some(NodeId(0x1234))
    );
    // An address is local only if it has the whole prefix (EXT §2.2).
    let foreign = [0x2E, 0x87, 0x04, 0x08, 0x00, 0x02];
    assert_eq!(p.target(foreign, None), None);
    assert_eq!(
        p.target(foreign, Some(NodeId(9))),
        Some(Target::Node(NodeId(9)))
    );
    assert_eq!(
        p.target(p.mac(NodeId(2)), Some(NodeId(9))),
        Some(Target::Node(NodeId(2)))
    );
    assert_eq!(p.target([0xFF; 6], None), Some(Target::Group(63)));
    assert_eq!(
        p.target([1, 0, 0x5E, 0, 0, 1], None),
        Some(Target::Group(63))
    );
    assert_eq!(VELO_PAGE.encode(), 0x2FE000);
    assert_eq!(GET_PAGE.encode(), 0x8FE000);
}

#[test]
fn limits() {
    assert_eq!((MAX_MTU, MIN_MTU, MAX_FRAME), (65_536, 68, 65_558));
    assert_eq!(
        (MAX_EAGER, MAX_EAGER_BURST, DEFAULT_THRESHOLD),
        (65_536, 30_600, 120)
    );
    let node = Target::Node(NodeId(2));
    assert_eq!(Path::choose(119, node, DEFAULT_THRESHOLD), Path::Eager);
    assert_eq!(Path::choose(120, node, DEFAULT_THRESHOLD), Path::Rendezvous);
    assert_eq!(
        Path::choose(65_000, Target::Group(GROUP), DEFAULT_THRESHOLD),
        Path::Eager
    );
}

#[test]
fn descriptors() {
    let all = Target::Group(GROUP);
    let arp: Vec<_> = eager_fragments(42).unwrap().collect();
    assert_eq!(arp.len(), 1);
    assert_eq!(arp[0].descriptor(all).encode(), Ok(0x002A_0007_80FE_003F));
    let words: Vec<u64> = eager_fragments(300)
        .unwrap()
        .map(|p| p.descriptor(all).encode().unwrap())
        .collect();
    assert_eq!(
        words,
        [
            0x0078_0204_80FE_003F,
            0x0078_0104_80FE_003F,
            0x003C_0007_80FE_003F
        ]
    );
    assert_eq!(
        announcement_descriptor(NodeId(2)).encode(),
        Ok(0x0010_0005_00FE_0002)
    );
    let status = Status::decode(0x0010_0001_00FE_0001).unwrap().unwrap();
    let want = Status {
        source: SourceId {
            node: NodeId(1),
            vpid: Vpid::NET,
        },
        mtt: Mtt::from_low_bits(1),
        eom: false,
        err: false,
        tag: 0,
        len: 16,
    };
    assert_eq!(status, want);
    assert_eq!(want.encode(), Ok(0x0010_0001_00FE_0001));
    assert_eq!(status.source.raw(), 0x00FE_0001);
}

#[test]
fn get() {
    let a = Announcement {
        address: 0x1_2345_6002,
        len: 1514,
    };
    let d = get_descriptor(NodeId(1), &a, 1514, 0xABCD_0002)
        .encode()
        .unwrap();
    assert_eq!(d, [0x0005_E906_0001_FE03, 0x1_2345_6002, 0xABCD_0002]);
    assert_eq!(match_key(a.address, 1514), a.address + 1488);
}

#[test]
fn notifications() {
    let sent = Notification {
        word0: 0x1000 + 1488,
        size_field: 25,
        vpid: Vpid::NET,
        node: NodeId(2),
        kind: NotificationType::Responder,
        command: Command::ByteGet,
        mode: Mode {
            irq: true,
            ..Mode::default()
        },
        error: 0,
    };
    assert_eq!(sent.encode(), [0x1000 + 1488, 0x0102_0002_7F00_0019]);
    assert_eq!(Notification::decode(sent.encode()), Ok(Some(sent)));
    let received = Notification::decode([0x9000 + 1488, 0x0154_0001_7F00_0019])
        .unwrap()
        .unwrap();
    assert_eq!(received.kind, NotificationType::Completer);
    assert_eq!(received.command, Command::ByteGetResponse);
    assert_eq!(
        (received.node, received.vpid, received.last_size()),
        (NodeId(1), Vpid::NET, 26)
    );
    let len = received.word0 - 0x9000 + u64::from(received.last_size());
    assert_eq!(len, 1514);
    let c = Completion::from_notification(&received).unwrap();
    assert_eq!(
        (c.side, c.key, c.last, c.peer, c.error),
        (
            Side::Received,
            match_key(0x9000, 1514),
            last_size(1514),
            NodeId(1),
            0
        )
    );
    assert_eq!(
        Completion::from_notification(&sent).unwrap().side,
        Side::Sent
    );
    let odd = Notification {
        kind: NotificationType::Requester,
        ..sent
    };
    assert_eq!(
        Completion::from_notification(&odd).unwrap_err().reason,
        Reason::NotificationType
    );
    // Only a GET completes a transfer, because any node can forge completer notifications by a put
    // or a notification put.
    let side = |kind, command, error| {
        let n = Notification {
            kind,
            command,
            error,
            ..received
        };
        Completion::from_notification(&n).ok().map(|c| c.side)
    };
    for code in 0..16 {
        let Some(command) = Command::from_code(code) else {
            continue;
        };
        let sent = matches!(code, 0 | 10).then_some(Side::Sent);
        assert_eq!(
            side(NotificationType::Responder, command, 0),
            sent,
            "{code}"
        );
        let got = (code == 10).then_some(Side::Received);
        assert_eq!(side(NotificationType::Completer, command, 0), got, "{code}");
        let failed = matches!(code, 0 | 10).then_some(Side::Received);
        assert_eq!(
            side(NotificationType::Completer, command, 4),
            failed,
            "{code}"
        );
    }
    for (len, size) in [(1, 0), (496, 495), (497, 0), (1514, 25)] {
        assert_eq!(last_size(len), size);
    }
}

#[test]
fn announcements() {
    let a = Announcement {
        address: 0x0102_0304_0506_0708,
        len: 1514,
    };
    let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0xEA, 5, 0, 0, 0, 0, 0, 0];
    assert_eq!(a.encode(), bytes);
    assert_eq!(Announcement::decode(&bytes), Ok(a));
    for n in (0..16).chain(17..120) {
        let e = Announcement::decode(&vec![0; n]).unwrap_err();
        assert_eq!(
            (e.reason, e.got, e.want),
            (Reason::AnnouncementLength, n as u64, 16)
        );
    }
    let len = |len| Announcement { address: 0, len }.frame_len(MAX_FRAME);
    assert_eq!(len(14), Ok(14));
    assert_eq!(len(65_558), Ok(65_558));
    assert_eq!(len(0).unwrap_err().reason, Reason::Runt);
    assert_eq!(len(13).unwrap_err().reason, Reason::Runt);
    assert_eq!(len(65_559).unwrap_err().reason, Reason::AnnouncedSize);
    assert_eq!(len(u64::MAX).unwrap_err().reason, Reason::AnnouncedSize);
    let huge = Announcement {
        address: 0,
        len: 1 << 32 | 1514,
    };
    assert_eq!(
        huge.frame_len(u32::MAX).unwrap_err().reason,
        Reason::AnnouncedSize
    );
}

#[test]
fn parsing() {
    let status = |mtt, tag, len| Status {
        source: SourceId {
            node: NodeId(3),
            vpid: Vpid::NET,
        },
        mtt: Mtt::from_low_bits(mtt),
        eom: true,
        err: false,
        tag,
        len,
    };
    let data = [7u8; 120];
    assert_eq!(
        Message::parse(&status(0, 9, 120), &data),
        Ok(Message::Eager {
            tag: 9,
            last: false,
            data: &data
        })
    );
    assert_eq!(
        Message::parse(&status(3, 0, 60), &data[..60]),
        Ok(Message::Eager {
            tag: 0,
            last: true,
            data: &data[..60]
        })
    );
    let a = Announcement { address: 1, len: 2 };
    assert_eq!(
        Message::parse(&status(1, 0, 16), &a.encode()),
        Ok(Message::Announcement(a))
    );
    assert_eq!(
        Message::parse(&status(2, 0, 8), &5u64.to_le_bytes()),
        Ok(Message::Dropped { address: 5 })
    );
    let reason = |s: &Status, d: &[u8]| Message::parse(s, d).unwrap_err().reason;
    assert_eq!(
        reason(&status(1, 0, 15), &data[..15]),
        Reason::AnnouncementLength
    );
    assert_eq!(reason(&status(2, 0, 9), &data[..9]), Reason::DroppedLength);
    assert_eq!(reason(&status(3, 0, 9), &data[..8]), Reason::MessageLength);
    assert_eq!(reason(&status(3, 0, 9), &[]), Reason::Empty);
    assert_eq!(reason(&status(3, 0, 200), &[0; 200]), Reason::MessageLength);
    let mut other = status(3, 0, 60);
    other.source.vpid = Vpid::new(5).unwrap();
    assert_eq!(reason(&other, &data[..60]), Reason::SourceVpid);
}

#[test]
fn own_group_frames() {
    let mut frame = [0xFFu8; 60];
    assert!(is_own_group_frame(&frame, NodeId(4), NodeId(4)));
    assert!(!is_own_group_frame(&frame, NodeId(4), NodeId(5)));
    frame[0] = 0x2E;
    assert!(!is_own_group_frame(&frame, NodeId(4), NodeId(4)));
    assert!(!is_own_group_frame(&frame[..5], NodeId(4), NodeId(4)));
    assert_eq!(eth::source(&frame[..11]), None);
}

#[test]
fn reasons_are_numbered_named_and_printable() {
    for (i, r) in Reason::ALL.iter().enumerate() {
        assert_eq!(r.number(), i);
        assert!(r.number() < Reason::COUNT);
        assert!(r.name().chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        assert_eq!(
            Reason::ALL.iter().filter(|o| o.name() == r.name()).count(),
            1
        );
        assert!(!Reject::new(*r, 1, 2).to_string().is_empty());
    }
    let e = Reject::new(Reason::TagBreak, 3, 5);
    assert_eq!(
        e.to_string(),
        "fragment tag 3 instead of 5, partial frame discarded"
    );
}

#[test]
fn lengths_of_eager_frames_are_bounded() {
    assert!(eager_fragments(0).is_err());
    assert!(eager_fragments(MAX_EAGER + 1).is_err());
    assert_eq!(eager_fragments(MAX_EAGER).unwrap().len(), 547);
    assert_eq!(rma::fragment_count(MAX_FRAME), 133);
}
