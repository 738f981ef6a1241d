// SPDX-License-Identifier: GPL-2.0-only
/*
 * C code for the operation of socket families. Contexts and rules are documented in extl.h and in
 * the Rust callers.
 */
#include <linux/slab.h>
#include <linux/sysctl.h>
#include <linux/tcp.h>
#include <net/sock.h>
#include <net/tcp.h>
#include "extl.h"

struct extoll_sysctl {
	struct ctl_table_header *header;
	struct ctl_table table[];
};

struct extoll_sysctl *extoll_sysctl_register(struct net *net, const char *path,
					     const struct extoll_sysctl_entry *entries, u32 *values,
					     size_t count)
{
	struct extoll_sysctl *sysctl = kzalloc(struct_size(sysctl, table, count),
					       GFP_KERNEL_ACCOUNT);
	size_t i;

	if (!sysctl)
		return NULL;
	for (i = 0; i < count; i++)
		sysctl->table[i] = (struct ctl_table) {
			.procname = entries[i].name,
			.data = &values[i],
			.maxlen = sizeof(values[i]),
			.mode = 0644,
			.proc_handler = proc_douintvec_minmax,
			.extra1 = (void *)&entries[i].min,
			.extra2 = (void *)&entries[i].max,
		};
	/* The macro register_net_sysctl() needs an array of known size. */
	sysctl->header = register_net_sysctl_sz(net, path, sysctl->table, count);
	if (!sysctl->header) {
		kfree(sysctl);
		return NULL;
	}
	return sysctl;
}

void extoll_sysctl_unregister(struct extoll_sysctl *sysctl)
{
	unregister_net_sysctl_table(sysctl->header);
	kfree(sysctl);
}

/*
 * Like tcp_diag_get_info(), the function does not acquire the socket lock. Each field is read once.
 */
void extoll_sock_queues(const struct sock *sk, struct extoll_sock_queues *queues)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	int state = inet_sk_state_load(sk);

	queues->receive = 0;
	queues->send = 0;
	if (state == TCP_LISTEN) {
		queues->receive = READ_ONCE(sk->sk_ack_backlog);
		queues->send = READ_ONCE(sk->sk_max_ack_backlog);
	} else if (state != TCP_CLOSE) {
		queues->receive = max_t(int, READ_ONCE(tp->rcv_nxt) - READ_ONCE(tp->copied_seq), 0);
		queues->send = READ_ONCE(tp->write_seq) - READ_ONCE(tp->snd_una);
	}
}
