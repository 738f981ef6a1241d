// SPDX-License-Identifier: GPL-2.0-only
#include <linux/capability.h>
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <asm/coco.h>
#include <asm/pgtable.h>
#include <asm/special_insns.h>
#include "chardev.h"

struct extoll_node {
	struct device dev;
	struct cdev cdev;
	struct mutex lock;
	void *owner;
};

static dev_t first;

static char *devnode(const struct device *dev, umode_t *mode)
{
	unsigned int nic = (MINOR(dev->devt) - MINOR(first)) / EXTOLL_NODES_PER_NIC;
	const char *name = dev_name(dev);
	int len = strcspn(name, ".");

	return nic ? kasprintf(GFP_KERNEL, "extoll%u/%.*s", nic, len, name) :
		     kasprintf(GFP_KERNEL, "extoll/%.*s", len, name);
}

static char *devnode_user(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return devnode(dev, mode);
}

static const struct class class_user = { .name = "extoll", .devnode = devnode_user };
static const struct class class_priv = { .name = "extoll_priv", .devnode = devnode };

int extoll_chardev_register(void)
{
	int err = alloc_chrdev_region(&first, 0, EXTOLL_NICS * EXTOLL_NODES_PER_NIC, "extoll");

	if (err)
		return err;
	err = class_register(&class_user);
	if (err)
		goto no_user;
	err = class_register(&class_priv);
	if (!err)
		return 0;
	class_unregister(&class_user);
no_user:
	unregister_chrdev_region(first, EXTOLL_NICS * EXTOLL_NODES_PER_NIC);
	return err;
}

void extoll_chardev_unregister(void)
{
	class_unregister(&class_priv);
	class_unregister(&class_user);
	unregister_chrdev_region(first, EXTOLL_NICS * EXTOLL_NODES_PER_NIC);
}

static void node_release(struct device *dev)
{
	kfree(container_of(dev, struct extoll_node, dev));
}

/*
 * Disconnects a node from its owner. An open that has found the character device may still call
 * extoll_node_lock().
 */
static void forget_owner(struct extoll_node *node)
{
	mutex_lock(&node->lock);
	node->owner = NULL;
	mutex_unlock(&node->lock);
}

struct extoll_node *extoll_node_add(struct device *parent, unsigned int nic, unsigned int number,
				    const char *name, bool private,
				    const struct file_operations *fops, void *owner)
{
	struct extoll_node *node;
	int err;

	if (nic >= EXTOLL_NICS || number >= EXTOLL_NODES_PER_NIC)
		return ERR_PTR(-ENOSPC);
	node = kzalloc(sizeof(*node), GFP_KERNEL);
	if (!node)
		return ERR_PTR(-ENOMEM);
	mutex_init(&node->lock);
	node->owner = owner;
	device_initialize(&node->dev);
	node->dev.class = private ? &class_priv : &class_user;
	node->dev.parent = parent;
	node->dev.release = node_release;
	node->dev.devt = first + nic * EXTOLL_NODES_PER_NIC + number;
	cdev_init(&node->cdev, fops);
	node->cdev.owner = THIS_MODULE;
	err = nic ? dev_set_name(&node->dev, "%s.%u", name, nic) :
		    dev_set_name(&node->dev, "%s", name);
	if (!err)
		err = cdev_device_add(&node->cdev, &node->dev);
	if (err) {
		forget_owner(node);
		put_device(&node->dev);
		return ERR_PTR(err);
	}
	return node;
}

void extoll_node_del(struct extoll_node *node)
{
	cdev_device_del(&node->cdev, &node->dev);
	forget_owner(node);
	put_device(&node->dev);
}

void *extoll_node_lock(struct inode *inode)
{
	struct extoll_node *node = container_of(inode->i_cdev, struct extoll_node, cdev);

	mutex_lock(&node->lock);
	return node->owner;
}

void extoll_node_unlock(struct inode *inode)
{
	mutex_unlock(&container_of(inode->i_cdev, struct extoll_node, cdev)->lock);
}

void extoll_vm_prepare(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
}

vm_fault_t extoll_vm_insert(struct vm_area_struct *vma, unsigned long addr, unsigned long pfn,
			    int cache)
{
	pgprot_t prot = vma->vm_page_prot;

	if (cache != EXTOLL_VM_ENCRYPTED)
		prot = pgprot_decrypted(prot);
	if (cache == EXTOLL_VM_COMBINING)
		prot = pgprot_writecombine(prot);
	else if (cache == EXTOLL_VM_UNCACHED)
		prot = pgprot_noncached(prot);
	return vmf_insert_pfn_prot(vma, addr, pfn, prot);
}

/*
 * The DMA API decides whether the host encrypts RAM that devices access (SME), so this function
 * reads the kernel's page table entry.
 */
unsigned long extoll_dma_pfn(const void *p, int *cache)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)p, &level);

	*cache = pte && cc_mkdec(pte_val(*pte)) != pte_val(*pte) ? EXTOLL_VM_ENCRYPTED :
								   EXTOLL_VM_CACHED;
	return is_vmalloc_addr(p) ? vmalloc_to_pfn(p) : PHYS_PFN(virt_to_phys((void *)p));
}

struct user_struct *extoll_memlock_charge(unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct user_struct *user = get_uid(current_user());
	long old = atomic_long_read(&user->locked_vm), new;

	do {
		new = old + pages;
		if (new > limit && !capable(CAP_IPC_LOCK)) {
			free_uid(user);
			return NULL;
		}
	} while (!atomic_long_try_cmpxchg(&user->locked_vm, &old, new));
	return user;
}

void extoll_memlock_uncharge(struct user_struct *user, unsigned long pages)
{
	atomic_long_sub(pages, &user->locked_vm);
	free_uid(user);
}

void extoll_flush_caches(void)
{
	wbinvd();
}
