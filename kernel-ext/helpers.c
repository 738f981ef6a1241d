// SPDX-License-Identifier: GPL-2.0-only
#include <asm/barrier.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include "helpers.h"

void extoll_wmb(void)
{
	wmb();
}

void extoll_dma_rmb(void)
{
	dma_rmb();
}

int extoll_pci_domain(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus);
}

void extoll_cond_resched(void)
{
	cond_resched();
}
