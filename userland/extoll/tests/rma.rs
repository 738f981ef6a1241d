// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! RMA ports on a device made of memory.

mod fake;

use extoll::rma::{
    Command, Mode, Modifiers, Nla, NodeId, Notification, NotificationType, NotifySpec, Operation,
    Peer, Port, Vpid,
};
use extoll::wire::rma::{Descriptor, LockTarget};
use extoll::{Buffer, Error, Mapping, Wait};
use fake::Fake;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const QUEUE_AT: u64 = 0x21000;
const TE: usize = 16;

fn device() -> Arc<Fake> {
    Fake::new(&[
        (0x8004_6B00, 64 << 10),
        (0x8004_6B03, 64 << 10),
        (0x8004_6B08, 3),
        (0x8004_6B09, 7),
    ])
}

/// The NIC's side: requester pages, state, queue.
struct Nic {
    requester: Mapping,
    state: Mapping,
    queue: Mapping,
    next: usize,
    committed: u64,
}

impl Nic {
    fn new(fake: &Fake) -> Self {
        Self {
            requester: fake.view(0, 32 * PAGE),
            state: fake.view(0x20000, PAGE),
            queue: fake.view(QUEUE_AT, PAGE + (64 << 10)),
            next: 0,
            committed: 0,
        }
    }

    fn descriptor(&mut self, page: usize) -> Descriptor {
        let words = [0, 8, 16].map(|o| self.requester.load(page * PAGE + o));
        self.committed += 1;
        self.state.store(0, self.committed & 0xFF);
        Descriptor::decode(words).unwrap()
    }

    fn notify(&mut self, n: &Notification) {
        let [word0, word1] = n.encode();
        self.queue.store(PAGE + self.next * 16, word0);
        self.queue.store(PAGE + self.next * 16 + 8, word1);
        self.next = (self.next + 1) % (64 << 6);
    }
}

fn note(kind: NotificationType, command: Command, word0: u64) -> Notification {
    Notification {
        word0,
        size_field: 7,
        vpid: Vpid::from(9),
        node: NodeId(1),
        kind,
        command,
        mode: Mode::default(),
        error: 0,
    }
}

fn peer() -> Peer {
    Peer::new(NodeId(1), Vpid::from(9))
}

fn soon() -> Wait {
    Wait::for_at_most(Duration::from_millis(30))
}

fn later() -> Wait {
    Wait::for_at_most(Duration::from_secs(20))
}

#[test]
fn ports_can_go_to_threads_and_be_shared() {
    fn both<T: Send + Sync + 'static>() {}
    both::<Port>();
    both::<extoll::rma::Region>();
    both::<extoll::velo::Port>();
    both::<extoll::Smfu>();
    both::<extoll::Window>();
    both::<extoll::RegisterFile>();
    both::<extoll::ContiguousBuffer>();
    both::<Buffer>();
    both::<Error>();
}

#[test]
fn a_put_reaches_the_requester_page_and_its_notification_ends_the_wait() {
    let fake = device();
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    assert_eq!((port.node(), port.vpid()), (NodeId(3), Vpid::from(7)));
    let region = port.register(Buffer::new(10_000).unwrap()).unwrap();
    let nla = region.nla_at(100).unwrap().0;
    let waiting = {
        let port = port.clone();
        std::thread::spawn(move || {
            port.put_wait(&peer(), &region, 100, 5000, Nla(0x77_0000), later())
                .unwrap();
            region
        })
    };
    let mut nic = Nic::new(&fake);
    while nic.requester.load(TE * PAGE + 16) == 0 {
        std::thread::yield_now();
    }
    let d = nic.descriptor(TE);
    assert_eq!(
        d.op,
        Operation::Put {
            qw: false,
            len: 5000,
            local: nla,
            remote: 0x77_0000
        }
    );
    assert_eq!(d.notify.bits(), 1);
    // First others: of another peer, and an older put.
    let mut other = note(NotificationType::Requester, Command::BytePut, nla + 4960);
    other.vpid = Vpid::from(8);
    nic.notify(&other);
    nic.notify(&note(NotificationType::Requester, Command::BytePut, nla));
    nic.notify(&note(
        NotificationType::Requester,
        Command::BytePut,
        nla + 4960,
    ));
    fake.interrupt();
    drop(waiting.join().unwrap());
    assert!(fake.driver.lock().unwrap().regions.is_empty());
    // The others are still there, in order.
    assert_eq!(port.try_notification().unwrap(), Some(other));
    assert_eq!(port.try_notification().unwrap().unwrap().word0, nla);
    assert_eq!(port.try_notification().unwrap(), None);
    assert_eq!(port.counters().received, 3);
}

#[test]
fn errors_in_notifications_are_typed() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new(64).unwrap()).unwrap();
    let mut nic = Nic::new(&fake);
    let mut bad = note(NotificationType::Completer, Command::ByteGetResponse, 0);
    bad.error = 2;
    nic.notify(&bad);
    let result = port.get_wait(&peer(), &region, 0, 64, Nla(0), later());
    assert!(matches!(result, Err(Error::Transfer(2))), "{result:?}");
    // Garbage is reported once and does not stop the queue.
    nic.queue.store(PAGE + 16 + 8, 1);
    nic.next = 2;
    assert!(matches!(
        port.try_notification(),
        Err(Error::Notification(_))
    ));
    assert_eq!(port.try_notification().unwrap(), None);
}

