// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid, never installed: an ordinary driver of the emulator's test device (docs/emulator.md,
 * "Accelerator nodes"). It contains no code for Extoll and represents the unmodified driver of a
 * device behind another node's NIC.
 *
 * Attributes of the device:
 *
 *     selftest  Uses registers, coherent and mapped memory, and an interrupt of each vector.
 *               Returns "ok" and numbers, or the error.
 *     pound     Makes transfers until the device fails.
 *     stale     Lets the device access an unmapped page, like a faulty device. Returns "ok" if
 *               the device can't reach the page.
 *     peer      Lets the device write and read another such device's memory, or returns
 *               "not mapped".
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#define VENDOR 0x1cad
#define DEVICE 0x7e57

/* Registers of BAR 0. */
#define ID 0x00
#define ID_VALUE 0x7e57acce
#define SCRATCH 0x08
#define INT_STATUS 0x0c
#define INT_ENABLE 0x10
#define INT_VECTOR 0x18
#define INT_COUNT 0x1c
#define DMA_BUS 0x20
#define DMA_MEMORY 0x28
#define DMA_LEN 0x2c
#define DMA_CONTROL 0x30
#define DMA_STATUS 0x34
#define MEMORY 0x80000

#define START 1
#define TO_BUS 2
#define DONE 2

#define MOST_VECTORS 4
#define SMALL 4096
#define LARGE 65536
#define STALE 64
#define PEER_AT 0x2000

static bool plain_msi;
module_param(plain_msi, bool, 0444);
MODULE_PARM_DESC(plain_msi, "MSI instead of MSI-X");

static unsigned int wait_ms = 5000;
module_param(wait_ms, uint, 0644);
MODULE_PARM_DESC(wait_ms, "maximum duration of a transfer in ms");

struct accel {
	struct pci_dev *pdev;
	void __iomem *regs;
	int vectors;
	struct mutex lock;
	struct completion done;
	atomic_t interrupts;
	atomic_t empty;
	u8 *small;
	dma_addr_t small_at;
};

static irqreturn_t interrupt(int irq, void *data)
{
	struct accel *a = data;
	u32 status = readl(a->regs + INT_STATUS);

	/* The interrupt is not from this device, or the device was removed. */
	if (!status || status == ~0u) {
		atomic_inc(&a->empty);
		return IRQ_NONE;
	}
	writel(status, a->regs + INT_STATUS);
	atomic_inc(&a->interrupts);
	complete(&a->done);
	return IRQ_HANDLED;
}

/* Makes a transfer that ends with an interrupt of this vector. */
static const char *transfer(struct accel *a, dma_addr_t at, u32 memory, u32 len, u32 control,
			    int vector)
{
	reinit_completion(&a->done);
	writel(vector, a->regs + INT_VECTOR);
	writel(lower_32_bits(at), a->regs + DMA_BUS);
	writel(upper_32_bits(at), a->regs + DMA_BUS + 4);
	writel(memory, a->regs + DMA_MEMORY);
	writel(len, a->regs + DMA_LEN);
	writel(control | START, a->regs + DMA_CONTROL);
	if (!wait_for_completion_timeout(&a->done, msecs_to_jiffies(wait_ms)))
		return "no interrupt";
	if (readl(a->regs + DMA_STATUS) != DONE)
		return "the transfer failed";
	return NULL;
}

static void fill(u8 *p, u32 len, u32 seed)
{
	u32 i;

	for (i = 0; i < len; i++) {
		seed = seed * 1664525 + 1013904223;
		p[i] = seed >> 24;
	}
}

static const char *coherent(struct accel *a, int vector, u32 seed)
{
	const char *wrong;
	u8 *want = kmalloc(SMALL / 2, GFP_KERNEL);

	if (!want)
		return "no memory";
	fill(want, SMALL / 2, seed);
	memcpy(a->small, want, SMALL / 2);
	memset(a->small + SMALL / 2, 0, SMALL / 2);
	wrong = transfer(a, a->small_at, 0x100, SMALL / 2, 0, vector);
	if (!wrong && readl(a->regs + MEMORY + 0x100) != *(u32 *)want)
		wrong = "the data in the device differ";
	if (!wrong)
		wrong = transfer(a, a->small_at + SMALL / 2, 0x100, SMALL / 2, TO_BUS, vector);
	if (!wrong && memcmp(a->small + SMALL / 2, want, SMALL / 2))
		wrong = "the data in coherent memory differ";
	kfree(want);
	return wrong;
}

