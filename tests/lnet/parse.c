// SPDX-License-Identifier: GPL-2.0-only
/* Received messages, held messages, routing. See stand.h. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "stand.h"

/*
 * Held messages without matching memory, on portals whose owners attach memory later. Protected by
 * stand_lock.
 */
static LIST_HEAD(kept);
/* Messages to be routed that wait for a credit or a buffer. */
static LIST_HEAD(waiting);

/* Names the destination of a message, exactly once for each message that lnet_parse accepted. */
void stand_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed, unsigned int offset, unsigned int mlen,
		unsigned int rlen)
{
	const struct lnet_lnd *lnd = ni->ni_net->net_lnd;
	struct iov_iter to;
	int rc;

	if (stand_odd(ODD_slow))
		usleep_range(100, 3000);
	iov_iter_bvec(&to, ITER_DEST, NULL, 0, 0);
	if (msg && mlen) {
		iov_iter_bvec(&to, ITER_DEST, msg->msg_kiov, msg->msg_niov, offset + mlen);
		iov_iter_advance(&to, offset);
	}
	if (msg) {
		if (mlen < rlen)
			count(short);
		if (!mlen)
			count(zero);
		stand_give(msg, STAND_WANTED);
	}
	spin_lock(&stand_lock);
	ni->inside++;
	ni->refs++;
	spin_unlock(&stand_lock);
	rc = lnd->lnd_recv(ni, private, msg, delayed, &to, rlen);
	/* The iterator was on this stack. Poisoning its memory reveals later use. */
	memset(&to, STAND_POISON, sizeof(to));
	spin_lock(&stand_lock);
	ni->inside--;
	ni->refs--;
	spin_unlock(&stand_lock);
	if (rc > 0)
		defect("lnd_recv says %d", rc);
	if (rc < 0 && msg) {
		if (!stand_msg_ours(msg, "lnd_recv fails, end"))
			return;
		stand_give(msg, STAND_OURS);
		stand_end(msg, rc);
	}
}

/* Receives a message that has its destination memory. */
static void receive(struct lnet_msg *msg, int delayed)
{
	unsigned int offset = msg->msg_offset;

	msg->kept = false;
	stand_recv(msg->rxni, msg->msg_private, msg, delayed, offset, msg->msg_len, msg->wanted);
}

/* Tells the driver that no byte of the message is accepted. */
static void drop(struct lnet_msg *msg, int delayed)
{
	struct lnet_ni *ni = msg->rxni;
	void *private = msg->msg_private;
	unsigned int rlen = msg->wanted;

	count(dropped);
	stand_recv(ni, private, NULL, delayed, 0, 0, rlen);
	stand_msg_free(msg);
}

/* Calls lnd_eager_recv before a message is held. Returns true if it may be held. */
static bool eager(struct lnet_msg *msg)
{
	const struct lnet_lnd *lnd = msg->rxni->ni_net->net_lnd;
	void *private = msg->msg_private;
	int rc;

	if (!lnd->lnd_eager_recv)
		return true;
	rc = lnd->lnd_eager_recv(msg->rxni, private, msg, &private);
	if (rc > 0)
		defect("lnd_eager_recv says %d", rc);
	if (!rc) {
		count(eager);
		msg->msg_private = private;
	} else {
		count(eager_failed);
	}
	return !rc;
}

/* A message whose destination memory another thread passes to the driver later. */
struct late {
	struct work_struct work;
	struct lnet_msg *msg;
	bool drop;
};

static struct workqueue_struct *late_queue;

static void late_work(struct work_struct *work)
{
	struct late *late = container_of(work, struct late, work);
	struct lnet_msg *msg = late->msg;

	usleep_range(100, 100 + stand_random() % 20000);
	if (late->drop) {
		struct lnet_libmd *md = msg->msg_md;

		count(odd_drops);
		/* The memory is released from the message that waited. */
		if (md)
			stand_md_tell(md, msg->msg_type == LNET_MSG_PUT ? EV_PUT : EV_REPLY, -ECANCELED, 0);
		drop(msg, 1);
	} else {
		count(late_recvs);
		receive(msg, 1);
	}
	kfree(late);
}

