//! Execution of vfio-user messages. The decoding functions check every length and index.

use super::proto::{
    command, flag, irq, region, Header, Reader, HEADER_LEN, MAX_DMA_MAPS, MAX_FDS, MAX_XFER,
    MULTI_MAX,
};
use super::{Answer, Device, DmaMapRequest, IrqRequest};
use crate::peer::{Answered, Request};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

const DMA_FLAG_WRITE: u32 = 2;
const UNMAP_FLAG_DIRTY: u32 = 1;
const UNMAP_FLAG_ALL: u32 = 2;
const DEVICE_FLAGS_RESET_PCI: u32 = 1 | 2;
const REGION_FLAGS_READ_WRITE: u32 = 1 | 2;
const IRQ_FLAGS_EVENTFD_NORESIZE: u32 = 1 | 8;
const SET_DATA_NONE: u32 = 1;
const SET_DATA_BOOL: u32 = 2;
const SET_DATA_EVENTFD: u32 = 4;
const SET_ACTION_TRIGGER: u32 = 32;
const SET_DATA_MASK: u32 = 7;
const SET_ACTION_MASK: u32 = 0x38;

/// Protocol state of one client.
#[derive(Debug, Default)]
pub(super) struct Session {
    negotiated: bool,
    /// Header and reply payload of a read whose data arrives later.
    pending: Option<(Header, Vec<u8>)>,
}

/// Offset in bytes of the data in the reply to a read.
const READ_PREFIX: usize = 16;
/// Offset in bytes of the data in a DMA message and in its answer.
const DMA_PREFIX: usize = 16;
/// Command number that marks an answer as already processed.
pub(super) const TAKEN: u16 = u16::MAX;

type Reply = Result<(), Errno>;

impl Session {
    /// Returns true if the next message can be executed. When the data of a pending read is
    /// available, appends the reply.
    pub(super) fn ready(&mut self, dev: &mut dyn Device, out: &mut Vec<u8>) -> bool {
        if let Some((h, mut body)) = self.pending.take() {
            if !dev.finish_read(&mut body[READ_PREFIX..]) {
                self.pending = Some((h, body));
                return false;
            }
            let start = out.len();
            out.resize(start + HEADER_LEN, 0);
            out.extend(body);
            self.finish(h, Ok(()), start, out);
        }
        !dev.stalled()
    }

    /// Executes one complete message. Appends the reply to `out` if the client wants a reply.
    pub(super) fn handle(
        &mut self,
        h: Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
        dev: &mut dyn Device,
        out: &mut Vec<u8>,
    ) {
        match h.flags & flag::TYPE {
            0 => {}
            flag::REPLY => return self.reply(h, body, dev),
            other => {
                dev.complain(format_args!("message of unknown type {other}"));
                return self.finish(h, Err(Errno::INVAL), out.len(), out);
            }
        }
        let start = out.len();
        // Reserves space for the header. The command appends the payload of the reply behind it.
        out.resize(start + HEADER_LEN, 0);
        let result = self.command(h.command, body, fds, dev, out);
        if let Ok(Answer::Later) = result {
            self.pending = Some((h, out.split_off(start + HEADER_LEN)));
            out.truncate(start);
            return;
        }
        if let Err(e) = result {
            dev.complain(format_args!(
                "command {} ({} bytes) failed: {e}",
                h.command, h.size
            ));
        }
        self.finish(h, result.map(drop), start, out);
    }

    /// Appends a DMA message for the client to `out`.
    pub(super) fn request(request: Request, out: &mut Vec<u8>) {
        let data = request.data.as_deref();
        let size = HEADER_LEN + DMA_PREFIX + data.map_or(0, <[u8]>::len);
        Header {
            id: request.id,
            command: match data {
                Some(_) => command::DMA_WRITE,
                None => command::DMA_READ,
            },
            size: size as u32,
            flags: 0,
            error: 0,
        }
        .encode(out);
        put64(out, &[request.addr, request.len as u64]);
        out.extend_from_slice(data.unwrap_or_default());
    }

    /// Returns true if the message is an answer of the client.
    pub(super) fn is_reply(h: &Header) -> bool {
        h.flags & flag::TYPE == flag::REPLY
    }

