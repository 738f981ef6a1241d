//! Tests of the vfio-user protocol on a real socket, with messages of QEMU and of hostile clients.

mod common;

use common::{access, cmd, eventfd, memfd, message, words, Emu, NO_REPLY};
use proptest::prelude::*;
use std::os::fd::AsFd;

const EINVAL: u32 = 22;
const ENOSYS: u32 = 38;
const EPROTO: u32 = 71;
const EOPNOTSUPP: u32 = 95;

fn emu() -> Emu {
    Emu::start(&["--topology", "single"])
}

#[test]
fn the_client_of_another_project_works() {
    let emu = emu();
    let mut c = vfio_user::Client::new(&emu.path("nic0.sock")).unwrap();
    // `c.resettable()` is not used, because version 0.1.7 inverts the flag.
    let sizes: Vec<u64> = (0..9).map(|i| c.region(i).map_or(0, |r| r.size)).collect();
    assert_eq!(sizes, [256 << 20, 0, 256 << 20, 0, 0, 0, 0, 4096, 0]);
    assert!(
        (0..9).all(|i| c
            .region(i)
            .is_none_or(|r| r.flags & 4 == 0 && r.file_offset.is_none())),
        "no region can be mapped"
    );
    let mut ids = [0; 4];
    c.region_read(7, 0, &mut ids).unwrap();
    assert_eq!(ids, [0xad, 0x1c, 0x11, 0x00]);
    c.region_write(0, 0x8058, &0x1234u64.to_le_bytes()).unwrap();
    let mut back = [0; 8];
    c.region_read(0, 0x8058, &mut back).unwrap();
    assert_eq!(u64::from_le_bytes(back), 0x1234);
    let msi = c.get_irq_info(1).unwrap();
    assert_eq!((msi.count, msi.flags & 1), (1, 1));
    c.reset().unwrap();
    c.region_read(0, 0x8058, &mut back).unwrap();
    assert_eq!(u64::from_le_bytes(back), 0);
    c.shutdown().unwrap();
}