/* Passes the destination of a matched message to the driver, now or later. */
static void matched(struct lnet_msg *msg)
{
	bool drops = stand_odd(ODD_drop);
	struct late *late;

	if (!drops && !stand_odd(ODD_late)) {
		receive(msg, 0);
		return;
	}
	late = kmalloc(sizeof(*late), GFP_NOFS);
	if (!late) {
		receive(msg, 0);
		return;
	}
	if (!eager(msg)) {
		kfree(late);
		if (msg->msg_md)
			stand_md_tell(msg->msg_md, msg->msg_type == LNET_MSG_PUT ? EV_PUT : EV_REPLY, -ECANCELED, 0);
		drop(msg, 0);
		return;
	}
	late->msg = msg;
	late->drop = drops;
	INIT_WORK(&late->work, late_work);
	queue_work(late_queue, &late->work);
}

void stand_flush_late(void)
{
	flush_workqueue(late_queue);
}

/*
 * Assigns the matching memory to a message. Returns 1 if no memory matches and the message may be
 * held. The caller holds stand_lock.
 */
static int match_put(struct lnet_msg *msg)
{
	struct lnet_hdr *hdr = &msg->msg_hdr;
	int portal = le32_to_cpu(hdr->part.ask.portal);
	struct lnet_libmd *md;
	u32 mlen;

	md = stand_md_match(portal, le64_to_cpu(hdr->part.ask.match), true, hdr->payload_length, &mlen);
	if (!md)
		return 1;
	msg->msg_md = md;
	md->data = le64_to_cpu(hdr->part.ask.data);
	md->from = hdr->src_nid;
	msg->msg_kiov = md->mem->vecs;
	msg->msg_niov = md->mem->niov;
	msg->msg_len = mlen;
	return 0;
}

static bool serving;

static void parse_put(struct lnet_msg *msg)
{
	bool lazy, asked = false;
	int rc;

	for (;;) {
		spin_lock(&stand_lock);
		rc = match_put(msg);
		lazy = serving && le32_to_cpu(msg->msg_hdr.part.ask.portal) == PORTAL_ASK;
		if (rc && lazy && asked) {
			msg->kept = true;
			list_add_tail(&msg->list, &kept);
		}
		spin_unlock(&stand_lock);
		if (!rc) {
			if (asked)
				receive(msg, 1);
			else
				matched(msg);
			return;
		}
		if (!lazy) {
			drop(msg, 0);
			return;
		}
		if (asked) {
			count(kept);
			return;
		}
		asked = true;
		if (!eager(msg)) {
			drop(msg, 0);
			return;
		}
	}
}

/*
 * Resolves held messages after memory was attached to a portal. With portal < 0 no more memory will
 * be attached, so held messages are dropped.
 */
void stand_attached(int portal)
{
	struct lnet_msg *msg;
	int rc;

	for (;;) {
		spin_lock(&stand_lock);
		if (portal < 0)
			serving = false;
		else
			serving = true;
		msg = list_first_entry_or_null(&kept, struct lnet_msg, list);
		rc = msg && portal >= 0 ? match_put(msg) : 1;
		if (msg && (!rc || portal < 0))
			list_del_init(&msg->list);
		spin_unlock(&stand_lock);
		if (!msg || (rc && portal >= 0))
			return;
		if (rc)
			drop(msg, 1);
		else
			receive(msg, 1);
	}
}

/* Drops the held messages of an interface that ends. */
void stand_discard(struct lnet_ni *ni)
{
	struct lnet_msg *msg, *next;
	LIST_HEAD(gone);

	spin_lock(&stand_lock);
	list_for_each_entry_safe(msg, next, &kept, list)
		if (msg->rxni == ni)
			list_move_tail(&msg->list, &gone);
	list_for_each_entry_safe(msg, next, &waiting, list)
		if (msg->rxni == ni)
			list_move_tail(&msg->list, &gone);
	spin_unlock(&stand_lock);
	list_for_each_entry_safe(msg, next, &gone, list) {
		list_del_init(&msg->list);
		if (msg->has_rtr_credit) {
			msg->has_rtr_credit = false;
			spin_lock(&stand_lock);
			msg->rxpeer->rtr.now++;
			spin_unlock(&stand_lock);
		}
		drop(msg, 1);
	}
}

