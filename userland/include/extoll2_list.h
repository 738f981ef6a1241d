/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Doubly linked lists with a pool of items, for programs written for the public librma. All
 * functions are inline. Names and members are those of the public header. Each item begins with an
 * extoll_list_head_t.
 *
 * A list owns its items. extoll2_new_item() allocates an item, which is in no list until it is
 * appended. extoll2_free_item() returns an item that was removed from the list to the pool. Items
 * are never moved. extoll2_destruct_list() frees the memory of all items. The functions do no
 * locking.
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

/* Values of the links of a removed item. An access through these links faults. */
#define EXTOLL_LIST_POISON1 ((void *)0x00100100)
#define EXTOLL_LIST_POISON2 ((void *)0x00200200)

typedef struct extoll_list_head {
	struct extoll_list_head *next;
	struct extoll_list_head *prev;
} extoll_list_head_t;

/* Block of items that were allocated together. */
typedef struct _extoll2_pool_item {
	extoll_list_head_t list;
	void *address;
	uint32_t size;		/* bytes at address */
	uint32_t entries;	/* number of items at address */
} extoll2_pool_item_t;

/* List of items, and its pool of free items. */
typedef struct _extoll2_list_mgt {
	char name[32];
	uint32_t item_size;		/* bytes per item */
	uint32_t num_items;		/* items in the list */
	uint32_t free_increment;	/* items per block that is allocated when no item is free */
	uint32_t num_free_items;	/* items in the pool */
	uint32_t items_alloced;		/* items in all blocks */
	extoll_list_head_t pool_list;	/* blocks */
	extoll_list_head_t free_list;	/* items in the pool */
	extoll_list_head_t list;	/* items in the list */
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

/* Returns an item to the pool. The item must not be in the list. Returns 0. */
static inline int extoll2_free_item(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_link_before(&list->free_list, item);
	list->num_free_items++;
	return 0;
}

/*
 * Adds a block of num_items zeroed items to the pool. Returns 0. Returns -1 if memory is
 * short or the block would exceed 4 GiB.
 */
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

/* Frees a block. Its items must be neither in the list nor in the pool. Returns 0. */
static inline int extoll2_free_pool(extoll2_pool_item_t *pool)
{
	extoll2_unlink(&pool->list);
	free(pool->address);
	free(pool);
	return 0;
}

/* Frees a list with all its items. */
static inline void extoll2_destruct_list(extoll2_list_t *list)
{
	if (!list)
		return;
	while (list->pool_list.next != &list->pool_list)
		extoll2_free_pool((extoll2_pool_item_t *)(void *)list->pool_list.next);
	free(list);
}

/*
 * Creates an empty list for items of item_size bytes. The pool begins with initial_pool_size items
 * and grows by free_increment items when it is empty. The name is truncated to 31 characters.
 * Returns NULL without memory or if item_size is too small for the links.
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

/*
 * Removes an item from the pool and returns it. Its contents are undefined. NULL if memory is
 * short.
 */
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

/* Appends an item to the list. */
static inline void extoll2_list_append(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_link_before(&list->list, item);
	list->num_items++;
}

/* Removes an item from the list, but does not return the item to the pool. */
static inline void extoll2_list_remove(extoll2_list_t *list, extoll_list_head_t *item)
{
	extoll2_unlink(item);
	item->next = (extoll_list_head_t *)EXTOLL_LIST_POISON1;
	item->prev = (extoll_list_head_t *)EXTOLL_LIST_POISON2;
	list->num_items--;
}

/*
 * The first, last and next functions return &list->list at the end of the list. For an empty list,
 * they return it, too.
 */
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
