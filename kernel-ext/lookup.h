/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C code of net/socket/lookup.rs: lookups that TCP would do for the packets of a connection that
 * does not exist yet.
 */
#ifndef EXTOLL_KERNEL_EXT_LOOKUP_H
#define EXTOLL_KERNEL_EXT_LOOKUP_H

#include <linux/types.h>

struct device;
struct extoll_route;
struct sock;
struct socket;

/* Future connection: IPv6 or IPv4-mapped addresses in network order; ports in host order. */
struct extoll_tuple {
	u8 client[16], server[16];
	u16 client_port, server_port;
};

struct extoll_listener {
	const struct sock *sk;	/* not referenced: only for comparison */
	bool deferred;		/* waits for data (TCP_DEFER_ACCEPT) */
};

/*
 * Finds the listening socket to which TCP would give a connection whose packets arrive through an
 * interface of a NIC, in the namespace of that interface. Packets from the interface's own node
 * arrive through lo. Returns true if such a socket exists and the server address is local. May
 * sleep.
 */
bool extoll_listener_find(struct device *nic, u16 node, const struct extoll_tuple *tuple,
			  struct extoll_listener *found);

/* Returns true if an interface of a NIC is in a socket's namespace now. May sleep. */
bool extoll_nic_is_of(struct device *nic, struct socket *sock);

/*
 * Finds the interface in a socket's namespace that owns an address. Fills only the fields that
 * describe an interface. Returns 0 or -ENODEV. Any context.
 */
int extoll_interface_of(struct socket *sock, const u8 *address, struct extoll_route *route);

/* Port range of connect(): the range before extoll_port_choose(), and the range that it set. */
struct extoll_port_range {
	u32 before, now;
};

/*
 * Returns a local port with which connect() of the socket can reach this peer: its bound port, or a
 * port that is neither bound nor used for a connection to the peer. Confines connect() to that port
 * until extoll_port_release(). Returns -EADDRNOTAVAIL if none is found. Both functions may sleep.
 */
int extoll_port_choose(struct socket *sock, const struct extoll_tuple *tuple, int interface,
		       struct extoll_port_range *range);
void extoll_port_release(struct socket *sock, const struct extoll_port_range *range);

/*
 * Returns the user ID, in the initial user namespace, to which resources of the current process are
 * charged: its user, or the owner of the outermost user namespace that contains it. Returns -1 for
 * processes without limits (CAP_SYS_RESOURCE in the initial namespace).
 */
s64 extoll_accountable_user(void);

#endif
