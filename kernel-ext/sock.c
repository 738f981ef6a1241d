// SPDX-License-Identifier: GPL-2.0-only
/*
 * C code of the socket abstractions. Contexts and rules are documented in sock.h and in the Rust
 * callers.
 */
#include <linux/cred.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/splice.h>
#include <linux/tcp.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <net/inet_common.h>
#include <net/ipv6.h>
#include <net/protocol.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/transp_v6.h>
#include "sock.h"

/*
 * Protocol number. The socket layer holds no reference to a module between the lookup of a number
 * and the allocation of the sock. The objects that it finds are therefore in this module, which
 * cannot be unloaded before its users.
 */
struct extoll_sock_alias {
	/*
	 * Copy of TCP's proto with another init, owned by this module. Used from the lookup until
	 * init runs.
	 */
	struct proto found;
	/*
	 * Copy of TCP's proto, owned by the user's module. Used from init to the first operation.
	 * Freeing a sock before that drops its reference.
	 */
	struct proto held;
	struct inet_protosw sw;
	bool active;
};

static struct extoll_sock_alias aliases[2];
static DEFINE_MUTEX(aliases_lock);

static struct proto *tcp_proto(bool v6)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (v6)
		return &tcpv6_prot;
#endif
	return &tcp_prot;
}

static const struct proto_ops *tcp_ops(bool v6)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (v6)
		return &inet6_stream_ops;
#endif
	return &inet_stream_ops;
}

/*
 * Makes the sock a TCP sock except for sk_prot_creator, because the stack recognises TCP by these
 * fields.
 */
static int init_tcp(struct sock *sk, bool v6)
{
	struct extoll_sock_alias *alias = &aliases[v6];
	struct proto *tcp = tcp_proto(v6);
	bool live = false;
	int err;

	sk->sk_prot = tcp;
	sk->sk_protocol = IPPROTO_TCP;
	err = tcp->init(sk);
	if (err)
		return err;
	/*
	 * Unregistering waits for this read section. socket() may have slept since it found the
	 * operations, so this checks that they are still registered.
	 */
	rcu_read_lock();
	if (READ_ONCE(alias->active) && sk->sk_socket &&
	    READ_ONCE(sk->sk_socket->ops) == READ_ONCE(alias->sw.ops))
		live = try_module_get(alias->held.owner);
	rcu_read_unlock();
	if (live) {
		sk->sk_prot_creator = &alias->held;
		module_put(THIS_MODULE);
		/*
		 * The operations rely on the namespace, to which a kernel socket holds no
		 * reference.
		 */
		return sk->sk_kern_sock ? -EPROTONOSUPPORT : 0;
	}
	if (sk->sk_kern_sock || !sk->sk_socket)
		return -EPROTONOSUPPORT;
	/*
	 * The user's module is being unloaded. Until that is complete, programs get an ordinary TCP
	 * socket, because a switch may have redirected their socket() calls without their
	 * knowledge.
	 */
	__module_get(tcp->owner);
	sk->sk_prot_creator = tcp;
	sk->sk_socket->ops = tcp_ops(v6);
	module_put(THIS_MODULE);
	return 0;
}

static int init_v4(struct sock *sk)
{
	return init_tcp(sk, false);
}

#if IS_ENABLED(CONFIG_IPV6)
static int init_v6(struct sock *sk)
{
	return init_tcp(sk, true);
}
#endif

static int (*init_of(bool v6))(struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (v6)
		return init_v6;
#endif
	return init_v4;
}

/*
 * Replaces the sock's sk_prot_creator by TCP's struct proto. The sock must not keep the user's
 * module loaded, because TCP keeps the sock, and makes other socks from it, long after the sock was
 * closed. struct socket keeps the module loaded instead. Each operation calls this function first,
 * because struct socket has its reference to the module by then.
 */
static void settle(struct sock *sk, bool v6)
{
	struct proto *held = &aliases[v6].held, *tcp = tcp_proto(v6);

	if (likely(READ_ONCE(sk->sk_prot_creator) != held))
		return;
	__module_get(tcp->owner);
	if (cmpxchg(&sk->sk_prot_creator, held, tcp) == held)
		module_put(held->owner);
	else
		module_put(tcp->owner);
}

