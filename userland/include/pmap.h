/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/pmap: physically contiguous buffers. GET calls store 8 bytes at the argument, SET calls take the
 * value itself. Order: SET_TYPE 0, SET_SIZE, mmap, GET_PADDR. See docs/uapi.md.
 */
#ifndef EXTOLL_PMAP_H
#define EXTOLL_PMAP_H

#include <stdint.h>
#include <sys/ioctl.h>
#include "arch_define.h"

#define PMAP_IOC_MAGIC 'k'
#define PMAP_IOC_MAXNR 9

/* 0 memory of the kernel; 1 (memory at a given address) is refused; 2 nothing yet. */
#define PMAP_IOCTL_SET_TYPE    _IOW(PMAP_IOC_MAGIC, 0, uint32_t)
#define PMAP_IOCTL_GET_TYPE    _IOR(PMAP_IOC_MAGIC, 1, uint32_t)
#define PMAP_IOCTL_SET_HADDR   _IOW(PMAP_IOC_MAGIC, 2, uint32_t)
#define PMAP_IOCTL_GET_HADDR   _IOR(PMAP_IOC_MAGIC, 3, uint32_t)
#define PMAP_IOCTL_SET_SIZE    _IOW(PMAP_IOC_MAGIC, 4, uint32_t)
#define PMAP_IOCTL_GET_SIZE    _IOR(PMAP_IOC_MAGIC, 5, uint32_t)
/* Address for the device. */
#define PMAP_IOCTL_GET_PADDR   _IOR(PMAP_IOC_MAGIC, 6, uint32_t)
/* Buffers of one file have keys; the other calls work on the current one. */
#define PMAP_IOCTL_CREATE      _IOR(PMAP_IOC_MAGIC, 7, uint32_t)
#define PMAP_IOCTL_FREE        _IOR(PMAP_IOC_MAGIC, 8, uint32_t)
#define PMAP_IOCTL_SET_CURRENT _IOW(PMAP_IOC_MAGIC, 9, uint32_t)

#endif
