/* SPDX-License-Identifier: GPL-2.0-only */
/* PCI devices of this host that another host drives: functions that bindgen cannot reach. */
#ifndef EXTOLL_KERNEL_EXT_LEASED_H
#define EXTOLL_KERNEL_EXT_LEASED_H

#include <linux/types.h>

struct pci_dev;

struct extoll_leased_bar {
	/* Address on the bus. */
	u64 start;
	/* Size; 0 if the BAR is not a memory BAR or has no address. */
	u64 bytes;
	bool prefetchable;
	bool wide;
};

struct extoll_leased_bar extoll_leased_bar(struct pci_dev *pdev, int bar);
/*
 * State of a leased device: claims of its BARs and of the remainder of a small BAR's page, and a
 * copy of its registers. In the copy, bus mastering and pin interrupts are disabled. Claiming does
 * not map the BARs. Returns NULL or an error pointer: -EOPNOTSUPP for a device whose addresses are
 * invalid for other hosts, -EBUSY, -ENOMEM, -EINVAL for a small BAR that does not begin at a page.
 * May sleep.
 */
struct extoll_leased_claim;
struct extoll_leased_claim *extoll_leased_claim(struct pci_dev *pdev, int bars, const char *name);
/* Releases the claims. The caller holds the device's lock, or probes the device. */
void extoll_leased_release(struct pci_dev *pdev, struct extoll_leased_claim *claim);
void extoll_leased_free(struct extoll_leased_claim *claim);
/*
 * Accesses configuration space, 1, 2 or 4 bytes. Any context. Reads return all ones if the device
 * does not answer.
 */
u32 extoll_leased_read(struct pci_dev *pdev, int offset, int bytes);
void extoll_leased_write(struct pci_dev *pdev, int offset, int bytes, u32 value);
/*
 * Resets the function and restores the registers that it had when it was claimed. -EAGAIN: another
 * context holds the device's lock. -ENODEV: the claims have been released. May sleep. The second
 * function is for callers that hold the lock.
 */
int extoll_leased_reset(struct pci_dev *pdev, struct extoll_leased_claim *claim);
int extoll_leased_reset_locked(struct pci_dev *pdev, struct extoll_leased_claim *claim);

#endif