static int enlist(struct extoll_sock_alias *alias, bool v6)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (v6)
		return inet6_register_protosw(&alias->sw);
#endif
	alias->sw.list.next = NULL;
	inet_register_protosw(&alias->sw);
	/*
	 * inet_register_protosw() has no return value. If sw is not on the list afterwards, the
	 * number belongs to IPv4 itself.
	 */
	return alias->sw.list.next ? 0 : -EPERM;
}

struct extoll_sock_alias *extoll_sock_alias_register(bool v6, int protocol, struct module *owner,
						     const struct proto_ops *ops)
{
	struct extoll_sock_alias *alias = &aliases[v6];
	int err = -EBUSY;

	if (v6 && !IS_ENABLED(CONFIG_IPV6))
		return ERR_PTR(-EAFNOSUPPORT);
	mutex_lock(&aliases_lock);
	if (alias->held.owner)
		goto out;
	/*
	 * The fields are set once, because an earlier lookup of this copy may not have reached init
	 * yet.
	 */
	if (!alias->found.owner) {
		alias->found = *tcp_proto(v6);
		alias->found.init = init_of(v6);
		alias->found.owner = THIS_MODULE;
	}
	alias->held = *tcp_proto(v6);
	alias->held.owner = owner;
	alias->sw.type = SOCK_STREAM;
	alias->sw.protocol = protocol;
	alias->sw.prot = &alias->found;
	WRITE_ONCE(alias->sw.ops, ops);
	alias->sw.flags = INET_PROTOSW_ICSK;
	WRITE_ONCE(alias->active, true);
	err = enlist(alias, v6);
	if (err) {
		alias->active = false;
		alias->held.owner = NULL;
	}
out:
	mutex_unlock(&aliases_lock);
	return err ? ERR_PTR(err) : alias;
}

void extoll_sock_alias_unregister(struct extoll_sock_alias *alias)
{
	mutex_lock(&aliases_lock);
	WRITE_ONCE(alias->active, false);
	/* Both functions wait for a grace period. */
#if IS_ENABLED(CONFIG_IPV6)
	if (alias == &aliases[true])
		inet6_unregister_protosw(&alias->sw);
	else
#endif
		inet_unregister_protosw(&alias->sw);
	/*
	 * If the module stays loaded, settle() may still have to run for existing sockets, so the
	 * slot stays reserved.
	 */
	if (alias->held.owner->state != MODULE_STATE_LIVE)
		alias->held.owner = NULL;
	mutex_unlock(&aliases_lock);
}

int extoll_sock_create(struct net *net, struct socket *sock, bool v6, int kern,
		       const struct proto_ops *ops)
{
	struct socket *tcp;
	struct sock *sk;
	int err;

	/* The operations rely on the namespace, to which a kernel socket holds no reference. */
	if (kern)
		return -EPROTONOSUPPORT;
	if (sock->type != SOCK_STREAM)
		return -ESOCKTNOSUPPORT;
	/*
	 * The socket is created like a TCP socket of the process, so that limits, labels,
	 * namespaces and hooks for TCP apply.
	 */
	err = __sock_create(net, v6 ? PF_INET6 : PF_INET, SOCK_STREAM, IPPROTO_TCP, &tcp, 0);
	if (err)
		return err;
	/* The new sock is not visible to others, so its socket can be replaced without a lock. */
	sk = tcp->sk;
	tcp->sk = NULL;
	sock->state = tcp->state;
	if (test_bit(SOCK_SUPPORT_ZC, &tcp->flags))
		set_bit(SOCK_SUPPORT_ZC, &sock->flags);
	sock_graft(sk, sock);
	sock->ops = ops;
	sock_release(tcp);
	return 0;
}

/*
 * The data are in i_private of the socket's inode, which sockfs does not use. The field
 * sk_user_data is not available, because other parts of the kernel that get the socket's descriptor
 * (sunrpc, kcm, sockmap) store their own pointers in that field.
 */
