// SPDX-License-Identifier: GPL-2.0-only

//! Watch on the address space of registered user memory.
//!
//! The memory management calls MMU notifiers in contexts that must not wait for the NIC. If memory
//! is unmapped, the notifier revokes the translation at once. If pages may have been replaced, a
//! work item checks them, which may sleep.

use super::{memory::Memory, translation::Translation};
use kernel::sync::Arc;
use kernel_ext::mem::{Change, Maps, Watch, Watcher, PAGE};
use protocol::nic::translation::Pages;

/// Pause in milliseconds before pages in an uncertain state are checked again.
const RECHECK_MS: u32 = 20;

/// Forwards changes of the address space to a translation.
pub(super) struct MemoryWatch(pub(super) Arc<Translation>);

impl Watcher for MemoryWatch {
    fn changing(&self, change: Change, start: usize, end: usize) {
        let this = &self.0;
        match change {
            Change::Unmapped => this.revoke_now(),
            // The entries point to pages that stay pinned, so the work item can check the pages
            // later.
            Change::Changed => {
                let first = start.saturating_sub(this.start) / PAGE;
                let end = end.saturating_sub(this.start).div_ceil(PAGE);
                let end = end.min(this.range.pages as usize);
                this.check_later(Pages { first, end }, 0);
            }
        }
    }
}

impl Translation {
    /// Begins to watch changes of user memory. The caller must then check the pages once. Returns
    /// the watch if the translation has already ended.
    pub(super) fn watch(&self, watch: Arc<Watch>) -> Option<Arc<Watch>> {
        let mut state = self.state.lock();
        if state.memory.is_none() {
            return Some(watch);
        }
        state.watch.replace(watch)
    }

    /// Queues pages for a check after a delay, unless the translation has ended. Any context.
    pub(super) fn check_later(self: &Arc<Self>, pages: Pages, delay_ms: u32) {
        if self.state.lock().life.suspect(pages) {
            self.schedule(delay_ms);
        }
    }

    /// Queues pages in an uncertain state for another check after [`RECHECK_MS`].
    pub(super) fn recheck(self: &Arc<Self>, pages: Pages) {
        self.check_later(pages, RECHECK_MS);
    }

    /// Checks whether the process still maps the suspect pages. Revokes the translation if not. May
    /// sleep.
    pub(super) fn verify(self: &Arc<Self>) {
        loop {
            let (suspects, pages, watch) = {
                let mut state = self.state.lock();
                let Some(suspects) = state.life.take_replaced_pages() else {
                    return;
                };
                match (state.memory.as_ref().and_then(Memory::pages), &state.watch) {
                    (Some(pages), Some(watch)) => (suspects, pages.clone(), watch.clone()),
                    _ => return,
                }
            };
            // The notifier runs before the change, so this waits until the change is complete.
            watch.wait_idle();
            match pages.mapped(suspects.first, suspects.end) {
                Maps::Same => {}
                Maps::Other => return self.revoke_now(),
                Maps::Unclear => return self.recheck(suspects),
            }
        }
    }
}
