// SPDX-License-Identifier: GPL-2.0-only
/* C code of the host bridges in pci_host/. */
#include <linux/cleanup.h>
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/ioport.h>
#include <linux/irq.h>
#include <linux/irqchip/irq-msi-lib.h>
#include <linux/irqdomain.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/msi.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "pci_host.h"

void extoll_pci_host_init(struct extoll_pci_host *host, struct device *parent, int domain,
			  const struct extoll_pool_calls *calls, const void *pool)
{
	memset(host, 0, sizeof(*host));
	host->sysdata.domain = domain;
	host->sysdata.node = dev_to_node(parent);
	host->calls = calls;
	host->pool = pool;
}

#ifdef CONFIG_PREEMPT_RT
void extoll_pci_functions_enter(void)
{
}

void extoll_pci_functions_leave(void)
{
}
#else
static DEFINE_WAIT_OVERRIDE_MAP(functions_map, LD_WAIT_CONFIG);

void extoll_pci_functions_enter(void)
{
	lock_map_acquire_try(&functions_map);
}

void extoll_pci_functions_leave(void)
{
	lock_map_release(&functions_map);
}
#endif

void extoll_pci_pin(void)
{
	__module_get(THIS_MODULE);
}

struct extoll_pci_host *extoll_pci_host_of(struct pci_dev *pdev, const void *ops)
{
	if ((const void *)pdev->bus->ops != ops)
		return NULL;
	return container_of(to_pci_sysdata(pdev->bus), struct extoll_pci_host, sysdata);
}

struct pci_dev *extoll_pci_anchor(struct device *dev)
{
	for (; dev; dev = dev->parent)
		if (dev_is_pci(dev))
			return to_pci_dev(dev);
	return NULL;
}

/*
 * Removing a PCI device holds pci_rescan_remove_lock until its driver is unbound, and the driver
 * may wait for work that needs the same lock. The holder of the lock cannot be determined, but
 * removal first clears the device's flag PCI_DEV_ADDED. If the anchor lacks the flag,
 * extoll_pci_locked() gives up. A work item waits for the lock, because a work item can be
 * abandoned.
 */
#define ADDED_BIT 0	/* bit of pci_dev::priv_flags: PCI_DEV_ADDED of drivers/pci/pci.h */
#define LOOK_EVERY (HZ / 50)

struct locked_call {
	struct work_struct work;
	struct kref references;
	struct completion done;
	atomic_t taken;
	int (*f)(void *arg);
	void *arg;
	int result;
};

static void call_free(struct kref *references)
{
	kfree(container_of(references, struct locked_call, references));
}

static void call_run(struct work_struct *work)
{
	struct locked_call *call = container_of(work, struct locked_call, work);

	pci_lock_rescan_remove();
	if (!atomic_xchg(&call->taken, 1)) {
		call->result = call->f(call->arg);
		complete(&call->done);
	}
	pci_unlock_rescan_remove();
	kref_put(&call->references, call_free);
}

int extoll_pci_locked(struct pci_dev *anchor, struct workqueue_struct *wq, int (*f)(void *arg),
		      void *arg)
{
	struct locked_call *call;
	int result;

	if (!anchor) {
		pci_lock_rescan_remove();
		result = f(arg);
		pci_unlock_rescan_remove();
		return result;
	}
	/* Removing a bridge must not fail. */
	call = kzalloc_obj(*call, GFP_KERNEL | __GFP_NOFAIL);
	INIT_WORK(&call->work, call_run);
	kref_init(&call->references);
	kref_get(&call->references);
	init_completion(&call->done);
	call->f = f;
	call->arg = arg;
	queue_work(wq, &call->work);
	while (!wait_for_completion_timeout(&call->done, LOOK_EVERY)) {
		if (test_bit(ADDED_BIT, &anchor->priv_flags) || atomic_xchg(&call->taken, 1))
			continue;
		kref_put(&call->references, call_free);
		return -EBUSY;
	}
	result = call->result;
	kref_put(&call->references, call_free);
	return result;
}

static bool domain_exists(int number)
{
	struct pci_bus *bus = NULL;

	while ((bus = pci_find_next_bus(bus)))
		if (pci_domain_nr(bus) == number)
			return true;
	return false;
}

int extoll_pci_domain_new(void)
{
	int min = 0x10000;

	for (;;) {
		int number = pci_bus_find_emul_domain_nr(0, min, INT_MAX);

		if (number < 0 || !domain_exists(number & 0xffff))
			return number;
		pci_bus_release_emul_domain_nr(number);
		min = number + 1;
	}
}

unsigned int extoll_pci_bridge_references(struct pci_host_bridge *bridge)
{
	return kref_read(&bridge->dev.kobj.kref);
}

static int mark_lost(struct pci_dev *pdev, void *unused)
{
	xchg(&pdev->error_state, pci_channel_io_perm_failure);
	return 0;
}

static int tell_lost(struct pci_dev *pdev, void *unused)
{
	const struct pci_error_handlers *handlers;

	guard(device)(&pdev->dev);
	handlers = pdev->driver ? pdev->driver->err_handler : NULL;
	if (handlers && handlers->error_detected)
		handlers->error_detected(pdev, pci_channel_io_perm_failure);
	return 0;
}

