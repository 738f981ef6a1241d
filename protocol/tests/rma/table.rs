//! Small table of transfers, and helpers for tests.

use super::*;
use crate::heap::Heap;
use protocol::transfer::{
    Capacity, Done, Event, Failure, Fragment, Notify, Quiet, SubmitError, Ticket, TransferKind,
    Transfers,
};
use wire::rma::Direction;

pub type Table = Transfers<Heap, u32>;

pub const CAPACITY: Capacity = Capacity {
    transfers: 16,
    fragments: 40,
    commands: 24,
};
pub const GET: TransferKind = TransferKind {
    direction: Direction::Get,
    notify: Notify::Nothing,
    confirm: false,
};
pub const PUT: TransferKind = TransferKind {
    direction: Direction::Put,
    ..GET
};
pub const CONFIRMED: TransferKind = TransferKind {
    confirm: true,
    ..PUT
};

pub fn table() -> Table {
    Transfers::new(&CAPACITY, &LIMITS).unwrap()
}

pub fn list(parts: &[(u64, u64)]) -> Vec<Fragment> {
    let fragment = |&(address, len)| Fragment { address, len };
    parts.iter().map(fragment).collect()
}

pub fn submit(
    t: &mut Table,
    terms: &Terms,
    kind: TransferKind,
    local: &[(u64, u64)],
    remote: &[(u64, u64)],
) -> Result<Ticket, SubmitError> {
    let (l, r) = (list(local), list(remote));
    let token = t.counters().submitted as u32;
    let taken = t.submit(terms, kind, l.iter().copied(), r.iter().copied(), token);
    t.check().unwrap();
    taken.map_err(|(cause, _)| cause)
}

pub fn get(t: &mut Table, node: u16, local: u64, len: u64) -> Ticket {
    let remote = [(0x10_0000, len)];
    submit(t, &terms(node, 100), GET, &[(local, len)], &remote).unwrap()
}

pub fn post(t: &mut Table, nic: &mut Nic, now: u64) -> Vec<Sent> {
    t.post(nic, Time(now), 1000);
    t.check().unwrap();
    std::mem::take(&mut nic.posted)
}

pub fn deliver(t: &mut Table, sent: &Sent, error: u8) -> bool {
    let taken = t.process_notification(&answer(sent, error).unwrap());
    t.check().unwrap();
    taken
}

pub fn event(t: &mut Table) -> Option<Event<u32>> {
    let event = t.next_event(Queue::Direct)?;
    if event.quiet.is_none() {
        t.report_done(event.ticket);
    }
    t.check().unwrap();
    Some(event)
}

/// Checks that the next event has the outcome, and that the transfer is quiet.
pub fn ends(t: &mut Table, ticket: Ticket, outcome: Result<Done, Failure>) {
    let e = event(t).expect("no event is pending");
    assert_eq!(
        (e.ticket, e.outcome, e.quiet),
        (ticket, Some(outcome), Some(Quiet::Settled))
    );
}

pub fn bytes(bytes: u64) -> Result<Done, Failure> {
    Ok(Done { bytes, word: 0 })
}
