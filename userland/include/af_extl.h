/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * Stream sockets over Extoll (af_extl.ko), with the semantics of TCP: docs/af_extl.md.
 *
 *   socket(AF_INET,  SOCK_STREAM, IPPROTO_EXTL)
 *   socket(AF_INET6, SOCK_STREAM, IPPROTO_EXTL)
 *   socket(AF_EXTL,  SOCK_STREAM, EXTLPROTO_IPV4)
 *   socket(AF_EXTL,  SOCK_STREAM, EXTLPROTO_IPV6)
 *
 * Addresses are struct sockaddr_in and struct sockaddr_in6.
 */
#ifndef EXTOLL_AF_EXTL_H
#define EXTOLL_AF_EXTL_H

#include <linux/types.h>

/* Unless the module was loaded with other numbers (parameters family and protocol). */
#ifndef AF_EXTL
#define AF_EXTL 19
#define PF_EXTL AF_EXTL
#endif
#ifndef IPPROTO_EXTL
#define IPPROTO_EXTL 259
#endif

/* Protocols of AF_EXTL: the version of IP. */
#define EXTLPROTO_IPV4 0
#define EXTLPROTO_IPV6 1

/* Level of socket options. */
#define SOL_EXTL 0x4558

/* Option, read only: struct extl_info. Later versions append to it; as with TCP_INFO the length tells how much there is. */
#define EXTL_INFO 1

/* What carries the data. */
enum extl_mode {
	EXTL_MODE_IDLE = 0,      /* no connection */
	EXTL_MODE_LISTENING = 1,
	EXTL_MODE_TCP = 2,       /* TCP */
	EXTL_MODE_DIRECT = 3,    /* messages and RMA, past TCP */
	EXTL_MODE_WAITING = 4,   /* it is being decided which of the two */
};

/* Why TCP does. */
enum extl_reason {
	EXTL_REASON_NONE = 0,              /* it doesn't */
	EXTL_REASON_NO_DATA_PATH = 1,      /* this version of the module has nothing else; not used any more */
	EXTL_REASON_NO_ROUTE = 2,          /* the route does not lead through a NIC that could */
	EXTL_REASON_OFF = 3,               /* switched off here (net.extl.data_path) */
	EXTL_REASON_NO_MEMORY = 4,         /* no memory for rings */
	EXTL_REASON_NO_PLACE = 5,          /* no place for one more connection, or no local port */
	EXTL_REASON_SILENT = 6,            /* the peer does not answer */
	EXTL_REASON_KNOWN_SILENT = 7,      /* it did not a short time ago */
	EXTL_REASON_VERSION = 8,           /* it speaks another version */
	EXTL_REASON_NO_LISTENER = 9,       /* its program uses plain TCP */
	EXTL_REASON_PEER_BUSY = 10,        /* too many connections of this node wait there */
	EXTL_REASON_PEER_RESOURCES = 11,   /* it has no memory, or no other resource */
	EXTL_REASON_PEER_OFF = 12,         /* switched off there */
	EXTL_REASON_NOT_ACCEPTED = 13,     /* the server's program took the connection too late */
	EXTL_REASON_TCP_DATA = 14,         /* data came by TCP, or TCP's connection ended, before it was decided */
	EXTL_REASON_CLIENT_FELL_BACK = 15, /* the client asked for TCP after the connection was taken */
	EXTL_REASON_NOT_ASKED = 16,        /* the client never asked for anything else */
	EXTL_REASON_TCP_ONLY = 17,         /* the program wants what only TCP has */
	EXTL_REASON_KNOWN_LATE = 18,       /* the server's program took connections too late a short time ago */
	EXTL_REASON_NO_NEIGHBOUR = 19,     /* the neighbour's address is not known, and it does not answer soon */
	EXTL_REASON_USER_LIMIT = 20,       /* the user has as many connections as one may have (parameter user_connections) */
};

struct extl_info {
	__u16 mode;     /* enum extl_mode */
	__u16 reason;   /* enum extl_reason */
	__u32 reserved;
	__u64 sent;     /* bytes that send calls took, in all connections of this socket */
	__u64 received; /* bytes that receive calls returned, without those that stayed in the queue (MSG_PEEK) */
};

#endif
