// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of RMA ports on a simulated device in memory.

mod fake;

use extoll::rma::{
    commands, Command, Found, Mode, Modifiers, Nla, NodeId, Notification, NotificationType,
    NotifySpec, Operation, Peer, Port, Region, Vpid, MAX_LEN,
};
use extoll::wire::rma::{last_fragment_len, last_fragment_start, Descriptor, LockTarget};
use extoll::{Buffer, Error, Mapping, Wait};
use fake::Fake;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const QUEUE_AT: u64 = 0x21000;
const TE: usize = 16;

fn device() -> Arc<Fake> {
    let values = [(0, 64 << 10), (3, 64 << 10), (8, 3), (9, 7)];
    Fake::new((QUEUE_AT, 16), &values.map(|(n, v)| (0x8004_6B00 + n, v)))
}

/// Simulated NIC: requester pages, state and notification queue.
struct Nic {
    fake: Arc<Fake>,
    requester: Mapping,
    state: Mapping,
    queue: Mapping,
    next: usize,
    committed: u64,
    /// True if the NIC accepts commands without confirming them.
    secretive: bool,
    /// True if notifications do not make the descriptor readable.
    silent: bool,
}

impl Nic {
    fn new(fake: &Arc<Fake>) -> Self {
        Self {
            fake: fake.clone(),
            requester: fake.view(0, 32 * PAGE),
            state: fake.view(0x20000, PAGE),
            queue: fake.view(QUEUE_AT, PAGE + (64 << 10)),
            next: 0,
            committed: 0,
            secretive: false,
            silent: false,
        }
    }

    fn descriptor(&mut self, page: usize) -> Descriptor {
        let words = [0, 8, 16].map(|o| self.requester.load(page * PAGE + o));
        self.commit();
        Descriptor::decode(words).unwrap()
    }

    /// Waits for the next command. It does not detect commands whose third word is 0.
    fn next(&mut self) -> Descriptor {
        let end = Instant::now() + LATER;
        while !self.has_next() {
            assert!(Instant::now() < end, "no command came");
            std::thread::yield_now();
        }
        let words = [0, 8, 16].map(|o| self.requester.load(TE * PAGE + o));
        // The command is cleared before the program gets a credit for the next one.
        self.requester.store(TE * PAGE + 16, 0);
        self.commit();
        Descriptor::decode(words).unwrap()
    }

    fn commit(&mut self) {
        if !self.secretive {
            self.committed += 1;
            self.state.store(0, self.committed & 0xFF);
        }
    }

    fn has_next(&self) -> bool {
        self.requester.load(TE * PAGE + 16) != 0
    }

    /// Writes the notification that the origin of a put, get or lock receives.
    fn answer(&mut self, d: &Descriptor, error: u8) {
        use NotificationType::{Completer, Requester};
        let (kind, command, local, len) = match d.op {
            Operation::Put { local, len, .. } => (Requester, Command::BytePut, local, len),
            Operation::Get { local, len, .. } => (Completer, Command::ByteGetResponse, local, len),
            Operation::Lock { number, .. } => {
                let word = (5 << 32) | (1 << 24) | u64::from(number);
                let mut n = note(Completer, Command::LockResponse, word);
                n.error = error;
                return self.notify(&n);
            }
            _ => panic!("{d:?}"),
        };
        let mut n = note(kind, command, last_fragment_start(local, len));
        n.size_field = last_fragment_len(len) - 1;
        n.error = error;
        if error != 0 {
            n.word0 = local;
        }
        self.notify(&n);
    }