/*
 * Transfers mapped memory at an odd offset and of an odd length. The memory around it must not
 * change.
 */
static const char *mapped(struct accel *a, int vector, u32 seed)
{
	struct device *dev = &a->pdev->dev;
	u32 first = 13, len = LARGE / 2 - 57;
	u8 *out = kmalloc(LARGE, GFP_KERNEL), *back = kmalloc(LARGE, GFP_KERNEL);
	const char *wrong = "no memory";
	dma_addr_t at;

	if (!out || !back)
		goto end;
	fill(out, LARGE, seed);
	memset(back, 0xa5, LARGE);
	at = dma_map_single(dev, out + first, len, DMA_TO_DEVICE);
	wrong = "not mapped";
	if (dma_mapping_error(dev, at))
		goto end;
	wrong = transfer(a, at, 0, len, 0, vector);
	dma_unmap_single(dev, at, len, DMA_TO_DEVICE);
	if (wrong)
		goto end;
	at = dma_map_single(dev, back + first, len, DMA_FROM_DEVICE);
	wrong = "not mapped";
	if (dma_mapping_error(dev, at))
		goto end;
	wrong = transfer(a, at, 0, len, TO_BUS, vector);
	dma_unmap_single(dev, at, len, DMA_FROM_DEVICE);
	if (wrong)
		goto end;
	if (memcmp(out + first, back + first, len))
		wrong = "the data in mapped memory differ";
	else if (memchr_inv(back, 0xa5, first) ||
		 memchr_inv(back + first + len, 0xa5, LARGE - first - len))
		wrong = "memory around the buffer has changed";
end:
	kfree(out);
	kfree(back);
	return wrong;
}

static const char *registers(struct accel *a)
{
	u32 value;

	if (readl(a->regs + ID) != ID_VALUE)
		return "wrong ID register";
	for (value = 1; value; value <<= 4) {
		writel(value, a->regs + SCRATCH);
		if (readl(a->regs + SCRATCH) != value)
			return "the scratch register has another value than was written";
	}
	return NULL;
}

static ssize_t selftest_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct accel *a = dev_get_drvdata(dev);
	const char *wrong;
	int before, vector;

	mutex_lock(&a->lock);
	before = atomic_read(&a->interrupts);
	wrong = registers(a);
	writel(~0u, a->regs + INT_ENABLE);
	for (vector = 0; !wrong && vector < a->vectors; vector++) {
		wrong = coherent(a, vector, vector + 1);
		if (!wrong)
			wrong = mapped(a, vector, vector + 100);
	}
	mutex_unlock(&a->lock);
	if (wrong)
		return sysfs_emit(buf, "failed: %s\n", wrong);
	return sysfs_emit(buf, "ok vectors=%d interrupts=%d sent=%u empty=%d\n", a->vectors,
			  atomic_read(&a->interrupts) - before, readl(a->regs + INT_COUNT),
			  atomic_read(&a->empty));
}
static DEVICE_ATTR_RO(selftest);

