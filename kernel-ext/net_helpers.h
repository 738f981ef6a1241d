/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims of the net abstractions: inline functions and macros that bindgen cannot reach. */
#ifndef EXTOLL_KERNEL_EXT_NET_HELPERS_H
#define EXTOLL_KERNEL_EXT_NET_HELPERS_H

#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>

/* Content of netdev_priv(): a back pointer and the device's deferred work, immediate or delayed. */
struct extoll_net_priv {
	void *owner;		/* driver's Rust object; constant after registration */
	struct work_struct work;
	struct delayed_work later;
	void (*work_fn)(struct net_device *dev);
};

/* State of the layer-4 checksum of a received frame. */
enum extoll_csum {
	EXTOLL_CSUM_UNKNOWN,
	EXTOLL_CSUM_UNFINISHED,
	EXTOLL_CSUM_VERIFIED,
};

/*
 * NAPI instance with a timer that schedules it later, and an irq_work that schedules it once
 * interrupts are enabled.
 */
struct extoll_napi {
	struct napi_struct napi;
	struct hrtimer kick;
	struct irq_work soon;
	bool enabled;		/* under netdev_lock(); set under RTNL only */
	bool claimed;		/* under netdev_lock() */
};

/* Byte and packet counters, one per CPU. */
struct extoll_net_stats {
	u64 rx_packets, rx_bytes, tx_packets, tx_bytes;
};

/* Properties of a new net device. */
struct extoll_net_config {
	const char *name;	/* with %d */
	u32 min_mtu, max_mtu, mtu;
	u32 tx_queue_len;
	u32 watchdog_ms;
	bool tx_csum;		/* NETIF_F_IP_CSUM, NETIF_F_IPV6_CSUM */
	bool rx_csum;		/* NETIF_F_RXCSUM initially; users can always switch it */
	bool multicast;		/* IFF_MULTICAST */
};

/* Life cycle of a device. */
struct net_device *extoll_net_alloc(const struct extoll_net_config *cfg, struct device *parent);
void extoll_net_set_ops(struct net_device *dev, const struct net_device_ops *ops,
			const struct ethtool_ops *eops, void *owner,
			void (*work_fn)(struct net_device *dev));
void *extoll_net_owner(const struct net_device *dev);
void extoll_net_schedule_work(struct net_device *dev);
void extoll_net_schedule_work_in(struct net_device *dev, u32 ms);
void extoll_net_cancel_work(struct net_device *dev);
bool extoll_net_running(const struct net_device *dev);
u32 extoll_net_mtu(const struct net_device *dev);
void extoll_net_set_mtu(struct net_device *dev, u32 mtu);
const char *extoll_net_name(const struct net_device *dev);
bool extoll_net_rx_csum(const struct net_device *dev);
void extoll_net_set_mac(struct net_device *dev, const u8 *addr);
void extoll_net_get_mac(const struct net_device *dev, u8 *addr);
void extoll_net_notify_mac(struct net_device *dev);
bool extoll_net_carrier_ok(const struct net_device *dev);

/* Operations on transmit queue 0. */
void extoll_net_tx_lock(struct net_device *dev);
void extoll_net_tx_unlock(struct net_device *dev);
void extoll_net_tx_disable(struct net_device *dev);
void extoll_net_tx_start(struct net_device *dev);
void extoll_net_tx_stop(struct net_device *dev);
void extoll_net_tx_wake(struct net_device *dev);
void extoll_net_tx_trans_update(struct net_device *dev);
void extoll_net_bql_sent(struct net_device *dev, u32 bytes);
void extoll_net_bql_completed(struct net_device *dev, u32 pkts, u32 bytes);
void extoll_net_bql_reset(struct net_device *dev);

/* Frame and byte counters. */
struct extoll_net_stats __percpu *extoll_net_stats_alloc(void);
void extoll_net_stats_free(struct extoll_net_stats __percpu *s);
void extoll_net_stats_rx(struct extoll_net_stats __percpu *s, u32 bytes);
void extoll_net_stats_tx(struct extoll_net_stats __percpu *s, u32 packets, u64 bytes);
void extoll_net_stats_sum(const struct extoll_net_stats __percpu *s, struct extoll_net_stats *sum);

/* NAPI. */
void extoll_napi_add(struct net_device *dev, struct extoll_napi *n,
		     int (*poll)(struct napi_struct *n, int budget));
void extoll_napi_del(struct extoll_napi *n);
void extoll_napi_enable_all(struct net_device *dev);
void extoll_napi_disable_all(struct net_device *dev);
bool extoll_napi_claim(struct extoll_napi *n);
void extoll_napi_unclaim(struct extoll_napi *n);
void extoll_napi_schedule(struct extoll_napi *n);
void extoll_napi_schedule_in(struct extoll_napi *n, u64 ns);
bool extoll_napi_timer_runs(const struct extoll_napi *n);
void extoll_napi_receive(struct extoll_napi *n, struct sk_buff *skb, enum extoll_csum csum,
			 u16 start, u16 offset);
struct sk_buff *extoll_napi_alloc_skb(struct extoll_napi *n, u32 len);

/* Socket buffers. */
struct sk_buff *extoll_skb_alloc(struct net_device *dev, u32 len);
void extoll_skb_drop(struct sk_buff *skb);
void extoll_skb_consume(struct sk_buff *skb);
u32 extoll_skb_headlen(const struct sk_buff *skb);
u32 extoll_skb_tailroom(const struct sk_buff *skb);
void *extoll_skb_put(struct sk_buff *skb, u32 len);
int extoll_skb_linearize(struct sk_buff *skb);
bool extoll_skb_csum_partial(const struct sk_buff *skb);
u32 extoll_skb_hash(struct sk_buff *skb);
void extoll_skb_tx_timestamp(struct sk_buff *skb);
void extoll_skb_orphan(struct sk_buff *skb);
void extoll_skb_get(struct sk_buff *skb);
void extoll_skb_disown(struct sk_buff *skb);
void extoll_skb_forget_dev(struct sk_buff *skb);
/* Returns a frame with len bytes, for tests. */
struct sk_buff *extoll_skb_sample(size_t len);

void extoll_ack(struct netlink_ext_ack *ack, const char *why);
void extoll_bh_disable(void);
void extoll_bh_enable(void);
bool extoll_net_ratelimit(void);
u64 extoll_jiffies64(void);

#endif
