/* SPDX-License-Identifier: GPL-2.0-only */
/* C parts for the operation of socket families: values in /proc/sys/net, queues, tracepoints. */
#ifndef EXTOLL_KERNEL_EXT_EXTL_H
#define EXTOLL_KERNEL_EXT_EXTL_H

#include <linux/types.h>
#include <net/net_namespace.h>

struct extoll_sysctl;

/* A number that may be changed: name below the directory, range. */
struct extoll_knob {
	const char *name;
	u32 least, most;
};

/*
 * Makes files below /proc/sys/PATH of a namespace for count numbers at values; NULL without memory. Sleeps. Names, ranges and values
 * stay until it is unregistered; afterwards nobody reads or writes values any more.
 */
struct extoll_sysctl *extoll_sysctl_register(struct net *net, const char *path, const struct extoll_knob *knobs, u32 *values,
					     size_t count);
void extoll_sysctl_unregister(struct extoll_sysctl *sysctl);

/*
 * Queues of a sock of TCP, as ss shows them: bytes that nobody has read, and bytes that the peer has not acknowledged; of a socket that
 * listens connections that wait, and how many may. Any context.
 */
struct extoll_sock_queues {
	u32 receive, send;
};

void extoll_sock_queues(const struct sock *sk, struct extoll_sock_queues *queues);

/* Tracepoints of system "extl" (extl_trace.h). Any context; the name of len bytes is copied. */
void extoll_trace_extl_fallback(const struct sock *sk, u8 reason, const char *name, int len);
void extoll_trace_extl_tx(const struct sock *sk, u64 bytes, bool direct);
void extoll_trace_extl_rx(const struct sock *sk, u64 bytes, bool direct);
void extoll_trace_extl_shutdown(const struct sock *sk, int how, bool direct);

#endif
