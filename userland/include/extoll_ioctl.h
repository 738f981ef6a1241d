/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Additions of this driver to the vendor's ABI, on /dev/extoll/velo2 and /dev/extoll/rma2:
 * properties and permissions of a port, and interrupts for poll(2). See docs/uapi.md.
 */
#ifndef EXTOLL_IOCTL_H
#define EXTOLL_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define EXTOLL_IOC_MAGIC 0xE7
/* Version, which increases with each addition. Newer versions keep all older calls. */
#define EXTOLL_ABI_VERSION 1

/* Bits of extoll_info.flags. */
#define EXTOLL_INFO_PRIVILEGED 0x1	/* opened with CAP_SYS_RAWIO: all is permitted */
#define EXTOLL_INFO_COMPAT     0x2	/* the module was loaded with compat_unsafe */
#define EXTOLL_INFO_UP         0x4	/* the network is running */
#define EXTOLL_INFO_MARKS      0x8	/* emulator: store to offset 0xFF8 of the page after each fence */

struct extoll_info {
	uint32_t version;	/* EXTOLL_ABI_VERSION of the driver */
	uint32_t flags;
	uint32_t nic;		/* number of the NIC on this host, 0 for /dev/extoll */
	uint32_t node;		/* node ID */
	uint32_t vpid;		/* number of the port on its node */
	uint32_t pages;		/* bit p: requester page p may be used */
	uint32_t slot_bytes;	/* bytes per slot of the queue */
	uint32_t slots;		/* slots of the mapped queue; 0 before it is mapped */
	uint32_t protection;	/* only ports with the same descriptor reach each other */
	uint32_t reserved[3];	/* 0 */
};

/* Stores the properties of the port in a struct extoll_info. */
#define EXTOLL_IOCTL_INFO _IOR(EXTOLL_IOC_MAGIC, 0, struct extoll_info)
/*
 * The argument is the next slot that the program will read. Frees all slots before this slot.
 * Requests an interrupt with the next message or notification that has the interrupt flag. Returns
 * 1 if the slot already contains an entry, and 0 otherwise. Afterwards poll(2) reports POLLIN when
 * the slot contains an entry. Programs make this call before each poll(2).
 */
#define EXTOLL_IOCTL_ARM  _IOW(EXTOLL_IOC_MAGIC, 1, uint64_t)

#endif
