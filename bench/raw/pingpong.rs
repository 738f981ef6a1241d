// SPDX-License-Identifier: GPL-2.0-only

//! Round trips of single VELO messages.

use crate::{
    attached::Run,
    command::Peer,
    protocol::{pattern, DONE, PING, PING_POLL, REPLY},
    report::Report,
    server::QUEUE_BYTES,
    wait::Mode,
};
use extoll_core::{
    nic::Nic,
    velo::{Header, Target, MAX_LEN},
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Instant, Monotonic},
};
use wire::ids::Unit;

/// Number of round trips before the measurement begins.
const WARM_UP: usize = 16;
/// Maximum number of samples that are stored. Further samples count only for the mean.
const MAX_SAMPLES: usize = 100_000;

/// Sends `count` messages of `size` bytes (8…120), and compares every reply. Each message is sent
/// after the reply to the previous message.
pub(crate) fn run(
    run: &Run<'_>,
    nic: &Arc<Nic>,
    peer: &Peer,
    size: usize,
    count: usize,
    report: &mut Report<'_>,
) -> Result {
    let (sender, mut mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    let waiter = &run.waiter;
    sender.attach(waiter.client(Unit::Velo)?);
    let tag = match peer.mode {
        Mode::Irq => PING,
        Mode::Poll => PING_POLL,
    };
    let header = |tag, irq| Header {
        tag,
        irq,
        ..Header::new(Target::Node(peer.node), peer.vpid)
    };
    let mut samples = KVVec::with_capacity(count.min(MAX_SAMPLES), GFP_KERNEL)?;
    let mut armed = false;
    let mut foreign = 0u64;
    let mut total = 0u64;
    for i in 0..WARM_UP + count {
        let mut payload = [0u8; MAX_LEN as usize];
        for (j, chunk) in payload.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&pattern(i as u64, j as u64).to_le_bytes());
        }
        let message = payload.get(..size).ok_or(EINVAL)?;
        // In polling mode, the first message must interrupt the server, which does not poll then.
        let irq = peer.mode == Mode::Irq || i == 0;
        let begin: Instant<Monotonic> = Instant::now();
        waiter.send(|| sender.send(header(tag, irq), message))?;
        let (len, reply) = waiter.until(
            peer.mode,
            Unit::Velo,
            &mut armed,
            &mut mailbox,
            |mailbox| {
                let mut found = None;
                while found.is_none()
                    && mailbox.poll(1, |m| {
                        let from = m.status.source;
                        if from.node == peer.node
                            && from.vpid == peer.vpid
                            && m.status.tag == tag | REPLY
                        {
                            let mut reply = [0u8; MAX_LEN as usize];
                            found = Some((m.copy_to(&mut reply), reply));
                        } else {
                            foreign += 1;
                        }
                    }) != 0
                {}
                found
            },
            |mailbox| mailbox.rearm(),
        )?;
        let time = begin.elapsed().as_nanos().max(0) as u64;
        if reply.get(..len) != Some(message) {
            return report.fail(
                EBADMSG,
                fmt!("reply {i} of {len} bytes differs from what was sent"),
            );
        }
        waiter.check()?;
        if i >= WARM_UP {
            total += time;
            if samples.len() < MAX_SAMPLES {
                samples.push(time.min(u64::from(u32::MAX)) as u32, GFP_KERNEL)?;
            }
        }
    }
    waiter.send(|| sender.send(header(DONE, false), &[0; 8]))?;
    sender.detach();
    sort(&mut samples);
    let at = |permille: usize| {
        let last = samples.len().saturating_sub(1);
        u64::from(samples.get(last * permille / 1000).copied().unwrap_or(0))
    };
    report.line(fmt!("mode {}", peer.mode.name()))?;
    report.number("size", size as u64)?;
    report.number("count", count as u64)?;
    report.number("verified", (WARM_UP + count) as u64)?;
    report.number("foreign", foreign)?;
    report.number("elapsed_ns", total)?;
    report.number("rtt_ns_min", at(0))?;
    report.number("rtt_ns_median", at(500))?;
    report.number("rtt_ns_mean", total / count as u64)?;
    report.number("rtt_ns_p99", at(990))?;
    report.number("rtt_ns_max", at(1000))
}

/// Sorts by heap sort, because `core`'s sorts call a diverging function that objtool does not know.
fn sort(samples: &mut [u32]) {
    let sift = |s: &mut [u32], mut root: usize| loop {
        let mut child = 2 * root + 1;
        if child >= s.len() {
            return;
        }
        if child + 1 < s.len() && s[child] < s[child + 1] {
            child += 1;
        }
        if s[root] >= s[child] {
            return;
        }
        s.swap(root, child);
        root = child;
    };
    for root in (0..samples.len() / 2).rev() {
        sift(samples, root);
    }
    for end in (1..samples.len()).rev() {
        samples.swap(0, end);
        sift(&mut samples[..end], 0);
    }
}
