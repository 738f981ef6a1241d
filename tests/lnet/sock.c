// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid: a driver of the stand-in that sends messages over TCP, for comparison with kexlnd.ko.
 * Its networks are named tcp. An interface is a network device. The interface's address is the
 * first IPv4 address of the device.
 *
 * A message is LNet's header in its long format, then the payload. Both are copied at either end.
 * An interface without a connection to a peer opens a connection, and the peer uses the same
 * connection. If both nodes open a connection at the same time, both connections stay, and each
 * node sends by the connection that it had first. Each connection has a sending and a receiving
 * thread, so that lnd_send and lnd_recv never wait for the network.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/inetdevice.h>
#include <linux/kthread.h>
#include <linux/lnet/lib-lnet.h>
#include <linux/module.h>
#include <linux/net.h>
#include <linux/rtnetlink.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/tcp.h>
#include <linux/wait.h>
#include <net/sock.h>

#define PORT 988
/*
 * Seconds after which a connection is given up if the peer does not answer, does not receive, or
 * stops within a message.
 */
#define PATIENCE 10
/* Seconds after which each message has ended: the time-out reported to LNet. */
#define TIMEOUT 50

/* An LNet interface. */
struct sock_ni {
	struct lnet_ni *ni;
	struct socket *listener;
	__be32 address;
	spinlock_t lock;
	struct list_head conns; /* connections for transmission; protected by lock */
	int users; /* number of connections, plus one for the accepting thread; protected by lock */
	bool stopping; /* protected by lock */
	wait_queue_head_t wait; /* wakes the thread that waits for the last user */
};

struct conn {
	struct sock_ni *in;
	struct list_head list; /* entry of in->conns */
	refcount_t refs;
	struct socket *sock;
	__be32 peer;
	bool opened; /* opened by this node */
	bool closed; /* protected by in->lock, as is the queue */
	struct list_head queue;		/* struct tx */
	wait_queue_head_t wait; /* wakes the sender thread */
	/*
	 * Completed when lnd_recv, in any thread, has named the destination of the message that is
	 * being received.
	 */
	struct completion notified;
	struct lnet_msg *msg;
	struct iov_iter to;
};

/* A message to be sent. */
struct tx {
	struct list_head list;
	struct lnet_msg *msg;
};

static void leave(struct sock_ni *in)
{
	/* The last user may free `in` only after the lock is released. */
	spin_lock(&in->lock);
	in->users--;
	wake_up(&in->wait);
	spin_unlock(&in->lock);
}

static bool is_left(struct sock_ni *in)
{
	bool left;

	spin_lock(&in->lock);
	left = !in->users;
	spin_unlock(&in->lock);
	return left;
}

static void conn_put(struct conn *conn)
{
	struct sock_ni *in = conn->in;

	if (!refcount_dec_and_test(&conn->refs))
		return;
	sock_release(conn->sock);
	kfree(conn);
	leave(in);
}

/* Closes a connection: no message is added to its queue any more, and its threads end. */
static void conn_close(struct conn *conn)
{
	spin_lock(&conn->in->lock);
	conn->closed = true;
	list_del_init(&conn->list);
	spin_unlock(&conn->in->lock);
	kernel_sock_shutdown(conn->sock, SHUT_RDWR);
	wake_up(&conn->wait);
}

/* Starts a thread that holds a reference to the module until it has ended. */
static int start(int (*run)(void *data), void *data, const char *name)
{
	struct task_struct *task;

	__module_get(THIS_MODULE);
	task = kthread_run(run, data, "lnet_sock_%s", name);
	if (!IS_ERR(task))
		return 0;
	module_put(THIS_MODULE);
	return PTR_ERR(task);
}

static int conn_start(struct conn *conn, int (*run)(void *data), const char *name)
{
	int rc;

	refcount_inc(&conn->refs);
	rc = start(run, conn, name);
	if (rc)
		conn_put(conn);
	return rc;
}

/*
 * Creates a connection with one reference, which owns the socket. Without memory it releases the
 * socket and returns NULL.
 */
static struct conn *conn_new(struct sock_ni *in, struct socket *sock, __be32 peer)
{
	struct conn *conn = kzalloc(sizeof(*conn), GFP_NOFS);
	struct sock *sk = sock->sk;