    /// Returns true for an answer that may be processed before earlier messages. Only answers to
    /// stores may, because the end of a store does not depend on earlier messages.
    pub(super) fn may_pass(h: &Header) -> bool {
        Self::is_reply(h) && h.command == command::DMA_WRITE
    }

    /// Processes an answer of the client.
    pub(super) fn reply(&mut self, h: Header, body: &[u8], dev: &mut dyn Device) {
        if h.command == TAKEN {
            return;
        }
        if !matches!(h.command, command::DMA_READ | command::DMA_WRITE) {
            return dev.complain(format_args!(
                "reply to a message that was never sent (command {})",
                h.command
            ));
        }
        let mut r = Reader::new(body);
        let about = r.u64().zip(r.u64());
        let result = match (h.flags & flag::ERROR, about) {
            (0, _) => Ok(r.rest().to_vec()),
            _ => Err(h.error),
        };
        let store = h.command == command::DMA_WRITE;
        dev.answered(Answered {
            id: h.id,
            store,
            about,
            result,
        });
    }

    fn finish(&self, h: Header, result: Reply, start: usize, out: &mut Vec<u8>) {
        if h.flags & flag::NO_REPLY != 0 {
            out.truncate(start);
            return;
        }
        let (flags, error) = match result {
            Ok(()) => (flag::REPLY, 0),
            Err(e) => {
                out.truncate(start);
                out.resize(start + HEADER_LEN, 0);
                (flag::REPLY | flag::ERROR, e.raw_os_error() as u32)
            }
        };
        let size = (out.len() - start).max(HEADER_LEN) as u32;
        let mut head = Vec::with_capacity(HEADER_LEN);
        Header {
            id: h.id,
            command: h.command,
            size,
            flags,
            error,
        }
        .encode(&mut head);
        if out.len() < start + HEADER_LEN {
            out.resize(start + HEADER_LEN, 0);
        }
        out[start..start + HEADER_LEN].copy_from_slice(&head);
    }

    fn command(
        &mut self,
        cmd: u16,
        body: &[u8],
        fds: Vec<OwnedFd>,
        dev: &mut dyn Device,
        out: &mut Vec<u8>,
    ) -> Result<Answer, Errno> {
        if cmd == command::VERSION {
            self.version(body, out)?;
            dev.negotiated();
            return Ok(Answer::Now);
        }
        if !self.negotiated {
            return Err(Errno::PROTO);
        }
        let mut r = Reader::new(body);
        if cmd == command::REGION_READ {
            return region_read(&mut r, dev, out);
        }
        let done = match cmd {
            command::REGION_WRITE => region_write(&mut r, dev, out),
            command::REGION_WRITE_MULTI => region_write_multi(&mut r, dev, out),
            command::DMA_MAP => dma_map(&mut r, fds, dev),
            command::DMA_UNMAP => dma_unmap(&mut r, dev, out),
            command::DEVICE_GET_INFO => device_info(&mut r, out),
            command::DEVICE_GET_REGION_INFO => region_info(&mut r, dev, out),
            command::DEVICE_GET_IRQ_INFO => irq_info(&mut r, dev, out),
            command::DEVICE_SET_IRQS => set_irqs(&mut r, fds, dev),
            command::DEVICE_RESET => {
                dev.reset();
                Ok(())
            }
            command::DEVICE_GET_REGION_IO_FDS => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::NOSYS),
        };
        done.map(|()| Answer::Now)
    }

    fn version(&mut self, body: &[u8], out: &mut Vec<u8>) -> Reply {
        if self.negotiated {
            return Err(Errno::ALREADY);
        }
        let mut r = Reader::new(body);
        let (Some(major), Some(minor)) = (r.u16(), r.u16()) else {
            return Err(Errno::INVAL);
        };
        if major != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let text = r.rest();
        let text = &text[..text.iter().position(|&b| b == 0).unwrap_or(text.len())];
        // The client's capabilities do not affect the reply, so only their JSON syntax is checked.
        if !text.is_empty() && serde_json::from_slice::<serde_json::Value>(text).is_err() {
            return Err(Errno::INVAL);
        }
        // The server does not offer `write_multiple`. If it did, QEMU would send answers before
        // stores that it collects for one message, because `vfio_user_send_queued` checks only
        // requests. A load from a device would then return before the device's earlier stores
        // arrive.
        let caps = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_FDS, "max_data_xfer_size": MAX_XFER, "max_dma_maps": MAX_DMA_MAPS, "pgsizes": 4096,
            "write_multiple": false,
        }});
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&minor.min(1).to_le_bytes());
        out.extend_from_slice(caps.to_string().as_bytes());
        out.push(0);
        self.negotiated = true;
        Ok(())
    }
}

