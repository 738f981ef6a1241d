//! Forged packets for one NIC, as a broken or hostile peer might send them.
//!
//! A forged packet enters at the network port of the NIC, behind the fabric, so its source may be a
//! node that does not exist. Slots of queues can be filled with any words, including words that the
//! chip never writes.

use crate::env::{Dest, NetPort, Packet};
use crate::nic::{Body, Part, QueueUnit, RmaKind, RmaMessage, SmfuMessage, SmfuSpace, VeloMessage};
use anyhow::{ensure, Context, Result};
use extoll_emulator_api::control::Forged;
use wire::ids::NodeId;
use wire::rma::{Command, Mode, NotifySpec};

fn bytes(hex: &str) -> Result<Vec<u8>> {
    ensure!(
        hex.len() % 2 == 0 && hex.is_ascii(),
        "the data is not pairs of hexadecimal digits (odd length or other characters)"
    );
    (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).context("not a hexadecimal digit"))
        .collect()
}

/// Result of decoding a forged packet.
#[derive(Debug)]
pub enum Arrival {
    /// A packet to deliver from the network.
    Packet(Packet),
    /// Unit and VPID of a queue, and the words to store in its next slot.
    Slot(QueueUnit, u8, [u64; 2]),
}

/// Maximum number of bytes in a forged RMA packet.
const MAX_RMA: usize = 4096;

/// Decodes a forged packet for node `to`.
///
/// # Errors
///
/// When a field is out of range.
pub fn arrival(forged: &Forged, to: NodeId) -> Result<Arrival> {
    match *forged {
        Forged::Slot { unit, vpid, words } => Ok(Arrival::Slot(unit, vpid, words)),
        _ => packet(forged, to).map(Arrival::Packet),
    }
}

fn rma(forged: &Forged) -> Result<Option<(u16, NetPort, RmaMessage)>> {
    let Forged::Rma {
        src_node,
        src_vpid,
        protection,
        vpid,
        command,
        notify,
        mode,
        address,
        second,
        len,
        data: ref hex,
        error,
        more,
    } = *forged
    else {
        return Ok(None);
    };
    let command = Command::from_code(command).context("no command has this code")?;
    let data = bytes(hex)?;
    ensure!(data.len() <= MAX_RMA, "a packet has at most 4096 bytes");
    let part = Part {
        last: !more,
        ..Part::WHOLE
    };
    let number = (address & 0xFF_FFFF) as u32;
    let (low, high) = (second as i32, (second >> 32) as i32);
    let (port, kind) = match command {
        Command::ByteGet | Command::QwGet => {
            ensure!(
                len as usize <= MAX_RMA,
                "a forged get asks for at most 4096 bytes"
            );
            let kind = RmaKind::GetRequest {
                read_addr: address,
                write_addr: second,
                len,
            };
            (NetPort::RmaResponder, kind)
        }
        Command::BytePut | Command::QwPut => {
            let kind = RmaKind::Put {
                addr: address,
                part,
                data: Ok(data),
            };
            (NetPort::RmaCompleter, kind)
        }
        Command::ImmediatePut => {
            ensure!((1..=8).contains(&len), "an immediate put has 1…8 bytes");
            let kind = RmaKind::Immediate {
                addr: address,
                len: len as u8,
                value: second,
            };
            (NetPort::RmaCompleter, kind)
        }
        Command::NotificationPut => {
            let kind = RmaKind::Notify {
                class: len as u8,
                value: address,
            };
            (NetPort::RmaCompleter, kind)
        }
        Command::Lock => {
            let kind = RmaKind::LockRequest {
                at_completer: true,
                number,
                compare: low,
                add: high,
            };
            (NetPort::RmaCompleter, kind)
        }
        Command::ByteGetResponse | Command::QwGetResponse => {
            let kind = RmaKind::GetResponse {
                write_addr: address,
                part,
                data: if error == 0 { Ok(data) } else { Err(len) },
            };
            (NetPort::RmaCompleter, kind)
        }
        Command::LockResponse => {
            let kind = RmaKind::LockResponse {
                number,
                success: high & 1 != 0,
                value: low,
                error: error & 7,
            };
            (NetPort::RmaCompleter, kind)
        }
    };
    let response = matches!(
        kind,
        RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. }
    );
    let (origin_vpid, peer_vpid) = if response {
        (vpid, src_vpid)
    } else {
        (src_vpid, vpid)
    };
    let message = RmaMessage {
        origin_vpid,
        peer_vpid,
        protection,
        command,
        notify: NotifySpec::from_bits(notify & 7),
        mode: Mode::from_bits(mode),
        kind,
    };
    Ok(Some((src_node, port, message)))
}

