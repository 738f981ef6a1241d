/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Sends messages with libvelo to a node that runs "extoll-ping --listen", and compares the replies.
 *
 * ./velo_echo NODE VPID prints "ok" if all replies are correct.
 *
 * Compile it with: cc velo_echo.c -o velo_echo $(pkg-config --cflags --libs libvelo)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <velo.h>

#define ROUNDS 100

int main(int argc, char **argv)
{
	struct velo_message reply;
	struct velo_to to = { .mtt = 1 };
	char data[VELO_MAX_LEN];
	velo_port_t *port;
	int rc;

	if (argc != 3) {
		fprintf(stderr, "usage: %s NODE VPID\n", argv[0]);
		return 2;
	}
	to.node = atoi(argv[1]);
	to.vpid = atoi(argv[2]);
	rc = velo_open(NULL, &port);
	if (rc) {
		fprintf(stderr, "velo_open: %s\n", strerror(-rc));
		return 1;
	}
	for (int i = 0; i < ROUNDS; i++) {
		size_t len = i % VELO_MAX_LEN + 1;

		memset(data, 'a' + i % 26, len);
		to.tag = i;
		rc = velo_send(port, &to, data, len, 1000);
		if (!rc)
			rc = velo_recv(port, &reply, 10000);
		if (rc) {
			fprintf(stderr, "round %d: %s\n", i, strerror(-rc));
			return 1;
		}
		if (reply.node != to.node || reply.vpid != to.vpid || reply.tag != to.tag || reply.len != len ||
		    memcmp(reply.data, data, len)) {
			fprintf(stderr, "round %d: wrong reply\n", i);
			return 1;
		}
	}
	velo_close(port);
	printf("ok\n");
	return 0;
}
