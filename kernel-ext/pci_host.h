/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C code of pci_host/: tables of operations, and inline functions of the kernel. Contexts are
 * documented in the Rust files.
 */
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

/* Functions of the DMA operations of a bridge's devices; any context. pool: the bridge's pool. */
struct extoll_pool_calls {
	/*
	 * Returns a device address, equal to phys in the bits of keep, or DMA_MAPPING_ERROR. copy:
	 * copy the current content.
	 */
	u64 (*map)(const void *pool, phys_addr_t phys, size_t size, u64 keep, u64 mask, bool copy,
		   enum dma_data_direction direction);
	/*
	 * Returns the device address of registers or memory of another device, or
	 * DMA_MAPPING_ERROR. Such an address is never unmapped.
	 */
	u64 (*map_peer)(const void *pool, phys_addr_t phys, size_t size, u64 mask);
	/* copy: copy back the bytes that the device has written. */
	void (*unmap)(const void *pool, u64 address, size_t size, bool copy);
	void (*sync)(const void *pool, u64 address, size_t size, bool to_device);
	/* Returns whole zeroed pages, or NULL. */
	void *(*alloc)(const void *pool, size_t size, u64 mask, u64 *address);
	void (*free)(const void *pool, u64 address, size_t size);
	/* Returns true if a device with this mask can address the whole pool. */
	bool (*reach)(const void *pool, u64 mask);
	/* Returns the smallest mask that addresses the whole pool. */
	u64 (*mask)(const void *pool);
	size_t (*largest)(const void *pool);
};

/* State of a host bridge; sysdata of all its buses. */
struct extoll_pci_host {
	struct pci_sysdata sysdata;
	const struct extoll_pool_calls *calls;
	const void *pool;
};

void extoll_pci_host_init(struct extoll_pci_host *host, struct device *parent, int domain,
			  const struct extoll_pool_calls *calls, const void *pool);
/*
 * Returns the state of the bridge above a device, or NULL if its bus does not use the operations
 * ops.
 */
struct extoll_pci_host *extoll_pci_host_of(struct pci_dev *pdev, const void *ops);
/* Sets the DMA operations of the bridge for a device; called before a driver is bound. */
void extoll_pci_dma_set(struct pci_dev *pdev);
/*
 * Returns true if an IOMMU driver manages the device, which would then ignore these DMA operations.
 */
bool extoll_pci_dma_taken(struct pci_dev *pdev);

/*
 * Allocates contiguous zeroed pages in the linear map, or returns NULL. Both functions may sleep.
 */
void *extoll_contiguous_alloc(size_t pages, int node);
void extoll_contiguous_free(void *memory, size_t pages);
bool extoll_is_linear(const void *address);
/* Returns the physical address of an address in the linear map. */
u64 extoll_linear_phys(const void *address);
/* Returns the kernel's mapping of RAM, or NULL if the address is not RAM. Any context. */
void *extoll_ram(phys_addr_t phys, size_t size);

/* Returns the nearest PCI device at or above a device, or NULL. */
struct pci_dev *extoll_pci_anchor(struct device *dev);
/*
 * Calls f with the lock of rescans and removals held; the caller must not hold that lock. Returns
 * -EBUSY if the lock is held for the removal of the anchor (a PCI device, or NULL), which may wait
 * for the caller. In that case f is called neither now nor later. A work item on wq waits for the
 * lock. Sleeps.
 */
int extoll_pci_locked(struct pci_dev *anchor, struct workqueue_struct *wq, int (*f)(void *arg),
		      void *arg);

/*
 * Returns an unused domain number from 0x10000, or an error. The lower 16 bits differ from those of
 * all existing domains, because IOMMUs only see these bits. The caller holds the lock of rescans
 * and removals.
 */
int extoll_pci_domain_new(void);
/* Returns the number of references to a bridge. */
unsigned int extoll_pci_bridge_references(struct pci_host_bridge *bridge);
/* Prevents unloading of this module permanently. */
void extoll_pci_pin(void);
/* Marks all devices of a bus as unreachable, then notifies their drivers. Sleeps. */
void extoll_pci_lost(struct pci_bus *bus);

/*
 * Inserts a window into the kernel's resource tree. With an anchor the window must be in one of its
 * BARs; exclusive claims of these addresses become shared while the window exists. Without an
 * anchor the addresses must be free. Returns 0, -EBUSY, -EINVAL, -ENOMEM. Both functions sleep.
 */
int extoll_pci_window_insert(struct pci_dev *anchor, struct resource *window);
void extoll_pci_window_remove(struct resource *window);

/*
 * Markers before and after a call of a driver's functions. The kernel makes these calls with raw
 * spin locks held (pci_lock, locks of interrupt descriptors). The markers inform lockdep that a
 * spinlock_t may be locked in these calls. Under PREEMPT_RT that is not allowed.
 */
void extoll_pci_functions_enter(void);
void extoll_pci_functions_leave(void);

/*
 * Returns a parent domain for PCI MSI and MSI-X with this number of vectors, or NULL. Both
 * functions sleep.
 */
struct irq_domain *extoll_msi_domain_new(unsigned int vectors, const struct irq_domain_ops *ops,
					 void *data, int number);
void extoll_msi_domain_free(struct irq_domain *domain);
void extoll_msi_message(struct msi_msg *msg, u64 address, u32 data);
/* Sets the effective affinity to that of interrupt home (0: unknown). */
void extoll_msi_effective(struct irq_data *data, unsigned int home);

#endif