	if (!conn) {
		sock_release(sock);
		return NULL;
	}
	conn->in = in;
	conn->sock = sock;
	conn->peer = peer;
	refcount_set(&conn->refs, 1);
	INIT_LIST_HEAD(&conn->list);
	INIT_LIST_HEAD(&conn->queue);
	init_waitqueue_head(&conn->wait);
	init_completion(&conn->notified);
	/* Sending messages may be necessary to free memory. */
	sk->sk_allocation = GFP_NOFS;
	sk->sk_use_task_frag = false;
	sk->sk_rcvtimeo = PATIENCE * HZ;
	sock_set_sndtimeo(sk, PATIENCE);
	tcp_sock_set_nodelay(sk);
	tcp_sock_set_user_timeout(sk, PATIENCE * MSEC_PER_SEC);
	spin_lock(&in->lock);
	in->users++;
	spin_unlock(&in->lock);
	return conn;
}

/* Transmission. */

static void end(struct tx *tx, enum lnet_msg_hstatus health, int status)
{
	struct lnet_msg *msg = tx->msg;

	kfree(tx);
	msg->msg_health_status = health;
	lnet_finalize(msg, status);
}

static struct tx *pop(struct conn *conn)
{
	struct tx *tx;

	spin_lock(&conn->in->lock);
	tx = list_first_entry_or_null(&conn->queue, struct tx, list);
	if (tx)
		list_del(&tx->list);
	spin_unlock(&conn->in->lock);
	return tx;
}

/* Closes a connection. Unsent messages fail. */
static void conn_fail(struct conn *conn)
{
	struct tx *tx;

	conn_close(conn);
	while ((tx = pop(conn)))
		end(tx, LNET_MSG_STATUS_REMOTE_DROPPED, -EHOSTUNREACH);
}

static int transmit(struct socket *sock, struct lnet_msg *msg)
{
	bool has = msg->msg_type == LNET_MSG_PUT || msg->msg_type == LNET_MSG_REPLY;
	unsigned int len = has ? msg->msg_len : 0;
	struct lnet_hdr_nid16 hdr;
	struct kvec vec = { &hdr, sizeof(hdr) };
	struct msghdr mh = { .msg_flags = MSG_NOSIGNAL | (len ? MSG_MORE : 0) };
	int n;

	lnet_hdr_to_nid16(&msg->msg_hdr, &hdr);
	/* TCP sends less than requested only after an error or a time-out. */
	n = kernel_sendmsg(sock, &mh, &vec, 1, sizeof(hdr));
	if (n != sizeof(hdr))
		return n < 0 ? n : -ETIMEDOUT;
	if (!len)
		return 0;
	mh = (struct msghdr){ .msg_flags = MSG_NOSIGNAL };
	iov_iter_bvec(&mh.msg_iter, ITER_SOURCE, msg->msg_kiov, msg->msg_niov, msg->msg_offset + len);
	iov_iter_advance(&mh.msg_iter, msg->msg_offset);
	n = sock_sendmsg(sock, &mh);
	if (n != len)
		return n < 0 ? n : -ETIMEDOUT;
	return 0;
}

static int receiver(void *data);

static int sender(void *data)
{
	struct conn *conn = data;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = conn->peer };
	struct tx *tx;
	int rc = 0;

	memalloc_nofs_save();
	if (conn->opened) {
		rc = kernel_connect(conn->sock, (struct sockaddr_unsized *)&to, sizeof(to), 0);
		if (!rc)
			rc = conn_start(conn, receiver, "rx");
	}
	while (!rc) {
		wait_event_idle(conn->wait, READ_ONCE(conn->closed) || !list_empty_careful(&conn->queue));
		if (READ_ONCE(conn->closed))
			break;
		tx = pop(conn);
		if (!tx)
			continue;
		rc = transmit(conn->sock, tx->msg);
		/* The peer may have received a message whose transmission failed. */
		end(tx, rc ? LNET_MSG_STATUS_NETWORK_TIMEOUT : LNET_MSG_STATUS_OK, rc ? -ETIMEDOUT : 0);
	}
	conn_fail(conn);
	conn_put(conn);
	module_put_and_kthread_exit(0);
}

/* The caller holds in->lock. */
static struct conn *find(struct sock_ni *in, __be32 peer)
{
	struct conn *conn;

	list_for_each_entry(conn, &in->conns, list)
		if (conn->peer == peer)
			return conn;
	return NULL;
}

/*
 * Adds a message to the queue of the connection to the peer, or of `fresh` if there is none.
 * Returns the connection.
 */
static struct conn *enqueue(struct sock_ni *in, __be32 peer, struct tx *tx, struct conn *fresh)
{
	struct conn *conn;

	spin_lock(&in->lock);
	conn = find(in, peer);
	if (!conn && fresh) {
		conn = fresh;
		list_add_tail(&conn->list, &in->conns);
	}
	if (conn) {
		list_add_tail(&tx->list, &conn->queue);
		wake_up(&conn->wait);
	}
	spin_unlock(&in->lock);
	return conn;
}