void *extoll_sock_data(struct socket *sock)
{
	return smp_load_acquire(&SOCK_INODE(sock)->i_private);
}

void *extoll_sock_set_data(struct socket *sock, void *data)
{
	return cmpxchg(&SOCK_INODE(sock)->i_private, NULL, data);
}

void *extoll_sock_take_data(struct socket *sock)
{
	return xchg(&SOCK_INODE(sock)->i_private, NULL);
}

/*
 * The choice depends on the socket's operations, not on the sock, because an IPv6 socket keeps its
 * IPv6 operations when its sock changes family. If another part of the kernel accepts a socket
 * (kernel_accept()), the socket gets its operations afterwards.
 */
static const struct proto_ops *base(const struct socket *sock)
{
	const struct proto_ops *ops = READ_ONCE(sock->ops);
	bool v6 = ops ? ops->family == PF_INET6 : sock->sk && sock->sk->sk_family == PF_INET6;

	/* After a failed accept there is no sock. */
	if (sock->sk)
		settle(sock->sk, v6);
	return tcp_ops(v6);
}

static const struct proto_ops *base_sk(const struct sock *sk)
{
	return tcp_ops(sk->sk_family == PF_INET6);
}

int extoll_tcp_release(struct socket *sock)
{
	return base(sock)->release(sock);
}

int extoll_tcp_bind(struct socket *sock, struct sockaddr_unsized *addr, int len)
{
	return base(sock)->bind(sock, addr, len);
}

int extoll_tcp_connect(struct socket *sock, struct sockaddr_unsized *addr, int len, int flags)
{
	return base(sock)->connect(sock, addr, len, flags);
}

int extoll_tcp_socketpair(struct socket *a, struct socket *b)
{
	return base(a)->socketpair(a, b);
}

int extoll_tcp_accept(struct socket *sock, struct socket *child, struct proto_accept_arg *arg)
{
	return base(sock)->accept(sock, child, arg);
}

int extoll_tcp_getname(struct socket *sock, struct sockaddr *addr, int peer)
{
	return base(sock)->getname(sock, addr, peer);
}

__poll_t extoll_tcp_poll(struct file *file, struct socket *sock, struct poll_table_struct *wait)
{
	return base(sock)->poll(file, sock, wait);
}

int extoll_tcp_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
	return base(sock)->ioctl(sock, cmd, arg);
}

int extoll_tcp_compat_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
#ifdef CONFIG_COMPAT
	return base(sock)->compat_ioctl(sock, cmd, arg);
#else
	return -ENOIOCTLCMD;
#endif
}

int extoll_tcp_gettstamp(struct socket *sock, void __user *to, bool timeval, bool time32)
{
	return base(sock)->gettstamp(sock, to, timeval, time32);
}

int extoll_tcp_listen(struct socket *sock, int backlog)
{
	return base(sock)->listen(sock, backlog);
}

int extoll_tcp_shutdown(struct socket *sock, int how)
{
	return base(sock)->shutdown(sock, how);
}

/*
 * Rejects two options that replace sock->ops, because the kernel would then not call the module's
 * operations, not even for the release. Upper layer protocols are rejected with the error of a
 * kernel that has none. The other option is the change from IPv6 to IPv4.
 */
int extoll_tcp_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			  unsigned int len)
{
	if (level == SOL_TCP && name == TCP_ULP)
		return -ENOENT;
	if (level == SOL_IPV6 && name == IPV6_ADDRFORM)
		return -ENOPROTOOPT;
	return base(sock)->setsockopt(sock, level, name, value, len);
}

int extoll_tcp_getsockopt(struct socket *sock, int level, int name, char __user *value,
			  int __user *len)
{
	return base(sock)->getsockopt(sock, level, name, value, len);
}

int extoll_tcp_sendmsg(struct socket *sock, struct msghdr *msg, size_t len)
{
	return base(sock)->sendmsg(sock, msg, len);
}

int extoll_tcp_recvmsg(struct socket *sock, struct msghdr *msg, size_t len, int flags)
{
	return base(sock)->recvmsg(sock, msg, len, flags);
}

