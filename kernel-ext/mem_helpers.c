// SPDX-License-Identifier: GPL-2.0-only
#include <linux/dma-mapping.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/scatterlist.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/uio.h>
#include "mem_helpers.h"

void extoll_pinned_add(struct mm_struct *mm, unsigned long pages)
{
	atomic64_add(pages, &mm->pinned_vm);
}

void extoll_pinned_sub(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

long extoll_pin_user(unsigned long start, unsigned long pages, bool write, struct page **list)
{
	unsigned int flags = FOLL_LONGTERM;

	if (write)
		flags |= FOLL_WRITE;
	return pin_user_pages_fast(start, min(pages, 4096UL), flags, list);
}

long extoll_iter_chunk(struct iov_iter *i, size_t max, unsigned long *start)
{
	size_t len = min3(max, i->count, (size_t)LONG_MAX);

	if (!user_backed_iter(i))
		return -EOPNOTSUPP;
	if (!len)
		return 0;
	if (iter_is_ubuf(i)) {
		*start = (unsigned long)i->ubuf + i->iov_offset;
	} else {
		/* Skips empty segments. */
		iov_iter_advance(i, 0);
		*start = (unsigned long)iter_iov_addr(i);
		len = min(len, iter_iov_len(i));
	}
	iov_iter_advance(i, len);
	return len;
}

bool extoll_fatal_signal(void)
{
	return fatal_signal_pending(current);
}

static bool is_at(struct page *page, struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = page_folio(page);

	return READ_ONCE(folio->mapping) == mapping && page_pgoff(folio, page) == index &&
	       !PageHWPoison(page);
}

/*
 * Checks whether an access to addr, which has no page table entry, would find the page. Reclaim,
 * compaction and other mechanisms remove entries of shared memory although pinned pages stay in the
 * file. The check must not raise a fault. A fault may allocate a page in a hole that was just
 * punched, or wait forever (userfaultfd). Notifiers run before a page is removed from the file, but
 * the inode's lock is held until the removal is complete.
 */
static int file_has(struct mm_struct *mm, unsigned long addr, struct page *page)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);
	struct address_space *mapping;
	bool same;

	if (!vma || !vma->vm_file || !(vma->vm_flags & VM_MAYSHARE))
		return EXTOLL_MAPS_OTHER;
	mapping = vma->vm_file->f_mapping;
	if (!shmem_mapping(mapping) && !is_vm_hugetlb_page(vma))
		return EXTOLL_MAPS_OTHER;
	if (!is_at(page, mapping, linear_page_index(vma, addr)))
		return EXTOLL_MAPS_OTHER;
	if (!inode_trylock_shared(mapping->host))
		return EXTOLL_MAPS_UNCLEAR;
	same = is_at(page, mapping, linear_page_index(vma, addr));
	inode_unlock_shared(mapping->host);
	return same ? EXTOLL_MAPS_SAME : EXTOLL_MAPS_OTHER;
}

int extoll_user_maps(struct mm_struct *mm, unsigned long start, unsigned long pages,
		     struct page **list)
{
	struct page *found[32];
	int result = EXTOLL_MAPS_SAME;

	while (pages && result == EXTOLL_MAPS_SAME) {
		long i, n = min(pages, ARRAY_SIZE(found));

		mmap_read_lock(mm);
		/* FOLL_FORCE is set, because access rights of the process are irrelevant here. */
		n = get_user_pages_remote(mm, start, n, FOLL_NOFAULT | FOLL_FORCE, found, NULL);
		if (n <= 0) {
			result = file_has(mm, start, *list);
			n = 1;
		} else {
			for (i = 0; i < n; i++) {
				if (found[i] != list[i])
					result = EXTOLL_MAPS_OTHER;
				put_page(found[i]);
			}
		}
		mmap_read_unlock(mm);
		start += n << PAGE_SHIFT;
		pages -= n;
		list += n;
		cond_resched();
	}
	return result;
}

void extoll_invalidate_seq(struct mmu_interval_notifier *sub, unsigned long seq)
{
	mmu_interval_set_seq(sub, seq);
}

