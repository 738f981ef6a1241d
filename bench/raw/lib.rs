// SPDX-License-Identifier: GPL-2.0-only

//! `extoll_raw.ko`: VELO and RMA without a protocol on top, to measure their limits and to check them.
//!
//! Every node that loads it answers requests on VPID 250. Writing a command to
//! `/sys/kernel/debug/extoll-raw-<id>/run` runs it, reading the file shows its result:
//!
//! * `velo NODE COUNT BYTES`: ping-pong of messages, every answer compared with its question;
//! * `get NODE COUNT BYTES`: RMA gets of the peer's buffer, 16 at a time, data compared;
//! * `put NODE COUNT BYTES`: RMA puts into the peer's buffer, read back and compared.

#![forbid(unsafe_code)]

mod run;

use extoll_core::{
    child,
    dma::DmaWords,
    nic::Nic,
    rma::{self, Notifications, Requester},
    velo::{self, Header, Mailbox, Message, Mtt, Sender, Target},
    vpid::Client,
};
use kernel::{
    auxiliary,
    debugfs::{Dir, File},
    device::Core,
    driver, fmt, impl_has_work, new_mutex, new_work,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
    uaccess::UserSliceReader,
    workqueue::{Work, WorkItem},
    InPlaceModule,
};
use kernel_ext::work;
use wire::ids::{NodeId, Vpid};

/// VPID of both units on every node.
const VPID: u8 = 250;
/// Half of the buffer holds the pattern that peers get, the other half is for puts.
const HALF_BYTES: usize = 512 * 1024;
/// Times the empty mailbox is looked at before the service goes to sleep.
const SPIN: u32 = 2000;

/// Message type tags of the service.
mod tag {
    /// To be sent back.
    pub(crate) const PING: u8 = 0;
    /// Answer to a ping.
    pub(crate) const PONG: u8 = 1;
    /// Asks for the bus address of the buffer.
    pub(crate) const ASK: u8 = 2;
    /// Answer to that: eight bytes.
    pub(crate) const ADDRESS: u8 = 3;
}

/// Word `i` of the pattern.
fn pattern(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D
}

/// Receiving sides, used by the service or by a running command.
struct Receive {
    mailbox: Mailbox,
    notifications: Notifications,
}

/// One NIC.
#[pin_data]
struct Raw {
    nic: Arc<Nic>,
    velo: Sender,
    rma: Requester,
    #[pin]
    receive: Mutex<Receive>,
    /// Pattern, then space for puts.
    buffer: DmaWords,
    /// Space for gets, same size.
    local: DmaWords,
    #[pin]
    result: Mutex<KVec<u8>>,
    #[pin]
    service: Work<Raw>,
}

impl_has_work! {
    impl HasWork<Raw> for Raw { self.service }
}

impl WorkItem for Raw {
    type Pointer = Arc<Raw>;

    fn run(this: Arc<Raw>) {
        this.serve();
    }
}

/// Hears of interrupts; not `Raw` itself, which owns the ports.
struct Waker(Arc<Raw>);

impl Client for Waker {
    fn interrupt(&self) {
        let _ = work::queue().enqueue(self.0.clone());
    }

    fn writable(&self) {
        self.interrupt();
    }
}

impl Raw {
    fn new(nic: Arc<Nic>) -> Result<Arc<Self>> {
        let vpid = Some(Vpid::from(VPID));
        let (velo, mailbox) = velo::open(&nic, vpid, 512 * 1024)?;
        let (rma, notifications) = rma::open(&nic, vpid, 512 * 1024)?;
        let words = 2 * HALF_BYTES / 8;
        let buffer = nic.with_bound(|dev| DmaWords::new(dev, words))??;
        let local = nic.with_bound(|dev| DmaWords::new(dev, words))??;
        for i in 0..HALF_BYTES / 8 {
            buffer.write(i, pattern(i));
        }
        let receive = Receive {
            mailbox,
            notifications,
        };
        Arc::pin_init(
            try_pin_init!(Self {
                nic,
                velo,
                rma,
                receive <- new_mutex!(receive, "extoll_raw_receive"),
                buffer,
                local,
                result <- new_mutex!(KVec::new(), "extoll_raw_result"),
                service <- new_work!("extoll_raw_service"),
            }),
            GFP_KERNEL,
        )
    }

