/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Writes into the memory of a process on another node. This is the example in rma2(3).
 *
 * - node1$ ./hello_rma prints "NODE VPID NLA", then the written text.
 * - node0$ ./hello_rma NODE VPID NLA writes the text.
 *
 * Compile it with: cc hello_rma.c -o hello_rma $(pkg-config --cflags --libs librma)
 */
#include <rma2.h>
#include <stdlib.h>

#define PAGE 4096

static void must(RMA2_ERROR rc, char *what)
{
	if (rc != RMA2_SUCCESS) {
		rma2_perror(rc, what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	char *data = aligned_alloc(PAGE, PAGE);
	RMA2_Notification *done;
	RMA2_Region *region;
	RMA2_Handle peer;
	RMA2_Port port;
	RMA2_NLA nla;

	must(rma2_open(&port), "open");
	must(rma2_register(port, data, PAGE, &region), "register");
	must(rma2_get_nla(region, 0, &nla), "address");
	if (argc == 4) {
		strcpy(data, "hello");
		must(rma2_connect(port, atoi(argv[1]), atoi(argv[2]), RMA2_CONN_DEFAULT, &peer), "connect");
		must(rma2_post_put_bt(port, peer, region, 0, PAGE, strtoull(argv[3], NULL, 0), RMA2_REQCOMPL_NOTIFICATION,
				      RMA2_CMD_DEFAULT), "put");
	} else {
		printf("%d %d %#llx\n", rma2_get_nodeid(port), rma2_get_vpid(port), (unsigned long long)nla);
		fflush(stdout);
	}
	/* At the sender: the data was read. At the receiver: it arrived. */
	must(rma2_noti_get_block(port, &done), "notification");
	if (argc != 4)
		printf("%s from node %d\n", data, rma2_noti_get_remote_nodeid(done));
	if (rma2_noti_get_error(done)) {
		rma2_noti_fdump(done, stderr);
		return 1;
	}
	must(rma2_noti_free(port, done), "free");
	must(rma2_unregister(port, region), "unregister");
	must(rma2_close(port), "close");
	return 0;
}
