/* SPDX-License-Identifier: GPL-2.0-only */
/* Resets of PCI devices that their driver did not command. Contexts and rules are documented in reset.rs. */
#ifndef EXTOLL_KERNEL_EXT_RESET_H
#define EXTOLL_KERNEL_EXT_RESET_H

#include <linux/list.h>
#include <linux/notifier.h>
#include <linux/types.h>

struct device;
struct pci_dev;
struct workqueue_struct;

struct extoll_reset_watch {
	struct list_head node;
	struct notifier_block sleep;
	struct pci_dev *pdev;
	struct workqueue_struct *wq;
	void (*lost)(const void *client, bool reachable);
	const void *client;
};

/*
 * From here on *lost is called before the device is reset, before the system sleeps, or when the device is cut off by an error,
 * and the device gets its driver anew afterwards, by wq. Probe context.
 */
void extoll_reset_watch_add(struct extoll_reset_watch *w, struct pci_dev *pdev, struct workqueue_struct *wq,
			    void (*lost)(const void *client, bool reachable), const void *client);
/* The driver has found that the device lost its registers: as after a reset. Does nothing unless it is watched. May sleep. */
void extoll_reset_forgotten(struct device *dev);
/* No more; a call that is under way has returned. */
void extoll_reset_watch_remove(struct extoll_reset_watch *w);

#endif
