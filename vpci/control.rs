// SPDX-License-Identifier: GPL-2.0-only

//! Control device `/dev/extoll_pci`: the administrator writes a command and reads its result.
//! Opening the device requires `CAP_NET_ADMIN` and `CAP_SYS_RAWIO`. Process context; commands may
//! sleep.
//!
//! | Command | Result |
//! |---|---|
//! | `list node=N` | a line for each device that node N lends |
//! | `borrow node=N index=I` | `domain D`: the PCI domain of the borrowed device |
//! | `enrol node=N` | empty; marks node N's NIC as one without a host, with a device behind it |
//! | `return domain=D` | empty; returns the device |
//! | `leases` | a line for each borrowed device |
//! | `lent` | a line for each device of this node that may be lent |
//! | `reclaim handle=H grace_ms=M` | empty; the borrower must return the device |
//! | `down node=N` | empty; asserts that node N is switched off and cannot access this node |
//! | `repair handle=H` | empty; resets a broken device and offers it again |
//! | `join domain=D with=E` | empty; lets the device in domain D access the device in domain E |
//! | `part domain=D with=E` | empty; ends the access that `join` allowed |
//! | `reclaim node=N down=0` | empty; frees an accelerator's device; `down=1`: its users are down |
//! | `counters` | `name value` lines |
//!
//! Each command also accepts `nic=K`, the number of the NIC in the order in which the NICs were
//! bound. The default is 0.

use crate::{accel::Listed, nic::Nic, registry, remote::DEVICE};
use core::fmt::Write;
use kernel::{
    fmt,
    fs::{File, Kiocb},
    iov::{IovIterDest, IovIterSource},
    miscdevice::{MiscDevice, MiscDeviceRegistration},
    new_mutex,
    prelude::*,
    sync::{atomic::Relaxed, Arc, Mutex},
};
use kernel_ext::security::{capable, Capability};
use wire::{ids::NodeId, pci::Device};

/// Maximum length of a command in bytes.
const COMMAND_MAX: usize = 256;
/// Maximum number of devices of a node that are listed.
const DEVICES: u16 = 256;

/// Growing text buffer.
#[derive(Default)]
struct Text(KVec<u8>);

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0
            .extend_from_slice(s.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

/// Result of a command and the position of the reader.
struct Output {
    text: KVec<u8>,
    position: i64,
}

/// An open file with the result of its last command.
#[pin_data]
pub(crate) struct Control {
    #[pin]
    output: Mutex<Output>,
}

#[vtable]
impl MiscDevice for Control {
    type Ptr = Pin<KBox<Self>>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<Self::Ptr> {
        if !capable(Capability::NetAdmin) || !capable(Capability::SysRawio) {
            return Err(EPERM);
        }
        let none = Output {
            text: KVec::new(),
            position: 0,
        };
        let init = pin_init!(Self { output <- new_mutex!(none, "vpci_output") });
        KBox::pin_init(init, GFP_KERNEL)
    }

    fn read_iter(kiocb: Kiocb<'_, Self::Ptr>, iov: &mut IovIterDest<'_>) -> Result<usize> {
        let this = kiocb.file();
        let mut output = this.output.lock();
        let Output { text, position } = &mut *output;
        iov.simple_read_from_buffer(position, text)
    }

    fn write_iter(kiocb: Kiocb<'_, Self::Ptr>, iov: &mut IovIterSource<'_>) -> Result<usize> {
        let this = kiocb.file();
        let len = iov.len();
        if len > COMMAND_MAX {
            return Err(E2BIG);
        }
        let mut bytes = [0; COMMAND_MAX];
        let bytes = bytes.get_mut(..len).ok_or(E2BIG)?;
        if iov.copy_from_iter(bytes) != len {
            return Err(EFAULT);
        }
        let command = core::str::from_utf8(bytes).map_err(|_| EINVAL)?;
        let mut output = this.output.lock();
        output.text.clear();
        output.position = 0;
        let mut text = Text::default();
        run(command.trim(), &mut text)?;
        output.text = text.0;
        Ok(len)
    }
}

/// Options of a command, each `name=number`.
#[derive(Default)]
struct Words {
    nic: u64,
    node: Option<u64>,
    index: u64,
    domain: Option<u64>,
    handle: Option<u64>,
    grace_ms: u64,
    down: u64,
    with: Option<u64>,
}

impl Words {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut all = Self::default();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(EINVAL)?;
            let value = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => value.parse(),
            };
            let value = value.map_err(|_| EINVAL)?;
            match name {
                "nic" => all.nic = value,
                "node" => all.node = Some(value),
                "index" => all.index = value,
                "domain" => all.domain = Some(value),
                "handle" => all.handle = Some(value),
                "grace_ms" => all.grace_ms = value,
                "down" => all.down = value,
                "with" => all.with = Some(value),
                _ => return Err(EINVAL),
            }
        }
        Ok(all)
    }

    fn node(&self) -> Result<NodeId> {
        let node = u16::try_from(self.node.ok_or(EINVAL)?).map_err(|_| EINVAL)?;
        Ok(NodeId(node))
    }

    /// Returns the domains of the device that gets access and of the device that is accessed.
    fn domains(&self) -> Result<(u32, u32)> {
        let number = |domain: Option<u64>| u32::try_from(domain.ok_or(EINVAL)?).map_err(|_| EINVAL);
        Ok((number(self.domain)?, number(self.with)?))
    }

    fn nic(&self) -> Result<Arc<Nic>> {
        registry::nic(self.nic as usize).ok_or(ENODEV)
    }
}

