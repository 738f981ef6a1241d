/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C code of net/socket/route.rs: routes and neighbours, whose structures are accessed by inline
 * functions.
 */
#ifndef EXTOLL_KERNEL_EXT_ROUTE_H
#define EXTOLL_KERNEL_EXT_ROUTE_H

#include <linux/types.h>

struct device;
struct neighbour;
struct net_device;
struct socket;

/*
 * Destination interface and source address of a route. IPv4 addresses are in the first four bytes.
 */
struct extoll_route {
	int index;		/* of the interface */
	u8 name[16];		/* of the interface, with a terminating zero */
	u8 mac[6];
	bool has_mac;
	bool up;		/* running and has a carrier */
	bool loopback;		/* interface is lo */
	bool plain;		/* neither IPsec nor a tunnel */
	bool v6;
	u8 local[16];
	/* device two levels above it, referenced; NULL for interfaces that a user can make */
	struct device *bus;
	struct neighbour *neighbour;	/* referenced, or NULL */
};

/*
 * Looks up the route to an address in network order (IPv6 if v6), as TCP's connect() of the socket
 * does. The port is in host order; scope is an interface for link-local addresses, or 0. Takes the
 * sock's lock; sleeps. Returns 0 or an error.
 */
int extoll_route_to(struct socket *sock, bool v6, const u8 *address, u16 port, u32 scope,
		    struct extoll_route *route);
/*
 * Returns the route of a connected socket; -ENOENT if TCP has none at present. Takes the sock's
 * lock; sleeps.
 */
int extoll_route_of(struct socket *sock, struct extoll_route *route);

/* Fills the fields that describe the interface. The caller holds rcu_read_lock(). */
void extoll_route_describe(struct net_device *dev, struct extoll_route *route);

/*
 * Starts the resolution of a neighbour's address unless it is known. Must not be called in hard
 * interrupts.
 */
void extoll_neighbour_ask(struct neighbour *n);
/*
 * Returns 1 and the neighbour's address if it is known and has six bytes, -1 if the neighbour did
 * not answer, else 0. Any context.
 */
int extoll_neighbour_address(const struct neighbour *n, u8 *mac);
/*
 * Writes the IP address of the neighbour, in network order, to the first of 16 bytes. Any context.
 */
void extoll_neighbour_host(const struct neighbour *n, u8 *address);
void extoll_neighbour_put(struct neighbour *n);

#endif
