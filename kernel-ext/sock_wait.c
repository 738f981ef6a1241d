// SPDX-License-Identifier: GPL-2.0-only
/* Waiting at sockets. Contexts and rules are documented in sock.h and in the Rust callers. */
#include <linux/sched.h>
#include <linux/wait.h>
#include <net/sock.h>
#include "sock.h"

void extoll_sock_wait_begin(struct socket *sock, struct wait_queue_entry *entry)
{
	init_waitqueue_func_entry(entry, woken_wake_function);
	entry->private = current;
	add_wait_queue(&sock->wq.wait, entry);
}

void extoll_sock_wait_end(struct socket *sock, struct wait_queue_entry *entry)
{
	remove_wait_queue(&sock->wq.wait, entry);
}

long extoll_sock_timeout(const struct sock *sk, bool send, bool nonblock)
{
	return send ? sock_sndtimeo(sk, nonblock) : sock_rcvtimeo(sk, nonblock);
}

unsigned int extoll_sock_busy_poll(const struct sock *sk)
{
#ifdef CONFIG_NET_RX_BUSY_POLL
	return READ_ONCE(sk->sk_ll_usec);
#else
	return 0;
#endif
}
