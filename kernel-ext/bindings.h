/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Headers for bindgen: kernel headers that the kernel crate's bindings lack, and the C parts of
 * this module.
 */
#include <linux/pci.h>
#include <linux/ratelimit.h>
#include <net/sock.h>
#include <linux/irqdomain.h>
#include "chardev.h"
#include "extl.h"
#include "helpers.h"
#include "leased.h"
#include "lookup.h"
#include "mem_helpers.h"
#include "net_helpers.h"
#include "pci_host.h"
#include "reset.h"
#include "route.h"
#include "sock.h"
