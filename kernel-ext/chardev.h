/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C shims of the character devices: macros, inline functions, and functions that need static C
 * data.
 */
#ifndef EXTOLL_KERNEL_EXT_CHARDEV_H
#define EXTOLL_KERNEL_EXT_CHARDEV_H

#include <linux/fs.h>
#include <linux/mm.h>

/* Maximum number of nodes per NIC, and of NICs. */
#define EXTOLL_NODES_PER_NIC 8
#define EXTOLL_NICS 32

struct extoll_node;
struct user_struct;

/* Registers classes and device numbers, once, before the first node. May sleep. */
int extoll_chardev_register(void);
void extoll_chardev_unregister(void);

/*
 * Makes a node: /dev/extoll/NAME for NIC 0, /dev/extollN/NAME for others; mode 0666, or 0600 when
 * private. Until extoll_node_del(), extoll_node_lock() returns owner to opens. Returns an error
 * pointer on failure. Both functions may sleep.
 */
struct extoll_node *extoll_node_add(struct device *parent, unsigned int nic, unsigned int number,
				    const char *name, bool private,
				    const struct file_operations *fops, void *owner);
void extoll_node_del(struct extoll_node *node);
/*
 * Locks the node that is being opened. Returns its owner, which lives until extoll_node_unlock();
 * NULL if deleted.
 */
void *extoll_node_lock(struct inode *inode);
void extoll_node_unlock(struct inode *inode);

/* Caching of a page of device memory or of RAM. Encrypted RAM is also cached. */
#define EXTOLL_VM_CACHED 0
#define EXTOLL_VM_COMBINING 1
#define EXTOLL_VM_UNCACHED 2
#define EXTOLL_VM_ENCRYPTED 3

/* Prepares a shared VMA whose pages have no struct page and are inserted by its fault handler. */
void extoll_vm_prepare(struct vm_area_struct *vma);
vm_fault_t extoll_vm_insert(struct vm_area_struct *vma, unsigned long addr, unsigned long pfn,
			    int cache);
/*
 * Returns the page frame of an address in coherent DMA memory; sets *cache to cached or encrypted.
 */
unsigned long extoll_dma_pfn(const void *p, int *cache);

/* Charges pages to RLIMIT_MEMLOCK of the current user; NULL when the limit is exceeded. */
struct user_struct *extoll_memlock_charge(unsigned long pages);
void extoll_memlock_uncharge(struct user_struct *user, unsigned long pages);

/* Writes back and invalidates the caches of the calling CPU. */
void extoll_flush_caches(void);

#endif
