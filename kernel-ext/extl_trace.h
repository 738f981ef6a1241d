/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints of socket families over Extoll, system "extl". Addresses are those of the TCP
 * connection.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM extl

#if !defined(EXTOLL_EXTL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EXTOLL_EXTL_TRACE_H

#include <linux/ipv6.h>
#include <linux/tracepoint.h>
#include <net/inet_sock.h>
#include <net/sock.h>
#include <trace/events/net_probe_common.h>

/* Address fields of both ends, which TP_STORE_ADDR_PORTS fills in. */
#define EXTL_ENDS \
	__array(__u8, saddr, sizeof(struct sockaddr_in6)) \
	__array(__u8, daddr, sizeof(struct sockaddr_in6))

#define EXTL_ASSIGN_ENDS(sk) do { \
		const struct inet_sock *inet = inet_sk(sk); \
		memset(__entry->saddr, 0, sizeof(struct sockaddr_in6)); \
		memset(__entry->daddr, 0, sizeof(struct sockaddr_in6)); \
		TP_STORE_ADDR_PORTS(__entry, inet, sk); \
	} while (0)

TRACE_EVENT(extl_fallback,
	TP_PROTO(const struct sock *sk, u8 reason, const char *name, int len),
	TP_ARGS(sk, reason, name, len),
	TP_STRUCT__entry(EXTL_ENDS __field(u64, inode) __field(u8, reason)
			 __string_len(name, name, len)),
	TP_fast_assign(EXTL_ASSIGN_ENDS(sk); __entry->inode = sock_i_ino((struct sock *)sk);
		       __entry->reason = reason; __assign_str(name);),
	TP_printk("src=%pISpc dest=%pISpc inode=%llu reason=%u name=%s", __entry->saddr,
		  __entry->daddr, __entry->inode, __entry->reason, __get_str(name))
);

DECLARE_EVENT_CLASS(extl_bytes,
	TP_PROTO(const struct sock *sk, u64 bytes, bool direct),
	TP_ARGS(sk, bytes, direct),
	TP_STRUCT__entry(EXTL_ENDS __field(u64, inode) __field(u64, bytes) __field(bool, direct)),
	TP_fast_assign(EXTL_ASSIGN_ENDS(sk); __entry->inode = sock_i_ino((struct sock *)sk);
		       __entry->bytes = bytes; __entry->direct = direct;),
	TP_printk("src=%pISpc dest=%pISpc inode=%llu bytes=%llu direct=%u", __entry->saddr,
		  __entry->daddr, __entry->inode, __entry->bytes, __entry->direct)
);

DEFINE_EVENT(extl_bytes, extl_tx,
	TP_PROTO(const struct sock *sk, u64 bytes, bool direct),
	TP_ARGS(sk, bytes, direct)
);

DEFINE_EVENT(extl_bytes, extl_rx,
	TP_PROTO(const struct sock *sk, u64 bytes, bool direct),
	TP_ARGS(sk, bytes, direct)
);

TRACE_EVENT(extl_shutdown,
	TP_PROTO(const struct sock *sk, int how, bool direct),
	TP_ARGS(sk, how, direct),
	TP_STRUCT__entry(EXTL_ENDS __field(u64, inode) __field(int, how) __field(bool, direct)),
	TP_fast_assign(EXTL_ASSIGN_ENDS(sk); __entry->inode = sock_i_ino((struct sock *)sk);
		       __entry->how = how; __entry->direct = direct;),
	TP_printk("src=%pISpc dest=%pISpc inode=%llu how=%d direct=%u", __entry->saddr,
		  __entry->daddr, __entry->inode, __entry->how, __entry->direct)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE extl_trace
#include <trace/define_trace.h>
