// SPDX-License-Identifier: GPL-2.0-only
/* PCI devices of this host that another host drives. */

#include <linux/err.h>
#include <linux/ioport.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include "leased.h"

struct extoll_leased_bar extoll_leased_bar(struct pci_dev *pdev, int bar)
{
	unsigned long flags = pci_resource_flags(pdev, bar);
	struct extoll_leased_bar result = {};

	if (!(flags & IORESOURCE_MEM) || (flags & IORESOURCE_UNSET) ||
	    !pci_resource_start(pdev, bar))
		return result;
	result.start = pci_bus_address(pdev, bar);
	result.bytes = pci_resource_len(pdev, bar);
	result.prefetchable = flags & IORESOURCE_PREFETCH;
	result.wide = flags & IORESOURCE_MEM_64;
	return result;
}

struct extoll_leased_claim {
	int bars;
	/* Protected by the device's lock. */
	bool released;
	struct pci_saved_state *state;
	/* Remainder of the page in which a small BAR is. */
	struct resource rest[PCI_STD_NUM_BARS];
};

static void release_rest(struct extoll_leased_claim *claim)
{
	for (int i = 0; i < PCI_STD_NUM_BARS; i++)
		if (claim->rest[i].parent)
			release_resource(&claim->rest[i]);
}

/*
 * Claims the remainder of each BAR's last page. A borrower gets access to whole pages, so no other
 * device may be in these pages.
 */
static int claim_rest(struct pci_dev *pdev, struct extoll_leased_claim *claim, const char *name)
{
	for (int i = 0; i < PCI_STD_NUM_BARS; i++) {
		struct resource *bar = &pdev->resource[i], *rest = &claim->rest[i];
		int error;

		if (!(claim->bars & BIT(i)) || !(resource_size(bar) & ~PAGE_MASK))
			continue;
		if (bar->start & ~PAGE_MASK)
			return -EINVAL;
		rest->start = bar->end + 1;
		rest->end = PAGE_ALIGN(bar->end) - 1;
		rest->flags = IORESOURCE_MEM | IORESOURCE_BUSY;
		rest->name = name;
		error = bar->parent ? request_resource(bar->parent, rest) : -EINVAL;
		if (error)
			return error;
	}
	return 0;
}

struct extoll_leased_claim *extoll_leased_claim(struct pci_dev *pdev, int bars, const char *name)
{
	struct extoll_leased_claim *claim;
	int error;

	/*
	 * A software host bridge translates bus addresses, so they are invalid outside of its
	 * domain.
	 */
	if (pci_domain_nr(pdev->bus) > 0xffff)
		return ERR_PTR(-EOPNOTSUPP);
	claim = kzalloc_obj(*claim);
	if (!claim)
		return ERR_PTR(-ENOMEM);
	error = pci_request_selected_regions(pdev, bars, name);
	if (error)
		goto no_regions;
	claim->bars = bars;
	error = claim_rest(pdev, claim, name);
	if (error)
		goto no_rest;
	pci_clear_master(pdev);
	/* This host has no handler for pin interrupts of the device. */
	pci_intx(pdev, 0);
	error = pci_save_state(pdev);
	if (error)
		goto no_rest;
	claim->state = pci_store_saved_state(pdev);
	if (!claim->state) {
		error = -ENOMEM;
		goto no_rest;
	}
	return claim;
no_rest:
	release_rest(claim);
	pci_release_selected_regions(pdev, bars);
no_regions:
	kfree(claim);
	return ERR_PTR(error);
}

void extoll_leased_release(struct pci_dev *pdev, struct extoll_leased_claim *claim)
{
	claim->released = true;
	release_rest(claim);
	pci_release_selected_regions(pdev, claim->bars);
}

void extoll_leased_free(struct extoll_leased_claim *claim)
{
	kfree(claim->state);
	kfree(claim);
}

u32 extoll_leased_read(struct pci_dev *pdev, int offset, int bytes)
{
	u32 value = ~0;
	u16 word = ~0;
	u8 byte = ~0;

	switch (bytes) {
	case 1:
		pci_read_config_byte(pdev, offset, &byte);
		return byte;
	case 2:
		pci_read_config_word(pdev, offset, &word);
		return word;
	default:
		pci_read_config_dword(pdev, offset, &value);
		return value;
	}
}

void extoll_leased_write(struct pci_dev *pdev, int offset, int bytes, u32 value)
{
	switch (bytes) {
	case 1:
		pci_write_config_byte(pdev, offset, value);
		break;
	case 2:
		pci_write_config_word(pdev, offset, value);
		break;
	default:
		pci_write_config_dword(pdev, offset, value);
	}
}

/*
 * Registers that one borrower has written must not reach the next borrower or this host. Needs the
 * device's lock.
 */
static int reset(struct pci_dev *pdev, struct extoll_leased_claim *claim)
{
	int error;

	pci_set_power_state(pdev, PCI_D0);
	pci_write_config_word(pdev, PCI_COMMAND, PCI_COMMAND_INTX_DISABLE);
	error = __pci_reset_function_locked(pdev);
	if (!pci_load_saved_state(pdev, claim->state))
		pci_restore_state(pdev);
	return error;
}

int extoll_leased_reset(struct pci_dev *pdev, struct extoll_leased_claim *claim)
{
	int error = -EAGAIN;

	if (!device_trylock(&pdev->dev))
		return error;
	if (claim->released) {
		error = -ENODEV;
	} else if (pci_cfg_access_trylock(pdev)) {
		error = reset(pdev, claim);
		pci_cfg_access_unlock(pdev);
	}
	device_unlock(&pdev->dev);
	return error;
}

int extoll_leased_reset_locked(struct pci_dev *pdev, struct extoll_leased_claim *claim)
{
	return reset(pdev, claim);
}
