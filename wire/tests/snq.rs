//! Program addresses of the driver's table against HW §6.5.
use wire::ids::RegOffset;
use wire::snq::{TriggerEvent, TOURMALET};

#[test]
fn program_addresses_match_the_reference() {
    // (pc, event, part, words) of every emitting address.
    let want: &[(u16, u8, u8, usize)] = &[
        (0, 0, 0, 1),
        (1, 1, 0, 1),
        (2, 2, 0, 1),
        (3, 3, 0, 1),
        (4, 4, 0, 1),
        (32, 5, 0, 7),
        (34, 5, 1, 6),
        (6, 6, 0, 1),
        (7, 7, 0, 1),
        (8, 8, 0, 1),
        (9, 9, 0, 1),
        (10, 10, 0, 3),
        (11, 11, 0, 1),
        (35, 12, 0, 1),
        (41, 13, 0, 7),
        (45, 13, 1, 4),
        (51, 14, 0, 7),
        (55, 14, 1, 4),
        (61, 15, 0, 7),
        (68, 15, 1, 7),
        (70, 15, 2, 2),
        (74, 16, 0, 5),
        (80, 17, 0, 7),
        (86, 20, 0, 7),
        (87, 21, 0, 2),
        (88, 22, 0, 4),
        (92, 23, 0, 4),
        (24, 24, 0, 5),
        (96, 25, 0, 4),
        (98, 27, 0, 7),
        (99, 27, 1, 2),
        (28, 28, 0, 1),
    ];
    let mut found = 0;
    for pc in 0..256 {
        if let Some(e) = TOURMALET.emission(pc) {
            let w = want
                .iter()
                .find(|w| w.0 == pc)
                .unwrap_or_else(|| panic!("unexpected pc {pc}"));
            assert_eq!(
                (e.event.number(), e.part, e.registers.len()),
                (w.1, w.2, w.3),
                "pc {pc}"
            );
            found += 1;
        }
    }
    assert_eq!(found, want.len());
    assert_eq!(
        TOURMALET.emission(35).unwrap().registers,
        &[RegOffset(0xA010)]
    );
    assert_eq!(
        TOURMALET.emission(35).unwrap().event,
        TriggerEvent::SmfuTimeout
    );
}