fn run(command: &str, text: &mut Text) -> Result {
    let mut words = command.split_ascii_whitespace();
    let verb = words.next().ok_or(EINVAL)?;
    let words = Words::parse(words)?;
    let nic = words.nic()?;
    let done = match verb {
        "list" => return list(&nic, words.node()?, text),
        "borrow" => {
            let index = u16::try_from(words.index).map_err(|_| EINVAL)?;
            let node = words.node()?;
            let domain = if !nic.is_accelerator(node) {
                nic.borrow_device(node, index)?
            } else if index == 0 {
                nic.borrow_accelerator(node)?
            } else {
                return Err(ENXIO);
            };
            writeln!(text, "domain {domain:#x}")
        }
        "return" => {
            let domain = words.domain.ok_or(EINVAL)?;
            return nic.return_device(u32::try_from(domain).map_err(|_| EINVAL)?);
        }
        "leases" => leases(&nic, text),
        "lent" => lent(&nic, text),
        "enrol" => return nic.enrol(words.node()?),
        "join" => {
            let (of, to) = words.domains()?;
            return nic.join(of, to);
        }
        "part" => {
            let (of, to) = words.domains()?;
            return nic.part(of, to);
        }
        "reclaim" if words.node.is_some() => {
            return nic.reclaim_accelerator(words.node()?, words.down != 0);
        }
        "reclaim" => {
            let handle = u32::try_from(words.handle.ok_or(EINVAL)?).map_err(|_| EINVAL)?;
            let grace = u32::try_from(words.grace_ms).map_err(|_| EINVAL)?;
            let found =
                nic.with_machines(|machines, now| machines.lender.reclaim(now, handle, grace));
            nic.pump();
            nic.wake();
            return if found { Ok(()) } else { Err(ENXIO) };
        }
        "down" => {
            let node = words.node()?;
            nic.with_machines(|machines, now| {
                machines.lender.node_down(now, node);
                machines.borrower.node_down(now, node);
            });
            nic.pump();
            nic.wake();
            return Ok(());
        }
        "repair" => {
            let handle = u32::try_from(words.handle.ok_or(EINVAL)?).map_err(|_| EINVAL)?;
            let broken = nic.with_machines(|machines, _| machines.lender.repair(handle));
            nic.wake();
            return if broken { Ok(()) } else { Err(ENXIO) };
        }
        "counters" => counters(&nic, text),
        _ => return Err(EINVAL),
    };
    done.map_err(|_| ENOMEM)
}

fn device(device: &Device, text: &mut Text) -> fmt::Result {
    let (id, at) = (&device.identity, &device.location);
    write!(
        text,
        "handle={:#010x} id={:04x}:{:04x} class={:06x} at={:04x}:{:02x}:{:02x}.{} bars=",
        device.handle,
        id.vendor,
        id.device,
        id.class,
        at.domain,
        at.bus,
        at.devfn >> 3,
        at.devfn & 7
    )?;
    let mut comma = "";
    for bar in device.bars.iter().flatten() {
        write!(text, "{comma}{}", bar.bytes())?;
        comma = ",";
    }
    writeln!(text, " state={:?}", device.state)
}