static void parse_get(struct lnet_msg *msg)
{
	struct lnet_hdr *hdr = &msg->msg_hdr;
	struct lnet_ni *ni = msg->rxni;
	void *private = msg->msg_private;
	struct lnet_libmd *md;
	struct lnet_msg *reply;
	u32 offset = le32_to_cpu(hdr->part.ask.offset), len, mlen;
	bool first = stand_odd(ODD_first);

	reply = stand_msg_new();
	spin_lock(&stand_lock);
	md = reply ? stand_md_match(le32_to_cpu(hdr->part.ask.portal), le64_to_cpu(hdr->part.ask.match), false, 0, &mlen) : NULL;
	spin_unlock(&stand_lock);
	if (!md) {
		if (reply)
			stand_msg_free(reply);
		drop(msg, 0);
		return;
	}
	offset = min(offset, md->mem->len);
	len = min(le32_to_cpu(hdr->part.ask.length), md->mem->len - offset);
	reply->msg_md = md;
	reply->msg_type = reply->msg_hdr.type = LNET_MSG_REPLY;
	reply->msg_len = reply->msg_hdr.payload_length = len;
	reply->msg_offset = offset;
	reply->msg_kiov = md->mem->vecs;
	reply->msg_niov = md->mem->niov;
	reply->msg_hdr.dest_nid = hdr->src_nid;
	reply->msg_hdr.src_nid = hdr->dest_nid;
	reply->msg_hdr.dest_pid = reply->msg_hdr.src_pid = 12345;
	reply->msg_hdr.part.answer.to = hdr->part.ask.from;
	reply->msg_hdr.part.answer.match = hdr->part.ask.match;
	/*
	 * `private` belongs to the driver's other message. The reply carries its value to detect
	 * misuse.
	 */
	reply->msg_private = private;
	if (first)
		stand_send(reply);
	stand_recv(ni, private, NULL, 0, 0, 0, 0);
	if (!first)
		stand_send(reply);
	stand_msg_free(msg);
}

/* Processes a REPLY or an ACK, whose sender names the memory. */
static void parse_answer(struct lnet_msg *msg)
{
	struct lnet_libmd *md;
	struct lnet_hdr *hdr = &msg->msg_hdr;

	spin_lock(&stand_lock);
	md = stand_md_by_cookie(le64_to_cpu(hdr->part.answer.to));
	if (md)
		md->refs++;
	spin_unlock(&stand_lock);
	if (!md) {
		drop(msg, 0);
		return;
	}
	msg->msg_md = md;
	if (msg->msg_type == LNET_MSG_REPLY) {
		msg->msg_kiov = md->mem->vecs;
		msg->msg_niov = md->mem->niov;
		msg->msg_len = min(hdr->payload_length, md->mem->len);
		matched(msg);
	} else {
		receive(msg, 0);
	}
}

/*
 * Routing. There are buffers of one page and buffers for a whole message. Messages without payload
 * need no buffer.
 */

struct stand_buffer {
	struct list_head list;
	unsigned int npages;
	struct bio_vec vecs[LNET_MTU / PAGE_SIZE];
};

#define SMALL 64
#define LARGE 8

struct route {
	struct list_head list;
	u32 net;
	struct lnet_nid gateway;
};

static LIST_HEAD(routes);
static LIST_HEAD(small_buffers);
static LIST_HEAD(large_buffers);
static bool routing;

int stand_route(const char *net, const char *gateway)
{
	struct route *route = kzalloc(sizeof(*route), GFP_KERNEL);

	if (!route)
		return -ENOMEM;
	if (stand_str2net(net, &route->net) || stand_str2nid(gateway, &route->gateway)) {
		kfree(route);
		return -EINVAL;
	}
	spin_lock(&stand_lock);
	list_add_tail(&route->list, &routes);
	spin_unlock(&stand_lock);
	return 0;
}

/* Returns true if there is a route to the net, and its gateway. The caller holds stand_lock. */
bool stand_gateway(u32 net, struct lnet_nid *gateway)
{
	struct route *route;

	list_for_each_entry(route, &routes, list)
		if (route->net == net) {
			*gateway = route->gateway;
			/* The next message uses another gateway. */
			list_move_tail(&route->list, &routes);
			return true;
		}
	return false;
}

static void free_buffer(struct stand_buffer *buffer)
{
	unsigned int i;

	for (i = 0; i < buffer->npages; i++)
		__free_page(buffer->vecs[i].bv_page);
	kfree(buffer);
}

static struct stand_buffer *new_buffer(unsigned int npages)
{
	struct stand_buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
	struct page *page;