static int listen_or_bind(struct sock_ni *in, bool listen, struct socket **sock)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = in->address };
	int rc = sock_create_kern(&init_net, PF_INET, SOCK_STREAM, IPPROTO_TCP, sock);

	if (rc)
		return rc;
	if (listen) {
		at.sin_port = htons(PORT);
		sock_set_reuseaddr((*sock)->sk);
	}
	rc = kernel_bind(*sock, (struct sockaddr_unsized *)&at, sizeof(at));
	if (!rc && listen)
		rc = kernel_listen(*sock, 16);
	if (rc)
		sock_release(*sock);
	return rc;
}

/* Sends a message by a new connection. Returns 0 if the message will end in any case. */
static int send_by_new(struct sock_ni *in, __be32 peer, struct tx *tx)
{
	struct socket *sock;
	struct conn *conn;
	int rc = listen_or_bind(in, false, &sock);

	if (rc)
		return rc;
	conn = conn_new(in, sock, peer);
	if (!conn)
		return -ENOMEM;
	conn->opened = true;
	if (enqueue(in, peer, tx, conn) == conn && conn_start(conn, sender, "tx"))
		conn_fail(conn);
	conn_put(conn);
	return 0;
}

static int sock_send(struct lnet_ni *ni, void *private, struct lnet_msg *msg)
{
	unsigned int nofs = memalloc_nofs_save();
	__be32 peer = msg->msg_target.nid.nid_addr[0];
	struct tx *tx = kmalloc(sizeof(*tx), GFP_NOFS);
	int rc = tx ? 0 : -ENOMEM;

	if (tx) {
		tx->msg = msg;
		if (!enqueue(ni->ni_data, peer, tx, NULL))
			rc = send_by_new(ni->ni_data, peer, tx);
	}
	if (rc) {
		kfree(tx);
		msg->msg_health_status = LNET_MSG_STATUS_LOCAL_DROPPED;
	}
	memalloc_nofs_restore(nofs);
	return rc;
}

/* Reception. */

/* Fills the iterator. Between messages (`idle`) a peer may be silent for any time. */
static int get(struct conn *conn, struct iov_iter *to, bool idle)
{
	struct msghdr mh = { .msg_iter = *to };
	int n;

	while (iov_iter_count(&mh.msg_iter)) {
		n = sock_recvmsg(conn->sock, &mh, MSG_WAITALL);
		if (n == -EAGAIN && idle)
			continue;
		if (n <= 0)
			return n ? n : -ECONNRESET;
		idle = false;
	}
	return 0;
}

static int get_message(struct conn *conn)
{
	struct lnet_nid from = conn->in->ni->ni_nid;
	struct lnet_hdr_nid16 raw;
	struct kvec vec = { &raw, sizeof(raw) };
	struct lnet_msg *msg = NULL;
	struct lnet_hdr hdr;
	struct iov_iter to;
	size_t left;
	int rc;

	iov_iter_kvec(&to, ITER_DEST, &vec, 1, sizeof(raw));
	rc = get(conn, &to, true);
	if (rc)
		return rc;
	lnet_hdr_from_nid16(&hdr, &raw);
	left = hdr.payload_length;
	if (left > LNET_MTU)
		return -EPROTO;
	from.nid_addr[0] = conn->peer;
	if (!lnet_parse(conn->in->ni, &hdr, &from, conn, 0)) {
		wait_for_completion_state(&conn->notified, TASK_IDLE);
		msg = conn->msg;
		left -= min(left, iov_iter_count(&conn->to));
		rc = get(conn, &conn->to, false);
	}
	/*
	 * Bytes that LNet does not accept are received too, because the next message follows these
	 * bytes.
	 */
	if (!rc && left) {
		iov_iter_discard(&to, ITER_DEST, left);
		rc = get(conn, &to, false);
	}
	if (msg)
		lnet_finalize(msg, rc);
	return rc;
}

static int receiver(void *data)
{
	struct conn *conn = data;

	memalloc_nofs_save();
	while (!get_message(conn))
		;
	/* The sender thread ends the queued messages. */
	conn_close(conn);
	conn_put(conn);
	module_put_and_kthread_exit(0);
}

/*
 * Names the destination of a message. Runs in the receiver thread within lnet_parse, or later in
 * another thread while the receiver thread waits.
 */
static int sock_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed, struct iov_iter *to, unsigned int rlen)
{
	struct conn *conn = private;

	conn->msg = msg;
	conn->to = *to;
	complete(&conn->notified);
	return 0;
}

/* Interfaces. */

