/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims for pages, pinning and DMA mapping. */
#ifndef EXTOLL_KERNEL_EXT_MEM_HELPERS_H
#define EXTOLL_KERNEL_EXT_MEM_HELPERS_H

#include <linux/dma-direction.h>
#include <linux/types.h>

struct device;
struct iov_iter;
struct mm_struct;
struct mmu_interval_notifier;
struct page;
struct sg_table;

/* Adds to or subtracts from VmPin of the process; there is no limit. */
void extoll_pinned_add(struct mm_struct *mm, unsigned long pages);
void extoll_pinned_sub(struct mm_struct *mm, unsigned long pages);
/* Pins up to 4096 pages of the current process. Returns the number of pages or an error. */
long extoll_pin_user(unsigned long start, unsigned long pages, bool write, struct page **list);
/*
 * Returns the length of the iterator's next chunk of user memory, up to max bytes, and advances the
 * iterator past it. Returns 0 at the end of the iterator, -EOPNOTSUPP for other memory.
 */
long extoll_iter_chunk(struct iov_iter *i, size_t max, unsigned long *start);
/* Returns true if a fatal signal is pending for the current task. */
bool extoll_fatal_signal(void);
/* Results of extoll_user_maps(). UNCLEAR: the caller must call again some milliseconds later. */
#define EXTOLL_MAPS_SAME 0
#define EXTOLL_MAPS_OTHER 1
#define EXTOLL_MAPS_UNCLEAR 2
/* Checks whether the address space still maps these pages. The caller keeps mm_users above 0. */
int extoll_user_maps(struct mm_struct *mm, unsigned long start, unsigned long pages,
		     struct page **list);
void extoll_invalidate_seq(struct mmu_interval_notifier *sub, unsigned long seq);
/* Acquires a reference if the page supports references and is ordinary kernel memory. */
bool extoll_page_try_get(struct page *page);
void extoll_page_put(struct page *page);
void *extoll_page_address(struct page *page);
struct page *extoll_page_of(const void *address);

/* Streaming DMA of one range. */
int extoll_dma_map(struct device *dev, void *p, size_t len, enum dma_data_direction direction,
		   u64 *addr);
void extoll_dma_unmap(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction);
void extoll_dma_to_cpu(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction);
void extoll_dma_to_device(struct device *dev, u64 addr, size_t len,
			  enum dma_data_direction direction);

/* Returns the NUMA node of a device, or -1. */
int extoll_device_node(struct device *dev);

/*
 * Range of a device's DMA addresses, to which pages are linked later. Allocation returns false
 * without an IOMMU. All sizes are whole pages. Pages may be linked and unlinked in any context,
 * which does not change this structure.
 */
struct extoll_iova {
	u64 base;
	u64 size;
};
bool extoll_iova_alloc(struct device *dev, struct extoll_iova *range, size_t size);
void extoll_iova_free(struct device *dev, const struct extoll_iova *range);
int extoll_iova_link(struct device *dev, const struct extoll_iova *range, size_t offset,
		     phys_addr_t phys, size_t size, enum dma_data_direction direction);
/*
 * Unlinks a range, all of which is linked. The device cannot access the pages any more when this
 * function returns.
 */
void extoll_iova_unlink(struct device *dev, const struct extoll_iova *range, size_t offset,
			size_t size, enum dma_data_direction direction);

/* For tests: a device that is capable of DMA, and the number of references to it. */
struct device *extoll_device_sample(void);
void extoll_device_sample_end(struct device *dev);
unsigned int extoll_device_references(struct device *dev);

/* Stores n pages, at least one, in a table with at least n entries. */
void extoll_sg_fill(struct sg_table *table, struct page **pages, unsigned int n);
/* Restores a table with room entries that was filled with n pages. */
void extoll_sg_clear(struct sg_table *table, unsigned int n, unsigned int room);

#endif