fn put32(out: &mut Vec<u8>, words: &[u32]) {
    for w in words {
        out.extend_from_slice(&w.to_le_bytes());
    }
}

fn put64(out: &mut Vec<u8>, words: &[u64]) {
    for w in words {
        out.extend_from_slice(&w.to_le_bytes());
    }
}

fn checked(dev: &dyn Device, index: u32, offset: u64, len: usize) -> Reply {
    let size = if index < region::COUNT {
        dev.region_size(index)
    } else {
        0
    };
    match offset.checked_add(len as u64) {
        Some(end) if end <= size && len != 0 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

fn region_write(r: &mut Reader<'_>, dev: &mut dyn Device, out: &mut Vec<u8>) -> Reply {
    let (Some(offset), Some(index), Some(count)) = (r.u64(), r.u32(), r.u32()) else {
        return Err(Errno::INVAL);
    };
    let data = r.take(count as usize).ok_or(Errno::INVAL)?;
    checked(dev, index, offset, data.len())?;
    dev.region_write(index, offset, data)?;
    put64(out, &[offset]);
    put32(out, &[index, count]);
    Ok(())
}

/// The device must accept all stores of one message, because [`Device::stalled`] is checked only
/// between messages.
const _: () = assert!(MULTI_MAX <= crate::nic::SMFU_UNDER_WAY);

fn region_write_multi(r: &mut Reader<'_>, dev: &mut dyn Device, out: &mut Vec<u8>) -> Reply {
    let n = r.u64().ok_or(Errno::INVAL)?;
    if n > MULTI_MAX as u64 || r.rest().len() as u64 != n * 24 {
        return Err(Errno::INVAL);
    }
    // Writes are independent. After a failed write, the remaining writes are still executed.
    let mut result = Ok(());
    for _ in 0..n {
        let (Some(offset), Some(index), Some(count), Some(data)) =
            (r.u64(), r.u32(), r.u32(), r.take(8))
        else {
            return Err(Errno::INVAL);
        };
        let one = data
            .get(..count as usize)
            .ok_or(Errno::INVAL)
            .and_then(|data| {
                checked(dev, index, offset, data.len())
                    .and_then(|()| dev.region_write(index, offset, data))
            });
        result = result.and(one);
    }
    put64(out, &[n]);
    result
}

fn region_read(
    r: &mut Reader<'_>,
    dev: &mut dyn Device,
    out: &mut Vec<u8>,
) -> Result<Answer, Errno> {
    let (Some(offset), Some(index), Some(count)) = (r.u64(), r.u32(), r.u32()) else {
        return Err(Errno::INVAL);
    };
    if count as usize > MAX_XFER {
        return Err(Errno::INVAL);
    }
    checked(dev, index, offset, count as usize)?;
    put64(out, &[offset]);
    put32(out, &[index, count]);
    let at = out.len();
    out.resize(at + count as usize, 0);
    dev.region_read(index, offset, &mut out[at..])
}

fn dma_map(r: &mut Reader<'_>, mut fds: Vec<OwnedFd>, dev: &mut dyn Device) -> Reply {
    let (Some(_argsz), Some(flags), Some(offset), Some(iova), Some(size)) =
        (r.u32(), r.u32(), r.u64(), r.u64(), r.u64())
    else {
        return Err(Errno::INVAL);
    };
    if fds.len() > 1 {
        return Err(Errno::INVAL);
    }
    dev.dma_map(
        DmaMapRequest {
            iova,
            size,
            offset,
            writable: flags & DMA_FLAG_WRITE != 0,
        },
        fds.pop(),
    )
}

fn dma_unmap(r: &mut Reader<'_>, dev: &mut dyn Device, out: &mut Vec<u8>) -> Reply {
    let (Some(argsz), Some(flags), Some(iova), Some(size)) = (r.u32(), r.u32(), r.u64(), r.u64())
    else {
        return Err(Errno::INVAL);
    };
    if flags & UNMAP_FLAG_DIRTY != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let all = flags & UNMAP_FLAG_ALL != 0;
    let removed = dev.dma_unmap((!all).then_some((iova, size)))?;
    put32(out, &[argsz.max(24), flags]);
    put64(out, &[iova, if all { removed } else { size }]);
    Ok(())
}

fn device_info(r: &mut Reader<'_>, out: &mut Vec<u8>) -> Reply {
    r.u32().ok_or(Errno::INVAL)?;
    put32(
        out,
        &[16, DEVICE_FLAGS_RESET_PCI, region::COUNT, irq::COUNT],
    );
    Ok(())
}

fn region_info(r: &mut Reader<'_>, dev: &mut dyn Device, out: &mut Vec<u8>) -> Reply {
    let (Some(_argsz), Some(_flags), Some(index)) = (r.u32(), r.u32(), r.u32()) else {
        return Err(Errno::INVAL);
    };
    if index >= region::COUNT {
        return Err(Errno::INVAL);
    }
    let size = dev.region_size(index);
    let flags = if size == 0 {
        0
    } else {
        REGION_FLAGS_READ_WRITE
    };
    put32(out, &[32, flags, index, 0]);
    put64(out, &[size, 0]);
    Ok(())
}

fn irq_info(r: &mut Reader<'_>, dev: &mut dyn Device, out: &mut Vec<u8>) -> Reply {
    let (Some(_argsz), Some(_flags), Some(index)) = (r.u32(), r.u32(), r.u32()) else {
        return Err(Errno::INVAL);
    };
    if index >= irq::COUNT {
        return Err(Errno::INVAL);
    }
    let count = dev.irq_count(index);
    put32(
        out,
        &[
            16,
            if count == 0 {
                0
            } else {
                IRQ_FLAGS_EVENTFD_NORESIZE
            },
            index,
            count,
        ],
    );
    Ok(())
}

fn set_irqs(r: &mut Reader<'_>, fds: Vec<OwnedFd>, dev: &mut dyn Device) -> Reply {
    let (Some(_argsz), Some(flags), Some(index), Some(start), Some(count)) =
        (r.u32(), r.u32(), r.u32(), r.u32(), r.u32())
    else {
        return Err(Errno::INVAL);
    };
    let vectors = if index < irq::COUNT {
        dev.irq_count(index)
    } else {
        return Err(Errno::INVAL);
    };
    if start.checked_add(count).is_none_or(|end| end > vectors) {
        return Err(Errno::INVAL);
    }
    if flags & SET_ACTION_MASK != SET_ACTION_TRIGGER {
        // MSI has no per-vector mask (G3), and there is no INTx.
        return Err(Errno::OPNOTSUPP);
    }
    let request = match flags & SET_DATA_MASK {
        SET_DATA_NONE if count == 0 => IrqRequest::Disable,
        SET_DATA_NONE => IrqRequest::Trigger {
            start,
            which: vec![true; count as usize],
        },
        SET_DATA_BOOL => {
            let which = r.take(count as usize).ok_or(Errno::INVAL)?;
            IrqRequest::Trigger {
                start,
                which: which.iter().map(|&b| b != 0).collect(),
            }
        }
        SET_DATA_EVENTFD if fds.is_empty() => IrqRequest::Eventfds {
            start,
            fds: (0..count).map(|_| None).collect(),
        },
        SET_DATA_EVENTFD if fds.len() == count as usize => IrqRequest::Eventfds {
            start,
            fds: fds.into_iter().map(Some).collect(),
        },
        _ => return Err(Errno::INVAL),
    };
    dev.set_irqs(index, request)
}