static void accepted(struct sock_ni *in, struct socket *sock)
{
	struct sockaddr_in peer;
	struct conn *conn;
	bool ends;

	if (kernel_getpeername(sock, (struct sockaddr *)&peer) < 0) {
		sock_release(sock);
		return;
	}
	conn = conn_new(in, sock, peer.sin_addr.s_addr);
	if (!conn)
		return;
	spin_lock(&in->lock);
	ends = in->stopping;
	if (!ends)
		list_add_tail(&conn->list, &in->conns);
	spin_unlock(&in->lock);
	if (!ends && (conn_start(conn, sender, "tx") || conn_start(conn, receiver, "rx")))
		conn_fail(conn);
	conn_put(conn);
}

static int accept_on(void *data)
{
	struct sock_ni *in = data;
	struct socket *sock;

	while (!READ_ONCE(in->stopping)) {
		if (kernel_accept(in->listener, &sock, 0))
			/* The interface is stopping, or there is no memory for the connection. */
			msleep(10);
		else
			accepted(in, sock);
	}
	leave(in);
	module_put_and_kthread_exit(0);
}

/* Returns the first address of a network device; 0 without address or device. */
static __be32 address_of(const char *name)
{
	struct in_ifaddr *first = NULL;
	struct net_device *dev;
	struct in_device *in;
	__be32 address;

	rtnl_lock();
	dev = __dev_get_by_name(&init_net, name);
	in = dev ? __in_dev_get_rtnl(dev) : NULL;
	if (in)
		first = rtnl_dereference(in->ifa_list);
	address = first ? first->ifa_local : 0;
	rtnl_unlock();
	return address;
}

static void otherwise(s32 *value, s32 def)
{
	if (*value == -1)
		*value = def;
}

static int sock_startup(struct lnet_ni *ni)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *t = &ni->ni_net->net_tunables;
	struct sock_ni *in;
	int rc;

	if (!ni->ni_interface)
		return -ENODEV;
	in = kzalloc(sizeof(*in), GFP_KERNEL);
	if (!in)
		return -ENOMEM;
	in->ni = ni;
	in->users = 1;
	spin_lock_init(&in->lock);
	INIT_LIST_HEAD(&in->conns);
	init_waitqueue_head(&in->wait);
	in->address = address_of(ni->ni_interface);
	rc = in->address ? listen_or_bind(in, true, &in->listener) : -ENODEV;
	if (rc) {
		kfree(in);
		return rc;
	}
	/* The defaults are those of kexlnd.ko. */
	otherwise(&t->lct_max_tx_credits, 256);
	otherwise(&t->lct_peer_tx_credits, 8);
	otherwise(&t->lct_peer_rtr_credits, 0);
	otherwise(&t->lct_peer_timeout, 180);
	ni->ni_nid.nid_addr[0] = in->address;
	ni->ni_data = in;
	__module_get(THIS_MODULE);
	rc = start(accept_on, in, "accept");
	if (!rc)
		return 0;
	sock_release(in->listener);
	kfree(in);
	module_put(THIS_MODULE);
	return rc;
}

/* Returns a connection to be closed, with a reference. */
static struct conn *next_conn(struct sock_ni *in)
{
	struct conn *conn;

	spin_lock(&in->lock);
	conn = list_first_entry_or_null(&in->conns, struct conn, list);
	if (conn)
		refcount_inc(&conn->refs);
	spin_unlock(&in->lock);
	return conn;
}

/* Stops an interface. LNet has ended all messages before it calls this function. */
static void sock_shutdown(struct lnet_ni *ni)
{
	struct sock_ni *in = ni->ni_data;
	struct conn *conn;

	spin_lock(&in->lock);
	in->stopping = true;
	spin_unlock(&in->lock);
	kernel_sock_shutdown(in->listener, SHUT_RDWR);
	while ((conn = next_conn(in))) {
		conn_close(conn);
		conn_put(conn);
	}
	wait_event_idle(in->wait, is_left(in));
	sock_release(in->listener);
	kfree(in);
	module_put(THIS_MODULE);
}

static int sock_timeout(void)
{
	return TIMEOUT;
}

static const struct lnet_lnd sock_lnd = {
	.lnd_type = SOCKLND,
	.lnd_startup = sock_startup,
	.lnd_shutdown = sock_shutdown,
	.lnd_send = sock_send,
	.lnd_recv = sock_recv,
	.lnd_get_timeout = sock_timeout,
};

static int __init sock_init(void)
{
	lnet_register_lnd(&sock_lnd);
	return 0;
}

static void __exit sock_exit(void)
{
	lnet_unregister_lnd(&sock_lnd);
}

module_init(sock_init);
module_exit(sock_exit);

MODULE_DESCRIPTION("Test aid: a driver of the LNet stand-in that sends over TCP");
MODULE_LICENSE("GPL");
