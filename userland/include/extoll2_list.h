/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Lists with a pool of their items, as programs for the public librma use them. Everything is in this header: names and
 * members are those of the public one, which says no more about them than that each item begins with an extoll_list_head_t.
 *
 * A list owns its items: extoll2_new_item hands one out, which belongs to no chain until it is appended, and
 * extoll2_free_item takes one back that was removed before. Memory is never moved, and is given back by
 * extoll2_destruct_list, with all items. Not for several threads at once.
 */
#ifndef EXTOLL2_LIST
#define EXTOLL2_LIST

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#endif
#ifndef unlikely
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* What a removed item links to, so that following it faults. */
#define EXTOLL_LIST_POISON1 ((void *)0x00100100)
#define EXTOLL_LIST_POISON2 ((void *)0x00200200)

typedef struct extoll_list_head {
	struct extoll_list_head *next;
	struct extoll_list_head *prev;
} extoll_list_head_t;

/* A block of items. */
typedef struct _extoll2_pool_item {
	extoll_list_head_t list;
	void *address;
	uint32_t size;		/* bytes at address */
	uint32_t entries;	/* items there */
} extoll2_pool_item_t;

typedef struct _extoll2_list_mgt {
	char name[32];
	uint32_t item_size;		/* bytes */
	uint32_t num_items;		/* in the list */
	uint32_t free_increment;	/* items per block when none is free */
	uint32_t num_free_items;
	uint32_t items_alloced;		/* in all blocks */
	extoll_list_head_t pool_list;
	extoll_list_head_t free_list;
	extoll_list_head_t list;
} extoll2_list_t;

static inline void extoll2_link_before(extoll_list_head_t *where, extoll_list_head_t *item)
{
	item->next = where;
	item->prev = where->prev;
	where->prev->next = item;
	where->prev = item;
}

static inline void extoll2_unlink(extoll_list_head_t *item)
{
	item->prev->next = item->next;
	item->next->prev = item->prev;
}

/* Takes an item back, which is in no list any more. 0. */
static inline int extoll2_free_item(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_link_before(&list->free_list, item);
	list->num_free_items++;
	return 0;
}

/* Makes room for more items, zeroed. 0, or -1: no memory, or more than 4 GiB. */
static inline int extoll2_alloc_pool(extoll2_list_t *list, uint32_t num_items)
{
	uint64_t bytes = (uint64_t)num_items * list->item_size;
	extoll2_pool_item_t *pool;
	char *item;
	uint32_t i;

	if (list->item_size < sizeof(extoll_list_head_t) || bytes > UINT32_MAX)
		return -1;
	pool = (extoll2_pool_item_t *)malloc(sizeof(*pool));
	if (!pool)
		return -1;
	pool->address = calloc(num_items ? num_items : 1, list->item_size);
	if (!pool->address) {
		free(pool);
		return -1;
	}
	pool->size = (uint32_t)bytes;
	pool->entries = num_items;
	extoll2_link_before(&list->pool_list, &pool->list);
	item = (char *)pool->address;
	for (i = 0; i < num_items; i++, item += list->item_size)
		extoll2_free_item(list, (extoll_list_head_t *)(void *)item);
	list->items_alloced += num_items;
	return 0;
}

/* Gives a block back, of which no item may be in use, free ones included. 0. */
static inline int extoll2_free_pool(extoll2_pool_item_t *pool)
{
	extoll2_unlink(&pool->list);
	free(pool->address);
	free(pool);
	return 0;
}

/* Ends a list: all its items are gone. */
static inline void extoll2_destruct_list(extoll2_list_t *list)
{
	if (!list)
		return;
	while (list->pool_list.next != &list->pool_list)
		extoll2_free_pool((extoll2_pool_item_t *)(void *)list->pool_list.next);
	free(list);
}

/*
 * An empty list of items of item_size bytes, with room for initial_pool_size of them and free_increment more whenever that is used
 * up. The name is cut to 31 characters. NULL: no memory, or items too small for their links.
 */
static inline extoll2_list_t *extoll2_construct_list(uint32_t item_size, uint32_t initial_pool_size, uint32_t free_increment,
						     const char *name)
{
	extoll2_list_t *list = (extoll2_list_t *)calloc(1, sizeof(*list));
	size_t length = name ? strlen(name) : 0;

	if (!list)
		return NULL;
	if (length)
		memcpy(list->name, name, length < sizeof(list->name) ? length : sizeof(list->name) - 1);
	list->item_size = item_size;
	list->free_increment = free_increment;
	list->pool_list.next = list->pool_list.prev = &list->pool_list;
	list->free_list.next = list->free_list.prev = &list->free_list;
	list->list.next = list->list.prev = &list->list;
	if (extoll2_alloc_pool(list, initial_pool_size)) {
		free(list);
		return NULL;
	}
	return list;
}

/* An item that is in no list, with whatever its last user left in it. NULL: no memory. */
static inline extoll_list_head_t *extoll2_new_item(extoll2_list_t *list)
{
	extoll_list_head_t *item;

	if (unlikely(list->free_list.next == &list->free_list) &&
	    extoll2_alloc_pool(list, list->free_increment ? list->free_increment : 1))
		return NULL;
	item = list->free_list.next;
	extoll2_unlink(item);
	item->next = item->prev = item;
	list->num_free_items--;
	return item;
}

/* To the end of the list. */
static inline void extoll2_list_append(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_link_before(&list->list, item);
	list->num_items++;
}

/* Out of the list; the item is still the caller's. */
static inline void extoll2_list_remove(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_unlink(item);
	item->next = (extoll_list_head_t *)EXTOLL_LIST_POISON1;
	item->prev = (extoll_list_head_t *)EXTOLL_LIST_POISON2;
	list->num_items--;
}

/* In a list that is empty, and behind its last item, first, last and next are &list->list. */
static inline extoll_list_head_t *extoll2_list_first(extoll2_list_t *list)
{
	return list->list.next;
}

static inline extoll_list_head_t *extoll2_list_last(extoll2_list_t *list)
{
	return list->list.prev;
}

static inline extoll_list_head_t *extoll2_list_get_next(extoll2_list_t *list, extoll_list_head_t *item)
{
	(void)list;
	return item->next;
}

static inline int extoll2_list_isempty(extoll2_list_t *list)
{
	return list->num_items == 0;
}

static inline uint32_t extoll2_list_get_size(extoll2_list_t *list)
{
	return list->num_items;
}

static inline uint32_t extoll2_list_get_freelist_size(extoll2_list_t *list)
{
	return list->num_free_items;
}

static inline uint32_t extoll2_list_get_allocated_items(extoll2_list_t *list)
{
	return list->items_alloced;
}

#ifdef __cplusplus
}
#endif

#endif
