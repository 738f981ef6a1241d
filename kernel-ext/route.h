/* SPDX-License-Identifier: GPL-2.0-only */
/* C parts of net/socket/route.rs: routes and neighbours, whose structures are behind inline functions. */
#ifndef EXTOLL_KERNEL_EXT_ROUTE_H
#define EXTOLL_KERNEL_EXT_ROUTE_H

#include <linux/types.h>

struct device;
struct neighbour;
struct net_device;
struct socket;

/* Where a route leads to, and from which address; those of IPv4 are in the first four bytes. */
struct extoll_route {
	int index;		/* of the interface */
	u8 name[16];		/* of it, with a zero at the end */
	u8 mac[6];
	bool has_mac;
	bool up;		/* and has a carrier */
	bool loopback;		/* lo */
	bool plain;		/* neither IPsec nor a tunnel */
	bool v6;
	u8 local[16];
	struct device *bus;	/* parent of its parent, with a reference; NULL for interfaces that a user can make */
	struct neighbour *neighbour;	/* with a reference, or NULL */
};

/*
 * The route to an address in network order, of IPv6 with v6, as TCP's connect() of the socket looks it up; port in host order, scope:
 * an interface for link-local addresses, or 0. Takes the sock's lock; sleeps. 0 or an error.
 */
int extoll_route_to(struct socket *sock, bool v6, const u8 *address, u16 port, u32 scope, struct extoll_route *route);
/* That of a connected socket; -ENOENT if TCP has none at present. As above. */
int extoll_route_of(struct socket *sock, struct extoll_route *route);

/* Fills what describes the interface. To be called within rcu_read_lock(). */
void extoll_route_describe(struct net_device *dev, struct extoll_route *route);

/* Asks for the address of a neighbour unless it is known. No hard interrupts. */
void extoll_neighbour_ask(struct neighbour *n);
/* Its address if it is known and has six bytes: 1; -1 after it did not answer; else 0. Any context. */
int extoll_neighbour_address(const struct neighbour *n, u8 *mac);
/* The address of IP that it stands for, in network order, in the first bytes of 16. Any context. */
void extoll_neighbour_host(const struct neighbour *n, u8 *address);
void extoll_neighbour_put(struct neighbour *n);

#endif
