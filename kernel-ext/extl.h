/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C code for the operation of socket families: numbers in /proc/sys/net, queue lengths,
 * tracepoints.
 */
#ifndef EXTOLL_KERNEL_EXT_EXTL_H
#define EXTOLL_KERNEL_EXT_EXTL_H

#include <linux/types.h>
#include <net/net_namespace.h>

struct extoll_sysctl;

/* Writable number: name of its file and permitted range. */
struct extoll_sysctl_entry {
	const char *name;
	u32 min, max;
};

/*
 * Makes count files below /proc/sys/PATH of a namespace, one per element of values; NULL without
 * memory. May sleep. Names, ranges and values must live until the files are unregistered.
 * Unregistering waits for readers and writers.
 */
struct extoll_sysctl *extoll_sysctl_register(struct net *net, const char *path,
					     const struct extoll_sysctl_entry *entries, u32 *values,
					     size_t count);
void extoll_sysctl_unregister(struct extoll_sysctl *sysctl);

/*
 * Queue lengths of a TCP socket as ss shows them. For a connection: bytes that the program has not
 * read, and bytes that the peer has not acknowledged. For a listening socket: connections that wait
 * for accept(), and the maximum number of them. Any context.
 */
struct extoll_sock_queues {
	u32 receive, send;
};

void extoll_sock_queues(const struct sock *sk, struct extoll_sock_queues *queues);

/* Tracepoints of system "extl" (extl_trace.h). Any context. The name, len bytes long, is copied. */
void extoll_trace_extl_fallback(const struct sock *sk, u8 reason, const char *name, int len);
void extoll_trace_extl_tx(const struct sock *sk, u64 bytes, bool direct);
void extoll_trace_extl_rx(const struct sock *sk, u64 bytes, bool direct);
void extoll_trace_extl_shutdown(const struct sock *sk, int how, bool direct);

#endif
