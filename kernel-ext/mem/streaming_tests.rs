// SPDX-License-Identifier: GPL-2.0-only

//! Tests of streaming mappings.

use kernel::prelude::*;

#[kunit_tests(kernel_ext_streaming)]
mod tests {
    use crate::{
        bindings,
        mem::{
            BioVecs, BoundDevice, Bytes, Contiguous, FragmentList, PageList, StreamingPages,
            StreamingRange, PAGE,
        },
        net::{Config, NetDev, RxMapping, SkBuff, TxMapping},
    };
    use core::ptr::NonNull;
    use kernel::{
        device::{Bound, Device},
        dma::DataDirection,
        page::Page,
        prelude::*,
        sync::{
            atomic::{AtomicFlag, Relaxed},
            Arc,
        },
    };

    /// Device without a driver, which suffices for these tests.
    struct Sample(NonNull<bindings::device>);

    impl Sample {
        fn new() -> Result<Self> {
            // SAFETY: the function has no preconditions.
            let raw = unsafe { bindings::extoll_device_sample() };
            NonNull::new(raw).map(Self).ok_or(ENOMEM)
        }

        fn device(&self) -> &Device<Bound> {
            // SAFETY: the device lives as long as `self`.
            let device: &Device = unsafe { Device::from_raw(self.0.as_ptr()) };
            // SAFETY: the device is not unbound while it is in use, so it may be treated as bound.
            unsafe { device.as_bound() }
        }

        /// Starts a new binding.
        fn bind(&self) -> BoundDevice {
            // SAFETY: the device lives as long as `self`; the tests drop the result before the
            // device.
            unsafe { BoundDevice::new(self.device()) }
        }

        fn references(&self) -> u32 {
            // SAFETY: the device lives as long as `self`.
            unsafe { bindings::extoll_device_references(self.0.as_ptr()) }
        }
    }

    impl Drop for Sample {
        fn drop(&mut self) {
            // SAFETY: `new` made the device.
            unsafe { bindings::extoll_device_sample_end(self.0.as_ptr()) }
        }
    }

    fn bytes(len: usize) -> Result<Bytes> {
        Bytes::new(KVec::from_elem(7u8, len, GFP_KERNEL)?)
    }

