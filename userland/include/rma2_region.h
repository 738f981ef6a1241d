/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Registered memory region, which librma and the driver exchange. The driver ignores list,
 * refcount, endpoint and parent, which belong to the library. The program must define
 * extoll_list_head_t (two pointers) before it includes this file; rma2.h does that.
 */
#ifndef EXTOLL_RMA2_REGION_H
#define EXTOLL_RMA2_REGION_H

#include <stddef.h>
#include <stdint.h>

typedef struct _region {
	extoll_list_head_t list;
	void *start;		/* page-aligned virtual address of the first page */
	unsigned long nla;	/* NLA of the first page: output when registering, else input */
	uint32_t count;		/* number of pages of 4 KiB */
	uint32_t offset;	/* offset of the caller's address in the first page */
	void *end;		/* start + size */
	size_t size;		/* count * 4096 */
	uint64_t refcount;
	void *endpoint;
	struct _region *parent;
} RMA2_Region;

#endif