bool extoll_page_try_get(struct page *page)
{
	if (PageSlab(page) || page_count(page) < 1 || is_zone_device_page(page))
		return false;
	return try_get_page(page);
}

void extoll_page_put(struct page *page)
{
	put_page(page);
}

void *extoll_page_address(struct page *page)
{
	return page_address(page);
}

struct page *extoll_page_of(const void *address)
{
	return virt_to_page(address);
}

int extoll_dma_map(struct device *dev, void *p, size_t len, enum dma_data_direction direction,
		   u64 *addr)
{
	dma_addr_t a = dma_map_single(dev, p, len, direction);

	if (dma_mapping_error(dev, a))
		return -ENOMEM;
	*addr = a;
	return 0;
}

void extoll_dma_unmap(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction)
{
	dma_unmap_single(dev, addr, len, direction);
}

void extoll_dma_to_cpu(struct device *dev, u64 addr, size_t len, enum dma_data_direction direction)
{
	dma_sync_single_for_cpu(dev, addr, len, direction);
}

void extoll_dma_to_device(struct device *dev, u64 addr, size_t len,
			  enum dma_data_direction direction)
{
	dma_sync_single_for_device(dev, addr, len, direction);
}

#if IS_ENABLED(CONFIG_KUNIT)
struct device *extoll_device_sample(void)
{
	struct device *dev = root_device_register("extoll_sample");

	if (IS_ERR(dev))
		return NULL;
	if (dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64))) {
		root_device_unregister(dev);
		return NULL;
	}
	return dev;
}

void extoll_device_sample_end(struct device *dev)
{
	root_device_unregister(dev);
}

unsigned int extoll_device_references(struct device *dev)
{
	return kref_read(&dev->kobj.kref);
}
#endif

int extoll_device_node(struct device *dev)
{
	return dev_to_node(dev);
}

bool extoll_iova_alloc(struct device *dev, struct extoll_iova *range, size_t size)
{
	struct dma_iova_state state;

	if (!dma_iova_try_alloc(dev, &state, 0, size))
		return false;
	range->base = state.addr;
	range->size = state.__size;
	return true;
}

/* The kernel's functions change this state only for sizes that are not whole pages. */
static struct dma_iova_state iova_state(const struct extoll_iova *range)
{
	return (struct dma_iova_state) {
		.addr = range->base,
		.__size = range->size,
	};
}

void extoll_iova_free(struct device *dev, const struct extoll_iova *range)
{
	struct dma_iova_state state = iova_state(range);

	dma_iova_free(dev, &state);
}

int extoll_iova_link(struct device *dev, const struct extoll_iova *range, size_t offset,
		     phys_addr_t phys, size_t size, enum dma_data_direction direction)
{
	struct dma_iova_state state = iova_state(range);
	int error = dma_iova_link(dev, &state, phys, offset, size, direction, 0);

	if (error)
		return error;
	error = dma_iova_sync(dev, &state, offset, size);
	if (error)
		dma_iova_unlink(dev, &state, offset, size, direction, 0);
	return error;
}

void extoll_iova_unlink(struct device *dev, const struct extoll_iova *range, size_t offset,
			size_t size, enum dma_data_direction direction)
{
	struct dma_iova_state state = iova_state(range);

	dma_iova_unlink(dev, &state, offset, size, direction, 0);
}

void extoll_sg_fill(struct sg_table *table, struct page **pages, unsigned int n)
{
	struct scatterlist *sg, *last = table->sgl;
	unsigned int i;

	for_each_sg(table->sgl, sg, n, i) {
		sg_set_page(sg, pages[i], PAGE_SIZE, 0);
		last = sg;
	}
	sg_mark_end(last);
	table->orig_nents = n;
	table->nents = n;
}

void extoll_sg_clear(struct sg_table *table, unsigned int n, unsigned int room)
{
	struct scatterlist *sg, *last = table->sgl;
	unsigned int i;

	for_each_sg(table->sgl, sg, n, i)
		last = sg;
	/*
	 * sg_free_table() walks to the table's original end, so the mark behind entry n is removed.
	 */
	if (n < room)
		sg_unmark_end(last);
	table->orig_nents = room;
	table->nents = room;
}