#[test]
fn long_transfers_are_split_and_notify_once() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new((8 << 20) + 1).unwrap()).unwrap();
    let all = NotifySpec::from_bits(7);
    port.get(&peer(), &region, 0, (8 << 20) + 1, Nla(0x100), all)
        .unwrap();
    // The page shows the last command only.
    let d = Nic::new(&fake).descriptor(TE);
    assert_eq!(
        d.op,
        Operation::Get {
            qw: false,
            len: 1,
            remote: 0x100 + (8 << 20),
            local: region.nla().0 + (8 << 20)
        }
    );
    assert_eq!(d.notify, all);
    assert_eq!(port.counters().posted, 2);
    assert!(matches!(
        port.put(&peer(), &region, 1, (8 << 20) + 1, Nla(0), all),
        Err(Error::Range { .. })
    ));
    assert!(matches!(
        port.put(&peer(), &region, 0, 0, Nla(0), all),
        Err(Error::Descriptor(_))
    ));
}

#[test]
fn a_lock_reports_its_outcome() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let mut nic = Nic::new(&fake);
    let result = (5u64 << 32) | (1 << 24) | 12;
    nic.notify(&note(
        NotificationType::Completer,
        Command::LockResponse,
        result,
    ));
    let lock = port
        .lock_wait(&peer(), LockTarget::Responder, 12, 4, 1, later())
        .unwrap();
    assert_eq!((lock.value(), lock.result(), lock.number()), (5, 1, 12));
    assert!(matches!(
        port.lock_wait(&peer(), LockTarget::Completer, 12, 4, 1, soon()),
        Err(Error::Timeout)
    ));
}

#[test]
fn regions_keep_their_port_and_a_refusal_leaks_instead_of_freeing() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new(4096).unwrap()).unwrap();
    region.write(8, b"12345678").unwrap();
    drop(port);
    assert_eq!(region.load(8).unwrap(), u64::from_le_bytes(*b"12345678"));
    assert!(region.load(9).is_err());
    assert!(region.load(4096).is_err());
    assert!(region.write(4090, &[0; 8]).is_err());
    fake.driver.lock().unwrap().refuse = Some(libc::EINTR);
    let address = fake.driver.lock().unwrap().regions.values().next().copied();
    assert!(matches!(region.unregister(), Err(Error::Os { .. })));
    // Still mapped: /proc/self/maps lists the page.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let address = address.unwrap();
    let inside = |line: &str| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |t| u64::from_str_radix(t, 16).ok();
        Some(number(from)? <= address && address < number(to)?)
    };
    assert!(maps.lines().any(|l| inside(l) == Some(true)));
}

#[test]
fn a_refused_registration_says_what_to_do() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    fake.driver.lock().unwrap().refuse = Some(libc::ENOMEM);
    let error = port.register(Buffer::new(5000).unwrap()).err().unwrap();
    assert!(error.to_string().contains("8192 bytes"), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_sleeper_wakes_by_interrupt_and_by_time() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let wait = Wait::for_at_most(Duration::from_millis(40)).sleeping();
    assert!(matches!(port.notification(wait), Err(Error::Timeout)));
    let nic = Nic::new(&fake);
    // Armed: bit 32 of the read pointer.
    assert_eq!(nic.queue.load(0), 1 << 32);
    assert!(port.counters().sleeps > 0);
}

#[test]
fn bindings_get_addresses_and_free_in_any_order() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let mut nic = Nic::new(&fake);
    assert_eq!(port.peek(|_| true), Err(0));
    for word0 in 1..=3 {
        nic.notify(&note(NotificationType::Completer, Command::BytePut, word0));
    }
    assert_eq!(port.peek(|w| w[0] == 9), Err(3));
    let second = port.peek(|w| w[0] == 2).unwrap();
    assert!(port.free(second));
    assert!(!port.free(second));
    assert!(!port.free(std::ptr::null()));
    let words: Vec<u64> = std::iter::from_fn(|| port.try_notification().unwrap())
        .map(|n| n.word0)
        .collect();
    assert_eq!(words, [1, 3]);
}

#[test]
fn modifiers_and_page_options_are_passed_on() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let peer = peer().interrupting().class(2);
    let modifiers = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    let op = Operation::ImmediatePut {
        len: 3,
        remote: 5,
        value: 0xABCDEF,
    };
    port.post(&peer, NotifySpec::NONE, modifiers, op).unwrap();
    let d = Nic::new(&fake).descriptor(TE + 8 + 2);
    assert_eq!((d.op, d.modifiers), (op, modifiers));
    port.notify(&peer, 4, 99).unwrap();
    let d = Nic::new(&fake).descriptor(TE + 8 + 2);
    assert_eq!(
        d.op,
        Operation::NotificationPut {
            class: 4,
            value: 99
        }
    );
}

#[test]
fn pages_that_the_driver_withholds_are_not_touched() {
    let fake = device();
    fake.driver.lock().unwrap().pages = Some(0x00FF_0000);
    let port = Port::with_backend(fake.clone()).unwrap();
    let mut physical = peer();
    physical.options.translate = false;
    assert!(matches!(
        port.notify(&physical, 0, 0),
        Err(Error::Forbidden(_))
    ));
    port.notify(&peer(), 0, 0).unwrap();
    assert_eq!(port.counters().posted, 1);
}
