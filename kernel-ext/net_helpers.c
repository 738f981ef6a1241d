// SPDX-License-Identifier: GPL-2.0-only
/* C shims of the net abstractions. Contexts and rules are documented in the Rust callers. */
#include <linux/bvec.h>
#include <linux/rtnetlink.h>
#include <net/netdev_lock.h>
#include "net_helpers.h"

static void extoll_net_run(struct extoll_net_priv *p)
{
	struct net_device *dev = netdev_from_priv(p);

	rtnl_lock();
	if (dev->reg_state == NETREG_REGISTERED)
		p->work_fn(dev);
	rtnl_unlock();
}

static void extoll_net_work(struct work_struct *work)
{
	extoll_net_run(container_of(work, struct extoll_net_priv, work));
}

static void extoll_net_later(struct work_struct *work)
{
	extoll_net_run(container_of(to_delayed_work(work), struct extoll_net_priv, later));
}

struct net_device *extoll_net_alloc(const struct extoll_net_config *cfg, struct device *parent)
{
	struct extoll_net_priv *p;
	struct net_device *dev;

	/* The name is derived from the hardware. NET_NAME_PREDICTABLE makes udev keep the name. */
	dev = alloc_netdev(sizeof(*p), cfg->name, NET_NAME_PREDICTABLE, ether_setup);
	if (!dev)
		return NULL;
	p = netdev_priv(dev);
	INIT_WORK(&p->work, extoll_net_work);
	INIT_DELAYED_WORK(&p->later, extoll_net_later);
	dev->min_mtu = cfg->min_mtu;
	dev->max_mtu = cfg->max_mtu;
	dev->mtu = cfg->mtu;
	dev->tx_queue_len = cfg->tx_queue_len;
	dev->watchdog_timeo = msecs_to_jiffies(cfg->watchdog_ms);
	dev->features = NETIF_F_HIGHDMA;
	/*
	 * Receivers recognise unfinished checksums only in these frames: TCP and UDP behind a plain
	 * IP header.
	 */
	if (cfg->tx_csum)
		dev->features |= NETIF_F_IP_CSUM | NETIF_F_IPV6_CSUM;
	dev->hw_features = (dev->features & NETIF_F_CSUM_MASK) | NETIF_F_RXCSUM;
	dev->vlan_features = dev->features;
	if (cfg->rx_csum)
		dev->features |= NETIF_F_RXCSUM;
	if (!cfg->multicast)
		dev->flags &= ~IFF_MULTICAST;
	/*
	 * Frames are passed to hardware by address and freed later, so pktgen must not send the
	 * same frame twice at a time.
	 */
	dev->priv_flags &= ~IFF_TX_SKB_SHARING;
	/*
	 * Frames for other addresses arrive even without promiscuous mode, if they are sent to this
	 * node.
	 */
	dev->priv_flags |= IFF_UNICAST_FLT;
	SET_NETDEV_DEV(dev, parent);
	netif_carrier_off(dev);
	return dev;
}

void extoll_net_set_ops(struct net_device *dev, const struct net_device_ops *ops,
			const struct ethtool_ops *eops, void *owner,
			void (*work_fn)(struct net_device *dev))
{
	struct extoll_net_priv *p = netdev_priv(dev);

	p->owner = owner;
	p->work_fn = work_fn;
	dev->netdev_ops = ops;
	dev->ethtool_ops = eops;
}

void *extoll_net_owner(const struct net_device *dev)
{
	return ((struct extoll_net_priv *)netdev_priv(dev))->owner;
}

void extoll_net_schedule_work(struct net_device *dev)
{
	struct extoll_net_priv *p = netdev_priv(dev);

	schedule_work(&p->work);
}

void extoll_net_schedule_work_in(struct net_device *dev, u32 ms)
{
	struct extoll_net_priv *p = netdev_priv(dev);

	schedule_delayed_work(&p->later, msecs_to_jiffies(ms));
}