	while (buffer && buffer->npages < npages) {
		page = alloc_page(GFP_KERNEL);
		if (!page) {
			free_buffer(buffer);
			return NULL;
		}
		bvec_set_page(&buffer->vecs[buffer->npages++], page, PAGE_SIZE, 0);
	}
	return buffer;
}

static void free_buffers(struct list_head *list, const char *what, int n)
{
	struct stand_buffer *buffer, *next;

	list_for_each_entry_safe(buffer, next, list, list) {
		free_buffer(buffer);
		n--;
	}
	INIT_LIST_HEAD(list);
	if (n)
		defect("%d %s buffers are missing", n, what);
}

int stand_routing(bool on)
{
	struct stand_buffer *buffer;
	int i;

	if (on == routing)
		return 0;
	if (!on) {
		routing = false;
		msleep(100);
		free_buffers(&small_buffers, "small", SMALL);
		free_buffers(&large_buffers, "large", LARGE);
		return 0;
	}
	for (i = 0; i < SMALL + LARGE; i++) {
		buffer = new_buffer(i < SMALL ? 1 : LNET_MTU / PAGE_SIZE);
		if (!buffer)
			return -ENOMEM;
		list_add(&buffer->list, i < SMALL ? &small_buffers : &large_buffers);
	}
	routing = true;
	return 0;
}

void stand_show_routes(struct seq_buf *out)
{
	struct route *route;
	char buf[NIDBUF];

	seq_buf_printf(out, "routing %d\n", routing);
	spin_lock(&stand_lock);
	list_for_each_entry(route, &routes, list)
		seq_buf_printf(out, "route %x %s\n", route->net, stand_nid(&route->gateway, buf));
	spin_unlock(&stand_lock);
}

/*
 * Assigns a buffer to a message to be routed and takes a credit of its peer. Returns false if no
 * buffer or credit is available. The caller holds stand_lock.
 */
static bool take_buffer(struct lnet_msg *msg)
{
	struct list_head *list = msg->wanted <= PAGE_SIZE ? &small_buffers : &large_buffers;
	struct stand_buffer *buffer;

	if (!msg->has_rtr_credit) {
		if (msg->rxpeer->rtr.now <= 0)
			return false;
		msg->rxpeer->rtr.now--;
		msg->has_rtr_credit = true;
	}
	msg->msg_len = msg->wanted;
	if (!msg->wanted)
		return true;
	buffer = list_first_entry_or_null(list, struct stand_buffer, list);
	if (!buffer)
		return false;
	list_del(&buffer->list);
	msg->buffer = buffer;
	msg->msg_kiov = buffer->vecs;
	msg->msg_niov = DIV_ROUND_UP(msg->wanted, PAGE_SIZE);
	return true;
}

static void parse_routed(struct lnet_msg *msg)
{
	bool asked = false, has;

	msg->msg_routing = 1;
	for (;;) {
		spin_lock(&stand_lock);
		has = take_buffer(msg);
		if (!has && asked) {
			msg->kept = true;
			list_add_tail(&msg->list, &waiting);
		}
		spin_unlock(&stand_lock);
		if (has) {
			receive(msg, asked);
			return;
		}
		if (asked) {
			count(route_waits);
			return;
		}
		asked = true;
		if (!eager(msg)) {
			if (msg->has_rtr_credit) {
				spin_lock(&stand_lock);
				msg->rxpeer->rtr.now++;
				msg->has_rtr_credit = false;
				spin_unlock(&stand_lock);
			}
			drop(msg, 0);
			return;
		}
	}
}

/* Sends an arrived message to its next hop. The message ends in any case. */
void stand_forward(struct lnet_msg *msg)
{
	msg->received = false;
	count(routed);
	stand_send(msg);
}

/* Releases the buffer of a routed message that has ended. A waiting message gets the buffer. */
void stand_routed(struct lnet_msg *msg)
{
	struct lnet_msg *next, *found = NULL;

	spin_lock(&stand_lock);
	if (msg->buffer)
		list_add(&msg->buffer->list, msg->buffer->npages == 1 ? &small_buffers : &large_buffers);
	msg->buffer = NULL;
	if (msg->has_rtr_credit)
		msg->rxpeer->rtr.now++;
	msg->has_rtr_credit = false;
	list_for_each_entry(next, &waiting, list)
		if (take_buffer(next)) {
			list_del_init(&next->list);
			found = next;
			break;
		}
	spin_unlock(&stand_lock);
	stand_msg_free(msg);
	if (found)
		receive(found, 1);
}