    fn notify(&mut self, n: &Notification) {
        let [word0, word1] = n.encode();
        self.queue.store(PAGE + self.next * 16, word0);
        self.queue.store(PAGE + self.next * 16 + 8, word1);
        self.next = (self.next + 1) % (64 << 6);
        // Entries in the queue make the descriptor readable, as in the driver's poll(2).
        if !self.silent {
            self.fake.interrupt();
        }
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

/// Time limit that only a failing test reaches.
const LATER: Duration = Duration::from_secs(120);

fn later() -> Wait {
    Wait::for_at_most(LATER)
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
    // These notifications do not belong to the call: one of another peer, and one of an older put.
    let mut other = note(NotificationType::Requester, Command::BytePut, nla + 4960);
    other.vpid = Vpid::from(8);
    nic.notify(&other);
    nic.notify(&note(NotificationType::Requester, Command::BytePut, nla));
    nic.answer(&d, 0);
    fake.interrupt();
    drop(waiting.join().unwrap());
    assert!(fake.driver().regions.is_empty());
    // The other notifications are still in the queue, in order.
    assert_eq!(port.try_notification().unwrap(), Some(other));
    assert_eq!(port.try_notification().unwrap().unwrap().word0, nla);
    assert_eq!(port.try_notification().unwrap(), None);
    assert_eq!(port.counters().received, 3);
}

/// Runs a call of the port in a new thread.
fn spawn<T: Send + 'static>(
    port: &Arc<Port>,
    call: impl FnOnce(&Port) -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let port = port.clone();
    std::thread::spawn(move || call(&port))
}

fn small() -> (Arc<Fake>, Arc<Port>, Arc<Region>, Nic) {
    let fake = device();
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    let region = Arc::new(port.register(Buffer::new(4096).unwrap()).unwrap());
    let nic = Nic::new(&fake);
    (fake, port, region, nic)
}

#[test]
fn an_error_ends_the_call_whose_command_it_names_and_no_other() {
    let (_fake, port, region, mut nic) = small();
    let nla = region.nla().0;
    let waiting = spawn(&port, move |port| {
        port.get_wait(&peer(), &region, 0, 64, Nla(0), later())
    });
    let d = nic.next();
    let mut foreign = vec![
        // These notifications belong to a put of a peer into this port, to gets at lower and higher
        // addresses, and to a get of another port.
        note(NotificationType::Completer, Command::BytePut, nla),
        note(
            NotificationType::Completer,
            Command::ByteGetResponse,
            nla - 1,
        ),
        note(
            NotificationType::Completer,
            Command::ByteGetResponse,
            nla + 64,
        ),
        note(NotificationType::Completer, Command::LockResponse, 0),
        note(NotificationType::Completer, Command::ByteGetResponse, nla),
    ];
    foreign[4].vpid = Vpid::from(8);
    for n in &mut foreign {
        n.error = 4;
        nic.notify(n);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiting.is_finished());
    nic.answer(&d, 2);
    let result = waiting.join().unwrap();
    assert!(matches!(result, Err(Error::Transfer(2))), "{result:?}");
    for n in foreign {
        assert_eq!(port.try_notification().unwrap(), Some(n));
    }
    // A malformed notification is reported once and does not stop the queue.
    nic.queue.store(PAGE + nic.next * 16 + 8, 1);
    assert!(matches!(
        port.try_notification(),
        Err(Error::Notification(_))
    ));
    assert_eq!(port.try_notification().unwrap(), None);
}

/// Makes a first call that times out, and a second call with equal notifications. The second call
/// must receive its own notification.
fn twice<T: Send + 'static>(
    call: impl Fn(&Port, &Region, Wait) -> extoll::Result<T> + Clone + Send + 'static,
) -> T {
    let (_fake, port, region, mut nic) = small();
    let first = call(&port, &region, soon());
    assert!(matches!(first, Err(Error::Timeout)));
    let first = nic.next();
    let second = spawn(&port, move |port| call(port, &region, later()));
    std::thread::sleep(Duration::from_millis(30));
    assert!(!nic.has_next(), "two commands that cannot be told apart");
    nic.answer(&first, 0);
    let d = nic.next();
    assert_eq!(d, first);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!second.is_finished(), "ended by the answer to the first");
    nic.answer(&d, 0);
    let found = second.join().unwrap();
    assert_eq!(port.try_notification().unwrap(), None);
    found.ok().unwrap()
}