#[test]
fn negotiation_comes_first_and_once() {
    let emu = emu();
    let mut c = emu.raw(0);
    assert_eq!(
        c.call(cmd::DEVICE_GET_INFO, &words(&[16, 0, 0, 0])).error,
        EPROTO
    );
    assert_eq!(c.call(cmd::VERSION, &[0, 0]).error, EINVAL, "too short");
    assert_eq!(
        c.call(cmd::VERSION, &[1, 0, 0, 0]).error,
        EOPNOTSUPP,
        "major 1"
    );
    assert_eq!(c.call(cmd::VERSION, b"\0\0\0\0{nonsense\0").error, EINVAL);
    assert_eq!(
        c.call(
            cmd::VERSION,
            &[b"\0\0\0\0".as_slice(), &[b'['; 100_000]].concat()
        )
        .error,
        EINVAL,
        "deep nesting"
    );
    let caps: serde_json::Value = serde_json::from_str(&c.negotiate()).unwrap();
    // The server does not offer `write_multiple`. With such messages, QEMU's answers would overtake
    // the stores that it collects.
    assert_eq!(caps["capabilities"]["write_multiple"], false);
    assert_ne!(
        c.call(cmd::VERSION, &[0, 0, 0, 0]).error,
        0,
        "second negotiation"
    );
    let info = c.ok(cmd::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
    assert_eq!(
        info,
        words(&[16, 3, 9, 5]),
        "resettable PCI device, 9 regions, 5 interrupt indices"
    );
}

#[test]
fn unknown_commands_are_answered_and_framing_is_kept() {
    let emu = emu();
    let mut c = emu.client(0);
    for command in [0, 11, 12, 14, 16, 999, u16::MAX] {
        assert_eq!(c.call(command, &[7; 333]).error, ENOSYS);
    }
    assert_eq!(
        c.call(cmd::DEVICE_GET_REGION_IO_FDS, &words(&[16, 0, 0, 0]))
            .error,
        EOPNOTSUPP
    );
    assert_eq!(c.read(7, 0, 2), [0xad, 0x1c]);
}

#[test]
fn messages_may_be_glued_together_or_cut_anywhere() {
    let emu = emu();
    let mut c = emu.client(0);
    let mut all = Vec::new();
    for i in 0..300u16 {
        let value = u64::from(i) + 1;
        all.extend(message(
            i,
            cmd::REGION_WRITE,
            NO_REPLY,
            &access(0, 0x8058, &value.to_le_bytes()),
        ));
        let mut read = 0x8058u64.to_le_bytes().to_vec();
        read.extend(words(&[0, 8]));
        all.extend(message(i, cmd::REGION_READ, 0, &read));
    }
    c.send_bytes(&all);
    for i in 0..300u16 {
        let r = c.recv().unwrap();
        assert_eq!(
            (r.id, &r.body[16..]),
            (i, (u64::from(i) + 1).to_le_bytes().as_slice())
        );
    }
    let m = message(9, cmd::DEVICE_GET_INFO, 0, &words(&[16, 0, 0, 0]));
    for b in &m {
        c.send_bytes(&[*b]);
    }
    assert_eq!(c.recv().unwrap().id, 9);
}

#[test]
fn accesses_outside_a_region_are_refused() {
    let emu = emu();
    let mut c = emu.client(0);
    let read = |region: u32, offset: u64, count: u32| {
        let mut b = offset.to_le_bytes().to_vec();
        b.extend(words(&[region, count]));
        b
    };
    for (region, offset, count) in [
        (0, 256 << 20, 1),
        (0, (256 << 20) - 4, 8),
        (0, u64::MAX - 3, 8),
        (0, 0, 0),
        (0, 0, u32::MAX),
        (0, 0, (1 << 20) + 1),
        (1, 0, 4),
        (6, 0, 4),
        (7, 4094, 4),
        (8, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        assert_eq!(
            c.call(cmd::REGION_READ, &read(region, offset, count)).error,
            EINVAL,
            "{region} {offset:#x} {count}"
        );
    }
    assert_eq!(
        c.call(cmd::REGION_WRITE, &access(0, 256 << 20, &[0; 8]))
            .error,
        EINVAL
    );
    let mut lying = access(0, 0, &[0; 8]);
    lying[12] = 200;
    assert_eq!(
        c.call(cmd::REGION_WRITE, &lying).error,
        EINVAL,
        "count beyond the message"
    );
    assert_eq!(
        c.read(0, 0, 1 << 20).len(),
        1 << 20,
        "the largest allowed read"
    );
    for cmd in [
        cmd::REGION_READ,
        cmd::REGION_WRITE,
        cmd::REGION_WRITE_MULTI,
        cmd::DMA_MAP,
        cmd::DMA_UNMAP,
        cmd::DEVICE_SET_IRQS,
    ] {
        assert_eq!(
            c.call(cmd, &[1, 2, 3]).error,
            EINVAL,
            "truncated command {cmd}"
        );
    }
    assert_eq!(c.read(7, 0, 2), [0xad, 0x1c]);
    assert!(emu.counters().nics[0].host.protocol_errors >= 20);
}

fn multi(list: &[(u64, u32, u32, u64)]) -> Vec<u8> {
    let mut b = (list.len() as u64).to_le_bytes().to_vec();
    for (offset, region, count, data) in list {
        b.extend(offset.to_le_bytes());
        b.extend(words(&[*region, *count]));
        b.extend(data.to_le_bytes());
    }
    b
}

#[test]
fn write_multi() {
    let emu = emu();
    let mut c = emu.client(0);
    let writes: Vec<_> = (0..200)
        .map(|i| (0x8058 + 8 * (i % 4), 0, 8, 1000 + i))
        .collect();
    c.send_bytes(&message(
        0,
        cmd::REGION_WRITE_MULTI,
        NO_REPLY,
        &multi(&writes),
    ));
    let got: Vec<u64> = (0..4).map(|i| c.read64(0, 0x8058 + 8 * i)).collect();
    assert_eq!(got, [1196, 1197, 1198, 1199]);
    // An invalid write must not stop later writes.
    let r = c.call(
        cmd::REGION_WRITE_MULTI,
        &multi(&[
            (0x8058, 0, 8, 1),
            (1 << 40, 0, 8, 2),
            (0x8060, 0, 9, 3),
            (0x8068, 0, 8, 4),
        ]),
    );
    assert_eq!(r.error, EINVAL);
    assert_eq!(
        (
            c.read64(0, 0x8058),
            c.read64(0, 0x8060),
            c.read64(0, 0x8068)
        ),
        (1, 1197, 4)
    );
    let writes: Vec<_> = (0..201).map(|_| (0x8058, 0, 8, 9)).collect();
    assert_eq!(
        c.call(cmd::REGION_WRITE_MULTI, &multi(&writes)).error,
        EINVAL,
        "201 writes"
    );
    let mut lying = multi(&[(0x8058, 0, 8, 9)]);
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(c.call(cmd::REGION_WRITE_MULTI, &lying).error, EINVAL);
    assert_eq!(c.read64(0, 0x8058), 1);
}

#[test]
fn hostile_lengths_cost_the_connection_only() {
    let emu = emu();
    for size in [0u32, 15, (1 << 20) + 81, u32::MAX] {
        let mut c = emu.client(0);
        let mut m = message(1, cmd::REGION_READ, 0, &[]);
        m[4..8].copy_from_slice(&size.to_le_bytes());
        c.send_bytes(&m);
        assert_eq!(c.recv(), None, "length {size}");
    }
    assert_eq!(emu.client(0).read(7, 0, 2), [0xad, 0x1c]);
}

#[test]
fn descriptors_of_the_wrong_number_or_kind() {
    let emu = emu();
    let mut c = emu.client(0);
    let fd = memfd(0x10000);
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(
        c.dma_map(0, 0x10000, None),
        0,
        "a map without file is accepted and ignored"
    );
    assert_eq!(
        c.dma_map(0x100000, 0x20000, Some(fd.as_fd())),
        EINVAL,
        "file too short"
    );
    assert_ne!(
        c.dma_map(0x100000, 0x10000, Some(null.as_fd())),
        0,
        "not memory"
    );
    let mut b = words(&[32, 3]);
    b.extend(
        [0u64, 0x100000, 0x10000]
            .iter()
            .flat_map(|v| v.to_le_bytes()),
    );
    assert_eq!(
        c.call_fds(cmd::DMA_MAP, &b, &[fd.as_fd(), fd.as_fd()])
            .error,
        EINVAL,
        "two files"
    );
    // Unexpected files are closed. The next message must not receive them.
    assert_eq!(
        c.call_fds(cmd::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), &[fd.as_fd()])
            .error,
        0
    );
    assert_eq!(c.dma_map(0x200000, 0x10000, None), 0);
    assert_eq!(emu.status().nics[0].dma_maps, (2, 0x20000));
    // These interrupt messages have a wrong index, vector, number of files or mask action.
    let ev = eventfd();
    for (set, fds, error) in [
        ([20, 4 | 32, 1, 0, 1], 2, EINVAL),
        ([20, 4 | 32, 1, 1, 1], 1, EINVAL),
        ([20, 4 | 32, 1, u32::MAX, 2], 0, EINVAL),
        ([20, 4 | 32, 2, 0, 1], 1, EINVAL),
        ([20, 4 | 32, 99, 0, 1], 1, EINVAL),
        ([20, 4 | 8, 1, 0, 1], 0, EOPNOTSUPP),
        ([20, 7 | 32, 1, 0, 1], 0, EINVAL),
        ([20, 1 | 32, 0, 0, 0], 0, 0),
        ([20, 4 | 32, 1, 0, 1], 1, 0),
        ([20, 1 | 32, 1, 0, 1], 0, 0),
        ([20, 1 | 32, 1, 0, 0], 0, 0),
    ] {
        let fds: Vec<_> = (0..fds).map(|_| ev.as_fd()).collect();
        assert_eq!(
            c.call_fds(cmd::DEVICE_SET_IRQS, &words(&set), &fds).error,
            error,
            "{set:?}"
        );
    }
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&ev, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1, "the loop-back trigger");
    let many: Vec<_> = (0..17).map(|_| ev.as_fd()).collect();
    c.send_fds(
        &message(1, cmd::DEVICE_GET_INFO, 0, &words(&[16, 0, 0, 0])),
        &many,
    );
    assert_eq!(c.recv(), None, "more files than announced");
}

