// SPDX-License-Identifier: GPL-2.0-only

//! Command `pieces`: sends pages of the kernel with unaligned fragments.

use crate::{
    attached::Attached,
    command::Words,
    engines,
    protocol::pattern,
    regions::{destination, outcome, QUEUE_BYTES},
    report::Report,
};
use extoll_core::{
    atu::{Access, WholePages},
    nic::Nic,
    rma::{transfer::Engine, Address},
};
use kernel::{page::Page, prelude::*, sync::Arc, time::Delta};
use kernel_ext::mem::{Fragment, FragmentList, PAGE};
use wire::ids::Nla;

/// Byte between the chunks in pages of the kernel.
const BETWEEN: u8 = 0xee;

/// Returns three pages with a chunk of each, of 8192 bytes in total, filled with the pattern.
fn own(seed: u64) -> Result<FragmentList> {
    let mut pieces = KVVec::new();
    for (offset, len) in [(100, PAGE - 100), (0, PAGE), (7, 100)] {
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
        pieces.push((page, offset, len), GFP_KERNEL)?;
    }
    let list = FragmentList::from_pages(pieces)?;
    let byte = |at: usize| {
        let mut before = 0;
        for f in list.fragments() {
            if (f.start()..f.end()).contains(&at) {
                let i = before + at - f.start();
                let word = pattern(seed, i as u64 / 8).to_le_bytes();
                return word.get(i % 8).copied().unwrap_or(0);
            }
            before += f.len;
        }
        BETWEEN
    };
    for word in 0..list.pages().len() * PAGE / 8 {
        let bytes = core::array::from_fn(|i| byte(word * 8 + i));
        list.pages().write(word, u64::from_le_bytes(bytes));
    }
    Ok(list)
}

fn show(list: &FragmentList, report: &mut Report<'_>) -> Result {
    let pages = list.pages();
    report.number("pages", pages.len() as u64)?;
    report.number("offset", pages.offset() as u64)?;
    report.number("span", pages.bytes() as u64)?;
    report.number("bytes", list.bytes() as u64)?;
    report.number("fragments", list.fragments().len() as u64)?;
    for (i, Fragment { page, offset, len }) in list.fragments().iter().enumerate().take(16) {
        report.line(fmt!("fragment{i} {page} {offset} {len}"))?;
    }
    Ok(())
}

/// Puts all fragments in order to the memory at `nla` of a peer.
fn transfer(nic: &Arc<Nic>, words: &Words, list: &FragmentList, report: &mut Report<'_>) -> Result {
    let to = destination(words, report)?;
    let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let vpid = requester.vpid();
    let engine = Engine::new(requester, notifications)?;
    // The peers are part of the test and may access whole pages.
    let (pages, whole) = (list.pages().clone(), WholePages::EXPOSED);
    let (first, bytes) = (pages.offset(), pages.bytes());
    let region = match nic
        .atu()
        .register_range(vpid, pages, first, bytes, Access::READ, whole)
    {
        Ok(region) => region,
        Err(e) => return report.fail(e, fmt!("cannot register: {e:?}")),
    };
    let timeout = Delta::from_millis(words.timeout_ms as i64);
    let mut done = 0;
    for fragment in list.fragments() {
        let address = Address::Region {
            region: &region,
            offset: fragment.start() - first,
            remote: Nla(words.nla + words.offset + done),
        };
        let len = fragment.len as u64;
        if let Err(e) = engines::put(&engine, to, address, len, timeout) {
            outcome(Err(e), report)?;
            return Err(e.into());
        }
        done += len;
    }
    outcome(Ok(()), report)?;
    region.revoke()
}

/// Command `pieces`.
pub(crate) fn put(attached: &Attached, words: &Words, report: &mut Report<'_>) -> Result {
    let timeout = Delta::from_millis(words.timeout_ms as i64);
    let run = match attached.begin(timeout) {
        Ok(run) => run,
        Err(e) => return report.fail(e, fmt!("cannot begin: {e:?}")),
    };
    let list = own(words.seed)?;
    show(&list, report)?;
    transfer(&*run.nic()?, words, &list, report)
}
