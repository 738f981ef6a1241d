/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * VELO for C programs: messages of 1 to 120 bytes between ports. velo(3) explains the functions.
 * Link with -lvelo.
 *
 * Functions of type int return 0 or a negative error number, except velo_fd() and
 * velo_poll_timeout(). Threads may share a port: one may send while another receives.
 */
#ifndef EXTOLL_VELO_H
#define EXTOLL_VELO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum length of a message in bytes. */
#define VELO_MAX_LEN 120

/* Bits of velo_to.flags. */
#define VELO_MULTICAST 1	/* node is a multicast group */
#define VELO_QUIET     2	/* do not wake a receiver that sleeps */

/* Opaque handle of an open port. */
typedef struct velo_port velo_port_t;

/* Destination of a message. */
struct velo_to {
	uint16_t node;		/* 0 to 65,533; with VELO_MULTICAST a group, 0 to 63 */
	uint16_t vpid;		/* number of the port on its node, 0 to 255 */
	uint8_t tag;		/* user tag, passed to the receiver */
	uint8_t mtt;		/* type tag, passed to the receiver, 0 to 3 */
	uint8_t flags;		/* VELO_MULTICAST, VELO_QUIET */
	uint8_t reserved;	/* must be 0 */
};

/* Received message. */
struct velo_message {
	uint16_t node;		/* sender, written by its NIC */
	uint16_t vpid;		/* port of the sender */
	uint8_t tag;		/* user tag */
	uint8_t mtt;		/* type tag */
	uint16_t len;		/* bytes of data, 1 to 120 */
	uint8_t data[VELO_MAX_LEN];	/* zeros after len bytes */
};

/*
 * Opens an unused port. device: directory of the device files; NULL for EXTOLL_DEV or /dev/extoll.
 */
int velo_open(const char *device, velo_port_t **port);
/* Closes a port. No other thread may use the port during or after this call. */
void velo_close(velo_port_t *port);
/* These functions return the node and the VPID of the port, which peers use as its address. */
uint16_t velo_node(const velo_port_t *port);
uint16_t velo_vpid(const velo_port_t *port);

/*
 * Functions that may wait. timeout_ms: 0 = do not wait (-EAGAIN), -1 = wait without limit, other
 * negative values are invalid (-EINVAL). They return -ETIMEDOUT when the timeout expires, and
 * -EINTR when a signal handler ran.
 */

/* Waits until the NIC can accept a message, then sends len bytes (1 to 120). */
int velo_send(velo_port_t *port, const struct velo_to *to, const void *data, size_t len, int timeout_ms);
/* Waits for a message, then stores the oldest message. */
int velo_recv(velo_port_t *port, struct velo_message *message, int timeout_ms);
/*
 * Repeats messages that the NIC dropped, until it has accepted all messages of the port. A program
 * that only sends must call this at the end.
 */
int velo_drain(velo_port_t *port, int timeout_ms);

/*
 * Functions for event loops. An event loop calls velo_arm(), then velo_recv() with timeout 0 until
 * there are no messages. It then calls poll(2) for the descriptor velo_fd() with the timeout
 * velo_poll_timeout() in milliseconds (-1 for no limit), and starts again.
 */
int velo_fd(const velo_port_t *port);
int velo_arm(velo_port_t *port);
int velo_poll_timeout(const velo_port_t *port);

#ifdef __cplusplus
}
#endif

#endif
