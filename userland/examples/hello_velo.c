/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Sends a message from one node to another. This is the example in velo(3).
 *
 * - node1$ ./hello_velo prints "NODE VPID", then the message.
 * - node0$ ./hello_velo NODE VPID sends the message.
 *
 * Compile it with: cc hello_velo.c -o hello_velo $(pkg-config --cflags --libs libvelo)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <velo.h>

int main(int argc, char **argv)
{
	struct velo_message message;
	velo_port_t *port;
	int rc = velo_open(NULL, &port);

	if (rc == 0 && argc == 3) {
		struct velo_to to = { .node = atoi(argv[1]), .vpid = atoi(argv[2]) };

		rc = velo_send(port, &to, "hello", 5, 1000);
		if (rc == 0)
			rc = velo_drain(port, 1000);
	} else if (rc == 0) {
		printf("%d %d\n", velo_node(port), velo_vpid(port));
		fflush(stdout);
		rc = velo_recv(port, &message, -1);
		if (rc == 0)
			printf("%.*s from node %d\n", message.len, (char *)message.data, message.node);
	}
	if (rc != 0) {
		fprintf(stderr, "%s\n", strerror(-rc));
		return 1;
	}
	velo_close(port);
	return 0;
}
