//! A running emulator and minimal vfio-user guests, for tests.
#![allow(dead_code)]

use extoll_emulator::control::{Client as Control, Counters, Status};
use extoll_emulator::vfio_user::{DmaMapRequest, GuestMemory};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time to wait for any event. A test that reaches it fails.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A running `extoll-emu`, which is killed on drop.
pub struct Emu {
    pub dir: tempfile::TempDir,
    pub child: Child,
}

impl Emu {
    pub fn start(args: &[&str]) -> Self {
        Self::with_config(args, None)
    }

    pub fn with_config(args: &[&str], config: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut cmd = Command::new(env!("CARGO_BIN_EXE_extoll-emu"));
        cmd.arg("run").arg("--dir").arg(dir.path()).args(args);
        cmd.env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stdin(Stdio::null());
        cmd.stderr(std::fs::File::create(dir.path().join("log")).unwrap());
        if let Some(text) = config {
            let path = dir.path().join("config.toml");
            std::fs::write(&path, text).unwrap();
            cmd.arg("--config").arg(path);
        }
        let mut child = cmd.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let emu = Self { dir, child };
        assert!(
            line.starts_with("extoll-emu ready"),
            "{line:?}, log: {}",
            emu.log()
        );
        emu
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn control(&self) -> Control {
        Control::connect(self.dir.path()).unwrap()
    }

    pub fn status(&self) -> Status {
        self.control().status().unwrap()
    }

    pub fn counters(&self) -> Counters {
        self.control().counters().unwrap()
    }

    pub fn ctl(&self, json: serde_json::Value) -> serde_json::Value {
        self.control()
            .call(&serde_json::from_value(json).unwrap())
            .unwrap()
    }

    /// Returns a client of a NIC's socket that has not sent any message.
    pub fn raw(&self, nic: usize) -> Vfio {
        Vfio::connect(&self.path(&format!("nic{nic}.sock")))
    }

    /// Returns a client of a NIC's socket that has negotiated.
    pub fn client(&self, nic: usize) -> Vfio {
        let mut c = self.raw(nic);
        c.negotiate();
        c
    }

    pub fn guest(&self, nic: usize) -> Guest {
        Guest::boot(self.client(nic))
    }

    /// Waits until `f` returns true for the state of the fabric.
    pub fn wait_for(&self, what: &str, f: impl Fn(&Status) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !f(&self.status()) {
            assert!(Instant::now() < end, "timed out waiting for: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the event loop is idle: between two status requests, only the second request
    /// wakes it.
    ///
    /// An event loop that polls, or that has a running timer, never reaches this state.
    pub fn wait_for_idle(&self) {
        let mut control = self.control();
        let mut wakeups = || control.status().unwrap().event_loop.wakeups;
        let end = Instant::now() + DEADLINE;
        let mut before = wakeups();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let after = wakeups();
            if after == before + 1 {
                return;
            }
            let n = after - before;
            assert!(Instant::now() < end, "never idle: {n} wake-ups per reading");
            before = after;
        }
    }
}

impl Drop for Emu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub mod cmd {
    pub use extoll_emulator::vfio_user::proto::command::*;
}

/// Devices on the bus of a client, other than the NIC.
#[derive(Default)]
pub struct Bus {
    /// Registers of the devices, by the address of the first register.
    pub devices: BTreeMap<u64, Vec<u8>>,
    /// Log of all accesses: address, and the data of a store or the length of a load.
    pub log: Vec<(u64, Result<Vec<u8>, usize>)>,
}

/// Error number that the client sends for an address without a device.
pub const ENODEV: u32 = 19;

impl Bus {
    fn at(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let (start, bytes) = self.devices.range_mut(..=addr).next_back()?;
        let at = usize::try_from(addr - start).ok()?;
        bytes.get_mut(at..at.checked_add(len)?)
    }

    /// Returns the answer to a DMA message, as QEMU sends it.
    pub fn answer(&mut self, m: &Reply) -> Vec<u8> {
        let word = |i: usize| u64::from_le_bytes(m.body[i..i + 8].try_into().unwrap());
        let (addr, len) = (word(0), word(8) as usize);
        let store = m.command == cmd::DMA_WRITE;
        let data = m.body[16..].to_vec();
        assert_eq!(data.len(), if store { len } else { 0 });
        self.log
            .push((addr, if store { Ok(data.clone()) } else { Err(len) }));
        let Some(bytes) = self.at(addr, len) else {
            return answer(m.id, m.command, 1 | (1 << 5), ENODEV, &[]);
        };
        let mut body = m.body[..16].to_vec();
        if store {
            bytes.copy_from_slice(&data);
        } else {
            body.extend_from_slice(bytes);
        }
        answer(m.id, m.command, 1, 0, &body)
    }
}

/// A vfio-user client that sends only the messages that the test requests. While it receives, it
/// answers DMA messages to the devices on its bus.
pub struct Vfio {
    pub stream: UnixStream,
    pub bus: Bus,
    id: u16,
}

#[derive(Debug, PartialEq)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    pub error: u32,
    pub body: Vec<u8>,
}

pub const NO_REPLY: u32 = 1 << 4;

pub fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut m = Vec::new();
    m.extend(id.to_le_bytes());
    m.extend(command.to_le_bytes());
    m.extend((16 + body.len() as u32).to_le_bytes());
    m.extend(flags.to_le_bytes());
    m.extend(0u32.to_le_bytes());
    m.extend(body);
    m
}

/// Returns the bytes of an answer, which may be malformed.
pub fn answer(id: u16, command: u16, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
    let mut m = message(id, command, flags, body);
    m[12..16].copy_from_slice(&error.to_le_bytes());
    m
}

pub fn words(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn access(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut b = offset.to_le_bytes().to_vec();
    b.extend(words(&[region, data.len() as u32]));
    b.extend(data);
    b
}

impl Vfio {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self::over(stream)
    }

    /// Creates a client on this connection.
    pub fn over(stream: UnixStream) -> Self {
        Self {
            stream,
            bus: Bus::default(),
            id: 0,
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let n = sendmsg(
            &self.stream,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert_eq!(n, bytes.len());
    }

    /// Returns the next reply, or `None` if the emulator has closed the connection. Answers all DMA
    /// messages that arrive before the reply.
    pub fn recv(&mut self) -> Option<Reply> {
        loop {
            let (m, flags) = self.recv_any()?;
            if flags & 0xf == 1 {
                return Some(m);
            }
            let answer = self.bus.answer(&m);
            self.send_bytes(&answer);
        }
    }

    /// Returns the next DMA message without answering it.
    pub fn recv_dma(&mut self) -> Reply {
        let (m, flags) = self.recv_any().unwrap();
        assert_eq!(flags & 0xf, 0, "expected a DMA message");
        m
    }

    /// Returns the next message and its flags.
    pub fn recv_any(&mut self) -> Option<(Reply, u32)> {
        let mut h = [0; 16];
        match self.stream.read_exact(&mut h) {
            Ok(()) => {}
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset
                ) =>
            {
                return None
            }
            Err(e) => panic!("no reply: {e}"),
        }
        let at = |i: usize| u32::from_le_bytes(h[i..i + 4].try_into().unwrap());
        let mut body = vec![0; at(4) as usize - 16];
        self.stream.read_exact(&mut body).unwrap();
        let flags = at(8);
        assert_eq!(
            (flags >> 5) & 1 == 1,
            at(12) != 0,
            "the error flag must match the error number"
        );
        let m = Reply {
            id: at(0) as u16,
            command: (at(0) >> 16) as u16,
            error: at(12),
            body,
        };
        Some((m, flags))
    }

    pub fn call_fds(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.id = self.id.wrapping_add(1);
        let m = message(self.id, command, 0, body);
        self.send_fds(&m, fds);
        let r = self.recv().expect("connection is open");
        assert_eq!((r.id, r.command), (self.id, command));
        r
    }

    pub fn call(&mut self, command: u16, body: &[u8]) -> Reply {
        self.call_fds(command, body, &[])
    }

    pub fn ok(&mut self, command: u16, body: &[u8]) -> Vec<u8> {
        let r = self.call(command, body);
        assert_eq!(r.error, 0, "command {command}");
        r.body
    }

    pub fn negotiate(&mut self) -> String {
        let mut body = vec![0, 0, 0, 0];
        body.extend(b"{\"capabilities\":{\"max_msg_fds\":8,\"write_multiple\":true}}\0");
        let r = self.ok(cmd::VERSION, &body);
        assert_eq!(&r[..4], [0, 0, 0, 0], "version 0.0");
        assert_eq!(r.last(), Some(&0));
        String::from_utf8(r[4..r.len() - 1].to_vec()).unwrap()
    }

    pub fn read(&mut self, region: u32, offset: u64, len: u32) -> Vec<u8> {
        let mut b = offset.to_le_bytes().to_vec();
        b.extend(words(&[region, len]));
        let r = self.ok(cmd::REGION_READ, &b);
        assert_eq!(&r[..16], b);
        r[16..].to_vec()
    }

    pub fn read64(&mut self, region: u32, offset: u64) -> u64 {
        u64::from_le_bytes(self.read(region, offset, 8).try_into().unwrap())
    }

    /// Sends a posted write.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) {
        let m = message(
            0,
            cmd::REGION_WRITE,
            NO_REPLY,
            &access(region, offset, data),
        );
        self.send_bytes(&m);
    }

    pub fn config(&mut self, offset: u64, data: &[u8]) {
        self.ok(cmd::REGION_WRITE, &access(7, offset, data));
    }

    pub fn dma_map(&mut self, iova: u64, size: u64, fd: Option<BorrowedFd<'_>>) -> u32 {
        let mut b = words(&[32, 3]);
        for v in [0, iova, size] {
            b.extend(v.to_le_bytes());
        }
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        self.call_fds(cmd::DMA_MAP, &b, &fds).error
    }

    /// Routes MSI vector 0 to an eventfd.
    pub fn set_msi(&mut self, fd: BorrowedFd<'_>) {
        let r = self.call_fds(cmd::DEVICE_SET_IRQS, &words(&[20, 4 | 32, 1, 0, 1]), &[fd]);
        assert_eq!(r.error, 0);
    }
}

pub fn memfd(size: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )
    .unwrap()
}

