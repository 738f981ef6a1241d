/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Test program that uses the public libraries librma2 and librma2rc as existing programs do. It
 * registers the same memory twice with the cached functions, and ends one registration. Prints "ok"
 * or "no device".
 */
#include <rma2.h>
#include <stdlib.h>

#define SIZE 65536

int main(void)
{
	RMA2_Region *first, *second;
	RMA2_NLA one, two;
	RMA2_Port port;
	RMA2_ERROR rc = rma2_open(&port);
	char *memory = aligned_alloc(4096, SIZE);

	if (rc == RMA2_ERR_NO_DEVICE) {
		printf("no device\n");
		free(memory);
		return 0;
	}
	if (rc != RMA2_SUCCESS || !memory) {
		rma2_perror(rc, "open");
		return 1;
	}
	memset(memory, 1, SIZE);
	if (rma2_register_cached(port, memory, SIZE, &first) || rma2_register_cached(port, memory, SIZE, &second) ||
	    rma2_get_nla(first, 0, &one) || rma2_get_nla(second, 0, &two)) {
		fprintf(stderr, "not registered\n");
		return 1;
	}
	/* The other registration remains valid. */
	if (rma2_unregister_cached(port, second) || rma2_get_nla(first, 0, &two) || one != two ||
	    !rma2_get_region_contained(first, memory, SIZE) || rma2_unregister_cached(port, first) || rma2_close(port)) {
		fprintf(stderr, "not unregistered\n");
		return 1;
	}
	free(memory);
	printf("ok\n");
	return 0;
}
