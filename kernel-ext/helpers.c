// SPDX-License-Identifier: GPL-2.0-only
#include <asm/barrier.h>
#include <linux/capability.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/iommu.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/security.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include "helpers.h"

void extoll_wmb(void)
{
	wmb();
}

static void fence(void *unused)
{
	wmb();
}

void extoll_wmb_everywhere(void)
{
	on_each_cpu(fence, NULL, 1);
}

void extoll_dma_rmb(void)
{
	dma_rmb();
}

int extoll_pci_domain(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus);
}

u64 extoll_coherent_mask(struct device *dev)
{
	return dev->coherent_dma_mask;
}

int extoll_set_coherent_mask(struct device *dev, u64 mask)
{
	return dma_set_coherent_mask(dev, mask);
}

bool extoll_iommu_mapped(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain && domain->type != IOMMU_DOMAIN_IDENTITY;
}

u64 extoll_pci_bus_address(struct pci_dev *pdev, int bar)
{
	return pci_bus_address(pdev, bar);
}

bool extoll_pci_bar_set(struct pci_dev *pdev, int bar)
{
	struct pci_bus_region region;
	u32 low, high = 0;

	pcibios_resource_to_bus(pdev->bus, &region, &pdev->resource[bar]);
	pci_read_config_dword(pdev, PCI_BASE_ADDRESS_0 + 4 * bar, &low);
	if (pdev->resource[bar].flags & IORESOURCE_MEM_64)
		pci_read_config_dword(pdev, PCI_BASE_ADDRESS_0 + 4 * bar + 4, &high);
	return ((u64)high << 32 | (low & PCI_BASE_ADDRESS_MEM_MASK)) == region.start;
}

void extoll_cond_resched(void)
{
	cond_resched();
}

bool extoll_need_resched(void)
{
	return need_resched();
}

int extoll_locked_down(u32 what)
{
	return security_locked_down(what);
}

void extoll_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

bool extoll_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void extoll_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

void extoll_tasklet_schedule(struct tasklet_struct *tasklet)
{
	tasklet_schedule(tasklet);
}

void extoll_sysfs_attr_init(struct device_attribute *attr)
{
	sysfs_attr_init(&attr->attr);
}