void extoll_pci_lost(struct pci_bus *bus)
{
	pci_walk_bus(bus, mark_lost, NULL);
	pci_walk_bus(bus, tell_lost, NULL);
}

/*
 * Exclusive claim of addresses that contain windows. The claim is shared while it contains a
 * window.
 */
struct shared_claim {
	struct list_head node;
	struct resource *claim;
	unsigned int windows;
};

static LIST_HEAD(shared_claims);
static DEFINE_MUTEX(shared_claims_lock);

static struct shared_claim *shared_find(const struct resource *claim)
{
	struct shared_claim *s;

	list_for_each_entry(s, &shared_claims, node)
		if (s->claim == claim)
			return s;
	return NULL;
}

static void shared_put(struct resource *claim)
{
	struct shared_claim *s = shared_find(claim);

	if (!s || --s->windows)
		return;
	claim->flags |= IORESOURCE_BUSY;
	list_del(&s->node);
	kfree(s);
}

static int shared_get(struct resource *claim)
{
	struct shared_claim *s = shared_find(claim);

	if (!s) {
		if (!(claim->flags & IORESOURCE_BUSY))
			return 0;
		s = kzalloc_obj(*s);
		if (!s)
			return -ENOMEM;
		s->claim = claim;
		list_add(&s->node, &shared_claims);
		claim->flags &= ~IORESOURCE_BUSY;
	}
	s->windows++;
	return 0;
}

static bool is_bar(const struct pci_dev *anchor, const struct resource *r)
{
	for (int i = 0; i < PCI_STD_NUM_BARS; i++)
		if (&anchor->resource[i] == r)
			return true;
	return false;
}

/* Undoes shared_get() from the innermost resource outwards. */
static void unshare(struct resource *from, const struct resource *to)
{
	for (struct resource *r = from; r && r != to; r = r->parent)
		shared_put(r);
}

int extoll_pci_window_insert(struct pci_dev *anchor, struct resource *window)
{
	struct resource *r, *bar = NULL;
	int err;

	guard(mutex)(&shared_claims_lock);
	err = insert_resource(&iomem_resource, window);
	if (err)
		return err;
	for (r = window->parent; r; r = r->parent) {
		if (anchor && is_bar(anchor, r))
			bar = r;
		err = !anchor && (r->flags & IORESOURCE_BUSY) ? -EBUSY : err;
	}
	if (window->child)
		err = -EBUSY;
	else if (anchor && !bar)
		err = -EINVAL;
	for (r = window->parent; !err && bar && r != bar; r = r->parent) {
		err = shared_get(r);
		if (err)
			unshare(window->parent, r);
	}
	if (err)
		remove_resource(window);
	return err;
}

void extoll_pci_window_remove(struct resource *window)
{
	guard(mutex)(&shared_claims_lock);
	/* The PCI core may have merged the window with another window. */
	if (WARN_ON(!window->parent))
		return;
	unshare(window->parent, NULL);
	remove_resource(window);
}

static const struct msi_parent_ops parent_ops = {
	.supported_flags = MSI_GENERIC_FLAGS_MASK | MSI_FLAG_MULTI_PCI_MSI | MSI_FLAG_PCI_MSIX |
		MSI_FLAG_PCI_MSIX_ALLOC_DYN,
	/* Startup and shutdown show which vectors are requested. */
	.required_flags = MSI_FLAG_USE_DEF_DOM_OPS | MSI_FLAG_USE_DEF_CHIP_OPS |
		MSI_FLAG_PCI_MSI_STARTUP_PARENT,
	.chip_flags = MSI_CHIP_FLAG_SET_ACK,
	.bus_select_token = DOMAIN_BUS_NEXUS,
	.bus_select_mask = MATCH_PCI_MSI,
	.prefix = "extoll-",
	.init_dev_msi_info = msi_lib_init_dev_msi_info,
};

struct irq_domain *extoll_msi_domain_new(unsigned int vectors, const struct irq_domain_ops *ops,
					 void *data, int number)
{
	struct irq_domain_info info = {
		.size = vectors,
		.ops = ops,
		.host_data = data,
	};
	struct irq_domain *domain;

	info.fwnode = irq_domain_alloc_named_id_fwnode("extoll-msi", number);
	if (!info.fwnode)
		return NULL;
	domain = msi_create_parent_irq_domain(&info, &parent_ops);
	if (!domain)
		irq_domain_free_fwnode(info.fwnode);
	return domain;
}

void extoll_msi_domain_free(struct irq_domain *domain)
{
	struct fwnode_handle *fwnode = domain->fwnode;

	irq_domain_remove(domain);
	irq_domain_free_fwnode(fwnode);
}

void extoll_msi_message(struct msi_msg *msg, u64 address, u32 data)
{
	msg->address_hi = upper_32_bits(address);
	msg->address_lo = lower_32_bits(address);
	msg->data = data;
}

void extoll_msi_effective(struct irq_data *data, unsigned int home)
{
	struct irq_data *of = home ? irq_get_irq_data(home) : NULL;
	const struct cpumask *mask = of ? irq_data_get_effective_affinity_mask(of) : NULL;

	if (!mask || cpumask_empty(mask))
		mask = cpumask_of(cpumask_first(cpu_online_mask));
	irq_data_update_effective_affinity(data, mask);
}
