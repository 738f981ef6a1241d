/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/velo2. GET calls store 8 bytes at the address in the argument, even if the
 * code encodes another size. The argument of SET calls is the value itself. See docs/uapi.md.
 */
#ifndef EXTOLL_VELO2_IOCTL_H
#define EXTOLL_VELO2_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define VELO2_IOC_MAGIC 'k'
#define VELO2_IOC_MAXNR 21

/* Logical read and write pointers, in slots. */
#define VELO2_IOCG_GET_RP           _IOR(VELO2_IOC_MAGIC, 0, uint32_t)
#define VELO2_IOCT_SET_RP           _IOW(VELO2_IOC_MAGIC, 1, uint32_t)
#define VELO2_IOCG_GET_WP           _IOR(VELO2_IOC_MAGIC, 2, uint32_t)
#define VELO2_IOCT_SET_WP           _IOW(VELO2_IOC_MAGIC, 3, uint32_t)

#define VELO2_IOCG_GET_VPID         _IOR(VELO2_IOC_MAGIC, 4, uint64_t)

/*
 * Sizes of the mailbox in bytes, which must be multiples of the page size. They take effect when
 * the mailbox is mapped.
 */
#define VELO2_IOCG_GET_MBOX_SIZE    _IOR(VELO2_IOC_MAGIC, 5, uint64_t)
#define VELO2_IOCG_SET_MBOX_SIZE    _IOW(VELO2_IOC_MAGIC, 6, uint64_t)
#define VELO2_IOCG_GET_SEGMENT_SIZE _IOR(VELO2_IOC_MAGIC, 7, uint64_t)
#define VELO2_IOCG_SET_SEGMENT_SIZE _IOW(VELO2_IOC_MAGIC, 8, uint64_t)

/* The driver accepts these calls without an effect. */
#define VELO2_IOCT_SET_ASYNC        _IOW(VELO2_IOC_MAGIC, 9, uint32_t)
#define VELO2_IOCT_SET_POLLTIMES    _IOW(VELO2_IOC_MAGIC, 10, uint32_t)
#define VELO2_IOCT_SET_POLLFLAG     _IOW(VELO2_IOC_MAGIC, 11, uint32_t)

#define VELO2_IOCG_GET_NODEID       _IOR(VELO2_IOC_MAGIC, 12, uint64_t)

/*
 * Protection descriptors, and source identity (node in bits 15:0, VPID in bits 31:16). Only
 * privileged programs may make the SET calls.
 */
#define VELO2_IOCG_SET_TX_PROTDESC  _IOW(VELO2_IOC_MAGIC, 13, uint64_t)
#define VELO2_IOCG_GET_TX_PROTDESC  _IOR(VELO2_IOC_MAGIC, 14, uint64_t)
#define VELO2_IOCG_SET_RX_PROTDESC  _IOW(VELO2_IOC_MAGIC, 15, uint64_t)
#define VELO2_IOCG_GET_RX_PROTDESC  _IOR(VELO2_IOC_MAGIC, 16, uint64_t)
#define VELO2_IOCG_SET_TX_ID        _IOW(VELO2_IOC_MAGIC, 17, uint64_t)
#define VELO2_IOCG_GET_TX_ID        _IOR(VELO2_IOC_MAGIC, 18, uint64_t)

#define VELO2_IOCG_GET_PROCNUM      _IOR(VELO2_IOC_MAGIC, 19, uint32_t)
#define VELO2_IOCG_GET_NODENUM      _IOR(VELO2_IOC_MAGIC, 20, uint32_t)
#define VELO2_IOCG_GET_SLOT_SIZE    _IOR(VELO2_IOC_MAGIC, 21, uint32_t)

#endif
