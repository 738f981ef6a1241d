//! Flow control with a receiver or a NIC that accepts nothing for a while: the sender gets an
//! error, and no message is lost.

use anyhow::{ensure, Context, Result};
use extoll::velo::To;
use extoll::{rma, velo, Device, Error, Wait};
use std::time::Duration;

/// Number of messages. It exceeds the capacity of a queue of either unit.
const MANY: u64 = 40_000;
/// Number of messages after which a sender to a blocked requester must have received an error.
const LIMIT: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(40);

pub fn run(stuck: Option<&str>) -> Result<()> {
    let device = Device::default();
    if stuck != Some("rma") {
        messages(&device, stuck.is_some())?;
    }
    if stuck != Some("velo") {
        notifications(&device, stuck.is_some())?;
    }
    Ok(())
}

fn messages(device: &Device, stuck: bool) -> Result<()> {
    let (from, into) = (velo::Port::open(device)?, velo::Port::open(device)?);
    let to = To::new(into.node(), into.vpid());
    through(
        "VELO",
        stuck,
        |n| from.try_send(&to, &n.to_le_bytes()),
        || from.drain(wait()),
        || {
            let message = into.recv(wait())?;
            let bytes = message.data().try_into().context("length")?;
            Ok(u64::from_le_bytes(bytes))
        },
    )?;
    ensure!(into.try_recv()?.is_none(), "more than was sent");
    Ok(())
}

fn notifications(device: &Device, stuck: bool) -> Result<()> {
    let (from, into) = (rma::Port::open(device)?, rma::Port::open(device)?);
    let peer = rma::Peer::new(into.node(), into.vpid()).interrupting();
    through(
        "RMA",
        stuck,
        |n| from.notify(&peer, 0, n),
        || from.drain(wait()),
        || Ok(into.notification(wait())?.word0),
    )?;
    ensure!(into.try_notification()?.is_none(), "more than was sent");
    Ok(())
}

fn wait() -> Wait {
    Wait::for_at_most(PATIENCE)
}

/// Sends numbers without receiving them, until the sender gets "full" or more numbers are sent than
/// a queue holds. Then receives all of them, in order.
fn through(
    unit: &str,
    stuck: bool,
    send: impl Fn(u64) -> extoll::Result<()>,
    drain: impl Fn() -> extoll::Result<()>,
    take: impl Fn() -> Result<u64>,
) -> Result<()> {
    let mut end = 0;
    while stuck || end < MANY {
        match send(end) {
            Ok(()) => end += 1,
            Err(Error::Full) if stuck => break,
            // The NIC is working and will accept more commands soon.
            Err(Error::Full) => drain()?,
            Err(e) => return Err(e.into()),
        }
        ensure!(!stuck || end < LIMIT, "{unit}: the sender gets no error");
    }
    if stuck {
        std::thread::sleep(Duration::from_millis(200));
        let still = send(end);
        ensure!(
            matches!(still, Err(Error::Full)),
            "{unit}: space in a blocked requester: {still:?}"
        );
        crate::say("full")?;
    }
    // Repeats the last commands that the NIC rejected.
    drain()?;
    for n in 0..end {
        let got = take().with_context(|| format!("{unit}: number {n} of {end}"))?;
        ensure!(got == n, "{unit}: {got} instead of {n}");
    }
    crate::say(&format!("ok {unit}: {end} in order"))
}