int extoll_tcp_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma)
{
	return base(sock)->mmap(file, sock, vma);
}

ssize_t extoll_tcp_splice_read(struct socket *sock, loff_t *pos, struct pipe_inode_info *pipe,
			       size_t len, unsigned int flags)
{
	return base(sock)->splice_read(sock, pos, pipe, len, flags);
}

void extoll_tcp_splice_eof(struct socket *sock)
{
	base(sock)->splice_eof(sock);
}

int extoll_tcp_set_peek_off(struct sock *sk, int value)
{
	return base_sk(sk)->set_peek_off(sk, value);
}

int extoll_tcp_peek_len(struct socket *sock)
{
	return base(sock)->peek_len(sock);
}

int extoll_tcp_read_sock(struct sock *sk, read_descriptor_t *desc, sk_read_actor_t actor)
{
	return base_sk(sk)->read_sock(sk, desc, actor);
}

int extoll_tcp_read_skb(struct sock *sk, skb_read_actor_t actor)
{
	return base_sk(sk)->read_skb(sk, actor);
}

int extoll_tcp_sendmsg_locked(struct sock *sk, struct msghdr *msg, size_t size)
{
	return base_sk(sk)->sendmsg_locked(sk, msg, size);
}

int extoll_tcp_set_rcvlowat(struct sock *sk, int value)
{
	int err = base_sk(sk)->set_rcvlowat(sk, value);

	/*
	 * Wake waiting tasks, because data received by another path than TCP may now reach the
	 * limit.
	 */
	extoll_sock_wake(sk, EXTOLL_WAKE_READABLE);
	return err;
}

void extoll_tcp_set_rcvbuf(struct sock *sk, int value)
{
	base_sk(sk)->set_rcvbuf(sk, value);
}

struct net *extoll_sock_net(const struct socket *sock)
{
	return sock_net(sock->sk);
}

int extoll_sock_state(const struct sock *sk)
{
	return inet_sk_state_load(sk);
}

struct sock *extoll_sock_hold(struct socket *sock)
{
	sock_hold(sock->sk);
	return sock->sk;
}

void extoll_sock_put(struct sock *sk)
{
	sock_put(sk);
}

/* As in /proc/net/tcp, each field is read once, and the values may be from different moments. */
void extoll_sock_ends(struct sock *sk, struct extoll_sock_ends *ends)
{
	const struct inet_sock *inet = inet_sk(sk);

	memset(ends, 0, sizeof(*ends));
	ends->state = inet_sk_state_load(sk);
	ends->local_port = READ_ONCE(inet->inet_num);
	ends->remote_port = ntohs(READ_ONCE(inet->inet_dport));
	ends->uid = from_kuid_munged(current_user_ns(), sk_uid(sk));
	ends->inode = sock_i_ino(sk);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		ends->v6 = true;
		memcpy(ends->local, &sk->sk_v6_rcv_saddr, 16);
		memcpy(ends->remote, &sk->sk_v6_daddr, 16);
		return;
	}
#endif
	memcpy(ends->local, &inet->inet_rcv_saddr, 4);
	memcpy(ends->remote, &inet->inet_daddr, 4);
}

ssize_t extoll_sock_splice_by_recvmsg(struct socket *sock, loff_t *pos,
				      struct pipe_inode_info *pipe, size_t len, unsigned int flags)
{
	return sock->file ? copy_splice_read(sock->file, pos, pipe, len, flags) : -EINVAL;
}

/*
 * Does the same as sock_def_readable() and its counterparts. The sock's callbacks cannot be called,
 * because another part of the kernel that has the descriptor may have replaced them by functions
 * that need a softirq and check TCP's queues for data.
 */