/* Simulates a device that uses an address after its driver unmapped it. Accesses may fail. */
static const char *unmapped(struct accel *a, u8 *page)
{
	struct device *dev = &a->pdev->dev;
	static const char *no_end = "no interrupt";
	const char *wrong;
	u32 i, there = 0;
	dma_addr_t at;

	fill(page, SMALL, 1);
	at = dma_map_single(dev, page, SMALL, DMA_BIDIRECTIONAL);
	if (dma_mapping_error(dev, at))
		return "not mapped";
	wrong = transfer(a, at, 0, STALE, 0, 0);
	if (!wrong && readl(a->regs + MEMORY) != *(u32 *)page)
		wrong = "the data in the device differ";
	dma_unmap_single(dev, at, SMALL, DMA_BIDIRECTIONAL);
	if (wrong)
		return wrong;
	/* Fills the page with data that the device must not read. */
	fill(page, SMALL, 2);
	wrong = transfer(a, at, 0, STALE, 0, 0);
	if (wrong && !strcmp(wrong, no_end))
		return wrong;
	for (i = 0; i < STALE; i += 4)
		there += readl(a->regs + MEMORY + i) == *(u32 *)(page + i);
	if (there)
		return "the device has read the unmapped page";
	for (i = 0; i < STALE; i += 4)
		writel(0x5a5a5a5a, a->regs + MEMORY + i);
	wrong = transfer(a, at, 0, STALE, TO_BUS, 0);
	if (wrong && !strcmp(wrong, no_end))
		return wrong;
	for (i = 0; i < SMALL; i += 4)
		there += *(u32 *)(page + i) == 0x5a5a5a5a;
	return there ? "the device has written the unmapped page" : NULL;
}

static ssize_t stale_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct accel *a = dev_get_drvdata(dev);
	u8 *page = (u8 *)__get_free_page(GFP_KERNEL);
	const char *wrong;

	if (!page)
		return -ENOMEM;
	mutex_lock(&a->lock);
	writel(~0u, a->regs + INT_ENABLE);
	wrong = unmapped(a, page);
	mutex_unlock(&a->lock);
	free_page((unsigned long)page);
	if (wrong)
		return sysfs_emit(buf, "failed: %s\n", wrong);
	return sysfs_emit(buf, "ok\n");
}
static DEVICE_ATTR_RO(stale);

/* Transfers from one device's memory to another's and back, without a CPU in between. */
static const char *across(struct accel *a, struct accel *b)
{
	struct device *dev = &a->pdev->dev;
	phys_addr_t there = pci_resource_start(b->pdev, 0) + MEMORY + PEER_AT;
	const char *wrong;
	dma_addr_t at;
	u32 i;

	for (i = 0; i < SMALL; i += 4) {
		writel(i * 2654435761u + 1, a->regs + MEMORY + i);
		writel(0, b->regs + MEMORY + PEER_AT + i);
	}
	/* The memory around the transferred words must not change. */
	writel(0x600d, b->regs + MEMORY + PEER_AT - 4);
	writel(0x600d, b->regs + MEMORY + PEER_AT + SMALL);
	readl(b->regs + SCRATCH);
	at = dma_map_resource(dev, there, SMALL, DMA_BIDIRECTIONAL, 0);
	if (dma_mapping_error(dev, at))
		return "not mapped";
	wrong = transfer(a, at, 0, SMALL, TO_BUS, 0);
	for (i = 0; !wrong && i < SMALL; i += 4)
		if (readl(b->regs + MEMORY + PEER_AT + i) != i * 2654435761u + 1)
			wrong = "the data in the other device differ";
	if (!wrong && (readl(b->regs + MEMORY + PEER_AT - 4) != 0x600d ||
		       readl(b->regs + MEMORY + PEER_AT + SMALL) != 0x600d))
		wrong = "memory around the buffer has changed";
	for (i = 0; i < SMALL; i += 4)
		writel(0, a->regs + MEMORY + i);
	if (!wrong)
		wrong = transfer(a, at, 0, SMALL, 0, 0);
	for (i = 0; !wrong && i < SMALL; i += 4)
		if (readl(a->regs + MEMORY + i) != i * 2654435761u + 1)
			wrong = "the device has read wrong data";
	dma_unmap_resource(dev, at, SMALL, DMA_BIDIRECTIONAL, 0);
	return wrong;
}

static ssize_t peer_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct accel *a = dev_get_drvdata(dev);
	const char *wrong = "no other device";
	struct pci_dev *other = NULL;

	mutex_lock(&a->lock);
	writel(~0u, a->regs + INT_ENABLE);
	while ((other = pci_get_device(VENDOR, DEVICE, other))) {
		/* No lock is needed, because tests bind and unbind one device at a time. */
		if (other == a->pdev || !pci_get_drvdata(other))
			continue;
		wrong = across(a, pci_get_drvdata(other));
		pci_dev_put(other);
		break;
	}
	mutex_unlock(&a->lock);
	if (wrong)
		return sysfs_emit(buf, "failed: %s\n", wrong);
	return sysfs_emit(buf, "ok\n");
}
static DEVICE_ATTR_RO(peer);

