// SPDX-License-Identifier: GPL-2.0-only
/*
 * See reset.rs. Resets that somebody commands (reset_prepare, reset_done), and errors on the way to the device that the PCI core
 * mends by one (error_detected, slot_reset, resume): either way the device forgets everything, and gets its driver anew.
 */
#include <linux/cleanup.h>
#include <linux/device.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
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

	/* Unless somebody has unbound it meanwhile, and perhaps has another use for it. */
	if (READ_ONCE(r->pdev->dev.driver) == r->driver)
		err = device_reprobe(&r->pdev->dev);
	if (err < 0)
		pci_err(r->pdev, "no driver after the reset: %d\n", err);
	pci_dev_put(r->pdev);
	kfree(r);
}

static struct extoll_reset_watch *find(const struct pci_dev *pdev)
{
	struct extoll_reset_watch *w;

	list_for_each_entry(w, &watches, node)
		if (w->pdev == pdev)
			return w;
	return NULL;
}

static void extoll_reset_prepare(struct pci_dev *pdev)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(pdev);
	if (w)
		w->lost(w->client, true);
}

static pci_ers_result_t extoll_error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	struct extoll_reset_watch *w;

	guard(mutex)(&watches_lock);
	w = find(pdev);
	if (w)
		w->lost(w->client, state == pci_channel_io_normal);
	return state == pci_channel_io_perm_failure ? PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_NEED_RESET;
}

/*
 * The device is reachable again, but its configuration space is as after power-on. What was saved has bus mastering; the driver gives
 * that when it has set the device up anew.
 */
static pci_ers_result_t extoll_slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	pci_clear_master(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

/* The device's lock is held, so it gets its driver anew by a work item. */
static void extoll_reset_done(struct pci_dev *pdev)
{
	struct extoll_reset_watch *w;
	struct extoll_reprobe *r;

	guard(mutex)(&watches_lock);
	w = find(pdev);
	if (!w)
		return;
	r = kzalloc_obj(*r);
	if (!r) {
		pci_err(pdev, "no memory to have the driver bound anew: unbind and bind it\n");
		return;
	}
	INIT_WORK(&r->work, extoll_reprobe);
	r->pdev = pci_dev_get(pdev);
	r->driver = pdev->dev.driver;
	queue_work(w->wq, &r->work);
}

static const struct pci_error_handlers handlers = {
	.error_detected = extoll_error_detected,
	.slot_reset = extoll_slot_reset,
	.resume = extoll_reset_done,
	.reset_prepare = extoll_reset_prepare,
	.reset_done = extoll_reset_done,
};

void extoll_reset_watch_add(struct extoll_reset_watch *w, struct pci_dev *pdev, struct workqueue_struct *wq,
			    void (*lost)(const void *client, bool reachable), const void *client)
{
	/* For slot_reset. */
	pci_save_state(pdev);
	w->pdev = pdev;
	w->wq = wq;
	w->lost = lost;
	w->client = client;
	/* The kernel crate's drivers have none. The same for all devices of the driver, so it does not matter who comes first. */
	if (!to_pci_driver(pdev->dev.driver)->err_handler)
		WRITE_ONCE(to_pci_driver(pdev->dev.driver)->err_handler, &handlers);
	guard(mutex)(&watches_lock);
	list_add(&w->node, &watches);
}

void extoll_reset_watch_remove(struct extoll_reset_watch *w)
{
	guard(mutex)(&watches_lock);
	list_del(&w->node);
}
