/* SPDX-License-Identifier: GPL-2.0-only */
/* C parts of net/socket/lookup.rs: what TCP would find for packets of a connection that is not there yet. */
#ifndef EXTOLL_KERNEL_EXT_LOOKUP_H
#define EXTOLL_KERNEL_EXT_LOOKUP_H

#include <linux/types.h>

struct device;
struct extoll_route;
struct sock;
struct socket;

/* A connection to be: addresses of IPv6, or IPv4 mapped, in network order; ports in host order. */
struct extoll_tuple {
	u8 client[16], server[16];
	u16 client_port, server_port;
};

struct extoll_listener {
	const struct sock *sk;	/* to be compared only: there is no reference */
	bool deferred;		/* it waits for data (TCP_DEFER_ACCEPT) */
};

/*
 * The listening socket that TCP would give a connection to whose packets come through an interface of a NIC, in the namespace of that;
 * from a node: of the interface's own they come through lo. True if there is one, and the address is the host's. Sleeps.
 */
bool extoll_listener_find(struct device *nic, u16 node, const struct extoll_tuple *tuple, struct extoll_listener *found);

/* Whether an interface of a NIC is in a socket's namespace now. Sleeps. */
bool extoll_nic_is_of(struct device *nic, struct socket *sock);

/* The interface in a socket's namespace that an address belongs to; fills only what describes an interface. 0 or -ENODEV. Any context. */
int extoll_interface_of(struct socket *sock, const u8 *address, struct extoll_route *route);

/* Ports that connect() may choose from: what the socket had, and has now. */
struct extoll_port_range {
	u32 before, now;
};

/*
 * A local port that connect() of the socket to this peer can have: its own; or one that nobody has bound, and that no connection to the
 * peer has, to which connect() is confined until extoll_port_release(). Or -EADDRNOTAVAIL. Sleeps, both.
 */
int extoll_port_choose(struct socket *sock, const struct extoll_tuple *tuple, int interface, struct extoll_port_range *range);
void extoll_port_release(struct socket *sock, const struct extoll_port_range *range);

/*
 * Who answers for what the current process takes: its user, or the owner of the outermost user namespace that it is in; as a number of
 * the initial one. -1 for who may take more than others (CAP_SYS_RESOURCE there).
 */
s64 extoll_accountable_user(void);

#endif
