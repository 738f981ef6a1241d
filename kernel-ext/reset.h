/* SPDX-License-Identifier: GPL-2.0-only */
/* Resets of PCI devices that somebody else commands. Contexts and rules are documented in reset.rs. */
#ifndef EXTOLL_KERNEL_EXT_RESET_H
#define EXTOLL_KERNEL_EXT_RESET_H

#include <linux/list.h>
#include <linux/types.h>

struct pci_dev;
struct workqueue_struct;

struct extoll_reset_watch {
	struct list_head node;
	struct pci_dev *pdev;
	struct workqueue_struct *wq;
	void (*lost)(const void *client, bool reachable);
	const void *client;
};

/* From here on *lost is called before the device is reset, or when it is cut off by an error, and the device gets its driver anew afterwards, by wq. Probe context. */
void extoll_reset_watch_add(struct extoll_reset_watch *w, struct pci_dev *pdev, struct workqueue_struct *wq,
			    void (*lost)(const void *client, bool reachable), const void *client);
/* No more; a call that is under way has returned. */
void extoll_reset_watch_remove(struct extoll_reset_watch *w);

#endif
