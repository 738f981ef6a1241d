/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/smfu2. GET calls store 8 bytes at the address in the argument. See
 * docs/uapi.md.
 */
#ifndef EXTOLL_SMFU2_IOCTL_H
#define EXTOLL_SMFU2_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define SMFU2_IOC_MAGIC 'k'
#define SMFU2_IOC_MAXNR 2

/* Size in bytes of the local memory that other nodes can access. */
#define SMFU2_IOCTL_GET_LOCAL_SIZE _IOR(SMFU2_IOC_MAGIC, 0, uint64_t)
/* Writes back and invalidates the caches of the calling CPU. Only for privileged programs. */
#define SMFU2_IOCTL_FLUSH_CACHES   _IOR(SMFU2_IOC_MAGIC, 1, uint64_t)
#define SMFU2_IOCTL_GET_NODE_ID    _IOR(SMFU2_IOC_MAGIC, 2, uint64_t)

#endif