pub const RAM: u64 = 32 << 20;
pub const BAR0: u64 = 0x38_0000_0000;
pub const BAR2: u64 = 0x38_1000_0000;
const RING: u64 = 0x10_0000;
const MAILBOX: u64 = 0x20_0000;
const DCQ: u64 = 0x30_0000;
/// Number of slots of the mailbox.
pub const SLOTS: u64 = 64;
pub const VPID: u64 = 254;

/// A guest that drives its NIC with those steps of HW §3 that VELO needs.
pub struct Guest {
    pub vfio: Vfio,
    pub ram: GuestMemory,
    pub msi: OwnedFd,
    next_slot: u64,
}

impl Guest {
    /// Sets up RAM, configuration space and MSI. Does not access registers of the NIC.
    pub fn boot(mut vfio: Vfio) -> Self {
        let fd = memfd(RAM);
        let mut ram = GuestMemory::default();
        ram.map(
            DmaMapRequest {
                iova: 0,
                size: RAM,
                offset: 0,
                writable: true,
            },
            Some(fd.try_clone().unwrap()),
        )
        .unwrap();
        assert_eq!(vfio.dma_map(0, RAM, Some(fd.as_fd())), 0);
        let msi = eventfd();
        vfio.config(0x10, &BAR0.to_le_bytes());
        vfio.config(0x18, &BAR2.to_le_bytes());
        vfio.config(4, &[6, 4]);
        vfio.set_msi(msi.as_fd());
        vfio.config(0x52, &[1, 0]);
        Self {
            vfio,
            ram,
            msi,
            next_slot: 0,
        }
    }

