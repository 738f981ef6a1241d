/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * Stream sockets over Extoll (af_extl.ko) with the semantics of TCP; see docs/af_extl.md. Each of
 * these calls creates a socket:
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

/* Default numbers. The module parameters family and protocol change them. */
#ifndef AF_EXTL
#define AF_EXTL 19
#define PF_EXTL AF_EXTL
#endif
#ifndef IPPROTO_EXTL
#define IPPROTO_EXTL 259
#endif

/* Protocols of AF_EXTL. They select the IP version of the addresses. */
#define EXTLPROTO_IPV4 0
#define EXTLPROTO_IPV6 1

/* Option level for getsockopt(2). */
#define SOL_EXTL 0x4558

/*
 * Read-only option that returns struct extl_info. Later versions may append fields. All fields
 * within the returned length are valid.
 */
#define EXTL_INFO 1

/* Path on which the data of a connection travel. */
enum extl_mode {
	EXTL_MODE_IDLE = 0,      /* no connection */
	EXTL_MODE_LISTENING = 1, /* the socket listens */
	EXTL_MODE_TCP = 2,       /* TCP */
	EXTL_MODE_DIRECT = 3,    /* direct: VELO messages and RMA, without TCP */
	EXTL_MODE_WAITING = 4,   /* TCP or direct: not decided yet */
};

/* Reason for the use of TCP instead of the direct path. */
enum extl_reason {
	EXTL_REASON_NONE = 0,              /* TCP is not used */
	EXTL_REASON_NO_DATA_PATH = 1,      /* not used any more */
	EXTL_REASON_NO_ROUTE = 2,          /* the route does not lead through an Extoll NIC */
	EXTL_REASON_OFF = 3,               /* switched off on this node (net.extl.data_path) */
	EXTL_REASON_NO_MEMORY = 4,         /* no memory for the rings of the connection */
	EXTL_REASON_NO_PLACE = 5,          /* no table entry or no local port is free */
	EXTL_REASON_SILENT = 6,            /* the peer does not answer */
	EXTL_REASON_KNOWN_SILENT = 7,      /* the peer did not answer a short time ago */
	EXTL_REASON_VERSION = 8,           /* the peer has another version of the protocol */
	EXTL_REASON_NO_LISTENER = 9,       /* the server's program uses plain TCP */
	EXTL_REASON_PEER_BUSY = 10,        /* too many connections are pending at the peer */
	EXTL_REASON_PEER_RESOURCES = 11,   /* the peer has no memory or other resources */
	EXTL_REASON_PEER_OFF = 12,         /* switched off on the peer */
	EXTL_REASON_NOT_ACCEPTED = 13,     /* the server accepted the connection too late */
	EXTL_REASON_TCP_DATA = 14,         /* TCP carried data or was closed before the decision */
	EXTL_REASON_CLIENT_FELL_BACK = 15, /* the client chose TCP after the accept */
	EXTL_REASON_NOT_ASKED = 16,        /* the client did not request the direct path */
	EXTL_REASON_TCP_ONLY = 17,         /* the program uses a feature that only TCP has */
	EXTL_REASON_KNOWN_LATE = 18,       /* the server was too late a short time ago */
	EXTL_REASON_NO_NEIGHBOUR = 19,     /* the neighbour's address was not resolved in time */
	EXTL_REASON_USER_LIMIT = 20,       /* limit of the user (parameter user_connections) */
};

/* Value of the option EXTL_INFO. */
struct extl_info {
	__u16 mode;     /* enum extl_mode */
	__u16 reason;   /* enum extl_reason */
	__u32 reserved;
	__u64 sent;     /* bytes accepted by send calls, in all connections of this socket */
	__u64 received; /* bytes returned by receive calls, without MSG_PEEK */
};

#endif
