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

/* Shown as VmPin; no limit applies. */
void extoll_pinned_add(struct mm_struct *mm, unsigned long pages);
void extoll_pinned_sub(struct mm_struct *mm, unsigned long pages);
/* Pins pages of the current process, at most 4096: their number or an error. */
long extoll_pin_user(unsigned long start, unsigned long pages, bool write, bool longterm,
		     bool nofault, struct page **list);
/*
 * The next piece of user memory of an iterator, at most so long, which it is advanced past: its
 * length, 0 at the end, -EOPNOTSUPP for other memory.
 */
long extoll_iter_piece(struct iov_iter *i, size_t most, unsigned long *start);
/* Whether the current task has been killed. */
bool extoll_fatal_signal(void);
/* What extoll_user_maps() finds; unclear: it will be clear some time later. */
#define EXTOLL_MAPS_SAME 0
#define EXTOLL_MAPS_OTHER 1
#define EXTOLL_MAPS_UNCLEAR 2
/* Whether the address space still maps these very pages; its users must not go away meanwhile. */
int extoll_user_maps(struct mm_struct *mm, unsigned long start, unsigned long pages,
		     struct page **list);
void extoll_invalidate_seq(struct mmu_interval_notifier *sub, unsigned long seq);
/* Takes a reference, if the page can have one and is memory of the kernel's own. */
bool extoll_page_try_get(struct page *page);
void extoll_page_put(struct page *page);
void *extoll_page_address(struct page *page);
struct page *extoll_page_of(const void *address);

/* Streaming DMA of one range. */
int extoll_dma_map(struct device *dev, void *p, size_t len, enum dma_data_direction direction,
		   u64 *addr);
void extoll_dma_unmap(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction);
void extoll_dma_to_cpu(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction);
void extoll_dma_to_device(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction);

/* NUMA node of a device, or -1. */
int extoll_device_node(struct device *dev);

/*
 * Addresses of a device that lead nowhere until pages are linked to them; there are none without an IOMMU (false). Everything is whole pages.
 * Link and unlink: any context; they do not touch the state.
 */
struct extoll_iova {
	u64 base;
	u64 size;
};
bool extoll_iova_alloc(struct device *dev, struct extoll_iova *range, size_t size);
void extoll_iova_free(struct device *dev, const struct extoll_iova *range);
int extoll_iova_link(struct device *dev, const struct extoll_iova *range, size_t offset, phys_addr_t phys, size_t size,
		     enum dma_data_direction direction);
/* Nothing reaches them any more when this returns. All of it is linked. */
void extoll_iova_unlink(struct device *dev, const struct extoll_iova *range, size_t offset, size_t size,
			enum dma_data_direction direction);

/* For tests: a device that does DMA, and how many references to it there are. */
struct device *extoll_device_sample(void);
void extoll_device_sample_end(struct device *dev);
unsigned int extoll_device_references(struct device *dev);

/* Puts n pages, at least one, into a table with room for as many or more. */
void extoll_sg_fill(struct sg_table *table, struct page **pages, unsigned int n);
/* Makes a table that was filled with n pages one with room for as many as it was made for again. */
void extoll_sg_clear(struct sg_table *table, unsigned int n, unsigned int room);

#endif
