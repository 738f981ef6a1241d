/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * ioctls of /dev/extoll/extoll_rf_access, which accesses registers of all nodes. All arguments
 * point to 64-bit values. lseek(2) selects a register by the node in bits 47:32 and the register
 * offset in bits 25:0. read(2) and write(2) transfer the 8 bytes of the register. See docs/uapi.md.
 */
#ifndef EXTOLL_RF_ACCESS_IOCTL_H
#define EXTOLL_RF_ACCESS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define EXTOLL_RF_IOC_MAGIC 'n'
#define EXTOLL_RF_IOC_MAXNR 5

#define EXTOLL_RF_IOCTL_GET_RRA_WRITE_METHOD _IOR(EXTOLL_RF_IOC_MAGIC, 0, uint64_t)
#define EXTOLL_RF_IOCTL_GET_RRA_READ_METHOD  _IOR(EXTOLL_RF_IOC_MAGIC, 1, uint64_t)
#define EXTOLL_RF_IOCTL_GET_RRA_RMA_TIMEOUT  _IOR(EXTOLL_RF_IOC_MAGIC, 2, uint64_t)
#define EXTOLL_RF_IOCTL_SET_RRA_WRITE_METHOD _IOW(EXTOLL_RF_IOC_MAGIC, 3, uint64_t)
#define EXTOLL_RF_IOCTL_SET_RRA_READ_METHOD  _IOW(EXTOLL_RF_IOC_MAGIC, 4, uint64_t)
/* Timeout of accesses by RMA in microseconds. */
#define EXTOLL_RF_IOCTL_SET_RRA_RMA_TIMEOUT  _IOW(EXTOLL_RF_IOC_MAGIC, 5, uint64_t)

/* Access methods: by RMA to any node, through the SMFU window, or directly to the local NIC. */
#define EXTOLL2_RF_RRA_RMA2  0
#define EXTOLL2_RF_RRA_SMFU2 1
#define EXTOLL2_RF_RRA_LOCAL 2

#endif
