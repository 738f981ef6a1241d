/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Tests every function of extoll2_list.h through rma2.h, as programs for the public librma do.
 * Prints "ok".
 */
#include <rma2.h>

struct job {
	extoll_list_head_t list;
	int number;
};

#define CHECK(what)                                                             \
	do {                                                                    \
		if (!(what)) {                                                  \
			fprintf(stderr, "line %d: not %s\n", __LINE__, #what); \
			return 1;                                               \
		}                                                               \
	} while (0)

int main(void)
{
	extoll2_list_t *list = extoll2_construct_list(sizeof(struct job), 2, 3, "a name that is longer than 32 characters");
	extoll_list_head_t *item, *jobs[5];
	int i;

	CHECK(list && strlen(list->name) == 31);
	CHECK(extoll2_list_isempty(list) && extoll2_list_get_size(list) == 0);
	CHECK(extoll2_list_get_freelist_size(list) == 2 && extoll2_list_get_allocated_items(list) == 2);
	CHECK(extoll2_list_first(list) == &list->list && extoll2_list_last(list) == &list->list);
	for (i = 0; i < 5; i++) {
		jobs[i] = extoll2_new_item(list);
		CHECK(jobs[i] && jobs[i]->next == jobs[i] && jobs[i]->prev == jobs[i]);
		((struct job *)(void *)jobs[i])->number = i;
		extoll2_list_append(list, jobs[i]);
	}
	/* The first block has two items, and the next block has three. */
	CHECK(extoll2_list_get_allocated_items(list) == 5 && extoll2_list_get_freelist_size(list) == 0);
	CHECK(extoll2_list_get_size(list) == 5 && !extoll2_list_isempty(list));
	CHECK(extoll2_list_first(list) == jobs[0] && extoll2_list_last(list) == jobs[4]);
	i = 0;
	for (item = extoll2_list_first(list); item != &list->list; item = extoll2_list_get_next(list, item))
		CHECK(((struct job *)(void *)item)->number == i++);
	CHECK(i == 5);
	extoll2_list_remove(list, jobs[2]);
	CHECK((void *)jobs[2]->next == EXTOLL_LIST_POISON1 && (void *)jobs[2]->prev == EXTOLL_LIST_POISON2);
	CHECK(extoll2_list_get_next(list, jobs[1]) == jobs[3] && extoll2_list_get_size(list) == 4);
	CHECK(extoll2_free_item(list, jobs[2]) == 0 && extoll2_list_get_freelist_size(list) == 1);
	CHECK(extoll2_new_item(list) == jobs[2]);
	CHECK(extoll2_alloc_pool(list, 4) == 0 && extoll2_list_get_allocated_items(list) == 9);
	/*
	 * Blocks of more than 4 GiB, and items that are too small for their links, must be
	 * rejected.
	 */
	CHECK(extoll2_alloc_pool(list, UINT32_MAX) == -1 && extoll2_list_get_allocated_items(list) == 9);
	CHECK(!extoll2_construct_list(sizeof(extoll_list_head_t) - 1, 1, 1, NULL));
	/* A single block can be freed. */
	{
		extoll2_list_t *other = extoll2_construct_list(sizeof(struct job), 0, 0, NULL);

		CHECK(other && extoll2_new_item(other) && extoll2_list_get_allocated_items(other) == 1);
		CHECK(extoll2_free_pool((extoll2_pool_item_t *)(void *)other->pool_list.next) == 0);
		CHECK(other->pool_list.next->next == &other->pool_list);
		extoll2_destruct_list(other);
	}
	extoll2_destruct_list(list);
	extoll2_destruct_list(NULL);
	printf("ok\n");
	return 0;
}