void extoll_net_cancel_work(struct net_device *dev)
{
	struct extoll_net_priv *p = netdev_priv(dev);

	cancel_work_sync(&p->work);
	cancel_delayed_work_sync(&p->later);
}

bool extoll_net_running(const struct net_device *dev)
{
	return netif_running(dev);
}

u32 extoll_net_mtu(const struct net_device *dev)
{
	return READ_ONCE(dev->mtu);
}

void extoll_net_set_mtu(struct net_device *dev, u32 mtu)
{
	WRITE_ONCE(dev->mtu, mtu);
}

const char *extoll_net_name(const struct net_device *dev)
{
	return netdev_name(dev);
}

bool extoll_net_rx_csum(const struct net_device *dev)
{
	return READ_ONCE(dev->features) & NETIF_F_RXCSUM;
}

void extoll_net_set_mac(struct net_device *dev, const u8 *addr)
{
	eth_hw_addr_set(dev, addr);
	ether_addr_copy(dev->perm_addr, addr);
}

void extoll_net_get_mac(const struct net_device *dev, u8 *addr)
{
	ether_addr_copy(addr, dev->dev_addr);
}

void extoll_net_notify_mac(struct net_device *dev)
{
	call_netdevice_notifiers(NETDEV_CHANGEADDR, dev);
}

bool extoll_net_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

void extoll_net_tx_lock(struct net_device *dev)
{
	netif_tx_lock_bh(dev);
}

void extoll_net_tx_unlock(struct net_device *dev)
{
	netif_tx_unlock_bh(dev);
}

void extoll_net_tx_disable(struct net_device *dev)
{
	netif_tx_disable(dev);
}

void extoll_net_tx_start(struct net_device *dev)
{
	netif_start_queue(dev);
}

void extoll_net_tx_stop(struct net_device *dev)
{
	netif_stop_queue(dev);
	/*
	 * Pairs with the barrier in the wake path, between freeing slots and testing for a stopped
	 * queue.
	 */
	smp_mb__after_atomic();
}

void extoll_net_tx_wake(struct net_device *dev)
{
	netif_wake_queue(dev);
}

void extoll_net_tx_trans_update(struct net_device *dev)
{
	netif_trans_update(dev);
}

void extoll_net_bql_sent(struct net_device *dev, u32 bytes)
{
	netdev_sent_queue(dev, bytes);
}

void extoll_net_bql_completed(struct net_device *dev, u32 pkts, u32 bytes)
{
	netdev_completed_queue(dev, pkts, bytes);
}

void extoll_net_bql_reset(struct net_device *dev)
{
	netdev_reset_queue(dev);
}

#if BITS_PER_LONG != 64
#error "the counters rely on 64-bit stores that don't tear"
#endif

struct extoll_net_stats __percpu *extoll_net_stats_alloc(void)
{
	return alloc_percpu(struct extoll_net_stats);
}

void extoll_net_stats_free(struct extoll_net_stats __percpu *s)
{
	free_percpu(s);
}

/* this_cpu_add() is one instruction or disables interrupts, so it is correct in every context. */
void extoll_net_stats_rx(struct extoll_net_stats __percpu *s, u32 bytes)
{
	this_cpu_inc(s->rx_packets);
	this_cpu_add(s->rx_bytes, bytes);
}

void extoll_net_stats_tx(struct extoll_net_stats __percpu *s, u32 packets, u64 bytes)
{
	this_cpu_add(s->tx_packets, packets);
	this_cpu_add(s->tx_bytes, bytes);
}

void extoll_net_stats_sum(const struct extoll_net_stats __percpu *s, struct extoll_net_stats *sum)
{
	int cpu;

	memset(sum, 0, sizeof(*sum));
	for_each_possible_cpu(cpu) {
		const struct extoll_net_stats *c = per_cpu_ptr(s, cpu);

		sum->rx_packets += READ_ONCE(c->rx_packets);
		sum->rx_bytes += READ_ONCE(c->rx_bytes);
		sum->tx_packets += READ_ONCE(c->tx_packets);
		sum->tx_bytes += READ_ONCE(c->tx_bytes);
	}
}

