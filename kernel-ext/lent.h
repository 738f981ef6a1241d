/* SPDX-License-Identifier: GPL-2.0-only */
/* Devices of this host that another one drives: what bindgen cannot reach. */
#ifndef EXTOLL_KERNEL_EXT_LENT_H
#define EXTOLL_KERNEL_EXT_LENT_H

#include <linux/types.h>

struct pci_dev;

struct extoll_lent_bar {
	/* On the bus. */
	u64 start;
	/* 0: no memory BAR, or none that has a place. */
	u64 bytes;
	bool prefetchable;
	bool wide;
};

struct extoll_lent_bar extoll_lent_bar(struct pci_dev *pdev, int bar);
/*
 * What is kept of a device while it is lent: claims of its BARs and of what is left of the pages of small ones, and the registers that it had,
 * without bus mastering and pin interrupts. Claims without mapping anything; NULL or an error pointer: -EOPNOTSUPP for a device whose addresses
 * mean nothing to others, -EBUSY, -ENOMEM, -EINVAL for a BAR that begins within a page. May sleep.
 */
struct extoll_lent_claim;
struct extoll_lent_claim *extoll_lent_claim(struct pci_dev *pdev, int bars, const char *name);
/* Ends the claims; with the device's lock, or while it is probed. */
void extoll_lent_release(struct pci_dev *pdev, struct extoll_lent_claim *claim);
void extoll_lent_free(struct extoll_lent_claim *claim);
/* Configuration space, 1, 2 or 4 bytes. Any context. Without an answer all ones. */
u32 extoll_lent_read(struct pci_dev *pdev, int offset, int bytes);
void extoll_lent_write(struct pci_dev *pdev, int offset, int bytes, u32 value);
/*
 * Resets the function, which gets the registers back that it had when it was claimed. -EAGAIN: somebody has the device's lock. -ENODEV:
 * the claims have ended. May sleep. The second one is for who has the lock.
 */
int extoll_lent_reset(struct pci_dev *pdev, struct extoll_lent_claim *claim);
int extoll_lent_reset_locked(struct pci_dev *pdev, struct extoll_lent_claim *claim);

#endif
