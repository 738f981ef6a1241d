/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * C code of the socket abstractions (net/socket): macros, inline functions, and data that only C
 * can copy.
 */
#ifndef EXTOLL_KERNEL_EXT_SOCK_H
#define EXTOLL_KERNEL_EXT_SOCK_H

#include <linux/net.h>
#include <linux/socket.h>
#include <linux/sockptr.h>
#include <linux/wait.h>
#include <net/net_namespace.h>

struct extoll_sock_alias;

/*
 * Registers a protocol number of AF_INET, or AF_INET6 with v6, for stream sockets: TCP sockets with
 * other operations. Each family can have one such number. Returns an error pointer on failure. Both
 * functions may sleep. After unregistering, no lookup finds the number, and lookups that found the
 * number before do not use owner or ops.
 */
struct extoll_sock_alias *extoll_sock_alias_register(bool v6, int protocol, struct module *owner,
						     const struct proto_ops *ops);
void extoll_sock_alias_unregister(struct extoll_sock_alias *alias);

/*
 * Gives a new socket of another family an IPv4 or IPv6 TCP sock and the operations ops. May sleep.
 */
int extoll_sock_create(struct net *net, struct socket *sock, bool v6, int kern,
		       const struct proto_ops *ops);

/*
 * Data of a socket's operations. extoll_sock_data() returns the data. extoll_sock_set_data() sets
 * the data of a socket without data, otherwise returns the old data. extoll_sock_take_data()
 * removes the data. Any context.
 */
void *extoll_sock_data(struct socket *sock);
void *extoll_sock_set_data(struct socket *sock, void *data);
void *extoll_sock_take_data(struct socket *sock);

/*
 * TCP's operations on a socket whose operations were set by the functions above. Contexts are those
 * of proto_ops.
 */
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
int extoll_tcp_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			  unsigned int len);
int extoll_tcp_getsockopt(struct socket *sock, int level, int name, char __user *value,
			  int __user *len);
int extoll_tcp_sendmsg(struct socket *sock, struct msghdr *msg, size_t len);
int extoll_tcp_recvmsg(struct socket *sock, struct msghdr *msg, size_t len, int flags);
int extoll_tcp_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma);
ssize_t extoll_tcp_splice_read(struct socket *sock, loff_t *pos, struct pipe_inode_info *pipe,
			       size_t len, unsigned int flags);
void extoll_tcp_splice_eof(struct socket *sock);
int extoll_tcp_set_peek_off(struct sock *sk, int value);
int extoll_tcp_peek_len(struct socket *sock);
int extoll_tcp_read_sock(struct sock *sk, read_descriptor_t *desc, sk_read_actor_t actor);
int extoll_tcp_read_skb(struct sock *sk, skb_read_actor_t actor);
int extoll_tcp_sendmsg_locked(struct sock *sk, struct msghdr *msg, size_t size);
int extoll_tcp_set_rcvlowat(struct sock *sk, int value);
void extoll_tcp_set_rcvbuf(struct sock *sk, int value);

/* Returns the namespace of a socket, which lives as long as the socket. */
struct net *extoll_sock_net(const struct socket *sock);
/* Returns the TCP state (TCP_CLOSE …). Any context. */
int extoll_sock_state(const struct sock *sk);

/* Addresses in network order, IPv4 addresses in the first four bytes; ports in host order. */
struct extoll_sock_ends {
	u8 local[16], remote[16];
	u16 local_port, remote_port;
	u32 uid;
	u64 inode;
	bool v6;
	u8 state;
};

/*
 * References to the sock of a socket. The references may outlive the socket. extoll_sock_hold()
 * needs an existing socket; the other functions can be called in any context.
 */
struct sock *extoll_sock_hold(struct socket *sock);
void extoll_sock_put(struct sock *sk);
void extoll_sock_ends(struct sock *sk, struct extoll_sock_ends *ends);

/* Returns the number of bytes that remain to be copied. */
size_t extoll_msg_left(const struct msghdr *msg);
/* Returns 0, or -EINVAL for control messages that TCP rejects. */
int extoll_msg_check_control(struct sock *sk, struct msghdr *msg);
/*
 * Hides all bytes of a message, so that TCP sees an empty one, and returns the number of bytes.
 * extoll_msg_show() restores the bytes.
 */
size_t extoll_msg_hide(struct msghdr *msg);
void extoll_msg_show(struct msghdr *msg, size_t left);
/*
 * MSG_ZEROCOPY for a sender that copies. Returns the completion that will report the copy, NULL if
 * the program did not request one, or ERR_PTR(-ENOBUFS). Takes the sock's lock and sleeps.
 * extoll_zerocopy_end() queues the completion, or discards it if no bytes were sent.
 */
struct ubuf_info *extoll_zerocopy_begin(struct sock *sk, struct msghdr *msg);
void extoll_zerocopy_end(struct ubuf_info *uarg, bool sent, bool copied);
/* Reports the number of unread bytes to a receiver that requested the number. */
bool extoll_msg_wants_inq(const struct sock *sk, const struct msghdr *msg);
void extoll_msg_answer_inq(struct sock *sk, struct msghdr *msg, int left);
/* Copies bytes of memory that other CPUs or devices may access at the same time. Any context. */
void extoll_copy_bytes(void *to, const void *from, size_t len);
/* Reads through the socket's file and so through its recvmsg(). Sleeps. */
ssize_t extoll_sock_splice_by_recvmsg(struct socket *sock, loff_t *pos,
				      struct pipe_inode_info *pipe, size_t len, unsigned int flags);

