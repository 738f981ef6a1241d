// SPDX-License-Identifier: GPL-2.0-only
/* Messages of sockets. Contexts and rules are documented in sock.h and in the Rust callers. */
#include <linux/socket.h>
#include <linux/tcp.h>
#include <linux/uio.h>
#include <net/sock.h>
#include <net/tcp.h>
#include "sock.h"

size_t extoll_msg_left(const struct msghdr *msg)
{
	return iov_iter_count(&msg->msg_iter);
}

int extoll_msg_check_control(struct sock *sk, struct msghdr *msg)
{
	struct sockcm_cookie ignored;

	if (!msg->msg_controllen)
		return 0;
	sockcm_init(&ignored, sk);
	return sock_cmsg_send(sk, msg, &ignored) ? -EINVAL : 0;
}

size_t extoll_msg_hide(struct msghdr *msg)
{
	size_t left = iov_iter_count(&msg->msg_iter);

	iov_iter_truncate(&msg->msg_iter, 0);
	return left;
}

void extoll_msg_show(struct msghdr *msg, size_t left)
{
	iov_iter_reexpand(&msg->msg_iter, left);
}

/*
 * Returns NULL for an io_uring call with its own notification (msg_ubuf). io_uring then reports the
 * data as copied, because no reference to its notification is acquired.
 */
struct ubuf_info *extoll_zerocopy_begin(struct sock *sk, struct msghdr *msg)
{
	struct ubuf_info *uarg;

	if (!(msg->msg_flags & MSG_ZEROCOPY) || msg->msg_ubuf || !sock_flag(sk, SOCK_ZEROCOPY))
		return NULL;
	if (!iov_iter_count(&msg->msg_iter))
		return NULL;
	lock_sock(sk);
	/*
	 * The completion is for 0 bytes: leased memory is charged where it is pinned, and copied
	 * memory needs no charge.
	 */
	uarg = msg_zerocopy_realloc(sk, 0, NULL, false);
	release_sock(sk);
	if (!uarg)
		return ERR_PTR(-ENOBUFS);
	return uarg;
}

void extoll_zerocopy_end(struct ubuf_info *uarg, bool sent, bool copied)
{
	uarg_to_msgzc(uarg)->zerocopy = !copied;
	if (sent)
		net_zcopy_put(uarg);
	else
		net_zcopy_put_abort(uarg, true);
}

/*
 * The functions below are in C because the generated bindings lack struct tcp_sock and struct
 * msghdr.
 */
bool extoll_msg_wants_inq(const struct sock *sk, const struct msghdr *msg)
{
	return tcp_sk(sk)->recvmsg_inq || msg->msg_get_inq;
}

void extoll_msg_answer_inq(struct sock *sk, struct msghdr *msg, int left)
{
	bool asked = tcp_sk(sk)->recvmsg_inq;

	if (asked || msg->msg_get_inq)
		msg->msg_inq = left;
	if (asked)
		put_cmsg(msg, SOL_TCP, TCP_CM_INQ, sizeof(left), &left);
}

/* In C and not inlined, so that the Rust compiler cannot assume that the accesses are exclusive. */
noinline void extoll_copy_bytes(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}
