// SPDX-License-Identifier: GPL-2.0-only
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/signal.h>
#include "mem_helpers.h"

int extoll_pinned_add(struct mm_struct *mm, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long now = atomic64_add_return(pages, &mm->pinned_vm);

	if (now > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &mm->pinned_vm);
		return -ENOMEM;
	}
	return 0;
}

void extoll_pinned_sub(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

long extoll_pin_user(unsigned long start, unsigned long pages, bool write, struct page **list)
{
	int n = min(pages, 4096UL);

	return pin_user_pages_fast(start, n, FOLL_LONGTERM | (write ? FOLL_WRITE : 0), list);
}

bool extoll_fatal_signal(void)
{
	return fatal_signal_pending(current);
}

bool extoll_user_maps(struct mm_struct *mm, unsigned long start, unsigned long pages, struct page **list)
{
	struct page *found[32];
	bool same = true;

	while (pages && same) {
		long i, n = min(pages, ARRAY_SIZE(found));

		mmap_read_lock(mm);
		n = get_user_pages_remote(mm, start, n, FOLL_NOFAULT, found, NULL);
		mmap_read_unlock(mm);
		if (n <= 0)
			return false;
		for (i = 0; i < n; i++) {
			same &= found[i] == list[i];
			put_page(found[i]);
		}
		start += n << PAGE_SHIFT;
		pages -= n;
		list += n;
		cond_resched();
	}
	return same;
}

void extoll_invalidate_seq(struct mmu_interval_notifier *sub, unsigned long seq)
{
	mmu_interval_set_seq(sub, seq);
}

void extoll_page_get(struct page *page)
{
	get_page(page);
}

void extoll_page_put(struct page *page)
{
	put_page(page);
}

void *extoll_page_address(struct page *page)
{
	return page_address(page);
}
