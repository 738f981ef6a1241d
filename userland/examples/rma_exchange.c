/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Transfers a megabyte in both directions between two nodes with the rma2.h interface. The protocol
 * is that of extoll-exchange (src/main.rs), so that the two programs can run on different sides.
 *
 * - node1$ ./rma_exchange serve prints "ready NODE VPID".
 * - node0$ ./rma_exchange NODE VPID prints "ok".
 *
 * Compile it with: cc rma_exchange.c -o rma_exchange $(pkg-config --cflags --libs librma)
 */
#define _GNU_SOURCE
#include <rma2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1u << 20)
#define PATIENCE 30

enum { ADDRESS = 1, ANSWER, WRITTEN, INVERTED, CHECKED, DONE };

static RMA2_Port port;
static RMA2_Handle handle;

static void must(RMA2_ERROR rc, const char *what)
{
	if (rc == RMA2_SUCCESS)
		return;
	rma2_perror(rc, (char *)what);
	exit(1);
}

static uint8_t pattern(uint32_t i, uint32_t seed)
{
	return (i * 2654435761u + seed) >> 13;
}

static void fill(uint8_t *data, uint32_t seed, uint8_t invert)
{
	for (uint32_t i = 0; i < SIZE; i++)
		data[i] = pattern(i, seed) ^ invert;
}

static void check(const uint8_t *data, uint32_t seed, uint8_t invert, const char *what)
{
	for (uint32_t i = 0; i < SIZE; i++) {
		uint8_t expected = pattern(i, seed) ^ invert;

		if (data[i] != expected) {
			fprintf(stderr, "%s: byte %u is %#x instead of %#x\n", what, i, data[i], expected);
			exit(1);
		}
	}
}

/* Waits for a notification put of this class and returns a copy of its notification. */
static RMA2_Notification expect(RMA2_Class class)
{
	RMA2_Notification *found, copy;

	alarm(PATIENCE);
	must(rma2_noti_noti_match_block(port, class, RMA2_NODEID_ANY, RMA2_VPID_ANY, &found), "notification");
	alarm(0);
	if (rma2_noti_get_error(found)) {
		rma2_noti_fdump(found, stderr);
		exit(1);
	}
	must(rma2_noti_dup(found, &copy), "dup");
	must(rma2_noti_free(port, found), "free");
	return copy;
}

static void say(RMA2_Class class, uint64_t value)
{
	must(rma2_post_notification(port, handle, class, value, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), "notify");
}

static void join(RMA2_Nodeid node, RMA2_VPID vpid)
{
	must(rma2_connect(port, node, vpid, RMA2_CONN_DEFAULT | RMA2_CONN_IRQ, &handle), "connect");
}

static void serve(RMA2_Region *region, uint8_t *data, RMA2_NLA nla)
{
	RMA2_Notification hello;

	printf("ready %u %u\n", rma2_get_nodeid(port), rma2_get_vpid(port));
	fflush(stdout);
	hello = expect(ADDRESS);
	join(rma2_noti_get_remote_nodeid(&hello), rma2_noti_get_remote_vpid(&hello));
	say(ANSWER, nla);
	expect(WRITTEN);
	check(data, 1, 0, "what the client PUT");
	fill(data, 1, 0xFF);
	say(INVERTED, 0);
	expect(CHECKED);
	fill(data, 2, 0);
	must(rma2_post_put_bt(port, handle, region, 0, SIZE, rma2_noti_get_notiput_payload(&hello), RMA2_NO_NOTIFICATION,
			      RMA2_CMD_DEFAULT), "put");
	say(DONE, 0);
}

static void client(RMA2_Region *region, uint8_t *data, RMA2_NLA nla, RMA2_Nodeid node, RMA2_VPID vpid)
{
	RMA2_Notification answer, *noti;
	RMA2_NLA remote;

	join(node, vpid);
	say(ADDRESS, nla);
	answer = expect(ANSWER);
	remote = rma2_noti_get_notiput_payload(&answer);
	fill(data, 1, 0);
	must(rma2_post_put_qw(port, handle, region, 0, SIZE, remote, RMA2_REQUESTER_NOTIFICATION, RMA2_CMD_DEFAULT), "put");
	must(rma2_noti_match_block(port, RMA2_QW_PUT, node, vpid, RMA2_REQUESTER_NOTIFICATION, RMA2_ANY_NLA, 0, &noti),
	     "put notification");
	if (rma2_noti_get_total_size(nla, noti) != SIZE) {
		rma2_noti_fdump(noti, stderr);
		exit(1);
	}
	must(rma2_noti_free(port, noti), "free");
	say(WRITTEN, 0);
	expect(INVERTED);
	must(rma2_post_get_bt(port, handle, region, 0, SIZE, remote, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), "get");
	must(rma2_noti_match_block(port, RMA2_GETS, node, vpid, RMA2_COMPLETER_NOTIFICATION, RMA2_ANY_NLA, 0, &noti),
	     "get notification");
	must(rma2_noti_free(port, noti), "free");
	check(data, 1, 0xFF, "what came back by GET");
	say(CHECKED, 0);
	expect(DONE);
	check(data, 2, 0, "what the server PUT");
	printf("ok\n");
}

int main(int argc, char **argv)
{
	RMA2_Region *region;
	RMA2_NLA nla;
	uint8_t *data;

	if (argc != 3 && !(argc == 2 && !strcmp(argv[1], "serve"))) {
		fprintf(stderr, "usage: %s serve | NODE VPID\n", argv[0]);
		return 2;
	}
	data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	must(rma2_open(&port), "open");
	must(rma2_register(port, data, SIZE, &region), "register");
	must(rma2_get_nla(region, 0, &nla), "nla");
	if (argc == 2)
		serve(region, data, nla);
	else
		client(region, data, nla, atoi(argv[1]), atoi(argv[2]));
	must(rma2_disconnect(port, handle), "disconnect");
	must(rma2_unregister(port, region), "unregister");
	must(rma2_close(port), "close");
	return 0;
}