    /// Answers what is in the mailbox. A running command does that itself.
    fn serve(&self) {
        let Some(mut receive) = self.receive.try_lock() else {
            return;
        };
        let mut idle = 0;
        loop {
            let n = receive.mailbox.poll(64, |m| {
                let _ = self.answer(m);
            });
            receive.notifications.poll(64, |_| {});
            if n != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < SPIN {
                continue;
            }
            if !receive.mailbox.rearm() & !receive.notifications.rearm() {
                return;
            }
            idle = 0;
        }
    }

    /// Answers a request; false if the message is none.
    fn answer(&self, message: &Message) -> bool {
        let source = message.status.source;
        let header = |mtt: u8| Header {
            target: Target::Node(source.node),
            vpid: source.vpid,
            mtt: Mtt::from_low_bits(mtt),
            tag: message.status.tag,
            irq: true,
        };
        // Without credit the answer is lost, and the asker's deadline passes.
        match message.status.mtt.get() {
            tag::PING => {
                let mut bytes = [0; 120];
                let n = message.copy_to(&mut bytes);
                let _ = self.velo.send(header(tag::PONG), &bytes[..n]);
                true
            }
            tag::ASK => {
                let address = self.buffer.address().0.to_le_bytes();
                let _ = self.velo.send(header(tag::ADDRESS), &address);
                true
            }
            _ => false,
        }
    }

    fn send(&self, node: NodeId, mtt: u8, tag: u8, payload: &[u8]) -> Result {
        let header = Header {
            target: Target::Node(node),
            vpid: Vpid::from(VPID),
            mtt: Mtt::from_low_bits(mtt),
            tag,
            irq: true,
        };
        Ok(self.velo.send(header, payload)?)
    }
}

fn write_run(raw: &Arc<Raw>, reader: &mut UserSliceReader) -> Result {
    let mut bytes = [0u8; 64];
    let n = reader.len();
    let text = bytes.get_mut(..n).ok_or(EINVAL)?;
    reader.read_slice(text)?;
    let text = core::str::from_utf8(text).map_err(|_| EINVAL)?;
    let command = run::Command::parse(text).ok_or(EINVAL)?;
    let result = raw.run(command)?;
    let mut lines = KVec::new();
    lines.extend_from_slice(result.to_bytes(), GFP_KERNEL)?;
    *raw.result.lock() = lines;
    Ok(())
}

fn show_run(raw: &Arc<Raw>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = raw.result.lock();
    f.write_str(core::str::from_utf8(&text).unwrap_or(""))
}

/// A bound device; the fields are dropped in this order.
#[pin_data]
struct Bound {
    #[pin]
    _run: File<Arc<Raw>>,
    _dir: Dir,
    _detach: Detach,
}

/// Ends the callbacks, then waits for the service, so that the last reference is dropped here.
struct Detach(Arc<Raw>);

impl Drop for Detach {
    fn drop(&mut self) {
        self.0.velo.detach();
        self.0.rma.detach();
        work::cancel_sync(&self.0);
    }
}

struct RawDriver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <RawDriver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::RAW), ())]
);

impl auxiliary::Driver for RawDriver {
    type IdInfo = ();
    type Data<'bound> = Pin<KBox<Bound>>;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let raw = Raw::new(child::nic(adev)?)?;
        let detach = Detach(raw.clone());
        let waker = Arc::new(Waker(raw.clone()), GFP_KERNEL)?;
        raw.velo.attach(waker.clone());
        raw.rma.attach(waker);
        let _ = work::queue().enqueue(raw.clone());
        let name = CString::try_from_fmt(fmt!("extoll-raw-{}", adev.id()))?;
        let dir = Dir::new(&name);
        KBox::pin_init(
            try_pin_init!(Bound {
                _run <- dir.read_write_callback_file(c"run", raw, &show_run, &write_run),
                _dir: dir.clone(),
                _detach: detach,
            }? Error),
            GFP_KERNEL,
        )
    }
}

#[pin_data]
struct Module {
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<RawDriver>>,
}

impl InPlaceModule for Module {
    fn init(module: &'static kernel::ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _driver <- driver::Registration::new(<LocalModule as kernel::ModuleMetadata>::NAME, module),
        })
    }
}

module! {
    type: Module,
    name: "extoll_raw",
    authors: ["Extoll for Linux"],
    description: "Raw VELO and RMA measurements on Extoll",
    license: "GPL v2",
}
