/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims: inline functions, macros and everything else that bindgen cannot reach. */
#ifndef EXTOLL_KERNEL_EXT_HELPERS_H
#define EXTOLL_KERNEL_EXT_HELPERS_H

#include <linux/types.h>

/* wmb(): orders and flushes write-combining stores. */
void extoll_wmb(void);

#endif