void extoll_sock_wake(struct sock *sk, unsigned int what)
{
	int how = SOCK_WAKE_WAITD, band = POLL_IN;
	struct socket_wq *wq;
	__poll_t events = 0;

	switch (what) {
	case EXTOLL_WAKE_READABLE:
		events = EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND;
		break;
	case EXTOLL_WAKE_WRITABLE:
		events = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
		how = SOCK_WAKE_SPACE;
		band = POLL_OUT;
		break;
	case EXTOLL_WAKE_ERROR:
		events = EPOLLERR;
		how = SOCK_WAKE_IO;
		band = POLL_ERR;
		break;
	case EXTOLL_WAKE_CONNECTED:
		how = SOCK_WAKE_IO;
		band = POLL_OUT;
		break;
	case EXTOLL_WAKE_HUNG_UP:
		band = POLL_HUP;
		break;
	}
	rcu_read_lock();
	/*
	 * The wait queue is part of the socket, which is freed after a grace period. NULL after the
	 * release.
	 */
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq)) {
		if (events)
			wake_up_interruptible_poll(&wq->wait, events);
		else
			wake_up_interruptible_all(&wq->wait);
	}
	if (what != EXTOLL_WAKE_WRITABLE || !(READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN))
		sk_wake_async_rcu(sk, how, band);
	rcu_read_unlock();
}

void extoll_sock_set_error(struct sock *sk, int error)
{
	cmpxchg(&sk->sk_err, 0, error);
}

int extoll_sock_error(const struct sock *sk)
{
	return READ_ONCE(sk->sk_err);
}

bool extoll_sock_has_error(const struct sock *sk)
{
	return READ_ONCE(sk->sk_err) || !skb_queue_empty_lockless(&sk->sk_error_queue);
}

int extoll_sock_take_error(struct sock *sk)
{
	return sock_error(sk);
}

/* Locks the sock like lock_sock(), but fails if another context holds the lock. */
static bool try_lock_sock(struct sock *sk)
{
	bool free;

	spin_lock_bh(&sk->sk_lock.slock);
	free = !sock_owned_by_user_nocheck(sk);
	if (free)
		sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	if (free)
		mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	return free;
}

/* Has an effect only on a connected sock whose socket has not been closed. */
bool extoll_sock_try_shutdown(struct sock *sk, unsigned int directions)
{
	if (!try_lock_sock(sk))
		return false;
	if ((1 << sk->sk_state) & (TCPF_ESTABLISHED | TCPF_CLOSE_WAIT | TCPF_SYN_RECV)) {
		WRITE_ONCE(sk->sk_shutdown, sk->sk_shutdown | (directions & SHUTDOWN_MASK));
		sk->sk_prot->shutdown(sk, directions & SHUTDOWN_MASK);
		sk->sk_state_change(sk);
	}
	release_sock(sk);
	return true;
}

/* Does what inet_shutdown() does to a connected socket. */
void extoll_sock_mark_connected(struct socket *sock)
{
	lock_sock(sock->sk);
	if (sock->state == SS_CONNECTING)
		sock->state = SS_CONNECTED;
	release_sock(sock->sk);
}

bool extoll_sock_unconnected(const struct socket *sock)
{
	return READ_ONCE(sock->state) == SS_UNCONNECTED;
}

/* Has no effect if another thread has disconnected the sock and uses it for another connection. */
void extoll_tcp_abort(struct sock *sk)
{
	if ((1 << inet_sk_state_load(sk)) & (TCPF_ESTABLISHED | TCPF_FIN_WAIT1 | TCPF_FIN_WAIT2 |
					     TCPF_CLOSE_WAIT | TCPF_CLOSING | TCPF_LAST_ACK))
		tcp_abort(sk, READ_ONCE(sk->sk_err));
}

int extoll_sock_rcvlowat(const struct sock *sk, bool all, int len)
{
	return sock_rcvlowat(sk, all, len);
}

long extoll_sock_linger(const struct sock *sk)
{
	return sock_flag(sk, SOCK_LINGER) ? READ_ONCE(sk->sk_lingertime) : -1;
}

void extoll_sock_lingered(struct sock *sk, long left)
{
	/* A linger time of 0 would reset the connection. */
	WRITE_ONCE(sk->sk_lingertime, max(left, 1L));
}

bool extoll_exiting(void)
{
	return current->flags & PF_EXITING;
}