    pub fn w(&mut self, offset: u64, value: u64) {
        self.vfio.post(0, offset, &value.to_le_bytes());
    }

    pub fn r(&mut self, offset: u64) -> u64 {
        self.vfio.read64(0, offset)
    }

    /// Waits until all earlier stores and the work that they trigger have been executed.
    pub fn barrier(&mut self) {
        self.r(0x8000);
    }

    /// Sets up HTAX, SNQ, buffer queues, and VELO on VPID 254.
    pub fn init(&mut self) {
        for (i, base, port) in [
            (0u64, BAR0, 0xC107u64),
            (1, BAR0 + 0x200_0000, 0x4209),
            (2, BAR0 + 0x400_0000, 0x440B),
        ] {
            self.w(0x9200 + 24 * i, (base + 0x200_0000) >> 12);
            self.w(0x9208 + 24 * i, (base >> 12) - 1);
            self.w(0x9210 + 24 * i, port);
        }
        self.w(0x9290, 0x8088);
        // The SNQ program of TE 23 reads the four words of the VELO vector and writes them to an
        // entry.
        self.w(0x10068, 0);
        self.w(0x10028, 0xff);
        self.w(0x10020, RING >> 10);
        self.w(0x10038, 0xff);
        self.w(0x10040, 0x10001);
        self.w(
            0x10800 + 8 * 23,
            3 | (0xff << 4) | (3 << 19) | ((0x120_0020 / 8) << 22) | (1 << 48) | (4 << 49),
        );
        self.w(0x10000, 1 << 23);
        self.w(0x10048, 0xFD23_0000_0040_002D);
        self.w(0x10050, 0x0300_0100_0000);
        self.w(0x10070, 0x201201);
        self.w(0x10068, 1);
        self.w(0xC0_0000, 1);
        let node = (self.r(0x8008) >> 24) & 0xffff;
        self.w(0x120_0800 + 8 * VPID, (node << 16) | (VPID << 32));
        self.w(0x120_1000 + 8 * VPID, 0);
        self.w(0x100_0000 + 0x1000 * VPID, 0);
        self.w(0x120_1808, 8 | (1 << 9));
        self.w(0x9418, 81);
        // The mailbox has one segment with 128-byte slots.
        let segment = 3 | ((SLOTS - 1) << 2) | ((MAILBOX >> 12) << 18);
        assert!(self.ram.write(DCQ, &segment.to_le_bytes()));
        assert!(self.ram.write(MAILBOX, &vec![0; 128 * SLOTS as usize]));
        self.w(0xC0_0800 + 8 * VPID, SLOTS - 1);
        self.w(0xC0_1000 + 8 * VPID, (DCQ >> 12) << 16);
        self.w(0xC0_2800 + 8 * VPID, 0);
        self.w(0xD0_0000 + 0x1000 * VPID, 1 << 32);
        self.w(0xC0_1800 + 8 * VPID, segment | (1 << 58));
        self.w(0xC0_2000 + 8 * VPID, segment | (1 << 58));
        self.w(0x120_1000 + 8 * VPID, 1 << 17);
        self.barrier();
        self.next_slot = 0;
    }