fn packet(forged: &Forged, to: NodeId) -> Result<Packet> {
    let (src, port, size, body) = match *forged {
        Forged::Velo {
            src_node,
            src_vpid,
            protection,
            vpid,
            mtt,
            tag,
            data: ref hex,
        } => {
            let payload = bytes(hex)?;
            ensure!(
                (1..=120).contains(&payload.len()),
                "a VELO message has 1…120 bytes"
            );
            ensure!(mtt <= 3, "a message type tag is 0…3");
            let mut data = [0; 120];
            data[..payload.len()].copy_from_slice(&payload);
            ensure!(vpid < 1 << 10, "a VPID has 10 bits");
            let message = VeloMessage {
                src_node,
                src_vpid: src_vpid.into(),
                protection,
                dst_vpid: vpid,
                mtt,
                tag,
                interrupt: true,
                len: payload.len() as u8,
                data,
            };
            (
                src_node,
                NetPort::Velo,
                payload.len(),
                Body::Velo(Box::new(message)),
            )
        }
        Forged::Notification {
            src_node,
            src_vpid,
            vpid,
            class,
            value,
        } => {
            let message = RmaMessage {
                origin_vpid: src_vpid,
                peer_vpid: vpid,
                protection: 0,
                command: Command::NotificationPut,
                notify: NotifySpec::from_bits(4),
                mode: Mode {
                    irq: true,
                    ..Mode::default()
                },
                kind: RmaKind::Notify { class, value },
            };
            (
                src_node,
                NetPort::RmaCompleter,
                16,
                Body::Rma(Box::new(message)),
            )
        }
        Forged::Rma { .. } | Forged::Slot { .. } => {
            let (src, port, message) = rma(forged)?.context("a slot is no packet")?;
            (src, port, MAX_RMA, Body::Rma(Box::new(message)))
        }
        Forged::SmfuWrite {
            src_node,
            interval,
            addr,
            data: ref hex,
        } => {
            let data = bytes(hex)?;
            ensure!((1..=4096).contains(&data.len()), "a store has 1…4096 bytes");
            let (space, size) = (SmfuSpace::Memory(interval), data.len());
            let message = SmfuMessage::Write { space, addr, data };
            (src_node, NetPort::Smfu, size, Body::Smfu(Box::new(message)))
        }
    };
    Ok(Packet {
        src: NodeId(src),
        dst: Dest::Node(to),
        port,
        tc: 0,
        bytes: size as u32,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn velo(mtt: u8, data: &str) -> Forged {
        Forged::Velo {
            src_node: 9,
            src_vpid: 254,
            protection: 0,
            vpid: 254,
            mtt,
            tag: 0,
            data: data.into(),
        }
    }

    #[test]
    fn a_message_carries_the_given_bytes() {
        let packet = packet(&velo(1, "0a0b0c"), NodeId(1)).expect("valid");
        assert_eq!(packet.src, NodeId(9));
        match packet.body {
            Body::Velo(m) => assert_eq!(&m.data[..usize::from(m.len)], [10, 11, 12]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_is_made_as_told() {
        let json = r#"{"kind":"smfu-write","src_node":9,"interval":3,"addr":64,"data":"ff00"}"#;
        let forged: Forged = serde_json::from_str(json).expect("valid");
        let packet = packet(&forged, NodeId(1)).expect("valid");
        let want = SmfuMessage::Write {
            space: SmfuSpace::Memory(Some(3)),
            addr: 64,
            data: vec![0xFF, 0],
        };
        assert_eq!(packet.body, Body::Smfu(Box::new(want)));
        assert_eq!((packet.port, packet.bytes), (NetPort::Smfu, 2));
    }

    fn rma(command: u8, more: &str) -> Result<Arrival> {
        let json = format!(
            r#"{{"kind":"rma","src_node":9,"src_vpid":8,"vpid":7,"command":{command},"address":5{more}}}"#
        );
        let forged: Forged = serde_json::from_str(&json).expect("valid");
        arrival(&forged, NodeId(1))
    }

    #[test]
    fn requests_and_responses_find_their_vpid() {
        for (command, more, responder) in [
            (0, r#","len":8"#, true),
            (2, r#","data":"00""#, false),
            (5, "", false),
            (6, r#","len":3"#, false),
            (10, r#","error":1"#, false),
            (12, "", false),
            (13, "", false),
        ] {
            let Ok(Arrival::Packet(packet)) = rma(command, more) else {
                panic!("{command}")
            };
            assert_eq!(packet.body.target_vpid(), 7, "{command}");
            assert_eq!(packet.port == NetPort::RmaResponder, responder, "{command}");
        }
    }

    #[test]
    fn a_transfer_can_stay_without_its_end() {
        for (more, last) in [("", true), (r#","more":true"#, false)] {
            for command in [2, 10] {
                let Ok(Arrival::Packet(packet)) = rma(command, more) else {
                    panic!("{command}")
                };
                let Body::Rma(m) = packet.body else {
                    panic!("{command}")
                };
                let (RmaKind::Put { part, .. } | RmaKind::GetResponse { part, .. }) = m.kind else {
                    panic!("{command}")
                };
                assert_eq!((part.first, part.last), (true, last), "{command}");
            }
        }
    }

    #[test]
    fn a_slot_has_the_words_it_was_told() {
        let json = r#"{"kind":"slot","unit":"rma","vpid":3,"words":[1,18446744073709551615]}"#;
        let forged: Forged = serde_json::from_str(json).expect("valid");
        let made = arrival(&forged, NodeId(1)).expect("valid");
        assert!(matches!(
            made,
            Arrival::Slot(QueueUnit::Rma, 3, [1, u64::MAX])
        ));
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        for bad in [
            velo(4, "00"),
            velo(0, ""),
            velo(0, "0"),
            velo(0, "xy"),
            velo(0, &"00".repeat(121)),
        ] {
            assert!(packet(&bad, NodeId(1)).is_err(), "{bad:?}");
        }
        assert!(rma(4, "").is_err() && rma(6, "").is_err());
        assert!(rma(0, r#","len":4097"#).is_err());
    }
}