static enum hrtimer_restart extoll_napi_kick(struct hrtimer *t)
{
	napi_schedule(&container_of(t, struct extoll_napi, kick)->napi);
	return HRTIMER_NORESTART;
}

static void extoll_napi_soon(struct irq_work *w)
{
	napi_schedule(&container_of(w, struct extoll_napi, soon)->napi);
}

void extoll_napi_add(struct net_device *dev, struct extoll_napi *n,
		     int (*poll)(struct napi_struct *n, int budget))
{
	memset(n, 0, sizeof(*n));
	init_irq_work(&n->soon, extoll_napi_soon);
	hrtimer_setup(&n->kick, extoll_napi_kick, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	netif_napi_add(dev, &n->napi, poll);
}

void extoll_napi_del(struct extoll_napi *n)
{
	struct net_device *dev = n->napi.dev;

	netdev_lock(dev);
	if (n->enabled)
		napi_disable_locked(&n->napi);
	n->enabled = false;
	netdev_unlock(dev);
	hrtimer_cancel(&n->kick);
	irq_work_sync(&n->soon);
	netif_napi_del(&n->napi);
}

/*
 * Every NAPI instance of these devices is an extoll_napi, so each entry of the list is part of an
 * extoll_napi.
 */
void extoll_napi_enable_all(struct net_device *dev)
{
	struct napi_struct *napi;

	netdev_lock(dev);
	/*
	 * There is only one instance (Napi::new()). With several instances, each would get the next
	 * ID here, but the core expects its list by descending IDs (netdev_nl_napi_dump_one()).
	 */
	list_for_each_entry(napi, &dev->napi_list, dev_list) {
		struct extoll_napi *n = container_of(napi, struct extoll_napi, napi);

		if (n->enabled || n->claimed)
			continue;
		napi_enable_locked(napi);
		n->enabled = true;
		/* The instances poll once for frames that arrived before. */
		local_bh_disable();
		napi_schedule(napi);
		local_bh_enable();
	}
	netdev_unlock(dev);
}

void extoll_napi_disable_all(struct net_device *dev)
{
	struct napi_struct *napi;

	netdev_lock(dev);
	list_for_each_entry(napi, &dev->napi_list, dev_list) {
		struct extoll_napi *n = container_of(napi, struct extoll_napi, napi);

		if (!n->enabled)
			continue;
		napi_disable_locked(napi);
		n->enabled = false;
		/* The disabled poll function cannot arm the timer again. */
		hrtimer_cancel(&n->kick);
	}
	netdev_unlock(dev);
}

bool extoll_napi_claim(struct extoll_napi *n)
{
	bool ok;

	netdev_lock(n->napi.dev);
	ok = !n->enabled && !n->claimed;
	if (ok)
		n->claimed = true;
	netdev_unlock(n->napi.dev);
	return ok;
}

void extoll_napi_unclaim(struct extoll_napi *n)
{
	netdev_lock(n->napi.dev);
	n->claimed = false;
	netdev_unlock(n->napi.dev);
}

/*
 * Schedules the instance. In process context, local_bh_enable() runs the raised softirq at once.
 * Otherwise the softirq would wait for the next interrupt.
 */
void extoll_napi_schedule(struct extoll_napi *n)
{
	if (!in_task()) {
		napi_schedule(&n->napi);
	} else if (irqs_disabled()) {
		irq_work_queue(&n->soon);
	} else {
		local_bh_disable();
		napi_schedule(&n->napi);
		local_bh_enable();
	}
}

void extoll_napi_schedule_in(struct extoll_napi *n, u64 ns)
{
	hrtimer_start(&n->kick, ns_to_ktime(ns), HRTIMER_MODE_REL);
}

/*
 * Returns true if the timer of extoll_napi_schedule_in() is pending; false from the moment it
 * expires.
 */
bool extoll_napi_timer_runs(const struct extoll_napi *n)
{
	return hrtimer_is_queued((struct hrtimer *)&n->kick);
}

/*
 * An unfinished checksum (CHECKSUM_PARTIAL) counts as valid: the stack accepts the frame, and
 * completes the checksum if the frame is forwarded to another interface.
 */
void extoll_napi_receive(struct extoll_napi *n, struct sk_buff *skb, enum extoll_csum csum,
			 u16 start, u16 offset)
{
	skb->ip_summed = csum == EXTOLL_CSUM_VERIFIED ? CHECKSUM_UNNECESSARY : CHECKSUM_NONE;
	/* Changes nothing if the position is outside of the frame. */
	if (csum == EXTOLL_CSUM_UNFINISHED)
		skb_partial_csum_set(skb, start, offset);
	skb_record_rx_queue(skb, 0);
	skb->protocol = eth_type_trans(skb, n->napi.dev);
	napi_gro_receive(&n->napi, skb);
}

struct sk_buff *extoll_napi_alloc_skb(struct extoll_napi *n, u32 len)
{
	return napi_alloc_skb(&n->napi, len);
}

struct sk_buff *extoll_skb_alloc(struct net_device *dev, u32 len)
{
	return __netdev_alloc_skb_ip_align(dev, len, GFP_ATOMIC | __GFP_NOWARN);
}

void extoll_skb_drop(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

void extoll_skb_consume(struct sk_buff *skb)
{
	dev_consume_skb_any(skb);
}

u32 extoll_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

u32 extoll_skb_tailroom(const struct sk_buff *skb)
{
	return skb_tailroom(skb);
}

void *extoll_skb_put(struct sk_buff *skb, u32 len)
{
	return skb_put(skb, len);
}

int extoll_skb_linearize(struct sk_buff *skb)
{
	return skb_linearize(skb);
}

bool extoll_skb_csum_partial(const struct sk_buff *skb)
{
	return skb->ip_summed == CHECKSUM_PARTIAL;
}

u32 extoll_skb_hash(struct sk_buff *skb)
{
	return skb_get_hash(skb);
}

void extoll_skb_tx_timestamp(struct sk_buff *skb)
{
	skb_tx_timestamp(skb);
}

void extoll_skb_orphan(struct sk_buff *skb)
{
	skb_orphan(skb);
	nf_reset_ct(skb);
	skb->dev = NULL;
}

/*
 * Removes the reference to the device from a frame. Unlike extoll_skb_orphan(), the function may
 * run while another CPU drops the frame's owner.
 */
void extoll_skb_forget_dev(struct sk_buff *skb)
{
	skb->dev = NULL;
}

#if IS_ENABLED(CONFIG_KUNIT)
struct sk_buff *extoll_skb_sample(size_t len)
{
	struct sk_buff *skb = alloc_skb(len, GFP_KERNEL);

	if (skb)
		memset(skb_put(skb, len), 0, len);
	return skb;
}
#endif

void extoll_skb_get(struct sk_buff *skb)
{
	skb_get(skb);
}

/* Drops a reference of extoll_skb_get(). The sending socket stops waiting for the frame. */
void extoll_skb_disown(struct sk_buff *skb)
{
	skb_orphan(skb);
	/*
	 * The frame may be held for a minute, and connection tracking cannot end before its entry
	 * is released.
	 */
	nf_reset_ct(skb);
	consume_skb(skb);
}

/* Sets the text of ack, which is copied. ack may be NULL. */
void extoll_ack(struct netlink_ext_ack *ack, const char *why)
{
	NL_SET_ERR_MSG_FMT(ack, "%s", why);
}

void extoll_bh_disable(void)
{
	local_bh_disable();
}

void extoll_bh_enable(void)
{
	local_bh_enable();
}

bool extoll_net_ratelimit(void)
{
	return net_ratelimit();
}

u64 extoll_jiffies64(void)
{
	return get_jiffies_64();
}