/* Reception. */

static void count_received(u32 type)
{
	count(received);
	switch (type) {
	case LNET_MSG_PUT:
		count(received_put);
		break;
	case LNET_MSG_GET:
		count(received_get);
		break;
	case LNET_MSG_ACK:
		count(received_ack);
		break;
	default:
		count(received_reply);
	}
}

int lnet_parse(struct lnet_ni *ni, struct lnet_hdr *hdr, struct lnet_nid *from, void *private, int rdma_req)
{
	struct stand_peer *peer;
	struct lnet_msg *msg;
	bool for_me, deleting, ours;
	u32 type = hdr->type;

	if (!stand_context("lnet_parse"))
		return -EPROTO;
	if (stand_net_of(from) != ni->ni_net->net_id)
		defect("lnet_parse with a last hop of another network");
	if (rdma_req)
		defect("lnet_parse: this stand-in has no optimised GETs");
	if (type > LNET_MSG_REPLY || hdr->payload_length > LNET_MTU ||
	    ((type == LNET_MSG_ACK || type == LNET_MSG_GET) && hdr->payload_length)) {
		count(not_parsed);
		return -EPROTO;
	}
	if (stand_odd(ODD_refuse)) {
		count(odd_refusals);
		return -EPROTO;
	}
	if (stand_odd(ODD_slow))
		usleep_range(100, 3000);
	spin_lock(&stand_lock);
	for_me = stand_same(&hdr->dest_nid, &ni->ni_nid);
	ours = stand_ni_of_nid(&hdr->dest_nid);
	peer = stand_find_peer(ni, from);
	spin_unlock(&stand_lock);
	if (!peer) {
		/* Creating the peer waits for changes of networks. */
		count(unknown_peers);
		mutex_lock(&stand_api);
		deleting = ni->life != STAND_ACTIVE;
		for_me = stand_same(&hdr->dest_nid, &ni->ni_nid);
		if (!deleting)
			peer = stand_make_peer(ni, from);
		mutex_unlock(&stand_api);
	}
	if (!peer) {
		count(not_parsed);
		return -ESHUTDOWN;
	}
	if (!for_me && (!READ_ONCE(routing) || ours)) {
		count(not_parsed);
		return -EPROTO;
	}
	msg = stand_msg_new();
	if (!msg) {
		count(dropped);
		stand_recv(ni, private, NULL, 0, 0, 0, hdr->payload_length);
		return 0;
	}
	msg->msg_hdr = *hdr;
	/* Only messages that are routed keep their long address. */
	if (for_me && hdr->src_nid.nid_size == 12)
		stand_nid4_from(stand_nid4(&hdr->src_nid), &msg->msg_hdr.src_nid);
	msg->msg_type = type;
	msg->msg_private = private;
	msg->received = true;
	msg->wanted = hdr->payload_length;
	msg->rxpeer = peer;
	spin_lock(&stand_lock);
	deleting = ni->life == STAND_DELETING;
	if (!deleting) {
		msg->rxni = ni;
		ni->refs++;
		ni->received++;
	}
	spin_unlock(&stand_lock);
	if (deleting) {
		/*
		 * The message is dropped. LNet knows the peer and ignores the state of the
		 * interface, so lnd_recv is also called while lnd_shutdown runs.
		 */
		stand_msg_free(msg);
		count(dropped);
		stand_recv(ni, private, NULL, 0, 0, 0, hdr->payload_length);
		return 0;
	}
	if (stand_odd(ODD_send)) {
		count(odd_sends);
		stand_odd_send(ni, from);
	}
	count_received(type);
	if (!for_me)
		parse_routed(msg);
	else if (type == LNET_MSG_PUT)
		parse_put(msg);
	else if (type == LNET_MSG_GET)
		parse_get(msg);
	else
		parse_answer(msg);
	return 0;
}
EXPORT_SYMBOL(lnet_parse);

int stand_parse_init(void)
{
	late_queue = alloc_workqueue("lnet_stand_late", WQ_UNBOUND, 64);
	return late_queue ? 0 : -ENOMEM;
}

void stand_parse_exit(void)
{
	struct route *route, *next;

	destroy_workqueue(late_queue);
	stand_routing(false);
	list_for_each_entry_safe(route, next, &routes, list)
		kfree(route);
	if (!list_empty(&kept) || !list_empty(&waiting))
		defect("messages are still held at the end");
}
