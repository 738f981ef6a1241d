/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * A registered memory region as librma and the driver exchange it. The list links, refcount, endpoint and parent are the
 * library's own. The includer defines extoll_list_head_t (two pointers) before, as librma's rma2.h does.
 */
#ifndef EXTOLL_RMA2_REGION_H
#define EXTOLL_RMA2_REGION_H

#include <stddef.h>
#include <stdint.h>

typedef struct _region {
	extoll_list_head_t list;
	void *start;		/* page-aligned virtual address of the first page */
	unsigned long nla;	/* NLA of the first page: out when registering, in when unregistering */
	uint32_t count;		/* pages of 4 KiB */
	uint32_t offset;	/* of the caller's address in the first page */
	void *end;		/* start + size */
	size_t size;		/* count * 4096 */
	uint64_t refcount;
	void *endpoint;
	struct _region *parent;
} RMA2_Region;

#endif