#[test]
fn late_notifications_do_not_end_later_calls() {
    twice(|port, region, wait| port.get_wait(&peer(), region, 8, 64, Nla(0), wait));
    twice(|port, region, wait| port.put_wait(&peer(), region, 8, 64, Nla(9), wait));
    twice(|port, _, wait| port.lock_wait(&peer(), LockTarget::Responder, 12, 4, 1, wait));
}

#[test]
fn late_notifications_are_nobody_elses() {
    let (_fake, port, region, mut nic) = small();
    let result = port.get_wait(&peer(), &region, 0, 64, Nla(0), soon());
    assert!(matches!(result, Err(Error::Timeout)), "{result:?}");
    let d = nic.next();
    nic.answer(&d, 4);
    assert_eq!(port.try_notification().unwrap(), None);
    assert_eq!(port.peek(|_| true).unwrap(), Found::Others(0));
    // A later notification of the same kind belongs to the program.
    nic.answer(&d, 0);
    assert!(port.try_notification().unwrap().is_some());
}

#[test]
fn two_threads_wait_on_one_port_each_for_its_own() {
    let (_fake, port, region, mut nic) = small();
    let ask = |offset| {
        let region = region.clone();
        spawn(&port, move |port| {
            port.get_wait(&peer(), &region, offset, 64, Nla(0), later())
        })
    };
    let first = ask(0);
    let one = nic.next();
    let second = ask(64);
    let other = nic.next();
    // A third call receives notifications that belong to no job.
    let third = spawn(&port, |port| port.notification(later()));
    nic.answer(&other, 2);
    assert!(matches!(second.join().unwrap(), Err(Error::Transfer(2))));
    assert!(!first.is_finished() && !third.is_finished());
    nic.answer(&one, 0);
    first.join().unwrap().unwrap();
    let put = note(NotificationType::Completer, Command::NotificationPut, 77);
    nic.notify(&put);
    assert_eq!(third.join().unwrap().unwrap(), put);
}

/// Starts two calls that sleep on one port. Returns their threads and the commands that they
/// posted.
fn two_sleepers(
    port: &Arc<Port>,
    region: &Arc<Region>,
    nic: &mut Nic,
) -> [(std::thread::JoinHandle<extoll::Result<()>>, Descriptor); 2] {
    [0, 64].map(|offset| {
        let region = region.clone();
        let waiting = spawn(port, move |port| {
            port.get_wait(&peer(), &region, offset, 64, Nla(0), later().sleeping())
        });
        (waiting, nic.next())
    })
}

#[test]
fn a_notification_that_another_thread_sorted_ends_the_sleep() {
    let (_fake, port, region, mut nic) = small();
    nic.silent = true;
    let [(first, one), (second, other)] = two_sleepers(&port, &region, &mut nic);
    let sleeps = port.counters().sleeps;
    while port.counters().sleeps < sleeps + 4 {
        std::thread::yield_now();
    }
    let start = Instant::now();
    for d in [other, one] {
        nic.answer(&d, 0);
        assert_eq!(port.try_notification().unwrap(), None);
    }
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
    assert!(start.elapsed() < LATER / 2);
}

#[test]
fn packets_that_are_given_up_end_all_calls_that_wait_for_them() {
    let (_fake, port, region, mut nic) = small();
    nic.secretive = true;
    let [(first, one), (second, _)] = two_sleepers(&port, &region, &mut nic);
    // Set a committed count that exceeds the number of sent packets.
    nic.state.store(0, 99);
    for waiting in [first, second] {
        let result = waiting.join().unwrap();
        assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
    }
    // The loss was reported once, and the port remains usable.
    port.drain(soon()).unwrap();
    assert_eq!(port.counters().lost, 2);
    nic.secretive = false;
    let get = |wait| port.get_wait(&peer(), &region, 0, 64, Nla(0), wait);
    // The NIC may have executed the lost command. Its notification must not be assigned to another
    // call.
    assert!(matches!(get(soon()), Err(Error::Timeout)));
    assert!(!nic.has_next());
    nic.answer(&one, 0);
    assert_eq!(port.try_notification().unwrap(), None);
    assert!(matches!(get(soon()), Err(Error::Timeout)));
    assert_eq!(nic.next(), one);
}

