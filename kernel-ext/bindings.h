/* SPDX-License-Identifier: GPL-2.0-only */
/* Headers for bindgen: what the kernel crate's own bindings lack, and the C parts of this module. */
#include <linux/pci.h>
#include <linux/ratelimit.h>
#include "chardev.h"
#include "helpers.h"
#include "mem_helpers.h"
#include "net_helpers.h"
#include "reset.h"