fn list(nic: &Arc<Nic>, node: NodeId, text: &mut Text) -> Result {
    if let Some(listed) = nic.list_accelerator(node)? {
        let (bus, devfn) = DEVICE;
        let said = match listed {
            Listed::Device(found) => write!(text, "index=0 ").and_then(|()| device(&found, text)),
            Listed::InUse(state, by) => writeln!(
                text,
                "index=0 at=0000:{bus:02x}:{:02x}.{} state={state:?}({by:?})",
                devfn >> 3,
                devfn & 7
            ),
        };
        return said.map_err(|_| ENOMEM);
    }
    for index in 0..DEVICES {
        let Some((_, found)) = nic.describe(node, index)? else {
            break;
        };
        write!(text, "index={index} ").map_err(|_| ENOMEM)?;
        device(&found, text).map_err(|_| ENOMEM)?;
        if index + 1 >= found.count {
            break;
        }
    }
    Ok(())
}

fn leases(nic: &Nic, text: &mut Text) -> fmt::Result {
    let leases = nic.leases.lock();
    for lease in leases.iter() {
        let state = nic.state(lease);
        write!(text, "node={} lease={:?}", lease.lender.0, state)?;
        if let Some(domain) = lease.domain() {
            write!(text, " domain={domain:#x}")?;
        }
        let (grant, pool) = lease.reach();
        if let Some(grant) = grant {
            write!(
                text,
                " dma={:#x} interrupts={:#x}",
                grant.dma, grant.interrupts
            )?;
        }
        if let Some(pool) = pool {
            write!(
                text,
                " slots={} used={} most={} maps={} direct={} full={} refused={}",
                pool.slots,
                pool.used,
                pool.most,
                pool.maps,
                pool.direct,
                pool.full + pool.direct_full,
                pool.refused
            )?;
            write!(
                text,
                " copied_in={} copied_out={}",
                pool.copied_in, pool.copied_out
            )?;
        }
        for node in lease.peers().into_iter().flatten() {
            write!(text, " reaches={}", node.0)?;
        }
        write!(text, " ")?;
        device(&lease.device, text)?;
    }
    Ok(())
}

fn lent(nic: &Nic, text: &mut Text) -> fmt::Result {
    // The text is formatted without the lock of the state machines, because that allocates memory.
    for index in 0..usize::from(crate::conf::leases()) {
        let found = nic.with_machines(|machines, _| {
            let mut devices = machines.lender.devices();
            devices.nth(index)
        });
        let Some((found, life)) = found else {
            break;
        };
        write!(text, "life={life:?} ")?;
        device(&found, text)?;
    }
    Ok(())
}

fn counters(nic: &Nic, text: &mut Text) -> fmt::Result {
    let (l, b, fences) = nic.with_machines(|machines, _| {
        let fences =
            machines.lender.fences().open().count() + machines.borrower.fences().open().count();
        (
            *machines.lender.counters(),
            *machines.borrower.counters(),
            fences,
        )
    });
    let n = &nic.counts;
    let all = [
        ("received", n.received.load(Relaxed)),
        ("sent", n.sent.load(Relaxed)),
        ("not_sent", n.not_sent.load(Relaxed)),
        ("rejected", n.rejected.load(Relaxed)),
        ("foreign", n.foreign.load(Relaxed)),
        ("interrupts", n.interrupts.load(Relaxed)),
        ("fences", fences as u64),
        ("accelerator.lost", n.lost.load(Relaxed)),
        ("accelerator.odd", n.odd.load(Relaxed)),
        ("accelerator.rewritten", n.rewritten.load(Relaxed)),
        ("accelerator.owed", nic.cleanups.lock().len() as u64),
        ("lender.leases", l.leases),
        ("lender.returned", l.returned),
        ("lender.expired", l.expired),
        ("lender.reclaimed", l.reclaimed),
        ("lender.down", l.down),
        ("lender.broken", l.broken),
        ("lender.refused", l.refused),
        ("lender.accesses", l.accesses),
        ("lender.denied", l.denied),
        ("lender.resets", l.resets),
        ("lender.again", l.again),
        ("lender.odd", l.odd),
        ("lender.misused", l.misused),
        ("borrower.leases", b.leases),
        ("borrower.lost", b.lost),
        ("borrower.revoked", b.revoked),
        ("borrower.stuck", b.stuck),
        ("borrower.misused", b.misused),
    ];
    for (name, value) in all {
        writeln!(text, "{name} {value}")?;
    }
    Ok(())
}
