/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/rma2. GET calls store 8 bytes at the address in the argument, even if the
 * code encodes another size. The argument of SET calls is the value itself. See docs/uapi.md.
 */
#ifndef EXTOLL_RMA2_IOCTL_H
#define EXTOLL_RMA2_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define RMA2_IOC_MAGIC 'k'
#define RMA2_IOC_MAXNR 26

/*
 * Sizes of the notification queue in bytes, which must be multiples of the page size. They take
 * effect when the queue is mapped.
 */
#define RMA2_IOCTL_GET_NOTIQ_SIZE         _IOR(RMA2_IOC_MAGIC, 0, uint32_t)
#define RMA2_IOCTL_SET_NOTIQ_SIZE         _IOW(RMA2_IOC_MAGIC, 1, uint32_t)
#define RMA2_IOCTL_SET_NOTIQ_SEGMENT_SIZE _IOW(RMA2_IOC_MAGIC, 2, uint32_t)
#define RMA2_IOCTL_GET_NOTIQ_SEGMENT_SIZE _IOR(RMA2_IOC_MAGIC, 3, uint32_t)

/* Logical write and read pointers, in slots. */
#define RMA2_IOCTL_SET_NOTIQ_WP           _IOW(RMA2_IOC_MAGIC, 4, uint32_t)
#define RMA2_IOCTL_SET_NOTIQ_RP           _IOW(RMA2_IOC_MAGIC, 5, uint32_t)
#define RMA2_IOCTL_GET_NOTIQ_WP           _IOR(RMA2_IOC_MAGIC, 6, uint32_t)
#define RMA2_IOCTL_GET_NOTIQ_RP           _IOR(RMA2_IOC_MAGIC, 7, uint32_t)

#define RMA2_IOCTL_GET_NODEID             _IOR(RMA2_IOC_MAGIC, 8, uint32_t)
#define RMA2_IOCTL_GET_VPID               _IOR(RMA2_IOC_MAGIC, 9, uint32_t)

/* The argument points to an RMA2_Region (rma2_region.h). The codes encode the size of a pointer. */
#define RMA2_IOCTL_REGISTER_REGION        _IOW(RMA2_IOC_MAGIC, 10, void *)
#define RMA2_IOCTL_UNREGISTER_REGION      _IOW(RMA2_IOC_MAGIC, 11, void *)

#define RMA2_IOCTL_GET_MAXNODEID          _IOR(RMA2_IOC_MAGIC, 12, uint32_t)
#define RMA2_IOCTL_GET_MAXVPID            _IOR(RMA2_IOC_MAGIC, 13, uint32_t)

/*
 * Calls for privileged programs: target units, accelerator, response classes, protection, TLP
 * hints, and history of all VPIDs.
 */
#define RMA2_IOCTL_SET_TUS                _IOW(RMA2_IOC_MAGIC, 14, uint32_t)
#define RMA2_IOCTL_GET_TUS                _IOR(RMA2_IOC_MAGIC, 15, uint32_t)
#define RMA2_IOCTL_SET_EXCELL             _IOW(RMA2_IOC_MAGIC, 16, uint32_t)
#define RMA2_IOCTL_GET_EXCELL             _IOR(RMA2_IOC_MAGIC, 17, uint32_t)
#define RMA2_IOCTL_SET_TCS                _IOW(RMA2_IOC_MAGIC, 18, uint32_t)
#define RMA2_IOCTL_GET_TCS                _IOR(RMA2_IOC_MAGIC, 19, uint32_t)
#define RMA2_IOCTL_SET_PROTDESC           _IOW(RMA2_IOC_MAGIC, 20, uint32_t)
#define RMA2_IOCTL_GET_PROTDESC           _IOR(RMA2_IOC_MAGIC, 21, uint32_t)
#define RMA2_IOCTL_SET_TPHBITS            _IOW(RMA2_IOC_MAGIC, 22, uint32_t)
#define RMA2_IOCTL_GET_TPHBITS            _IOR(RMA2_IOC_MAGIC, 23, uint32_t)
#define RMA2_IOCTL_SET_HISTMODE           _IOW(RMA2_IOC_MAGIC, 24, uint32_t)
#define RMA2_IOCTL_GET_HISTMODE           _IOR(RMA2_IOC_MAGIC, 25, uint32_t)

#endif