#[test]
fn lost_notifications_end_all_calls_that_wait_for_some() {
    let (fake, port, region, mut nic) = small();
    let sleepers = two_sleepers(&port, &region, &mut nic);
    fake.driver().values.insert(0x8004_6B06, 1);
    for (waiting, _) in sleepers {
        let result = waiting.join().unwrap();
        assert!(matches!(result, Err(Error::Skipped(1))), "{result:?}");
    }
    assert_eq!(port.counters().skipped, 1);
    // Later calls are not affected by the loss, and a new queue keeps the counter.
    nic.next = 1;
    let waiting = spawn(&port, move |port| {
        port.get_wait(&peer(), &region, 128, 64, Nla(0), later())
    });
    let d = nic.next();
    std::thread::sleep(Duration::from_millis(20));
    nic.answer(&d, 0);
    waiting.join().unwrap().unwrap();
    port.resize_queue(64 << 10, 64 << 10).unwrap();
    assert_eq!(port.counters().skipped, 1);
}

#[test]
fn long_transfers_post_all_commands_or_none_and_each_notifies() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new((8 << 20) + 1).unwrap()).unwrap();
    let all = NotifySpec::from_bits(7);
    let get = || port.get(&peer(), &region, 0, (8 << 20) + 1, Nla(0x100), all);
    assert_eq!(
        [0, 1, 8 << 20, (8 << 20) + 1].map(commands),
        [1, 1, 1, 2],
        "commands"
    );
    get().unwrap();
    // The page contains only the last command. The conformance matrix checks the notifications of
    // all commands.
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
    // One credit is available, but the call needs two. The NIC has confirmed one of the two
    // commands above.
    for n in 0..253 {
        port.notify(&peer(), 0, n).unwrap();
    }
    assert!(matches!(get(), Err(Error::Full)));
    assert_eq!(port.counters().posted, 255);
    port.notify(&peer(), 0, 0).unwrap();
}

/// Runs a put of three commands, with a credit for one command at a time. `errors` are the errors
/// in the notifications of the commands.
fn split(errors: [u8; 3]) -> extoll::Result<()> {
    let fake = device();
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    let len = 2 * u64::from(MAX_LEN) + 5;
    let region = port.register(Buffer::new(len as usize).unwrap()).unwrap();
    let nla = region.nla().0;
    let mut nic = Nic::new(&fake);
    for n in 0..254 {
        port.notify(&peer(), 0, n).unwrap();
    }
    let waiting = spawn(&port, move |port| {
        port.put_wait(&peer(), &region, 0, len, Nla(0x70_0000), later())
    });
    let mut asked = vec![];
    for n in 0..3u64 {
        let d = nic.next();
        let at = n * u64::from(MAX_LEN);
        let op = Operation::Put {
            qw: false,
            len: (len - at).min(MAX_LEN.into()) as u32,
            local: nla + at,
            remote: 0x70_0000 + at,
        };
        assert_eq!((d.op, d.notify.bits()), (op, 1));
        asked.push(d);
    }
    for (d, error) in asked.iter().zip(errors) {
        std::thread::sleep(Duration::from_millis(5));
        assert!(!waiting.is_finished());
        nic.answer(d, error);
    }
    let result = waiting.join().unwrap();
    assert_eq!(port.try_notification().unwrap(), None);
    result
}

#[test]
fn every_command_of_a_long_transfer_counts() {
    split([0, 0, 0]).unwrap();
    for errors in [[2, 0, 0], [0, 2, 4], [0, 0, 2]] {
        let result = split(errors);
        assert!(matches!(result, Err(Error::Transfer(2))), "{result:?}");
    }
}

