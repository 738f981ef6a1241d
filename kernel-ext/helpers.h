/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims: inline functions, macros and everything else that bindgen cannot reach. */
#ifndef EXTOLL_KERNEL_EXT_HELPERS_H
#define EXTOLL_KERNEL_EXT_HELPERS_H

#include <linux/spinlock_types.h>
#include <linux/types.h>

struct device;
struct device_attribute;
struct pci_dev;
struct tasklet_struct;

/* wmb(): orders and flushes write-combining stores. */
void extoll_wmb(void);
/* wmb() on every CPU; interrupts must be enabled. */
void extoll_wmb_everywhere(void);
/* dma_rmb(): orders reads of memory that a device writes. */
void extoll_dma_rmb(void);
int extoll_pci_domain(struct pci_dev *pdev);
/* Returns the DMA mask for coherent memory. The setter is dma_set_coherent_mask(). */
u64 extoll_coherent_mask(struct device *dev);
int extoll_set_coherent_mask(struct device *dev, u64 mask);
/* Returns true if an IOMMU translates the addresses that the device uses. */
bool extoll_iommu_mapped(struct device *dev);
/* Returns the bus address of a memory BAR. */
u64 extoll_pci_bus_address(struct pci_dev *pdev, int bar);
/* Returns true if a memory BAR register holds the address that the kernel assigned. */
bool extoll_pci_bar_set(struct pci_dev *pdev, int bar);
/* security_locked_down(), which is inline in a kernel without CONFIG_SECURITY. */
int extoll_locked_down(u32 what);
void extoll_cond_resched(void);
bool extoll_need_resched(void);
/* Shims of spin_lock_bh(), spin_trylock_bh() and spin_unlock_bh(). */
void extoll_spin_lock_bh(spinlock_t *lock);
bool extoll_spin_trylock_bh(spinlock_t *lock);
void extoll_spin_unlock_bh(spinlock_t *lock);
void extoll_tasklet_schedule(struct tasklet_struct *tasklet);
/* Initialises the lock class of an attribute in allocated memory. */
void extoll_sysfs_attr_init(struct device_attribute *attr);

/* Tracepoints (trace.c). */
void extoll_trace_velo_post(u32 nic, u8 vpid, u8 slot, u64 descriptor);
void extoll_trace_velo_complete(u32 nic, u8 vpid, u32 slot, u64 status);
void extoll_trace_rma_post(u32 nic, u8 vpid, u64 word0, u64 word1, u64 word2);
void extoll_trace_rma_complete(u32 nic, u8 vpid, u32 slot, u64 word0, u64 word1);
void extoll_trace_interrupt(u32 nic, u32 entries, u16 read_pointer);
void extoll_trace_event(u32 nic, u32 trigger, u32 part, u64 word);
void extoll_trace_error(u32 nic, u32 reason, u64 detail);

#endif