#[test]
fn files_go_with_their_message() {
    let emu = emu();
    let mut c = emu.client(0);
    let fd = memfd(0x1000);
    // Two map messages are in flight, the first without a file. Only the second map has memory.
    let map = |iova: u64| {
        let mut b = words(&[32, 3]);
        b.extend([0u64, iova, 0x1000].iter().flat_map(|v| v.to_le_bytes()));
        message(iova as u16, cmd::DMA_MAP, 0, &b)
    };
    c.send_bytes(&map(0x1000));
    c.send_fds(&map(0x2000), &[fd.as_fd()]);
    assert_eq!((c.recv().unwrap().error, c.recv().unwrap().error), (0, 0));
    assert_eq!(emu.status().nics[0].dma_maps.0, 2);
    assert!(
        rustix::fs::fcntl_get_seals(&fd)
            .unwrap()
            .contains(rustix::fs::SealFlags::SHRINK),
        "the file was mapped"
    );
    let unmap = |iova: u64, size: u64, flags: u32| {
        let mut b = words(&[24, flags]);
        b.extend([iova, size].iter().flat_map(|v| v.to_le_bytes()));
        b
    };
    assert_eq!(
        c.call(cmd::DMA_UNMAP, &unmap(0x1000, 0x800, 0)).error,
        EINVAL
    );
    assert_ne!(c.call(cmd::DMA_UNMAP, &unmap(0x9000, 0x1000, 0)).error, 0);
    assert_eq!(
        c.call(cmd::DMA_UNMAP, &unmap(0x1000, 0x1000, 1)).error,
        EOPNOTSUPP,
        "no dirty log"
    );
    c.ok(cmd::DMA_UNMAP, &unmap(0x1000, 0x1000, 0));
    c.ok(cmd::DMA_UNMAP, &unmap(0, 0, 2));
    assert_eq!(emu.status().nics[0].dma_maps, (0, 0));
}