#[test]
fn a_lock_reports_its_outcome() {
    let (_fake, port, _region, mut nic) = small();
    let waiting = spawn(&port, |port| {
        port.lock_wait(&peer(), LockTarget::Responder, 12, 4, 1, later())
    });
    let d = nic.next();
    assert!(matches!(
        d.op,
        Operation::Lock {
            at: LockTarget::Responder,
            number: 12,
            compare: 4,
            add: 1
        }
    ));
    // This notification belongs to another lock.
    nic.notify(&note(
        NotificationType::Completer,
        Command::LockResponse,
        (9 << 32) | 13,
    ));
    nic.answer(&d, 0);
    let lock = waiting.join().unwrap().unwrap();
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
    fake.driver().refuse = Some(libc::EINTR);
    let address = fake.driver().regions.values().next().copied();
    assert!(matches!(region.unregister(), Err(Error::Os { .. })));
    // /proc/self/maps must show that the memory is still mapped.
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
fn the_time_of_a_sleeper_ends() {
    let fake = device();
    fake.driver().no_arm = true;
    let port = Port::with_backend(fake.clone()).unwrap();
    let wait = Wait::for_at_most(Duration::from_millis(40)).sleeping();
    assert!(matches!(port.notification(wait), Err(Error::Timeout)));
    let nic = Nic::new(&fake);
    // Bit 32 of the read pointer requests an interrupt. The pointer contains the last slot, because
    // no entry was read.
    assert_eq!(nic.queue.load(0), (1 << 32) | 4095);
    assert!(port.counters().sleeps > 0);
}

#[test]
fn a_transfer_in_pieces_keeps_its_deadline() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new((8 << 20) + 1).unwrap()).unwrap();
    for _ in 0..254 {
        port.notify(&peer(), 0, 0).unwrap();
    }
    let start = Instant::now();
    // A credit is available only for the first command.
    let result = port.put_wait(&peer(), &region, 0, (8 << 20) + 1, Nla(0), soon());
    assert!(matches!(result, Err(Error::Timeout)), "{result:?}");
    // The call must not wait for the answer to the first command, which may take 10 seconds.
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(port.counters().posted, 255);
}

#[test]
fn a_waiting_drain_does_not_hold_up_a_receiver() {
    let fake = device();
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    port.notify(&peer(), 0, 0).unwrap();
    let drain = {
        let port = port.clone();
        std::thread::spawn(move || port.drain(later()))
    };
    while port.counters().state_reads < 100 {
        std::thread::yield_now();
    }
    assert!(matches!(port.notification(soon()), Err(Error::Timeout)));
    assert!(!drain.is_finished(), "it waited for the drain");
    Nic::new(&fake).descriptor(TE);
    drain.join().unwrap().unwrap();
}

#[test]
fn a_lost_notification_behind_others_is_skipped_and_told() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let mut nic = Nic::new(&fake);
    let of = |word0| note(NotificationType::Completer, Command::BytePut, word0);
    nic.notify(&of(1));
    nic.next += 1;
    nic.notify(&of(3));
    fake.driver().values.insert(0x8004_6B06, 3);
    let wait = || port.wait_for(later().sleeping(), |n| n.word0 == 3);
    assert!(matches!(wait(), Err(Error::Skipped(1))));
    assert_eq!(wait().unwrap().word0, 3);
    assert_eq!(port.try_notification().unwrap().unwrap().word0, 1);
    assert_eq!(port.try_notification().unwrap(), None);
    nic.notify(&of(4));
    assert_eq!(port.try_notification().unwrap().unwrap().word0, 4);
}

#[test]
fn an_unbound_nic_is_an_error_everywhere() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    let region = port.register(Buffer::new(64).unwrap()).unwrap();
    port.notify(&peer(), 0, 0).unwrap();
    fake.driver().unbind_in_arm = true;
    let gone = port.notification(later().sleeping());
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
    assert!(matches!(port.try_notification(), Err(Error::Gone)));
    assert!(matches!(port.notify(&peer(), 0, 0), Err(Error::Gone)));
    assert!(matches!(port.settle(), Err(Error::Gone)));
    assert!(matches!(port.peek(|_| true), Err(Error::Gone)));
    assert!(matches!(
        port.register(Buffer::new(64).unwrap()),
        Err(Error::Gone)
    ));
    assert!(matches!(port.read_node(), Err(Error::Gone)));
    // The driver has ended all registrations of the NIC.
    assert!(region.unregister().is_ok());
}

