/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * VELO for C programs: messages of 1…120 bytes between ports. velo(3) explains the functions; link with -lvelo.
 *
 * Functions return 0 or a negative error number. Ports may be shared between threads: one may send while another receives.
 */
#ifndef EXTOLL_VELO_H
#define EXTOLL_VELO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VELO_MAX_LEN 120

/* velo_to.flags */
#define VELO_MULTICAST 1	/* node is a multicast group */
#define VELO_QUIET     2	/* don't wake a receiver that sleeps */

typedef struct velo_port velo_port_t;

/* Where a message goes. */
struct velo_to {
	uint16_t node;		/* 0…65,533, of a group 0…63 */
	uint16_t vpid;		/* 0…255 */
	uint8_t tag;		/* for the receiver */
	uint8_t mtt;		/* the same, 0…3 */
	uint8_t flags;
	uint8_t reserved;	/* 0 */
};

/* A message received. */
struct velo_message {
	uint16_t node;		/* sender, as its NIC stamped it */
	uint16_t vpid;
	uint8_t tag;
	uint8_t mtt;
	uint16_t len;
	uint8_t data[VELO_MAX_LEN];
};

/* Opens a free port. device: directory of the device files, NULL for the first NIC. */
int velo_open(const char *device, velo_port_t **port);
void velo_close(velo_port_t *port);
uint16_t velo_node(const velo_port_t *port);
uint16_t velo_vpid(const velo_port_t *port);

/*
 * timeout_ms: 0 = don't wait (-EAGAIN), -1 = wait for ever, -EINVAL below that; -ETIMEDOUT when it is over, -EINTR when a signal
 * handler ran.
 */
int velo_send(velo_port_t *port, const struct velo_to *to, const void *data, size_t len, int timeout_ms);
int velo_recv(velo_port_t *port, struct velo_message *message, int timeout_ms);
/* Waits until the NIC accepted everything that was sent, and repeats what it dropped; a program that only sends has to, in the end. */
int velo_drain(velo_port_t *port, int timeout_ms);

/*
 * For event loops: velo_arm(), velo_recv() with 0, then poll(2) the descriptor for velo_poll_timeout() milliseconds at most (-1: as
 * long as you like), and begin again.
 */
int velo_fd(const velo_port_t *port);
int velo_arm(velo_port_t *port);
int velo_poll_timeout(const velo_port_t *port);

#ifdef __cplusplus
}
#endif

#endif
