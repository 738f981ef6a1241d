/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Resets of PCI devices that the driver did not request. Contexts and rules are documented in
 * reset.rs.
 */
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
	void (*prepare_reset)(const void *client, bool reachable);
	const void *client;
};

/*
 * Starts watching a device. Calls *prepare_reset before the device is reset, before the system
 * sleeps, or when an error makes the device unreachable. Afterwards a work item of wq unbinds the
 * driver and binds it again. Probe context.
 */
void extoll_reset_watch_add(struct extoll_reset_watch *w, struct pci_dev *pdev,
			    struct workqueue_struct *wq,
			    void (*prepare_reset)(const void *client, bool reachable),
			    const void *client);
/*
 * Reports that the device lost its registers. The event is handled like a reset. The report is
 * ignored if the device is not watched. May sleep.
 */
void extoll_reset_registers_lost(struct device *dev);
/* Stops watching. Waits for a call of *prepare_reset that is running. */
void extoll_reset_watch_remove(struct extoll_reset_watch *w);

#endif
