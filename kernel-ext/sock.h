/* SPDX-License-Identifier: GPL-2.0-only */
/* C parts of the socket abstractions (net/socket): what is macro or inline in the kernel, or data that only C can copy. */
#ifndef EXTOLL_KERNEL_EXT_SOCK_H
#define EXTOLL_KERNEL_EXT_SOCK_H

#include <linux/net.h>
#include <linux/socket.h>
#include <linux/sockptr.h>
#include <linux/wait.h>
#include <net/net_namespace.h>

struct extoll_sock_alias;

/*
 * A protocol number of AF_INET, or AF_INET6 with v6, for stream sockets: sockets of TCP with other operations. One of each. ERR_PTR
 * on failure. Both sleep; after unregister no lookup finds it, and none that found it before uses owner or ops any more.
 */
struct extoll_sock_alias *extoll_sock_alias_register(bool v6, int protocol, struct module *owner,
						     const struct proto_ops *ops);
void extoll_sock_alias_unregister(struct extoll_sock_alias *alias);

/* Gives a new socket of another family the socket of TCP of IPv4 or IPv6, and its operations. Sleeps. */
int extoll_sock_create(struct net *net, struct socket *sock, bool v6, int kern, const struct proto_ops *ops);

/* What the operations keep at a socket: read; set if there is nothing yet, returning what there was; taken. Any context. */
void *extoll_sock_data(struct socket *sock);
void *extoll_sock_set_data(struct socket *sock, void *data);
void *extoll_sock_take_data(struct socket *sock);

/* TCP's operations on a socket whose operations come from one of the two above, by its family. Contexts are those of proto_ops. */
int extoll_tcp_release(struct socket *sock);
int extoll_tcp_bind(struct socket *sock, struct sockaddr_unsized *addr, int len);
int extoll_tcp_connect(struct socket *sock, struct sockaddr_unsized *addr, int len, int flags);
int extoll_tcp_socketpair(struct socket *a, struct socket *b);
int extoll_tcp_accept(struct socket *sock, struct socket *child, struct proto_accept_arg *arg);
int extoll_tcp_getname(struct socket *sock, struct sockaddr *addr, int peer);
__poll_t extoll_tcp_poll(struct file *file, struct socket *sock, struct poll_table_struct *wait);
int extoll_tcp_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg);
int extoll_tcp_compat_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg);
int extoll_tcp_gettstamp(struct socket *sock, void __user *to, bool timeval, bool time32);
int extoll_tcp_listen(struct socket *sock, int backlog);
int extoll_tcp_shutdown(struct socket *sock, int how);
int extoll_tcp_setsockopt(struct socket *sock, int level, int name, sockptr_t value, unsigned int len);
int extoll_tcp_getsockopt(struct socket *sock, int level, int name, char __user *value, int __user *len);
int extoll_tcp_sendmsg(struct socket *sock, struct msghdr *msg, size_t len);
int extoll_tcp_recvmsg(struct socket *sock, struct msghdr *msg, size_t len, int flags);
int extoll_tcp_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma);
ssize_t extoll_tcp_splice_read(struct socket *sock, loff_t *pos, struct pipe_inode_info *pipe, size_t len,
			       unsigned int flags);
void extoll_tcp_splice_eof(struct socket *sock);
int extoll_tcp_set_peek_off(struct sock *sk, int value);
int extoll_tcp_peek_len(struct socket *sock);
int extoll_tcp_read_sock(struct sock *sk, read_descriptor_t *desc, sk_read_actor_t actor);
int extoll_tcp_read_skb(struct sock *sk, skb_read_actor_t actor);
int extoll_tcp_sendmsg_locked(struct sock *sk, struct msghdr *msg, size_t size);
int extoll_tcp_set_rcvlowat(struct sock *sk, int value);
void extoll_tcp_set_rcvbuf(struct sock *sk, int value);

/* Namespace of a socket; it stays while the socket does. */
struct net *extoll_sock_net(const struct socket *sock);
/* State of TCP (TCP_CLOSE …). Any context. */
int extoll_sock_state(const struct sock *sk);

/* Addresses in network order, those of IPv4 in the first four bytes; ports in host order. */
struct extoll_sock_ends {
	u8 local[16], remote[16];
	u16 local_port, remote_port;
	u32 uid;
	u64 inode;
	bool v6;
	u8 state;
};

/* A reference to the sock of a socket, which may outlive the socket. Any context but for the first, which needs the socket. */
struct sock *extoll_sock_hold(struct socket *sock);
void extoll_sock_put(struct sock *sk);
void extoll_sock_ends(struct sock *sk, struct extoll_sock_ends *ends);

/* What a message has left: bytes to copy. */
size_t extoll_msg_left(const struct msghdr *msg);
/* As TCP: 0, or -EINVAL for control messages that it refuses. */
int extoll_msg_check_control(struct sock *sk, struct msghdr *msg);
/* Takes all bytes out of a message, so that TCP sees an empty one: how many; and puts them back. */
size_t extoll_msg_hide(struct msghdr *msg);
void extoll_msg_show(struct msghdr *msg, size_t left);
/*
 * MSG_ZEROCOPY by one who copies: a completion that says so, or NULL if none was asked for, or ERR_PTR(-ENOBUFS). The first takes the
 * sock's lock and sleeps. At the end it is queued, or, if nothing was sent, has never been.
 */
