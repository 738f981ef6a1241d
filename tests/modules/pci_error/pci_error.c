// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid, never installed: simulates the PCI core's recovery from an error on the path to a
 * device (Documentation/PCI/pci-error-recovery.rst). Calls the error handlers of the device's
 * driver in order, as for a frozen channel whose slot is reset. The device itself only gets a
 * function-level reset. Loading the module returns the result of the recovery.
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/pci.h>

static unsigned int bus;
module_param(bus, uint, 0444);
MODULE_PARM_DESC(bus, "bus of the device, which is function 0 of device 0 in domain 0");

static bool permanent;
module_param(permanent, bool, 0444);
MODULE_PARM_DESC(permanent, "the device stays unreachable");

static int recover(struct pci_dev *pdev)
{
	const struct pci_error_handlers *h;
	pci_ers_result_t want;

	if (!pdev->driver)
		return -ENODEV;
	h = pdev->driver->err_handler;
	if (!h || !h->error_detected || !h->slot_reset || !h->resume)
		return -EOPNOTSUPP;
	want = h->error_detected(pdev,
				 permanent ? pci_channel_io_perm_failure : pci_channel_io_frozen);
	if (permanent)
		return want == PCI_ERS_RESULT_DISCONNECT ? 0 : -EPROTO;
	if (want != PCI_ERS_RESULT_NEED_RESET)
		return -EPROTO;
	if (pcie_flr(pdev))
		return -EIO;
	if (h->slot_reset(pdev) != PCI_ERS_RESULT_RECOVERED)
		return -EPROTO;
	h->resume(pdev);
	return 0;
}

static int __init pci_error_init(void)
{
	struct pci_dev *pdev = pci_get_domain_bus_and_slot(0, bus, PCI_DEVFN(0, 0));
	int err;

	if (!pdev)
		return -ENODEV;
	device_lock(&pdev->dev);
	err = recover(pdev);
	device_unlock(&pdev->dev);
	pci_dev_put(pdev);
	return err;
}
module_init(pci_error_init);

static void __exit pci_error_exit(void)
{
}
module_exit(pci_error_exit);

MODULE_DESCRIPTION("Recovery from PCI errors, for tests");
MODULE_AUTHOR("Extoll for Linux");
MODULE_LICENSE("GPL");