/* Adds or removes an entry of the current task in the wait queue of a socket. */
void extoll_sock_wait_begin(struct socket *sock, struct wait_queue_entry *entry);
void extoll_sock_wait_end(struct socket *sock, struct wait_queue_entry *entry);
/* Returns the time that operations wait, in jiffies. */
long extoll_sock_timeout(const struct sock *sk, bool send, bool nonblock);
/*
 * Returns the time that a waiting task polls for messages, in microseconds: SO_BUSY_POLL, or
 * net.core.busy_read.
 */
unsigned int extoll_sock_busy_poll(const struct sock *sk);

/*
 * Wakes tasks that wait at the socket of a sock, if the sock still has a socket. Any context except
 * NMI.
 */
#define EXTOLL_WAKE_READABLE 0
#define EXTOLL_WAKE_WRITABLE 1
#define EXTOLL_WAKE_ERROR 2
#define EXTOLL_WAKE_CONNECTED 3
#define EXTOLL_WAKE_FINISHED 4
#define EXTOLL_WAKE_HUNG_UP 5
void extoll_sock_wake(struct sock *sk, unsigned int what);
/*
 * extoll_sock_set_error() sets the pending error, a positive number, unless an error is pending.
 * extoll_sock_error() reads the error; extoll_sock_take_error() reads and clears it (0 or
 * negative). Any context.
 */
void extoll_sock_set_error(struct sock *sk, int error);
int extoll_sock_error(const struct sock *sk);
/* Returns true if there is a pending error or a message in the error queue. */
bool extoll_sock_has_error(const struct sock *sk);
int extoll_sock_take_error(struct sock *sk);
/*
 * Does what shutdown() does to a connected sock: RCV_SHUTDOWN, SEND_SHUTDOWN. Returns false without
 * an effect if another context holds the sock's lock, because the holder may be copying from memory
 * that never becomes available. Allocates, sleeps.
 */
bool extoll_sock_try_shutdown(struct sock *sk, unsigned int directions);
/*
 * Marks a connection as reported to the program, so that connect() does not report it again.
 * Sleeps.
 */
void extoll_sock_mark_connected(struct socket *sock);
/* Returns true if connect() may start a connection. */
bool extoll_sock_unconnected(const struct socket *sock);
/* Aborts the connection and sends a RST. The pending error stays. Sleeps. */
void extoll_tcp_abort(struct sock *sk);
/* Returns SO_RCVLOWAT as it applies to a call for len bytes. */
int extoll_sock_rcvlowat(const struct sock *sk, bool all, int len);
/* Returns SO_LINGER in jiffies, or -1 if it is off. */
long extoll_sock_linger(const struct sock *sk);
/*
 * Sets the remaining linger time of a socket that is being closed, in jiffies, after some of the
 * time has elapsed.
 */
void extoll_sock_lingered(struct sock *sk, long left);
/* Returns true if the current task is exiting. */
bool extoll_exiting(void);
/*
 * Returns the offset from the read position at which MSG_PEEK begins (SO_PEEK_OFF); negative if at
 * the read position. extoll_sock_peeked() moves it after a read or a peek.
 */
int extoll_sock_peek_offset(const struct sock *sk);
void extoll_sock_peeked(struct sock *sk, int bytes, bool peek);
bool extoll_sock_nonblocking(const struct socket *sock);
void extoll_sock_poll_wait(struct file *file, struct socket *sock, struct poll_table_struct *table);
/* Records that a writer found no free space. Full barrier. */
void extoll_sock_no_space(struct sock *sk);

/* Returns true if TCP_CORK is set. */
bool extoll_sock_corked(const struct sock *sk);
/* Returns TCP_USER_TIMEOUT in ms, 0 if it is not set. Any context. */
unsigned int extoll_sock_user_timeout(const struct sock *sk);

/* Bytes of a connection that bypassed TCP, to be added to TCP's counts. */
struct extoll_tcp_bypassed {
	u64 sent, acked, received;
	u32 unsent, unacked;
	u8 state;
};

/*
 * Writes up to room bytes of TCP_INFO including these bytes. Returns the number of bytes written.
 * Takes the sock's lock, sleeps.
 */
size_t extoll_tcp_info(struct sock *sk, const struct extoll_tcp_bypassed *bypassed, void *to,
		       size_t room);
/* Returns true if the kernel itself accepts, not a program. */
bool extoll_accept_by_kernel(const struct proto_accept_arg *arg);
/* Copies part of an option's value from the caller of setsockopt(). Sleeps. */
int extoll_option_read(sockptr_t from, size_t offset, void *to, size_t len);

/*
 * Bytes that TCP has received and the program has not read; finished: the peer's FIN has arrived.
 * Any context.
 */
struct extoll_sock_inq {
	u32 unread;
	bool finished;
};

void extoll_sock_inq(const struct sock *sk, struct extoll_sock_inq *inq);
/*
 * Fills inq. Returns true if it is final, because TCP does not process the sock at this time. Must
 * not be called with the sock's lock held or in a hard interrupt.
 */
bool extoll_sock_inq_settled(struct sock *sk, struct extoll_sock_inq *inq);

/*
 * Files in /proc/net of a namespace, readable by all users. Both functions sleep. show() does not
 * run after the removal.
 */
int extoll_net_proc_add(struct net *net, const char *name,
			int (*show)(struct seq_file *seq, void *v), void *data);
void extoll_net_proc_remove(struct net *net, const char *name);
/* Returns the data that extoll_net_proc_add() got. */
void *extoll_net_proc_data(struct seq_file *seq);

#endif
