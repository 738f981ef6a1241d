// SPDX-License-Identifier: GPL-2.0-only
/* Routes and neighbours. Contexts are documented in route.h. */
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <net/dst.h>
#include <net/inet_sock.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/neighbour.h>
#include <net/route.h>
#include <net/sock.h>
#include "route.h"

/*
 * The parent of an exn interface is the driver's device, whose parent is the NIC's device.
 * Interfaces that a user makes on top of others (rtnl_link_ops) do not belong to a NIC, whatever
 * their parent is.
 */
void extoll_route_describe(struct net_device *dev, struct extoll_route *route)
{
	route->index = dev->ifindex;
	strscpy((char *)route->name, dev->name, sizeof(route->name));
	route->loopback = dev->flags & IFF_LOOPBACK;
	route->has_mac = dev->addr_len == ETH_ALEN;
	if (route->has_mac)
		memcpy(route->mac, dev->dev_addr, ETH_ALEN);
	route->up = netif_running(dev) && netif_carrier_ok(dev);
	/*
	 * An unregistered interface has no parent. The parent cannot be removed within the grace
	 * period.
	 */
	if (!dev->rtnl_link_ops && READ_ONCE(dev->reg_state) == NETREG_REGISTERED &&
	    dev->dev.parent)
		route->bus = get_device(dev->dev.parent->parent);
}

static void describe(const struct dst_entry *dst, const void *address, struct extoll_route *route)
{
	rcu_read_lock();
	extoll_route_describe(dst_dev_rcu(dst), route);
	rcu_read_unlock();
	route->plain = !dst_xfrm(dst) && !dst->lwtstate;
	route->neighbour = dst_neigh_lookup(dst, address);
}

static int route_v4(struct sock *sk, __be32 to, __be16 port, struct extoll_route *route)
{
	struct inet_sock *inet = inet_sk(sk);
	const struct ip_options_rcu *options;
	struct flowi4 fl4 = {};
	struct rtable *rt;

	options = rcu_dereference_protected(inet->inet_opt, lockdep_sock_is_held(sk));
	if (options && options->opt.srr)
		return -EOPNOTSUPP;
	rt = ip_route_connect(&fl4, to, inet->inet_saddr, sk->sk_bound_dev_if, IPPROTO_TCP,
			      inet->inet_sport, port, sk);
	if (IS_ERR(rt))
		return PTR_ERR(rt);
	if (rt->rt_flags & (RTCF_MULTICAST | RTCF_BROADCAST)) {
		ip_rt_put(rt);
		return -ENETUNREACH;
	}
	memcpy(route->local, &fl4.saddr, 4);
	describe(&rt->dst, &fl4.daddr, route);
	ip_rt_put(rt);
	return 0;
}

#if IS_ENABLED(CONFIG_IPV6)
static int route_v6(struct sock *sk, const struct in6_addr *to, __be16 port, u32 scope,
		    struct extoll_route *route)
{
	struct ipv6_pinfo *np = inet6_sk(sk);
	const struct ipv6_txoptions *options;
	struct dst_entry *dst;
	struct flowi6 fl6 = {
		.flowi6_proto = IPPROTO_TCP,
		.flowi6_oif = sk->sk_bound_dev_if,
		.flowi6_mark = READ_ONCE(sk->sk_mark),
		.flowi6_uid = sk_uid(sk),
		.fl6_dport = port,
		.fl6_sport = inet_sk(sk)->inet_sport,
		.flowlabel = ip6_make_flowinfo(np->tclass, 0),
	};