int extoll_sock_peek_offset(const struct sock *sk)
{
	return READ_ONCE(sk->sk_peek_off);
}

void extoll_sock_peeked(struct sock *sk, int bytes, bool peek)
{
	if (peek)
		sk_peek_offset_fwd(sk, bytes);
	else
		sk_peek_offset_bwd(sk, bytes);
}

bool extoll_sock_nonblocking(const struct socket *sock)
{
	return sock->file && (READ_ONCE(sock->file->f_flags) & O_NONBLOCK);
}

void extoll_sock_poll_wait(struct file *file, struct socket *sock, struct poll_table_struct *table)
{
	sock_poll_wait(file, sock, table);
}

void extoll_sock_no_space(struct sock *sk)
{
	sk_set_bit(SOCKWQ_ASYNC_NOSPACE, sk);
	smp_mb();
}

/* Reads a bit field without the lock; it is only changed with the sock locked. */
bool extoll_sock_corked(const struct sock *sk)
{
	return data_race(tcp_sk(sk)->nonagle & TCP_NAGLE_CORK);
}

unsigned int extoll_sock_user_timeout(const struct sock *sk)
{
	return READ_ONCE(inet_csk(sk)->icsk_user_timeout);
}

size_t extoll_tcp_info(struct sock *sk, const struct extoll_tcp_bypassed *bypassed, void *to,
		       size_t room)
{
	struct tcp_info info;
	u32 mss;

	tcp_get_info(sk, &info);
	mss = max_t(u32, info.tcpi_snd_mss, 1);
	info.tcpi_state = bypassed->state;
	info.tcpi_bytes_sent += bypassed->sent;
	info.tcpi_bytes_acked += bypassed->acked;
	info.tcpi_bytes_received += bypassed->received;
	info.tcpi_notsent_bytes += bypassed->unsent;
	info.tcpi_unacked += DIV_ROUND_UP(bypassed->unacked, mss);
	room = min(room, sizeof(info));
	memcpy(to, &info, room);
	return room;
}

bool extoll_accept_by_kernel(const struct proto_accept_arg *arg)
{
	return arg->kern;
}

int extoll_option_read(sockptr_t from, size_t offset, void *to, size_t len)
{
	return copy_from_sockptr_offset(to, from, offset, len) ? -EFAULT : 0;
}

/*
 * Like tcp_inq_hint(), the function does not acquire the lock. Each field is read once. The state
 * is read first, because the sequence numbers are valid only in some states. A FIN also occupies a
 * sequence number.
 */
void extoll_sock_inq(const struct sock *sk, struct extoll_sock_inq *inq)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	bool connected = !((1 << inet_sk_state_load(sk)) &
			   (TCPF_SYN_SENT | TCPF_SYN_RECV | TCPF_LISTEN));
	u32 read = READ_ONCE(tp->copied_seq), received = READ_ONCE(tp->rcv_nxt);

	inq->finished = sock_flag(sk, SOCK_DONE);
	inq->unread = 0;
	if (connected && after(received, read))
		inq->unread = received - read - (inq->finished ? 1 : 0);
}

/*
 * TCP advances the sequence number for a FIN and sets its flag under this lock or as owner of the
 * sock.
 */
bool extoll_sock_inq_settled(struct sock *sk, struct extoll_sock_inq *inq)
{
	bool settled;

	spin_lock_bh(&sk->sk_lock.slock);
	settled = !sock_owned_by_user(sk);
	extoll_sock_inq(sk, inq);
	spin_unlock_bh(&sk->sk_lock.slock);
	return settled;
}

int extoll_net_proc_add(struct net *net, const char *name,
			int (*show)(struct seq_file *seq, void *v), void *data)
{
	return proc_create_net_single(name, 0444, net->proc_net, show, data) ? 0 : -ENOMEM;
}

void extoll_net_proc_remove(struct net *net, const char *name)
{
	remove_proc_entry(name, net->proc_net);
}

void *extoll_net_proc_data(struct seq_file *seq)
{
	return pde_data(file_inode(seq->file));
}