    #[test]
    fn a_range_is_given_back_in_the_binding_that_it_was_mapped_in() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let direction = DataDirection::Bidirectional;
        let map = StreamingRange::map(&dev, bytes(100)?, direction).map_err(|(_, e)| e)?;
        assert!(map.addr() != 0);
        assert_eq!(map.bytes(), 100);
        // The device is the same, but the binding is different.
        let Err(map) = map.unmap(&sample.bind()) else {
            return Err(EEXIST);
        };
        // SAFETY: `same` is dropped before the device.
        let same = unsafe { dev.share() };
        drop(dev);
        let Ok(bytes) = map.unmap(&same) else {
            return Err(ENODEV);
        };
        assert_eq!(bytes.into_inner().len(), 100);
        Ok(())
    }

    #[test]
    fn nonsense_is_not_mapped() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let result = StreamingRange::map(&dev, bytes(1)?, DataDirection::None);
        assert_eq!(result.err().map(|(_, e)| e), Some(EINVAL));
        // Devices must not write to frames that are sent.
        let result = StreamingRange::map(&dev, frame(64)?, DataDirection::FromDevice);
        assert_eq!(result.err().map(|(_, e)| e), Some(EINVAL));
        assert!(Bytes::new(KVec::new()).is_err());
        Ok(())
    }

    static DROPPED: AtomicFlag = AtomicFlag::new(false);

    /// Memory that the test frees.
    struct Borrowed(NonNull<u8>);

    // SAFETY: a page that the test keeps allocated, and does not access while it is mapped.
    unsafe impl Contiguous for Borrowed {
        const WRITABLE: bool = true;

        fn range(&mut self) -> (NonNull<u8>, usize) {
            (self.0, PAGE)
        }
    }

    impl Drop for Borrowed {
        fn drop(&mut self) {
            DROPPED.store(true, Relaxed);
        }
    }

    #[test]
    fn what_is_merely_dropped_stays() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
        // SAFETY: the page is valid.
        let address = unsafe { bindings::extoll_page_address(page.as_ptr()) };
        let owner = || Ok::<_, Error>(Borrowed(NonNull::new(address.cast()).ok_or(EINVAL)?));
        DROPPED.store(false, Relaxed);
        let map = StreamingRange::map(&dev, owner()?, DataDirection::FromDevice);
        drop(map.map_err(|(_, e)| e)?);
        assert!(!DROPPED.load(Relaxed));
        let map = StreamingRange::map(&dev, owner()?, DataDirection::FromDevice);
        drop(map.map_err(|(_, e)| e)?.unmap(&dev));
        assert!(DROPPED.load(Relaxed));
        Ok(())
    }

    #[test]
    fn pages_are_mapped_as_they_may_be_used() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let mut pages = KVVec::new();
        for _ in 0..3 {
            pages.push(Page::alloc_page(GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let list = Arc::new(PageList::from_pages(pages)?, GFP_KERNEL)?;
        let map = StreamingPages::map(&dev, list, true)?;
        assert_eq!(map.segments().map(|(_, pages)| pages).sum::<u64>(), 3);
        assert_eq!(map.bytes(), 3 * PAGE);
        assert!(map.unmap(&dev).is_ok());
        // A list that is not writable is only mapped for reading.
        let page = Page::alloc_page(GFP_KERNEL)?;
        let vec = bindings::bio_vec {
            bv_page: page.as_ptr(),
            bv_offset: 0,
            bv_len: 64,
        };
        // SAFETY: the page belongs to the test, and other threads do not access it.
        let list = FragmentList::share_bvecs(unsafe { BioVecs::from_raw(&vec, 1, false) })?;
        let list = list.pages().clone();
        assert_eq!(
            StreamingPages::map(&dev, list.clone(), true).err(),
            Some(EACCES)
        );
        assert!(StreamingPages::map(&dev, list, false)?.unmap(&dev).is_ok());
        Ok(())
    }

    fn frame(len: usize) -> Result<SkBuff> {
        // SAFETY: the function has no preconditions.
        let skb = unsafe { bindings::extoll_skb_sample(len) };
        if skb.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: `skb` is a new frame.
        Ok(unsafe { SkBuff::from_raw(skb) })
    }

    #[test]
    fn a_frame_has_one_owner() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let map = TxMapping::map(&dev, frame(200)?).map_err(|(_, e)| e)?;
        assert_eq!(map.len(), 200);
        let Ok(unmapped) = map.unmap(&dev) else {
            return Err(ENODEV);
        };
        let skb = unmapped.into_frame().map_err(|_| EEXIST)?;
        let mut map = TxMapping::map(&dev, skb).map_err(|(_, e)| e)?;
        let owner = map.owner();
        assert!(owner.is_some());
        assert!(map.owner().is_none());
        map.orphan();
        let Ok(unmapped) = map.unmap(&dev) else {
            return Err(ENODEV);
        };
        // Fails while another reference exists.
        let Err(unmapped) = unmapped.into_frame() else {
            return Err(EEXIST);
        };
        unmapped.consume();
        drop(owner);
        Ok(())
    }

    #[test]
    fn a_net_device_keeps_its_parent() -> Result {
        let sample = Sample::new()?;
        let dev = sample.bind();
        let before = sample.references();
        let config = Config {
            name: c"extoll_test%d",
            min_mtu: 100,
            max_mtu: 1000,
            mtu: 1000,
            tx_queue_len: 1,
            watchdog_ms: 1000,
            tx_csum: false,
            rx_csum: true,
            multicast: false,
        };
        let ndev = NetDev::alloc(&config, sample.device())?;
        assert_eq!(sample.references(), before + 1);
        let map = RxMapping::new(&dev, &ndev, 500)?;
        let Ok(skb) = map.complete(&dev) else {
            return Err(ENODEV);
        };
        assert_eq!(skb.len(), 500);
        drop(skb);
        let offsets = [0, 92, 93, u32::MAX].into_iter();
        let map = RxMapping::with_tags(&dev, &ndev, 100, offsets, *b"the mark")?;
        let Ok(skb) = map.complete(&dev) else {
            return Err(ENODEV);
        };
        assert!(skb.data().starts_with(b"the mark"));
        assert!(skb.data().ends_with(b"the mark"));
        drop(skb);
        assert_eq!(RxMapping::new(&dev, &ndev, 0).err(), Some(EINVAL));
        drop(ndev);
        assert_eq!(sample.references(), before);
        Ok(())
    }
}