/* Transfers until one fails or the device was removed. */
static ssize_t pound_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct accel *a = dev_get_drvdata(dev);
	const char *wrong = NULL;
	int n;

	mutex_lock(&a->lock);
	writel(~0u, a->regs + INT_ENABLE);
	for (n = 0; n < 1000000 && !wrong && !signal_pending(current) &&
	     !pci_dev_is_disconnected(a->pdev); n++)
		wrong = coherent(a, n % a->vectors, n);
	mutex_unlock(&a->lock);
	return sysfs_emit(buf, "rounds=%d %s\n", n, wrong ?: "gone");
}
static DEVICE_ATTR_RO(pound);

/*
 * Resets the function and restores its state. pci_try_reset_function() only tries to take the
 * device's lock, because the driver core holds it on removal while it waits for this attribute.
 */
static ssize_t reset_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct accel *a = dev_get_drvdata(dev);
	u32 left;
	int err;

	mutex_lock(&a->lock);
	writel(0x5a5a5a5a, a->regs + SCRATCH);
	err = pci_try_reset_function(a->pdev);
	left = readl(a->regs + SCRATCH);
	mutex_unlock(&a->lock);
	return sysfs_emit(buf, "%d %#x\n", err, left);
}
static struct device_attribute dev_attr_function_reset = __ATTR(function_reset, 0400, reset_show,
								NULL);

static struct attribute *accel_attrs[] = {
	&dev_attr_selftest.attr,
	&dev_attr_pound.attr,
	&dev_attr_stale.attr,
	&dev_attr_peer.attr,
	&dev_attr_function_reset.attr,
	NULL,
};
ATTRIBUTE_GROUPS(accel);

static int accel_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct accel *a;
	int err, i;

	a = devm_kzalloc(&pdev->dev, sizeof(*a), GFP_KERNEL);
	if (!a)
		return -ENOMEM;
	a->pdev = pdev;
	mutex_init(&a->lock);
	init_completion(&a->done);
	pci_set_drvdata(pdev, a);
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	a->regs = pcim_iomap(pdev, 0, 0);
	if (!a->regs)
		return -ENOMEM;
	if (readl(a->regs + ID) != ID_VALUE)
		return -ENODEV;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(32));
	if (err)
		return err;
	a->small = dmam_alloc_coherent(&pdev->dev, SMALL, &a->small_at, GFP_KERNEL);
	if (!a->small)
		return -ENOMEM;
	pci_set_master(pdev);
	a->vectors = pci_alloc_irq_vectors(pdev, 1, MOST_VECTORS,
					   plain_msi ? PCI_IRQ_MSI : PCI_IRQ_MSIX);
	if (a->vectors < 0)
		return a->vectors;
	for (i = 0; i < a->vectors; i++) {
		err = request_irq(pci_irq_vector(pdev, i), interrupt, 0, "accel_test", a);
		if (err)
			goto undo;
	}
	return 0;
undo:
	while (i--)
		free_irq(pci_irq_vector(pdev, i), a);
	pci_free_irq_vectors(pdev);
	return err;
}

static void accel_remove(struct pci_dev *pdev)
{
	struct accel *a = pci_get_drvdata(pdev);
	int i;

	writel(0, a->regs + INT_ENABLE);
	for (i = 0; i < a->vectors; i++)
		free_irq(pci_irq_vector(pdev, i), a);
	pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
}

static const struct pci_device_id accel_ids[] = {
	{ PCI_DEVICE(VENDOR, DEVICE) },
	{ },
};
MODULE_DEVICE_TABLE(pci, accel_ids);

static struct pci_driver accel_driver = {
	.name = "accel_test",
	.id_table = accel_ids,
	.probe = accel_probe,
	.remove = accel_remove,
	.dev_groups = accel_groups,
};
module_pci_driver(accel_driver);

MODULE_DESCRIPTION("Driver of the emulator's test device");
MODULE_AUTHOR("Extoll for Linux");
MODULE_LICENSE("GPL");
