/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Additions of this driver to the vendor's ABI, on /dev/extoll/velo2 and /dev/extoll/rma2: what the port is and may do,
 * and sleeping in poll(2). See docs/uapi.md.
 */
#ifndef EXTOLL_IOCTL_H
#define EXTOLL_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define EXTOLL_IOC_MAGIC 0xE7
/* Grows when something is added; nothing is ever taken away. */
#define EXTOLL_ABI_VERSION 1

/* extoll_info.flags */
#define EXTOLL_INFO_PRIVILEGED 0x1	/* opened with CAP_SYS_RAWIO: everything is allowed */
#define EXTOLL_INFO_COMPAT     0x2	/* the module was loaded with compat_unsafe */
#define EXTOLL_INFO_UP         0x4	/* the network is running */
#define EXTOLL_INFO_MARKS      0x8	/* an emulator: store a quadword at offset 0xFF8 of the requester page after each fence */

struct extoll_info {
	uint32_t version;	/* EXTOLL_ABI_VERSION of the driver */
	uint32_t flags;
	uint32_t nic;		/* number of the NIC on this host, 0 for /dev/extoll */
	uint32_t node;		/* node ID */
	uint32_t vpid;
	uint32_t pages;		/* bit p: requester page p can be used */
	uint32_t slot_bytes;	/* of the queue */
	uint32_t slots;		/* of the mapped queue, 0 before it is mapped */
	uint32_t protection;	/* protection descriptor: only peers with the same one are reached and reach us */
	uint32_t reserved[3];	/* 0 */
};

/* Fills in an extoll_info. */
#define EXTOLL_IOCTL_INFO _IOR(EXTOLL_IOC_MAGIC, 0, struct extoll_info)
/*
 * The argument is the slot to be read next. Frees all slots before it and asks for an interrupt by the next message
 * (notification) that is sent with one. Returns 1 when a message waits in that slot already, else 0. poll(2) then
 * reports POLLIN as soon as there is one in it. To be called before each poll.
 */
#define EXTOLL_IOCTL_ARM  _IOW(EXTOLL_IOC_MAGIC, 1, uint64_t)

#endif
