// SPDX-License-Identifier: GPL-2.0-only

//! Changes of the address space that memory of a translation belongs to.
//!
//! What is unmapped is revoked at once, in the notifier. Where pages may have been replaced, a work
//! item looks whether they have.

use super::{memory::Memory, translation::Translation};
use kernel::sync::Arc;
use kernel_ext::mem::{Change, Maps, Watch, Watcher, PAGE};
use protocol::translation::Pages;

/// Pause before another look at pages of which nothing can be told yet, in milliseconds.
const LOOK_MS: u32 = 20;

/// Tells a translation of changes of the address space.
pub(super) struct MemoryWatch(pub(super) Arc<Translation>);

impl Watcher for MemoryWatch {
    fn changing(&self, change: Change, start: usize, end: usize) {
        let this = &self.0;
        match change {
            Change::Gone => this.die(),
            // The entries go on to point to pages that stay reserved, so there is time for a second
            // look.
            Change::Suspect => {
                let first = start.saturating_sub(this.start) / PAGE;
                let end = end.saturating_sub(this.start).div_ceil(PAGE);
                let end = end.min(this.range.pages as usize);
                this.suspect(Pages { first, end }, 0);
            }
        }
    }
}

impl Translation {
    /// Has changes of user memory noticed. The caller then looks at the pages itself, once. Gives
    /// the watch back if the translation has ended meanwhile.
    pub(super) fn watch(&self, watch: Arc<Watch>) -> Option<Arc<Watch>> {
        let mut state = self.state.lock();
        if state.memory.is_none() {
            return Some(watch);
        }
        state.watch.replace(watch)
    }

    /// Has pages looked at after a while, if they still matter. Any context.
    pub(super) fn suspect(self: &Arc<Self>, pages: Pages, delay_ms: u32) {
        if self.state.lock().life.suspect(pages) {
            self.schedule(delay_ms);
        }
    }

    /// Has pages of which nothing can be told yet looked at some time later.
    pub(super) fn doubt(self: &Arc<Self>, pages: Pages) {
        self.suspect(pages, LOOK_MS);
    }

    /// Looks whether suspect pages are still the process's; if not, revokes. May sleep.
    pub(super) fn verify(self: &Arc<Self>) {
        loop {
            let (suspects, pages, watch) = {
                let mut state = self.state.lock();
                let Some(suspects) = state.life.take_suspects() else {
                    return;
                };
                match (state.memory.as_ref().and_then(Memory::pages), &state.watch) {
                    (Some(pages), Some(watch)) => (suspects, pages.clone(), watch.clone()),
                    _ => return,
                }
            };
            // The news comes before the change.
            watch.settle();
            match pages.mapped(suspects.first, suspects.end) {
                Maps::Same => {}
                Maps::Other => return self.die(),
                Maps::Unclear => return self.doubt(suspects),
            }
        }
    }
}
