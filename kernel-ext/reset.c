// SPDX-License-Identifier: GPL-2.0-only
/*
 * See reset.rs. Handles resets by the administrator (reset_prepare, reset_done), PCI errors from
 * which the PCI core recovers by a reset (error_detected, slot_reset, resume), system sleep, and
 * resets that only the driver detects. In each case the device loses its registers, and its driver
 * is unbound and bound again.
 */
#include <linux/cleanup.h>
#include <linux/container_of.h>
#include <linux/device.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/suspend.h>
#include <linux/workqueue.h>
#include "reset.h"

static LIST_HEAD(watches);
static DEFINE_MUTEX(watches_lock);

struct extoll_reprobe {
	struct work_struct work;
	struct pci_dev *pdev;
	const struct device_driver *driver;
};

static void extoll_reprobe(struct work_struct *work)
{
	struct extoll_reprobe *r = container_of(work, struct extoll_reprobe, work);
	int err = 0;

	/*
	 * The administrator may have unbound the driver since the reset, and perhaps bound another
	 * driver.
	 */
	if (READ_ONCE(r->pdev->dev.driver) == r->driver)
		err = device_reprobe(&r->pdev->dev);
	if (err < 0)
		pci_err(r->pdev, "driver could not be bound after the reset: error %d\n", err);
	pci_dev_put(r->pdev);
	kfree(r);
}

/*
 * Queues a work item that rebinds the driver, because the caller may hold the device's lock. Needs
 * watches_lock.
 */
static void bind_anew(struct extoll_reset_watch *w)
{
	struct extoll_reprobe *r = kzalloc_obj(*r);

	if (!r) {
		pci_err(w->pdev,
			"out of memory, driver not rebound after the reset: unbind and bind it\n");
		return;
	}
	INIT_WORK(&r->work, extoll_reprobe);
	r->pdev = pci_dev_get(w->pdev);
	r->driver = w->pdev->dev.driver;
	queue_work(w->wq, &r->work);
}

static struct extoll_reset_watch *find(const struct device *dev)
{
	struct extoll_reset_watch *w;

	list_for_each_entry(w, &watches, node)
		if (&w->pdev->dev == dev)
			return w;
	return NULL;
}

static void extoll_reset_prepare(struct pci_dev *pdev)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(&pdev->dev);
	if (w)
		w->prepare_reset(w->client, true);
}

static pci_ers_result_t extoll_error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(&pdev->dev);
	if (w)
		w->prepare_reset(w->client, state == pci_channel_io_normal);
	return state == pci_channel_io_perm_failure ? PCI_ERS_RESULT_DISCONNECT :
						      PCI_ERS_RESULT_NEED_RESET;
}

/*
 * The device is reachable again, but its configuration space has its power-on values. The saved
 * state includes bus mastering, which is cleared again, because the driver enables bus mastering
 * only after it has set up the device.
 */
static pci_ers_result_t extoll_slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	pci_clear_master(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

static void extoll_reset_done(struct pci_dev *pdev)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(&pdev->dev);
	if (w)
		bind_anew(w);
}

void extoll_reset_registers_lost(struct device *dev)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(dev);
	if (!w)
		return;
	w->prepare_reset(w->client, true);
	bind_anew(w);
}

/*
 * Sleep switches off the device's power, so the device loses all registers. Callbacks of the device
 * itself (dev_pm_ops) would be too early for rebinding the driver, because drivers cannot be bound
 * until all devices have been resumed.
 */
static int extoll_sleep(struct notifier_block *nb, unsigned long event, void *unused)
{
	struct extoll_reset_watch *w = container_of(nb, struct extoll_reset_watch, sleep);

	guard(mutex)(&watches_lock);
	switch (event) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		w->prepare_reset(w->client, true);
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		bind_anew(w);
		break;
	}
	return NOTIFY_DONE;
}

static const struct pci_error_handlers handlers = {
	.error_detected = extoll_error_detected,
	.slot_reset = extoll_slot_reset,
	.resume = extoll_reset_done,
	.reset_prepare = extoll_reset_prepare,
	.reset_done = extoll_reset_done,
};

void extoll_reset_watch_add(struct extoll_reset_watch *w, struct pci_dev *pdev,
			    struct workqueue_struct *wq,
			    void (*prepare_reset)(const void *client, bool reachable),
			    const void *client)
{
	/* slot_reset restores this state. */
	pci_save_state(pdev);
	w->pdev = pdev;
	w->wq = wq;
	w->prepare_reset = prepare_reset;
	w->client = client;
	/*
	 * Drivers of the kernel crate have no handlers. All devices of the driver set the same
	 * pointer, so the order is irrelevant.
	 */
	if (!to_pci_driver(pdev->dev.driver)->err_handler)
		WRITE_ONCE(to_pci_driver(pdev->dev.driver)->err_handler, &handlers);
	scoped_guard(mutex, &watches_lock)
		list_add(&w->node, &watches);
	w->sleep = (struct notifier_block){ .notifier_call = extoll_sleep };
	if (register_pm_notifier(&w->sleep))
		pci_warn(pdev,
			 "system sleep is not watched: unbind and bind the driver after each resume\n");
}

void extoll_reset_watch_remove(struct extoll_reset_watch *w)
{
	/*
	 * Called before the lock is acquired, because the notifier takes the lock. Unregistering
	 * fails harmlessly if the registration failed.
	 */
	unregister_pm_notifier(&w->sleep);
	guard(mutex)(&watches_lock);
	list_del(&w->node);
}
