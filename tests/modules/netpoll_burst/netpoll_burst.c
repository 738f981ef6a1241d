// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid, never installed: sends frames by netpoll with interrupts disabled, like a kernel that
 * panics. During that time only netpoll itself can complete the frames. Loading the module sends
 * the frames. The parameter `sent` is the number of frames sent before interrupts were enabled
 * again.
 *
 * netpoll_send_skb() queues a frame for later if the queue does not open within a tick, which may
 * be too short in a virtual machine. The module therefore waits for the queue before it sends a
 * frame.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/hex.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/netpoll.h>
#include <linux/rtnetlink.h>

static char *dev = "exn0";
module_param(dev, charp, 0444);
MODULE_PARM_DESC(dev, "network interface");

static unsigned int frames = 600;
module_param(frames, uint, 0444);
MODULE_PARM_DESC(frames, "number of frames");

static unsigned int length = 400;
module_param(length, uint, 0444);
MODULE_PARM_DESC(length, "bytes of each");

static char *to = "2e:87:04:07:00:01";
module_param(to, charp, 0444);
MODULE_PARM_DESC(to, "MAC address of the receiver");

static unsigned int sent;
module_param(sent, uint, 0444);
MODULE_PARM_DESC(sent, "number of frames sent while interrupts were disabled (read only)");

/* Maximum time in microseconds for which the queue may be stopped. */
#define PATIENCE 8000000

static struct netpoll np = { .name = "netpoll_burst" };

/* Waits until the transmit queue is open. Returns false after PATIENCE. */
static bool wait_for_queue(struct net_device *ndev)
{
	struct netdev_queue *txq = netdev_get_tx_queue(ndev, 0);
	unsigned int us;

	for (us = 0; netif_xmit_stopped(txq); us += 50) {
		if (us >= PATIENCE)
			return false;
		netpoll_poll_dev(ndev);
		udelay(50);
	}
	return true;
}

static struct sk_buff *frame(struct net_device *ndev, const u8 *mac)
{
	struct sk_buff *skb = alloc_skb(LL_RESERVED_SPACE(ndev) + length, GFP_ATOMIC);

	if (!skb)
		return NULL;
	skb_reserve(skb, LL_RESERVED_SPACE(ndev));
	memset(skb_put(skb, length - ETH_HLEN), 0, length - ETH_HLEN);
	skb_reset_network_header(skb);
	skb->protocol = htons(ETH_P_802_EX1);
	eth_header(skb, ndev, ETH_P_802_EX1, mac, ndev->dev_addr, length);
	return skb;
}

static void burst(struct net_device *ndev, const u8 *mac)
{
	unsigned long flags;

	local_irq_save(flags);
	while (sent < frames && wait_for_queue(ndev)) {
		struct sk_buff *skb = frame(ndev, mac);

		if (!skb)
			break;
		netpoll_send_skb(&np, skb);
		sent++;
	}
	local_irq_restore(flags);
}

static int __init netpoll_burst_init(void)
{
	struct net_device *ndev;
	u8 mac[ETH_ALEN];
	int err;

	if (!mac_pton(to, mac) || length < 60)
		return -EINVAL;
	rtnl_lock();
	ndev = __dev_get_by_name(&init_net, dev);
	err = ndev ? __netpoll_setup(&np, ndev) : -ENODEV;
	if (!err)
		netdev_hold(ndev, &np.dev_tracker, GFP_KERNEL);
	rtnl_unlock();
	if (err)
		return err;
	burst(ndev, mac);
	netpoll_cleanup(&np);
	return 0;
}
module_init(netpoll_burst_init);

static void __exit netpoll_burst_exit(void)
{
}
module_exit(netpoll_burst_exit);

MODULE_DESCRIPTION("Sends frames by netpoll with interrupts off (test aid)");
MODULE_AUTHOR("Extoll for Linux");
MODULE_LICENSE("GPL");
