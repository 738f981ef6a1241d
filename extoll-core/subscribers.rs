// SPDX-License-Identifier: GPL-2.0-only

//! List of subscribers that are called from interrupts. A mutex serializes its changes in process
//! context. A spinlock that disables interrupts is held during calls.

use kernel::{
    prelude::*,
    static_lock_class,
    sync::{Mutex, SpinLockIrq},
};

/// Maximum number of subscribers in a list.
const MAX: usize = 64;

/// These are statics, because lockdep compares names by address and the constructor is inlined.
static LOCK_NAME: &CStr = c"extoll_subscribers_list";
static CHANGES_NAME: &CStr = c"extoll_subscribers_changes";

/// List of subscribers of type `T` with keys. They are called with the list locked and interrupts
/// disabled.
#[pin_data]
pub(crate) struct Subscribers<T> {
    #[pin]
    list: SpinLockIrq<KVec<(u64, T)>>,
    /// Next key. Held while the list is changed.
    #[pin]
    changes: Mutex<u64>,
}

impl<T> Subscribers<T> {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- SpinLockIrq::new(KVec::new(), LOCK_NAME, static_lock_class!()),
            changes <- Mutex::new(0, CHANGES_NAME, static_lock_class!()),
        })
    }

    /// Adds a subscriber and returns its key. Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` for the 65th subscriber; `ENOMEM`.
    pub(crate) fn add(&self, subscriber: T) -> Result<u64> {
        let mut next = self.changes.lock();
        // Only this function adds entries, so capacity for one more entry is sufficient.
        let count = self.list.lock().len();
        if count >= MAX {
            return Err(EBUSY);
        }
        let mut other = KVec::with_capacity(count + 1, GFP_KERNEL)?;
        let key = *next;
        *next += 1;
        let mut list = self.list.lock();
        core::mem::swap(&mut other, &mut *list);
        for old in other.drain_all() {
            let _ = list.push_within_capacity(old);
        }
        let _ = list.push_within_capacity((key, subscriber));
        drop(list);
        Ok(key)
    }

    /// Removes a subscriber. It is not called after this function returns. Process context; may
    /// sleep.
    pub(crate) fn remove(&self, key: u64) {
        let changes = self.changes.lock();
        let mut list = self.list.lock();
        let at = list.iter().position(|(k, _)| *k == key);
        let old = at.and_then(|i| list.remove(i).ok());
        // The drop of a subscriber runs code of its owner, so the locks are released first.
        drop(list);
        drop(changes);
        drop(old);
    }

    /// Calls `f` for each subscriber, with the list locked and interrupts disabled. Any context.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&mut T)) {
        for (_, subscriber) in self.list.lock().iter_mut() {
            f(subscriber);
        }
    }

    /// Returns whether the list is empty. Any context.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().is_empty()
    }
}

#[kunit_tests(extoll_subscribers)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    /// Adds another entry to its list when it is dropped.
    struct Replaced(Arc<Subscribers<Option<Replaced>>>);

    impl Drop for Replaced {
        fn drop(&mut self) {
            let _ = self.0.add(None);
        }
    }

    #[test]
    fn a_destructor_may_subscribe() -> Result {
        let list = Arc::pin_init(Subscribers::new(), GFP_KERNEL)?;
        let key = list.add(Some(Replaced(list.clone())))?;
        list.remove(key);
        let mut left = 0;
        list.for_each(|subscriber| left += u32::from(subscriber.is_none()));
        assert_eq!(left, 1);
        Ok(())
    }

    #[test]
    fn subscribers_come_and_go() -> Result {
        let list = KBox::pin_init(Subscribers::<u32>::new(), GFP_KERNEL)?;
        assert!(list.is_empty());
        let mut keys = KVec::new();
        for n in 0..MAX as u32 {
            keys.push(list.add(n)?, GFP_KERNEL)?;
        }
        assert_eq!(list.add(0).err(), Some(EBUSY));
        let sum = || {
            let mut sum = 0;
            list.for_each(|n| sum += *n);
            sum
        };
        assert_eq!(sum(), 63 * 64 / 2);
        list.remove(*keys.get(5).ok_or(EINVAL)?);
        // Removing an entry twice has no further effect.
        list.remove(*keys.get(5).ok_or(EINVAL)?);
        assert_eq!(sum(), 63 * 64 / 2 - 5);
        list.add(1000)?;
        assert_eq!(sum(), 63 * 64 / 2 - 5 + 1000);
        for key in &keys {
            list.remove(*key);
        }
        assert_eq!(sum(), 1000);
        Ok(())
    }
}