#[test]
fn bindings_get_addresses_and_free_in_any_order() {
    let (_fake, port, _region, mut nic) = small();
    assert_eq!(port.peek(|_| true).unwrap(), Found::Others(0));
    for word0 in 1..=3 {
        nic.notify(&note(NotificationType::Completer, Command::BytePut, word0));
    }
    assert_eq!(port.peek(|w| w[0] == 9).unwrap(), Found::Others(3));
    let lend = |word0| match port.peek(|w| w[0] == word0).unwrap() {
        Found::At(address) => address,
        other => panic!("{other:?}"),
    };
    let (second, third) = (lend(2), lend(3));
    // Other calls do not find a notification whose address was returned.
    assert_eq!(port.peek(|w| w[0] == 2).unwrap(), Found::Others(1));
    assert!(port.free(second));
    assert!(!port.free(second));
    assert!(!port.free(std::ptr::null()));
    // An address that was not returned cannot be freed.
    assert!(!port.free(second.wrapping_sub(16)));
    let words: Vec<u64> = std::iter::from_fn(|| port.try_notification().unwrap())
        .map(|n| n.word0)
        .collect();
    assert_eq!(words, [1]);
    assert!(port.free(third));
    assert_eq!(port.counters().received, 3);
}

#[test]
fn two_threads_never_get_the_same_notification() {
    let (_fake, port, _region, mut nic) = small();
    const EACH: usize = 1000;
    let both = Arc::new(Barrier::new(2));
    let take = || {
        let both = both.clone();
        spawn(&port, move |port| {
            let round = |_| {
                let found = port.peek_wait(later(), |_| true).unwrap();
                // Both threads receive a notification before one of them frees its notification.
                both.wait();
                let freed = port.free(found);
                both.wait();
                (found as usize, freed)
            };
            (0..EACH).map(round).collect::<Vec<_>>()
        })
    };
    let threads = [take(), take()];
    for n in 0..2 * EACH as u64 {
        nic.notify(&note(NotificationType::Completer, Command::BytePut, n));
    }
    let mut all = threads.map(|t| t.join().unwrap()).concat();
    assert!(all.iter().all(|(_, freed)| *freed), "freed by another one");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2 * EACH);
}

#[test]
fn a_queue_that_cannot_be_changed_is_kept_or_missed_but_never_touched() {
    let (fake, port, _region, mut nic) = small();
    let refuse = |maps| fake.driver().refuse_maps = maps;
    let n = note(NotificationType::Completer, Command::BytePut, 1);
    nic.notify(&n);
    // The driver rejects the size. The queue stays unchanged.
    assert!(port.resize_queue(5000, 4096).is_err());
    assert_eq!(port.try_notification().unwrap(), Some(n));
    // The driver cannot create the queue. The port gets a new queue of the old size.
    refuse(1);
    let result = port.resize_queue(128 << 10, 64 << 10);
    assert!(matches!(result, Err(Error::Queue { .. })), "{result:?}");
    assert_eq!(port.queue_size(), 64 << 10);
    // A queue of the old size cannot be created either. The old mapping, which contains a
    // notification, must not be read.
    nic.next = 0;
    nic.notify(&n);
    refuse(2);
    assert!(port.resize_queue(128 << 10, 64 << 10).is_err());
    assert!(matches!(port.try_notification(), Err(Error::NoQueue)));
    assert!(matches!(port.peek(|_| true), Err(Error::NoQueue)));
    assert!(matches!(port.notification(soon()), Err(Error::NoQueue)));
    let result = port.lock_wait(&peer(), LockTarget::Responder, 1, 0, 0, soon());
    assert!(matches!(result, Err(Error::NoQueue)), "{result:?}");
    assert!(!port.free(std::ptr::null()));
    assert!(matches!(port.arm(), Err(Error::NoQueue)));
    port.settle().unwrap();
    assert_eq!(port.queue_size(), 0);
    // Another attempt may succeed.
    port.resize_queue(64 << 10, 64 << 10).unwrap();
    assert_eq!(port.try_notification().unwrap(), Some(n));
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