    /// Sends a VELO message to VPID 254. Returns when the NIC has sent it.
    pub fn send(&mut self, dst: u16, multicast: bool, interrupt: bool, data: &[u8]) {
        let desc = u64::from(dst)
            | (VPID << 16)
            | (u64::from(multicast) << 31)
            | (u64::from(interrupt) << 34)
            | (0x5a << 40)
            | ((data.len() as u64) << 48);
        let page = 0x200_0000 + (VPID << 12);
        self.w(page, desc);
        for (i, chunk) in data.chunks(8).enumerate() {
            let mut qw = [0; 8];
            qw[..chunk.len()].copy_from_slice(chunk);
            self.w(page + 8 + 8 * i as u64, u64::from_le_bytes(qw));
        }
        self.barrier();
    }

    /// Pops the next message from the mailbox. Returns source node and payload.
    pub fn receive(&mut self) -> Option<(u16, Vec<u8>)> {
        let slot = MAILBOX + 128 * self.next_slot;
        let mut status = [0; 8];
        assert!(self.ram.read(slot + 120, &mut status));
        let status = u64::from_le_bytes(status);
        if status == 0 {
            return None;
        }
        let len = ((status >> 48) & 0xfff) as usize;
        let mut data = vec![0; len];
        assert!(self
            .ram
            .read(slot + 120 - 8 * len.div_ceil(8) as u64, &mut data));
        assert!(self.ram.write(slot + 120, &[0; 8]));
        self.next_slot = (self.next_slot + 1) % SLOTS;
        Some((status as u16, data))
    }

    /// Writes the read pointer to the NIC, and arms the interrupt if `retrigger` is true.
    pub fn publish(&mut self, retrigger: bool) {
        self.w(
            0xD0_0000 + 0x1000 * VPID,
            self.next_slot | (u64::from(retrigger) << 32),
        );
        self.barrier();
    }

    /// Waits for an MSI message. Returns the number of messages since the last call.
    pub fn wait_msi(&mut self) -> u64 {
        let mut fds = [PollFd::new(&self.msi, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: DEADLINE.as_secs() as i64,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "no MSI");
        self.msi_count()
    }

    /// Returns the number of MSI messages since the last call.
    pub fn msi_count(&mut self) -> u64 {
        let mut b = [0; 8];
        match rustix::io::read(&self.msi, &mut b) {
            Ok(_) => u64::from_le_bytes(b),
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(e) => panic!("{e}"),
        }
    }

    /// Returns SNQ entry `i`: seven payload words and the header.
    pub fn snq_entry(&self, i: u64) -> [u64; 8] {
        let mut b = [0; 64];
        assert!(self.ram.read(RING + 64 * i, &mut b));
        std::array::from_fn(|w| u64::from_le_bytes(b[8 * w..8 * w + 8].try_into().unwrap()))
    }
}
