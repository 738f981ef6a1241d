/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/pmap, which provides physically contiguous buffers. GET calls store 8 bytes
 * at the address in the argument. The argument of SET calls is the value itself. These
 * calls create a buffer: SET_TYPE with 0, SET_SIZE, mmap(2), GET_PADDR. See docs/uapi.md.
 */
#ifndef EXTOLL_PMAP_H
#define EXTOLL_PMAP_H

#include <stdint.h>
#include <sys/ioctl.h>
#include "arch_define.h"

#define PMAP_IOC_MAGIC 'k'
#define PMAP_IOC_MAXNR 9

/*
 * Type of the buffer: 0 = memory of the kernel, 1 = memory at a given address (rejected), 2 = no
 * type set yet.
 */
#define PMAP_IOCTL_SET_TYPE    _IOW(PMAP_IOC_MAGIC, 0, uint32_t)
#define PMAP_IOCTL_GET_TYPE    _IOR(PMAP_IOC_MAGIC, 1, uint32_t)
#define PMAP_IOCTL_SET_HADDR   _IOW(PMAP_IOC_MAGIC, 2, uint32_t)
#define PMAP_IOCTL_GET_HADDR   _IOR(PMAP_IOC_MAGIC, 3, uint32_t)
#define PMAP_IOCTL_SET_SIZE    _IOW(PMAP_IOC_MAGIC, 4, uint32_t)
#define PMAP_IOCTL_GET_SIZE    _IOR(PMAP_IOC_MAGIC, 5, uint32_t)
/* DMA address of the buffer, which programs pass to the device. */
#define PMAP_IOCTL_GET_PADDR   _IOR(PMAP_IOC_MAGIC, 6, uint32_t)
/*
 * An open file may have several buffers. Each buffer has a key. All other calls apply to the
 * current buffer.
 */
#define PMAP_IOCTL_CREATE      _IOR(PMAP_IOC_MAGIC, 7, uint32_t)
#define PMAP_IOCTL_FREE        _IOR(PMAP_IOC_MAGIC, 8, uint32_t)
#define PMAP_IOCTL_SET_CURRENT _IOW(PMAP_IOC_MAGIC, 9, uint32_t)

#endif