struct ubuf_info *extoll_zerocopy_begin(struct sock *sk, struct msghdr *msg);
void extoll_zerocopy_end(struct ubuf_info *uarg, bool sent, bool copied);
/* Tells a receiver who has asked for it how much there is left to read. */
bool extoll_msg_wants_inq(const struct sock *sk, const struct msghdr *msg);
void extoll_msg_answer_inq(struct sock *sk, struct msghdr *msg, int left);
/* Copies bytes of memory that others, devices included, may read or write at the same time. Any context. */
void extoll_copy_bytes(void *to, const void *from, size_t len);
/* Reads through the file of the socket, and so by its recvmsg(). Sleeps. */
ssize_t extoll_sock_splice_by_recvmsg(struct socket *sock, loff_t *pos, struct pipe_inode_info *pipe, size_t len,
				      unsigned int flags);

/* Puts an entry of the current task on the wait queue of a socket, and takes it off. */
void extoll_sock_wait_begin(struct socket *sock, struct wait_queue_entry *entry);
void extoll_sock_wait_end(struct socket *sock, struct wait_queue_entry *entry);
/* How long operations wait, in jiffies. */
long extoll_sock_timeout(const struct sock *sk, bool send, bool nonblock);
/* How long who waits looks for messages himself, in microseconds: SO_BUSY_POLL, or net.core.busy_read. */
unsigned int extoll_sock_busy_poll(const struct sock *sk);

/* Wakes who waits at the socket of a sock, if it still has one. Any context but NMI. */
#define EXTOLL_WAKE_READABLE 0
#define EXTOLL_WAKE_WRITABLE 1
#define EXTOLL_WAKE_ERROR 2
#define EXTOLL_WAKE_CONNECTED 3
#define EXTOLL_WAKE_FINISHED 4
#define EXTOLL_WAKE_HUNG_UP 5
void extoll_sock_wake(struct sock *sk, unsigned int what);
/* The pending error is set if there is none, a positive number; read; taken, negative or 0. Any context. */
void extoll_sock_set_error(struct sock *sk, int error);
int extoll_sock_error(const struct sock *sk);
/* Whether there is one, or something in the error queue. */
bool extoll_sock_has_error(const struct sock *sk);
int extoll_sock_take_error(struct sock *sk);
/* Ended directions (RCV_SHUTDOWN, SEND_SHUTDOWN): read, any context; noted without a word to the peer, sleeps. */
unsigned int extoll_sock_ended(const struct sock *sk);
void extoll_sock_mark_ended(struct sock *sk, unsigned int directions);
/*
 * What shutdown() does to a sock with a connection: RCV_SHUTDOWN, SEND_SHUTDOWN. Nothing and false if somebody has the sock's lock, who
 * may be copying from memory that never comes. Allocates, sleeps.
 */
bool extoll_sock_try_shutdown(struct sock *sk, unsigned int directions);
/* The program knows that its connection is there: connect() does not say so once more. Sleeps. */
void extoll_sock_mark_connected(struct socket *sock);
/* Whether connect() may begin a connection. */
bool extoll_sock_unconnected(const struct socket *sock);
/* As if a RST had come, but the pending error stays; the peer gets one. Sleeps. */
void extoll_tcp_end(struct sock *sk);
/* SO_RCVLOWAT, as a call for len bytes sees it. */
int extoll_sock_rcvlowat(const struct sock *sk, bool all, int len);
/* SO_LINGER: -1 for none, else jiffies. */
long extoll_sock_linger(const struct sock *sk);
/* What is left of that time, in jiffies, when some of it was waited for already. Of a socket that is closed. */
void extoll_sock_lingered(struct sock *sk, long left);
/* Whether the current task exits. */
bool extoll_exiting(void);
/* Where MSG_PEEK begins, behind what was read; -1 or less for at once. What was read or peeked moves it. */
int extoll_sock_peek_offset(const struct sock *sk);
void extoll_sock_peeked(struct sock *sk, int bytes, bool peek);
bool extoll_sock_nonblocking(const struct socket *sock);
void extoll_sock_poll_wait(struct file *file, struct socket *sock, struct poll_table_struct *table);
/* Somebody was told that there is no room. A full barrier. */
void extoll_sock_no_space(struct sock *sk);

/* TCP_CORK. */
bool extoll_sock_corked(const struct sock *sk);
/* TCP_USER_TIMEOUT in ms, 0 if it is not set. Any context. */
unsigned int extoll_sock_user_timeout(const struct sock *sk);

/* What has gone past TCP on a connection, to be added to what TCP has counted. */
struct extoll_tcp_past {
	u64 sent, acked, received;
	u32 unsent, unacked;
	u8 state;
};

/* TCP_INFO with that, as much as there is room for: how much. Takes the sock's lock, sleeps. */
size_t extoll_tcp_info(struct sock *sk, const struct extoll_tcp_past *past, void *to, size_t room);
/* Whether it is the kernel itself that accepts. */
bool extoll_accept_by_kernel(const struct proto_accept_arg *arg);
/* Part of the value of an option that is set. Sleeps. */
int extoll_option_read(sockptr_t from, size_t offset, void *to, size_t len);

/* What TCP has received and nobody has read. Any context. */
struct extoll_sock_inq {
	u32 unread;
	bool finished;
};

void extoll_sock_inq(const struct sock *sk, struct extoll_sock_inq *inq);
/* Whether what it says holds: TCP does nothing with the sock at this time. Not with the sock's lock, nor in an interrupt. */
bool extoll_sock_inq_settled(struct sock *sk, struct extoll_sock_inq *inq);

/* Files in /proc/net of a namespace, readable by all. Both sleep; after the removal show() doesn't run any more. */
int extoll_net_proc_add(struct net *net, const char *name, int (*show)(struct seq_file *seq, void *v), void *data);
void extoll_net_proc_remove(struct net *net, const char *name);
/* The data given to it. */
void *extoll_net_proc_data(struct seq_file *seq);

#endif
