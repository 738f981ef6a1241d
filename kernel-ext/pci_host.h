/* SPDX-License-Identifier: GPL-2.0-only */
/* C parts of pci_host/: tables of operations, and what is inline in the kernel's headers. Contexts are documented in the Rust files. */
#ifndef EXTOLL_KERNEL_EXT_PCI_HOST_H
#define EXTOLL_KERNEL_EXT_PCI_HOST_H

#include <linux/dma-direction.h>
#include <linux/types.h>
#include <asm/pci.h>

struct cpumask;
struct device;
struct irq_data;
struct irq_domain;
struct irq_domain_ops;
struct msi_msg;
struct pci_bus;
struct pci_dev;
struct pci_host_bridge;
struct resource;
struct workqueue_struct;

/* What the DMA operations of a bridge's devices do; from any context. pool: that of the bridge. */
struct extoll_pool_calls {
	/* The device's address, in which the bits of `keep` are those of phys; DMA_MAPPING_ERROR. copy: as it is now. */
	u64 (*map)(const void *pool, phys_addr_t phys, size_t size, u64 keep, u64 mask, bool copy,
		   enum dma_data_direction direction);
	/* The device's address of registers or memory of another device; DMA_MAPPING_ERROR. There is no end to it. */
	u64 (*map_peer)(const void *pool, phys_addr_t phys, size_t size, u64 mask);
	/* copy: what the device has written. */
	void (*unmap)(const void *pool, u64 address, size_t size, bool copy);
	void (*sync)(const void *pool, u64 address, size_t size, bool to_device);
	/* Whole pages, zeroed; NULL. */
	void *(*alloc)(const void *pool, size_t size, u64 mask, u64 *address);
	void (*free)(const void *pool, u64 address, size_t size);
	/* Whether a device with this mask reaches all of the pool. */
	bool (*reach)(const void *pool, u64 mask);
	/* The mask that does. */
	u64 (*mask)(const void *pool);
	size_t (*largest)(const void *pool);
};

/* Of a host bridge; all of its buses have the sysdata. */
struct extoll_pci_host {
	struct pci_sysdata sysdata;
	const struct extoll_pool_calls *calls;
	const void *pool;
};

void extoll_pci_host_init(struct extoll_pci_host *host, struct device *parent, int domain, const struct extoll_pool_calls *calls, const void *pool);
/* What it is of a device of one of our bridges, else NULL. ops: those by which ours are known. */
struct extoll_pci_host *extoll_pci_host_of(struct pci_dev *pdev, const void *ops);
/* Gives a device the DMA operations of its bridge; before a driver is bound. */
void extoll_pci_dma_set(struct pci_dev *pdev);
/* Whether an IOMMU driver has taken a device, so that it would not use them. */
bool extoll_pci_dma_taken(struct pci_dev *pdev);

/* Linear-map memory of so many pages, contiguous and zeroed, or NULL. Sleep. */
void *extoll_contiguous_alloc(size_t pages, int node);
void extoll_contiguous_free(void *memory, size_t pages);
bool extoll_is_linear(const void *address);
/* Where that is; for addresses of the linear map. */
u64 extoll_linear_phys(const void *address);
/* Where RAM is mapped; NULL for what is not RAM. Any context. */
void *extoll_ram(phys_addr_t phys, size_t size);

/* The nearest PCI device at or above a device, or NULL. */
struct pci_dev *extoll_pci_anchor(struct device *dev);
/*
 * Calls f with the lock of rescans and removals, which the caller must not hold himself. If somebody holds it who is about to remove the
 * anchor (a PCI device, or NULL), and so may wait for the caller: -EBUSY, and f was not and will not be called. wq: where it waits. Sleeps.
 */
int extoll_pci_locked(struct pci_dev *anchor, struct workqueue_struct *wq, int (*f)(void *arg), void *arg);

/* A domain number from 0x10000 on whose lower half is not that of a domain that there is (IOMMUs see no more of it), or an error. With that lock. */
int extoll_pci_domain_new(void);
/* References to a bridge. */
unsigned int extoll_pci_bridge_references(struct pci_host_bridge *bridge);
/* Keeps this code from being unloaded, for ever. */
void extoll_pci_pin(void);
/* Devices of a bus: marked as gone, then their drivers are told. Sleeps. */
void extoll_pci_lost(struct pci_bus *bus);

/*
 * Puts a window into the kernel's map of addresses. With an anchor it has to be in one of its BARs; what has claimed that for itself does not
 * keep others from claiming parts of the window meanwhile. Without one it must be where nobody is. 0, -EBUSY, -EINVAL, -ENOMEM. Sleep.
 */
int extoll_pci_window_insert(struct pci_dev *anchor, struct resource *window);
void extoll_pci_window_remove(struct resource *window);

/*
 * Around calls of a driver's functions, which the kernel makes with raw spin locks held (pci_lock, those of interrupt descriptors): for lockdep, that
 * spinlock_t may be taken there. With PREEMPT_RT it may not.
 */
void extoll_pci_functions_enter(void);
void extoll_pci_functions_leave(void);

/* A parent domain of PCI MSI and MSI-X with so many vectors, or NULL. Sleep. */
struct irq_domain *extoll_msi_domain_new(unsigned int vectors, const struct irq_domain_ops *ops, void *data, int number);
void extoll_msi_domain_free(struct irq_domain *domain);
void extoll_msi_message(struct msi_msg *msg, u64 address, u32 data);
/* The effective affinity is that of interrupt home (0: unknown). */
void extoll_msi_effective(struct irq_data *data, unsigned int home);

#endif
