//! A cable on the path that goes down for a short time can make a GET lose packets before its last
//! packet. The completer does not report this (HW §10.3), and the links of both ends stay up.

mod sim {
    use ::sim::fabric::{Fabric, MEMORY};
    use ::sim::port::{Port, FREE};
    use anyhow::Result;
    use extoll_emulator::network::LinkKnobs;
    use protocol::base::validity::{find_hole, tag_offsets, ValidityTag};
    use wire::eth::{get_descriptor, Announcement, Completion, Side, GET_PAGE};

    const US: u64 = 1_000;
    /// Length of a frame with more packets than each hop can buffer.
    const LEN: u32 = 65_000;
    const MARK: ValidityTag = *b"no frame";
    /// Address of the frame at its sender.
    const FROM: u64 = MEMORY + 0x20_0000;
    /// Latency of a cable in ns.
    const HOP: u64 = 100 * US;

    /// Node 0 fetches a frame of node 3, at the other end of a row. `meanwhile` runs when the first
    /// packets are between nodes 2 and 1 and others follow. Returns the final contents of the
    /// buffer if the end was notified.
    fn fetch(meanwhile: impl FnOnce(&mut Fabric)) -> Result<Option<Vec<u8>>> {
        let mut fabric = Fabric::row(4, 1)?;
        fabric.advance(0)?;
        let mut port = Port::open(&mut fabric, 0)?;
        let _peer = Port::open(&mut fabric, 3)?;
        let knobs = LinkKnobs {
            latency_ns: HOP,
            ..LinkKnobs::default()
        };
        (0..3).for_each(|cable| fabric.knobs(cable, knobs));
        fabric.fill(3, FROM, &[0x11; LEN as usize])?;
        for at in tag_offsets(LEN) {
            fabric.fill(0, FREE + u64::from(at), &MARK)?;
        }
        let announcement = Announcement {
            address: FROM,
            len: u64::from(LEN),
        };
        let get = get_descriptor(Port::node_id(3), &announcement, LEN, FREE);
        let posted = port.command(&mut fabric, GET_PAGE, &get);
        assert_eq!(posted, Ok(()));
        // Three hops of the request, one and a half of the answer.
        fabric.advance(4 * HOP + HOP / 2)?;
        meanwhile(&mut fabric);
        fabric.advance(100 * HOP)?;
        let mut told = None;
        while let Some(n) = port.notification(&mut fabric)? {
            if let Ok(c) = Completion::from_notification(&n) {
                assert_eq!((c.side, c.error), (Side::Received, 0));
                let mut data = vec![0; LEN as usize];
                fabric.load(0, FREE, &mut data)?;
                told = Some(data);
            }
        }
        Ok(told)
    }

    #[test]
    fn a_cable_that_is_away_for_a_moment_leaves_a_hole() {
        let whole = fetch(|_| {}).unwrap().expect("an end");
        assert_eq!(find_hole(&whole, MARK), None);
        assert!(whole.iter().all(|b| *b == 0x11));
        let data = fetch(|fabric| {
            // The cable between nodes 1 and 2.
            fabric.link(1, false);
            fabric.advance(fabric.now() + HOP / 4).unwrap();
            fabric.link(1, true);
        });
        let data = data.unwrap().expect("an end");
        let missing = data.iter().filter(|b| **b != 0x11).count();
        assert!(missing > 496 && missing < LEN as usize - 496, "{missing}");
        assert!(data.ends_with(&[0x11; 8]));
        assert!(find_hole(&data, MARK).is_some());
    }
}