#[test]
fn posted_errors_and_stray_replies_are_not_answered() {
    let emu = emu();
    let mut c = emu.client(0);
    c.send_bytes(&message(
        1,
        cmd::REGION_WRITE,
        NO_REPLY,
        &access(0, 1 << 40, &[0; 8]),
    ));
    c.send_bytes(&message(2, 999, NO_REPLY, &[]));
    c.send_bytes(&message(3, cmd::DMA_MAP, 1, &[]));
    c.send_bytes(&message(4, cmd::DEVICE_GET_INFO, 0, &words(&[16, 0, 0, 0])));
    assert_eq!(c.recv().unwrap().id, 4);
    c.send_bytes(&message(5, cmd::DEVICE_GET_INFO, 7, &[]));
    let r = c.recv().unwrap();
    assert_eq!((r.id, r.error), (5, EINVAL), "a message of unknown type");
    assert!(
        emu.log().contains("failed"),
        "the log must give the reason: {}",
        emu.log()
    );
}

#[test]
fn the_next_client_is_served_and_finds_a_fresh_device() {
    let emu = emu();
    let mut first = emu.client(0);
    first.post(0, 0x8058, &7u64.to_le_bytes());
    assert_eq!(first.read64(0, 0x8058), 7);
    // The second client must wait until the first client has disconnected.
    let mut second = emu.raw(0);
    second.send_bytes(&message(1, cmd::VERSION, 0, &[0, 0, 0, 0]));
    assert_eq!(first.read64(0, 0x8058), 7);
    drop(first);
    assert_eq!(second.recv().unwrap().error, 0);
    assert_eq!(second.read64(0, 0x8058), 0);
    assert_eq!(emu.counters().nics[0].host.connects, 2);
    // This client disconnects in the middle of a message.
    let m = message(1, cmd::DEVICE_GET_INFO, 0, &words(&[16, 0, 0, 0]));
    second.send_bytes(&m[..20]);
    drop(second);
    emu.client(0)
        .ok(cmd::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
}

#[test]
fn a_client_that_does_not_read_its_replies_blocks_nobody() {
    let emu = Emu::start(&["--topology", "pair"]);
    let mut greedy = emu.client(0);
    let mut read = 0u64.to_le_bytes().to_vec();
    read.extend(words(&[0, 1 << 20]));
    let m = message(1, cmd::REGION_READ, 0, &read);
    greedy.stream.set_nonblocking(true).unwrap();
    // The client requests 4096 MiB of replies, or as many as the sockets hold.
    let sent = (0..4096)
        .take_while(|_| std::io::Write::write(&mut greedy.stream, &m).is_ok())
        .count();
    assert!(sent > 8, "{sent}");
    let mut other = emu.client(1);
    for _ in 0..100 {
        assert_eq!(other.read(7, 0, 2), [0xad, 0x1c]);
    }
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", emu.child.id())).unwrap();
    let resident: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(resident * 4096 < 200 << 20, "{resident} pages resident");
    drop(greedy);
    emu.wait_for("the connection is closed", |s| !s.nics[0].connected);
}

#[test]
fn replies_larger_than_the_socket_all_arrive() {
    let emu = emu();
    let mut c = emu.client(0);
    let mut read = 0u64.to_le_bytes().to_vec();
    read.extend(words(&[0, 1 << 20]));
    for id in 0..20 {
        c.send_bytes(&message(id, cmd::REGION_READ, 0, &read));
    }
    for id in 0..20 {
        let r = c.recv().unwrap();
        assert_eq!((r.id, r.error, r.body.len()), (id, 0, (1 << 20) + 16));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// After random commands with random bodies, the emulator still runs and serves the next
    /// client.
    #[test]
    fn random_messages_are_survived(
        list in prop::collection::vec((0u16..18, any::<u8>(), prop::collection::vec(any::<u8>(), 0..96), any::<bool>()), 1..120),
        aimed in prop::collection::vec((0u32..8, any::<u32>(), 1usize..64, any::<u8>()), 0..200),
    ) {
        let emu = emu();
        let mut c = emu.client(0);
        for (i, (command, flags, body, fd)) in list.iter().enumerate() {
            let m = message(i as u16, *command, u32::from(flags & 0x30) | NO_REPLY, body);
            let file = memfd(0x4000);
            let fds: &[_] = if *fd { &[file.as_fd()] } else { &[] };
            c.send_fds(&m, fds);
        }
        // These accesses pass the checks and reach the NIC.
        for (region, offset, len, byte) in &aimed {
            let offset = u64::from(*offset) % (if *region == 7 { 4096 } else { 256 << 20 });
            c.send_bytes(&message(0, cmd::REGION_WRITE, NO_REPLY, &access(*region, offset, &vec![*byte; *len])));
        }
        drop(c);
        let mut next = emu.client(0);
        prop_assert_eq!(next.read(7, 0, 2), [0xad, 0x1c]);
        prop_assert_eq!(emu.counters().nics[0].host.panics, 0, "{}", emu.log());
    }
}
