// SPDX-License-Identifier: GPL-2.0-only
/* Lookups of listeners, interfaces and ports. Contexts are documented in lookup.h. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/random.h>
#include <linux/user_namespace.h>
#include <net/addrconf.h>
#include <net/inet6_hashtables.h>
#include <net/inet_hashtables.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/tcp.h>
#include "lookup.h"
#include "route.h"

/* Maximum number of ports that are tried. */
#define TRIES 64

static bool is_v4(const u8 *address)
{
	return ipv6_addr_v4mapped((const struct in6_addr *)address);
}

static __be32 v4_of(const u8 *address)
{
	__be32 v4;

	memcpy(&v4, address + 12, sizeof(v4));
	return v4;
}

struct search {
	const struct extoll_tuple *tuple;
	struct extoll_listener *found;
	u16 node;
};

/*
 * Looks up a listener by the rules of tcp_v4_rcv() and tcp_v6_rcv(). BPF programs of SO_REUSEPORT
 * are not run, because no packet exists.
 */
static struct sock *listener_on(struct net_device *dev, const struct search *search)
{
	const struct extoll_tuple *tuple = search->tuple;
	int dif = dev->ifindex, sdif = 0;
	struct net *net = dev_net_rcu(dev);

	if (dev->addr_len == ETH_ALEN && get_unaligned_be16(dev->dev_addr + 4) == search->node) {
		dif = net->loopback_dev->ifindex;
	} else if (netif_is_l3_slave(dev)) {
		struct net_device *master = netdev_master_upper_dev_get_rcu(dev);

		if (master) {
			sdif = dif;
			dif = master->ifindex;
		}
	}
	if (is_v4(tuple->server)) {
		__be32 server = v4_of(tuple->server);

		if (inet_addr_type_dev_table(net, dev, server) != RTN_LOCAL)
			return NULL;
		return __inet_lookup_listener(net, NULL, 0, v4_of(tuple->client),
					      htons(tuple->client_port), server, tuple->server_port,
					      dif, sdif);
	}
#if IS_ENABLED(CONFIG_IPV6)
	if (!ipv6_chk_addr(net, (const struct in6_addr *)tuple->server, dev, 0))
		return NULL;
	return inet6_lookup_listener(net, NULL, 0, (const struct in6_addr *)tuple->client,
				     htons(tuple->client_port),
				     (const struct in6_addr *)tuple->server, tuple->server_port,
				     dif, sdif);
#else
	return NULL;
#endif
}

/*
 * Interfaces are children of the driver's device, which is a child of the NIC's device: see
 * route.c.
 */
static int search_interface(struct device *device, void *data)
{
	struct search *search = data;
	struct net_device *dev;
	struct sock *sk;

	if (!device->class || strcmp(device->class->name, "net"))
		return 0;
	dev = to_net_dev(device);
	rcu_read_lock();
	sk = NULL;
	if (!dev->rtnl_link_ops && READ_ONCE(dev->reg_state) == NETREG_REGISTERED)
		sk = listener_on(dev, search);
	/*
	 * No reference is acquired, because the pointer is only compared afterwards. Listeners are
	 * freed after a grace period, so the fields of sk may be read here.
	 */
	search->found->sk = sk;
	if (sk)
		search->found->deferred =
			READ_ONCE(inet_csk(sk)->icsk_accept_queue.rskq_defer_accept);
	rcu_read_unlock();
	return sk ? 1 : 0;
}

static int search_driver(struct device *device, void *data)
{
	return device_for_each_child(device, data, search_interface);
}

bool extoll_listener_find(struct device *nic, u16 node, const struct extoll_tuple *tuple,
			  struct extoll_listener *found)
{
	struct search search = { .tuple = tuple, .found = found, .node = node };

	memset(found, 0, sizeof(*found));
	return device_for_each_child(nic, &search, search_driver) > 0;
}

static int is_in(struct device *device, void *net)
{
	if (!device->class || strcmp(device->class->name, "net"))
		return 0;
	return net_eq(read_pnet(&to_net_dev(device)->nd_net), net);
}

static int has_one_in(struct device *device, void *net)
{
	return device_for_each_child(device, net, is_in);
}

bool extoll_nic_is_of(struct device *nic, struct socket *sock)
{
	return device_for_each_child(nic, sock_net(sock->sk), has_one_in) > 0;
}