	/* With a routing header, packets go to another host first. */
	options = rcu_dereference_protected(np->opt, lockdep_sock_is_held(sk));
	if (options && options->srcrt)
		return -EOPNOTSUPP;
	if (ipv6_addr_is_multicast(to))
		return -ENETUNREACH;
	if (ipv6_addr_type(to) & IPV6_ADDR_LINKLOCAL) {
		if (scope && !sk_dev_equal_l3scope(sk, scope))
			return -EINVAL;
		if (scope)
			fl6.flowi6_oif = scope;
		if (!fl6.flowi6_oif)
			return -EINVAL;
	}
	fl6.daddr = ipv6_addr_any(to) ? in6addr_loopback : *to;
	fl6.saddr = ipv6_addr_any(&sk->sk_v6_rcv_saddr) ? np->saddr : sk->sk_v6_rcv_saddr;
	if (IS_ENABLED(CONFIG_IP_ROUTE_MULTIPATH) && !fl6.fl6_sport)
		fl6.flowi6_flags = FLOWI_FLAG_ANY_SPORT;
	security_sk_classify_flow(sk, flowi6_to_flowi_common(&fl6));
	dst = ip6_dst_lookup_flow(sock_net(sk), sk, &fl6, NULL);
	if (IS_ERR(dst))
		return PTR_ERR(dst);
	route->v6 = true;
	memcpy(route->local, &fl6.saddr, 16);
	describe(dst, &fl6.daddr, route);
	dst_release(dst);
	return 0;
}
#endif

int extoll_route_to(struct socket *sock, bool v6, const u8 *address, u16 port, u32 scope,
		    struct extoll_route *route)
{
	struct sock *sk = sock->sk;
	int err = -EAFNOSUPPORT;

	memset(route, 0, sizeof(*route));
	lock_sock(sk);
	if (!v6 && sk->sk_family == AF_INET6 && ipv6_only_sock(sk)) {
		err = -ENETUNREACH;
	} else if (!v6) {
		__be32 to;

		memcpy(&to, address, 4);
		err = route_v4(sk, to, htons(port), route);
	}
#if IS_ENABLED(CONFIG_IPV6)
	if (v6 && sk->sk_family == AF_INET6) {
		struct in6_addr to;

		memcpy(&to, address, 16);
		err = route_v6(sk, &to, htons(port), scope, route);
	}
#endif
	release_sock(sk);
	return err;
}

int extoll_route_of(struct socket *sock, struct extoll_route *route)
{
	struct sock *sk = sock->sk;
	struct dst_entry *dst;
	u32 cookie = 0;

	memset(route, 0, sizeof(*route));
	lock_sock(sk);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		cookie = inet6_sk(sk)->dst_cookie;
#endif
	/* The locked sock keeps the reference. */
	dst = __sk_dst_check(sk, cookie);
	if (dst && dst->ops->family == AF_INET) {
		memcpy(route->local, &inet_sk(sk)->inet_saddr, 4);
		describe(dst, &inet_sk(sk)->inet_daddr, route);
	}
#if IS_ENABLED(CONFIG_IPV6)
	if (dst && dst->ops->family == AF_INET6) {
		route->v6 = true;
		memcpy(route->local, &inet6_sk(sk)->saddr, 16);
		describe(dst, &sk->sk_v6_daddr, route);
	}
#endif
	release_sock(sk);
	return dst ? 0 : -ENOENT;
}

void extoll_neighbour_ask(struct neighbour *n)
{
	neigh_event_send(n, NULL);
}

int extoll_neighbour_address(const struct neighbour *n, u8 *mac)
{
	u8 state = READ_ONCE(n->nud_state);
	char address[MAX_ADDR_LEN];

	if (state & NUD_FAILED)
		return -1;
	if (!(state & NUD_VALID) || n->dev->addr_len != ETH_ALEN)
		return 0;
	neigh_ha_snapshot(address, n, n->dev);
	memcpy(mac, address, ETH_ALEN);
	return 1;
}

/* An IPv4 address has four bytes. */
void extoll_neighbour_host(const struct neighbour *n, u8 *address)
{
	memset(address, 0, 16);
	memcpy(address, n->primary_key, min(n->tbl->key_len, 16U));
}

void extoll_neighbour_put(struct neighbour *n)
{
	neigh_release(n);
}
