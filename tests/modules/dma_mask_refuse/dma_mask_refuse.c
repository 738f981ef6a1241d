// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid, never installed: simulates a host whose bridges lack address bits. While it is loaded,
 * DMA masks of more than `widest` bits are rejected for the devices of one PCI vendor. On x86,
 * which accepts every mask of 32 bits or more, drivers never see this error otherwise.
 *
 * All functions that set a mask call the exported function dma_set_mask().
 * dma_set_mask_and_coherent(), of which Rust drivers use an out-of-line copy, sets the coherent
 * mask only after dma_set_mask() succeeded.
 */
#include <linux/bitops.h>
#include <linux/dma-mapping.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/pci.h>

static unsigned int vendor = 0x1cad;
module_param(vendor, uint, 0444);
MODULE_PARM_DESC(vendor, "PCI vendor ID of the devices whose masks are limited");

static unsigned int widest;
module_param(widest, uint, 0644);
MODULE_PARM_DESC(widest, "widest mask that is granted, in bits (0: none)");

static atomic_t refused = ATOMIC_INIT(0);
module_param_named(refused, refused.counter, int, 0444);
MODULE_PARM_DESC(refused, "masks refused so far (read only)");

struct call {
	struct device *dev;
	u64 mask;
};

static int on_entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *call = (struct call *)ri->data;
	struct device *dev = (struct device *)regs_get_kernel_argument(regs, 0);
	u64 wanted = regs_get_kernel_argument(regs, 1);

	/* A value other than 0 skips the return handler. */
	if (!dev_is_pci(dev) || to_pci_dev(dev)->vendor != vendor || !dev->dma_mask ||
	    fls64(wanted) <= READ_ONCE(widest))
		return 1;
	call->dev = dev;
	call->mask = *dev->dma_mask;
	return 0;
}

static int on_return(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *call = (struct call *)ri->data;

	/* Restores the state that a failing dma_set_mask() leaves. */
	*call->dev->dma_mask = call->mask;
	regs_set_return_value(regs, -EIO);
	atomic_inc(&refused);
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "dma_set_mask",
	.entry_handler = on_entry,
	.handler = on_return,
	.data_size = sizeof(struct call),
};

static int __init dma_mask_refuse_init(void)
{
	return register_kretprobe(&probe);
}
module_init(dma_mask_refuse_init);

static void __exit dma_mask_refuse_exit(void)
{
	unregister_kretprobe(&probe);
}
module_exit(dma_mask_refuse_exit);

MODULE_DESCRIPTION("Test aid: refuses DMA masks");
MODULE_LICENSE("GPL");