int extoll_interface_of(struct socket *sock, const u8 *address, struct extoll_route *route)
{
	struct net *net = sock_net(sock->sk);
	struct net_device *dev = NULL;

	memset(route, 0, sizeof(*route));
	rcu_read_lock();
	if (is_v4(address))
		dev = __ip_dev_find(net, v4_of(address), false);
#if IS_ENABLED(CONFIG_IPV6)
	else
		dev = ipv6_dev_find(net, (const struct in6_addr *)address, NULL);
#endif
	if (dev)
		extoll_route_describe(dev, route);
	rcu_read_unlock();
	return dev ? 0 : -ENODEV;
}

/*
 * Returns true if connect() could use a port for this peer, by the rules of __inet_hash_connect():
 * the port is not bound, and the connection does not exist, not even in TIME_WAIT.
 */
static bool is_free(struct sock *sk, const struct extoll_tuple *tuple, u16 port, int interface,
		    int l3mdev)
{
	struct inet_hashinfo *hashinfo = tcp_get_hashinfo(sk);
	struct inet_bind_hashbucket *head;
	struct inet_bind_bucket *tb;
	struct net *net = sock_net(sk);
	struct sock *other = NULL;
	bool bound = false;

	head = &hashinfo->bhash[inet_bhashfn(net, port, hashinfo->bhash_size)];
	rcu_read_lock();
	hlist_for_each_entry_rcu(tb, &head->chain, node) {
		if (net_eq(ib_net(tb), net) && tb->port == port && tb->l3mdev == l3mdev)
			bound |= tb->fastreuse >= 0 || tb->fastreuseport >= 0;
	}
	if (bound)
		;
	else if (is_v4(tuple->server))
		other = __inet_lookup_established(net, v4_of(tuple->server),
						  htons(tuple->server_port), v4_of(tuple->client),
						  port, interface, 0);
#if IS_ENABLED(CONFIG_IPV6)
	else
		other = __inet6_lookup_established(net, (const struct in6_addr *)tuple->server,
						   htons(tuple->server_port),
						   (const struct in6_addr *)tuple->client, port,
						   interface, 0);
#endif
	rcu_read_unlock();
	if (other)
		sock_gen_put(other);
	return !bound && !other;
}

int extoll_port_choose(struct socket *sock, const struct extoll_tuple *tuple, int interface,
		       struct extoll_port_range *range)
{
	struct sock *sk = sock->sk;
	struct inet_sock *inet = inet_sk(sk);
	int i, low, high, l3mdev, ret;
	u32 first;

	memset(range, 0, sizeof(*range));
	lock_sock(sk);
	ret = inet->inet_num;
	if (ret)
		goto out;
	ret = -EADDRNOTAVAIL;
	l3mdev = inet_sk_bound_l3mdev(sk);
	inet_sk_get_local_port_range(sk, &low, &high);
	/*
	 * Starts at a random port, so that known ports of some connections do not reveal the next
	 * one (RFC 6056, 3.3.2).
	 */
	first = get_random_u32() >> 1;
	for (i = 0; i < TRIES && low <= high; i++) {
		/*
		 * As in connect(), the first half of the tries skips every other port, to leave
		 * ports to bind(). The second half tries all ports.
		 */
		bool all = i >= TRIES / 2;
		u32 offset = (first + (all ? i : 2 * i)) % (high - low + 1);
		u16 port = low + (all ? offset : offset & ~1U);

		if (inet_is_local_reserved_port(sock_net(sk), port) ||
		    !is_free(sk, tuple, port, interface, l3mdev))
			continue;
		range->before = READ_ONCE(inet->local_port_range);
		range->now = (u32)port << 16 | port;
		WRITE_ONCE(inet->local_port_range, range->now);
		ret = port;
		break;
	}
out:
	release_sock(sk);
	return ret;
}

void extoll_port_release(struct socket *sock, const struct extoll_port_range *range)
{
	/* The program may have set another range since extoll_port_choose(). */
	if (range->now)
		cmpxchg(&inet_sk(sock->sk)->local_port_range, range->now, range->before);
}

s64 extoll_accountable_user(void)
{
	const struct user_namespace *ns = current_user_ns();
	kuid_t user = current_uid();

	if (ns_capable_noaudit(&init_user_ns, CAP_SYS_RESOURCE))
		return -1;
	for (; ns != &init_user_ns; ns = ns->parent)
		user = ns->owner;
	return __kuid_val(user);
}
