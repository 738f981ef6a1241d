// SPDX-License-Identifier: GPL-2.0-only
/* Memory for messages, and its contents. See stand.h. */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include "stand.h"

/* Value of bytes that were never written. */
#define BLANK 0xA5
/* Number of guard bytes before and after memory from the heap. */
#define MARGIN 64

static LIST_HEAD(all_mds);
static struct list_head portals[PORTALS] = {
	LIST_HEAD_INIT(portals[0]), LIST_HEAD_INIT(portals[1]), LIST_HEAD_INIT(portals[2]), LIST_HEAD_INIT(portals[3]),
};
static u64 next_cookie;
static atomic_long_t pages_used, heap_used, mds_used;

/* Cache of unused unchecked memory, protected by stand_lock. */
static LIST_HEAD(again);
static unsigned int nagain;
#define AGAIN 256

u64 stand_mix(u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static u8 pattern(u64 seed, u32 at)
{
	return stand_mix(seed + (at >> 3)) >> (8 * (at & 7));
}

static struct stand_mem *take_again(u32 size)
{
	struct stand_mem *mem, *found = NULL;

	spin_lock(&stand_lock);
	list_for_each_entry(mem, &again, again)
		if (mem->len == size) {
			list_del(&mem->again);
			nagain--;
			found = mem;
			break;
		}
	spin_unlock(&stand_lock);
	return found;
}

static bool keep(struct stand_mem *mem)
{
	bool kept;

	spin_lock(&stand_lock);
	kept = nagain < AGAIN;
	if (kept) {
		list_add(&mem->again, &again);
		nagain++;
	}
	spin_unlock(&stand_lock);
	return kept;
}

void stand_mem_free(struct stand_mem *mem)
{
	unsigned int i;

	if (!mem || (mem->unchecked && keep(mem)))
		return;
	for (i = 0; mem->pages && i < mem->npages; i++)
		if (mem->pages[i]) {
			__free_page(mem->pages[i]);
			atomic_long_dec(&pages_used);
		}
	if (mem->heap) {
		kfree(mem->heap);
		atomic_long_sub(mem->heap_len, &heap_used);
	}
	kvfree(mem->pages);
	kvfree(mem->vecs);
	kfree(mem);
}

/* Adds a fragment in a separate page. */
static bool add_page(struct stand_mem *mem, u32 offset, u32 len)
{
	struct page *page = alloc_page(GFP_KERNEL);

	if (!page)
		return false;
	atomic_long_inc(&pages_used);
	mem->pages[mem->npages++] = page;
	bvec_set_page(&mem->vecs[mem->niov++], page, len, offset);
	return true;
}

/* Adds fragments of heap memory, each within a page. */
static bool add_heap(struct stand_mem *mem, u32 offset)
{
	u8 *at;
	u32 left = mem->len;

	mem->heap_len = mem->len + offset % PAGE_SIZE + 2 * MARGIN;
	mem->heap = kmalloc(mem->heap_len, GFP_KERNEL);
	if (!mem->heap)
		return false;
	atomic_long_add(mem->heap_len, &heap_used);
	at = mem->heap + MARGIN + offset % PAGE_SIZE;
	while (left) {
		u32 n = min_t(u32, left, PAGE_SIZE - offset_in_page(at));

		bvec_set_page(&mem->vecs[mem->niov++], virt_to_page(at), n, offset_in_page(at));
		at += n;
		left -= n;
	}
	return true;
}

/*
 * Allocates memory with the given number of fragments and gaps between them, filled with BLANK.
 * Returns NULL without memory or if the number is impossible.
 */
struct stand_mem *stand_mem_new(const struct stand_shape *shape, u64 seed)
{
	struct stand_mem *mem = shape->unchecked ? take_again(shape->size) : NULL;
	u32 max = shape->frags ? shape->frags : DIV_ROUND_UP(shape->size, PAGE_SIZE) + 1;
	u32 left = shape->size, offset = shape->offset % PAGE_SIZE, i, n;

	if (mem)
		return mem;
	mem = kzalloc(sizeof(*mem), GFP_KERNEL);
	if (!mem)
		return NULL;
	mem->len = shape->size;
	mem->vecs = kvcalloc(max + 1, sizeof(*mem->vecs), GFP_KERNEL);
	mem->pages = kvcalloc(max + 1, sizeof(*mem->pages), GFP_KERNEL);
	if (!mem->vecs || !mem->pages)
		goto fail;
	if (shape->heap) {
		if (!add_heap(mem, offset))
			goto fail;
	} else if (shape->frags) {
		/*
		 * Each fragment has at least one byte and enough bytes that the other fragments can
		 * hold the remainder.
		 */
		u32 frags = min(shape->frags, shape->size);

		for (i = 0; i < frags; i++) {
			u32 others = frags - i - 1, low, high;

			low = left > others * PAGE_SIZE ? left - others * PAGE_SIZE : 1;
			high = min_t(u32, left - others, PAGE_SIZE);
			if (low > high)
				goto fail;
			seed = stand_mix(seed);
			n = others ? low + seed % (high - low + 1) : left;
			if (n > PAGE_SIZE)
				goto fail;
			seed = stand_mix(seed);
			if (!add_page(mem, seed % (PAGE_SIZE - n + 1), n))
				goto fail;
			left -= n;
		}
	} else {
		while (left) {
			n = min_t(u32, left, PAGE_SIZE - offset);
			if (!add_page(mem, offset, n))
				goto fail;
			left -= n;
			offset = 0;
		}
	}
	mem->unchecked = shape->unchecked;
	if (!mem->unchecked)
		stand_mem_blank(mem);
	return mem;
fail:
	stand_mem_free(mem);
	return NULL;
}

void stand_mem_blank(struct stand_mem *mem)
{
	unsigned int i;

	if (mem->heap)
		memset(mem->heap, BLANK, mem->heap_len);
	for (i = 0; i < mem->npages; i++)
		memset(page_address(mem->pages[i]), BLANK, PAGE_SIZE);
}

static u8 *piece(struct stand_mem *mem, unsigned int i)
{
	return page_address(mem->vecs[i].bv_page) + mem->vecs[i].bv_offset;
}

void stand_mem_blank_first(struct stand_mem *mem, u32 len)
{
	unsigned int i;
	u32 n;

	for (i = 0; i < mem->niov && len; i++, len -= n) {
		n = min(len, mem->vecs[i].bv_len);
		memset(piece(mem, i), BLANK, n);
	}
}

void stand_mem_forget(void)
{
	struct stand_mem *mem, *next;
	LIST_HEAD(old);

	spin_lock(&stand_lock);
	list_splice_init(&again, &old);
	nagain = 0;
	spin_unlock(&stand_lock);
	list_for_each_entry_safe(mem, next, &old, again) {
		mem->unchecked = false;
		stand_mem_free(mem);
	}
}

static void fill(u8 *to, u64 seed, u32 at, u32 len)
{
	/* Handles whole words where possible. */
	while (len && at & 7) {
		*to++ = pattern(seed, at++);
		len--;
	}
	for (; len >= 8; len -= 8, at += 8, to += 8)
		put_unaligned_le64(stand_mix(seed + (at >> 3)), to);
	while (len--)
		*to++ = pattern(seed, at++);
}

static u64 wrong(const u8 *p, u64 seed, u32 at, u32 len)
{
	u64 n = 0;

	while (len && at & 7) {
		n += *p++ != pattern(seed, at++);
		len--;
	}
	for (; len >= 8; len -= 8, at += 8, p += 8)
		if (get_unaligned_le64(p) != stand_mix(seed + (at >> 3)))
			n += 8;
	while (len--)
		n += *p++ != pattern(seed, at++);
	return n;
}

static u64 not_blank(const u8 *p, size_t len)
{
	const u8 *bad = len ? memchr_inv(p, BLANK, len) : NULL;

	return bad ? p + len - bad : 0;
}

void stand_mem_fill(struct stand_mem *mem, u64 seed)
{
	unsigned int i;
	u32 at = 0;

	for (i = 0; i < mem->niov; at += mem->vecs[i++].bv_len)
		fill(piece(mem, i), seed, at, mem->vecs[i].bv_len);
}

static void copy(struct stand_mem *mem, u32 at, void *buf, u32 len, bool in)
{
	unsigned int i;

	for (i = 0; i < mem->niov && len; i++) {
		u32 has = mem->vecs[i].bv_len, n;

		if (at >= has) {
			at -= has;
			continue;
		}
		n = min(len, has - at);
		if (in)
			memcpy(piece(mem, i) + at, buf, n);
		else
			memcpy(buf, piece(mem, i) + at, n);
		buf += n;
		len -= n;
		at = 0;
	}
}

/* Overwrites up to 64 bytes at the start with the pattern of another seed. */
void stand_mem_part(struct stand_mem *mem, u64 seed, u32 len)
{
	u8 bytes[64];

	fill(bytes, seed, 0, min_t(u32, len, sizeof(bytes)));
	copy(mem, 0, bytes, min_t(u32, len, sizeof(bytes)), true);
}

u64 stand_mem_wrong(struct stand_mem *mem, u64 seed, u32 from, u32 len)
{
	u32 at = 0, i;
	u64 n = 0;

	for (i = 0; i < mem->niov; at += mem->vecs[i++].bv_len) {
		u32 has = mem->vecs[i].bv_len, good = at < len ? min(has, len - at) : 0;
		const u8 *p = piece(mem, i);

		n += wrong(p, seed, from + at, good);
		n += not_blank(p + good, has - good);
		/* No other fragment uses the page. */
		if (!mem->heap) {
			n += not_blank(p - mem->vecs[i].bv_offset, mem->vecs[i].bv_offset);
			n += not_blank(p + has, PAGE_SIZE - mem->vecs[i].bv_offset - has);
		}
	}
	if (mem->heap && mem->niov) {
		const u8 *p = piece(mem, 0), *heap = mem->heap;

		n += not_blank(heap, p - heap);
		n += not_blank(p + mem->len, heap + mem->heap_len - p - mem->len);
	}
	return n;
}

void stand_mem_read(struct stand_mem *mem, u32 at, void *to, u32 len)
{
	copy(mem, at, to, len, false);
}

void stand_mem_write(struct stand_mem *mem, u32 at, const void *from, u32 len)
{
	copy(mem, at, (void *)from, len, true);
}

/*
 * Creates a memory descriptor, which owns the memory. Returns NULL and frees the memory if there is
 * no memory.
 */
struct lnet_libmd *stand_md_new(struct stand_mem *mem)
{
	struct lnet_libmd *md = mem ? kzalloc(sizeof(*md), GFP_KERNEL) : NULL;

	if (!md) {
		stand_mem_free(mem);
		return NULL;
	}
	md->mem = mem;
	md->portal = -1;
	md->threshold = 1;
	md->put = md->truncate = true;
	init_waitqueue_head(&md->wait);
	INIT_LIST_HEAD(&md->list);
	spin_lock(&stand_lock);
	md->cookie = ++next_cookie | 0x57a0000000000000ULL;
	list_add_tail(&md->all, &all_mds);
	md->linked = true;
	spin_unlock(&stand_lock);
	atomic_long_inc(&mds_used);
	return md;
}

void stand_md_attach(struct lnet_libmd *md, int portal, u64 match)
{
	spin_lock(&stand_lock);
	md->portal = portal;
	md->match = match;
	list_add_tail(&md->list, &portals[portal]);
	spin_unlock(&stand_lock);
	if (portal == PORTAL_ASK)
		stand_attached(portal);
}

/*
 * Returns the first matching descriptor with an additional reference, and in *mlen the number of
 * bytes it accepts. The caller holds stand_lock.
 */
struct lnet_libmd *stand_md_match(int portal, u64 match, bool put, u32 rlen, u32 *mlen)
{
	struct lnet_libmd *md;

	if (portal < 0 || portal >= PORTALS)
		return NULL;
	list_for_each_entry(md, &portals[portal], list) {
		if ((md->match ^ match) & ~md->ignore || (put ? !md->put : !md->get))
			continue;
		if (put && rlen > md->mem->len && !md->truncate)
			continue;
		*mlen = min(rlen, md->mem->len);
		md->refs++;
		if (md->threshold > 0 && !--md->threshold)
			list_del_init(&md->list);
		return md;
	}
	return NULL;
}

/* The caller holds stand_lock. */
struct lnet_libmd *stand_md_by_cookie(u64 cookie)
{
	struct lnet_libmd *md;

	list_for_each_entry(md, &all_mds, all)
		if (md->cookie == cookie)
			return md->linked ? md : NULL;
	return NULL;
}

void stand_md_tell(struct lnet_libmd *md, enum stand_event event, int status, u32 len)
{
	spin_lock(&stand_lock);
	md->status[event] = status;
	md->len[event] = len;
	md->got[event]++;
	wake_up(&md->wait);
	spin_unlock(&stand_lock);
	if (md->event)
		md->event(md, event);
}

void stand_md_unlink(struct lnet_libmd *md)
{
	spin_lock(&stand_lock);
	list_del_init(&md->list);
	md->linked = false;
	spin_unlock(&stand_lock);
}

static bool is_free(struct lnet_libmd *md)
{
	bool is;

	spin_lock(&stand_lock);
	is = !md->refs;
	spin_unlock(&stand_lock);
	return is;
}

void stand_md_free(struct lnet_libmd *md)
{
	if (!md)
		return;
	stand_md_unlink(md);
	/*
	 * The driver must end its messages within its time-out. The periodic check of messages
	 * reports violations.
	 */
	wait_event_idle(md->wait, is_free(md));
	spin_lock(&stand_lock);
	list_del(&md->all);
	spin_unlock(&stand_lock);
	atomic_long_dec(&mds_used);
	stand_mem_free(md->mem);
	kfree(md);
}

bool stand_md_wait(struct lnet_libmd *md, enum stand_event event, unsigned long timeout)
{
	return wait_event_idle_timeout(md->wait, READ_ONCE(md->got[event]), timeout);
}

int stand_memory_left(struct seq_buf *out)
{
	long mds = atomic_long_read(&mds_used), pages = atomic_long_read(&pages_used), heap = atomic_long_read(&heap_used);

	/* Counting the messages may find messages that were written after their end. */
	int messages = stand_msg_count();

	if (out)
		seq_buf_printf(out, "mds %ld\npages %ld\nheap %ld\nmessages %d\ndefects %d\n", mds, pages, heap, messages,
			       atomic_read(&stand_defects));
	return mds || pages || heap;
}

void stand_memory_exit(void)
{
	stand_mem_forget();
	if (stand_memory_left(NULL))
		defect("memory is still in use at the end");
}
