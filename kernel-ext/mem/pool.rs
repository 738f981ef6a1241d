// SPDX-License-Identifier: GPL-2.0-only

//! Objects that are made in time, for where there is no memory to make them.

use crate::work::Deferred;
use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
};

/// The lock checker compares names by address, and literals in generic code may be there more than
/// once.
static LOCK_NAME: &CStr = c"extoll_pool";

/// What is in a pool.
struct Stack<T> {
    objects: KVVec<KBox<T>>,
    /// The least that there ever was.
    least: usize,
}

/// A fixed number of objects that are made when the pool is. They are taken and given back in any
/// context but that of a non-maskable interrupt, without an allocation: so that what has to be done
/// to get memory back (writing it to another node, say) does not wait for memory. One that finds
/// none is counted; it has to wait for one to come back, which is the caller's business.
///
/// Objects come as they were given back, and the one that was used last first. Their destructors,
/// which may sleep, run in process context some time after the pool and all its objects are gone
/// ([`Deferred`]; see there for modules that end).
///
/// # Examples
///
/// Requests, each with memory that is registered already:
///
/// ```
/// # use kernel::{prelude::*, sync::Arc};
/// # use kernel_ext::mem::{PageList, Pool, Taken};
/// # struct Region;
/// # fn register(_: &PageList) -> Result<Region> { Ok(Region) }
/// struct Request {
///     memory: Arc<PageList>,
///     region: Region,
/// }
///
/// fn requests(n: usize) -> Result<Arc<Pool<Request>>> {
///     Pool::new(n, |_| {
///         let buffer = VVec::from_elem(0u8, 4096, GFP_KERNEL)?;
///         let memory = Arc::new(PageList::from_buffer(buffer)?, GFP_KERNEL)?;
///         let region = register(&memory)?;
///         Ok(Request { memory, region })
///     })
/// }
///
/// /// In any context; given back when it is dropped.
/// fn begin(pool: &Arc<Pool<Request>>) -> Option<Taken<Request>> {
///     Pool::take(pool)
/// }
/// ```
#[pin_data]
pub struct Pool<T: Send + 'static> {
    #[pin]
    stack: SpinLockIrq<Deferred<Stack<T>>>,
    size: usize,
    exhausted: Atomic<u64>,
}

impl<T: Send + 'static> Pool<T> {
    /// Makes a pool with `size` objects, by their numbers. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for none, `ENOMEM`, and those of `make`.
    pub fn new(size: usize, mut make: impl FnMut(usize) -> Result<T>) -> Result<Arc<Self>> {
        if size == 0 {
            return Err(EINVAL);
        }
        let mut objects = KVVec::with_capacity(size, GFP_KERNEL)?;
        for n in 0..size {
            objects.push(KBox::new(make(n)?, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let stack = Stack {
            objects,
            least: size,
        };
        let stack = Deferred::new(stack, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                stack <- SpinLockIrq::new(stack, LOCK_NAME, static_lock_class!()),
                size,
                exhausted: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes an object; `None`, which is counted, if there is none. Any context.
    pub fn take(this: &Arc<Self>) -> Option<Taken<T>> {
        let object = {
            let mut stack = this.stack.lock();
            let object = stack.objects.pop();
            stack.least = stack.least.min(stack.objects.len());
            object
        };
        let Some(object) = object else {
            this.exhausted.add(1, Relaxed);
            return None;
        };
        Some(Taken {
            object: ManuallyDrop::new(object),
            pool: this.clone(),
        })
    }

    fn give_back(&self, object: KBox<T>) {
        // There is room: it was taken from here.
        if let Err(object) = self.stack.lock().objects.push_within_capacity(object) {
            core::mem::forget(object);
        }
    }

    /// Objects that the pool was made with. Any context.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Objects that are in it. Any context.
    pub fn left(&self) -> usize {
        self.stack.lock().objects.len()
    }

    /// The least that ever were in it. Any context.
    pub fn least(&self) -> usize {
        self.stack.lock().least
    }

    /// How often somebody has found none. Any context.
    pub fn exhausted(&self) -> u64 {
        self.exhausted.load(Relaxed)
    }
}

/// An object of a pool, to which it goes back when this is dropped, in any context.
pub struct Taken<T: Send + 'static> {
    object: ManuallyDrop<KBox<T>>,
    pool: Arc<Pool<T>>,
}

impl<T: Send + 'static> Taken<T> {
    /// The pool that it is from.
    pub fn pool(&self) -> &Arc<Pool<T>> {
        &self.pool
    }
}

impl<T: Send + 'static> Deref for Taken<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Send + 'static> DerefMut for Taken<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.object
    }
}

impl<T: Send + 'static> Drop for Taken<T> {
    fn drop(&mut self) {
        // SAFETY: not used again.
        let object = unsafe { ManuallyDrop::take(&mut self.object) };
        self.pool.give_back(object);
    }
}

#[kunit_tests(kernel_ext_pool)]
mod tests {
    use super::*;
    use crate::work::Settled;
    use kernel::new_spinlock_irq;
    use kernel::time::{delay::fsleep, Delta};

    struct Object {
        number: usize,
        dropped: Arc<Atomic<i32>>,
    }

    impl Drop for Object {
        fn drop(&mut self) {
            fsleep(Delta::from_millis(1));
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    fn pool(size: usize) -> Result<(Arc<Pool<Object>>, Arc<Atomic<i32>>)> {
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let pool = Pool::new(size, |number| {
            Ok(Object {
                number,
                dropped: dropped.clone(),
            })
        })?;
        Ok((pool, dropped))
    }

    #[test]
    fn there_are_so_many_and_no_more() -> Result {
        let (pool, _) = pool(3)?;
        assert_eq!((pool.size(), pool.left(), pool.least()), (3, 3, 3));
        let mut taken = KVec::new();
        while let Some(mut object) = Pool::take(&pool) {
            object.number += 10;
            taken.push(object, GFP_KERNEL)?;
        }
        assert_eq!(taken.len(), 3);
        assert!(Pool::take(&pool).is_none());
        assert_eq!((pool.exhausted(), pool.left(), pool.least()), (2, 0, 0));
        let lock = KBox::pin_init(new_spinlock_irq!((), "extoll_test"), GFP_KERNEL)?;
        let again = {
            // In any context.
            let _atomic = lock.lock();
            let last = taken.pop();
            let number = last.as_ref().map(|object| object.number);
            drop(last);
            let again = Pool::take(&pool);
            assert_eq!(again.as_ref().map(|object| object.number), number);
            again
        };
        drop((again, taken));
        assert_eq!((pool.exhausted(), pool.left(), pool.least()), (2, 3, 0));
        assert!(Pool::<u64>::new(0, |_| Ok(1)).is_err());
        assert_eq!(
            Pool::<u64>::new(2, |n| if n == 0 { Ok(1) } else { Err(EIO) }).err(),
            Some(EIO)
        );
        Ok(())
    }

    #[test]
    fn a_pool_lives_as_long_as_its_objects() -> Result {
        let (pool, dropped) = pool(2)?;
        let taken = Pool::take(&pool);
        assert!(taken.is_some());
        drop(pool);
        drop(Settled);
        assert_eq!(dropped.load(Relaxed), 0);
        let lock = KBox::pin_init(new_spinlock_irq!((), "extoll_test"), GFP_KERNEL)?;
        {
            // The destructors sleep, but not here.
            let _atomic = lock.lock();
            drop(taken);
        }
        drop(Settled);
        assert_eq!(dropped.load(Relaxed), 2);
        Ok(())
    }
}
