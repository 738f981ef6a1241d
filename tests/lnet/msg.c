// SPDX-License-Identifier: GPL-2.0-only
/* Messages: creation, transmission, end; credits. See stand.h. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include "stand.h"

/* Number of ended messages that are kept, to detect writes to them. */
#define RESTING 512
static struct lnet_msg *resting[RESTING];
static unsigned int rest_at;
static int messages;
static bool watching;
static struct delayed_work watch;

/*
 * Messages about to end on a CPT, and the threads that end them. A thread never nests, and up to
 * `slots` threads run at a time.
 */
struct finals {
	struct list_head queue;
	struct task_struct *who[8];
	int slots;
};
static struct finals *finals;

static const char *const owners[] = { "nobody's", "sent", "to be filled" };

struct lnet_msg *stand_msg_new(void)
{
	struct lnet_msg *msg = kzalloc(sizeof(*msg), GFP_NOFS);

	if (!msg)
		return NULL;
	msg->magic = msg->magic_end = STAND_MAGIC;
	INIT_LIST_HEAD(&msg->list);
	spin_lock(&stand_lock);
	list_add_tail(&msg->all, &stand_msgs);
	messages++;
	spin_unlock(&stand_lock);
	return msg;
}

static void put_to_rest(struct lnet_msg *msg)
{
	struct lnet_msg *old = resting[rest_at];

	memset(msg, STAND_POISON, sizeof(*msg));
	resting[rest_at] = msg;
	rest_at = (rest_at + 1) % RESTING;
	if (old && memchr_inv(old, STAND_POISON, sizeof(*old)))
		defect("a message was written to after its end");
	kfree(old);
}

/* Frees a message that has returned its credits and holds only references. */
void stand_msg_free(struct lnet_msg *msg)
{
	struct lnet_libmd *md = msg->msg_md;

	spin_lock(&stand_lock);
	if (msg->owner != STAND_OURS || msg->has_credits || !list_empty(&msg->list))
		defect("a message ends that is %s, credits %d", owners[msg->owner], msg->has_credits);
	if (msg->rxni)
		msg->rxni->refs--;
	if (msg->txni)
		msg->txni->refs--;
	if (md && !--md->refs)
		wake_up(&md->wait);
	list_del(&msg->all);
	messages--;
	put_to_rest(msg);
	spin_unlock(&stand_lock);
}

/* Returns the number of live messages. Checks that no ended message was written to. */
int stand_msg_count(void)
{
	int i;

	spin_lock(&stand_lock);
	for (i = 0; i < RESTING; i++)
		if (resting[i] && memchr_inv(resting[i], STAND_POISON, sizeof(*resting[i]))) {
			defect("a message was written to after its end");
			memset(resting[i], STAND_POISON, sizeof(*resting[i]));
		}
	i = messages;
	spin_unlock(&stand_lock);
	return i;
}

/* Returns true for a live message. Reports any other message. */
bool stand_msg_ours(struct lnet_msg *msg, const char *what)
{
	if (msg->magic == STAND_MAGIC && msg->magic_end == STAND_MAGIC)
		return true;
	defect("%s of a message that has ended or never existed", what);
	return false;
}

void stand_give(struct lnet_msg *msg, enum stand_owner owner)
{
	msg->since = jiffies;
	msg->reported = false;
	/* Pairs with the check for messages that are held too long, which reads both members. */
	smp_store_release(&msg->owner, owner);
}

/* Fault rules set by the command `fault`. */

static int fault_every, fault_at, fault_health;

int stand_fault(const char *every, const char *health)
{
	int n, h = LNET_MSG_STATUS_LOCAL_DROPPED;

	if (kstrtoint(every, 10, &n) || n < 0 || (health && kstrtoint(health, 10, &h)) || h <= 0 || h >= LNET_MSG_STATUS_END)
		return -EINVAL;
	spin_lock(&stand_lock);
	fault_every = n;
	fault_at = 0;
	fault_health = h;
	spin_unlock(&stand_lock);
	return 0;
}

bool lnet_send_error_simulation(struct lnet_msg *msg, enum lnet_msg_hstatus *hstatus)
{
	bool hit = false;

	if (!stand_msg_ours(msg, "lnet_send_error_simulation"))
		return false;
	spin_lock(&stand_lock);
	if (fault_every && ++fault_at >= fault_every) {
		fault_at = 0;
		*hstatus = fault_health;
		hit = true;
	}
	spin_unlock(&stand_lock);
	if (hit)
		count(faults);
	return hit;
}
EXPORT_SYMBOL(lnet_send_error_simulation);

/* Transmission. */

static void count_sent(struct lnet_msg *msg)
{
	count(sent);
	switch (msg->msg_type) {
	case LNET_MSG_PUT:
		count(sent_put);
		break;
	case LNET_MSG_GET:
		count(sent_get);
		break;
	case LNET_MSG_ACK:
		count(sent_ack);
		break;
	default:
		count(sent_reply);
	}
}

/* Passes a message that has its credits to the driver. */
static void hand_out(struct lnet_msg *msg)
{
	struct lnet_ni *ni = msg->txni;
	const struct lnet_lnd *lnd = ni->ni_net->net_lnd;
	int rc;

	if (stand_odd(ODD_slow))
		usleep_range(100, 3000);
	spin_lock(&stand_lock);
	ni->inside++;
	ni->sent++;
	/* LNet calls this with the net lock held. */
	rc = lnd->lnd_get_timeout ? lnd->lnd_get_timeout() : 0;
	spin_unlock(&stand_lock);
	if (rc < 0)
		defect("lnd_get_timeout says %d", rc);
	count_sent(msg);
	msg->msg_health_status = LNET_MSG_STATUS_OK;
	stand_give(msg, STAND_SENT);
	rc = lnd->lnd_send(ni, msg->msg_private, msg);
	spin_lock(&stand_lock);
	ni->inside--;
	spin_unlock(&stand_lock);
	if (!rc)
		return;
	/* The driver rejected the message and must not have ended it. */
	if (rc > 0)
		defect("lnd_send says %d", rc);
	if (!stand_msg_ours(msg, "lnd_send refuses, end"))
		return;
	if (msg->owner != STAND_SENT)
		defect("lnd_send refuses a message that is %s", owners[msg->owner]);
	count(refused);
	stand_give(msg, STAND_OURS);
	msg->tries = -1;
	stand_end(msg, rc < 0 ? rc : -EIO);
}

/*
 * Takes a credit or queues the message. Returns true if a credit was available. The caller holds
 * stand_lock.
 */
static bool take(struct stand_credits *c, struct lnet_msg *msg)
{
	c->min = min(c->min, --c->now);
	if (c->now >= 0)
		return true;
	list_add_tail(&msg->list, &c->queue);
	return false;
}

/*
 * Returns a credit to the pool. If a message waits for a credit, returns the message, which gets
 * the credit. The caller holds stand_lock.
 */
static struct lnet_msg *give_back(struct stand_credits *c)
{
	struct lnet_msg *next;

	if (c->now++ >= 0)
		return NULL;
	next = list_first_entry_or_null(&c->queue, struct lnet_msg, list);
	if (!next)
		defect("%d credits, but no message waits", c->now - 1);
	else
		list_del_init(&next->list);
	return next;
}

static struct stand_credits *of_ni(struct lnet_msg *msg)
{
	return &msg->txni->tx[lnet_nid2cpt(&msg->msg_target.nid, msg->txni)];
}

/*
 * Takes a credit of the interface for a message that has a credit of the peer. Returns true if a
 * credit was available. The caller holds stand_lock.
 */
static bool take_ni(struct lnet_msg *msg)
{
	msg->has_credits = true;
	if (take(of_ni(msg), msg))
		return true;
	count(ni_waits);
	return false;
}

/* Sends a message that has an interface and a peer, or queues the message until it has credits. */
static void send_or_wait(struct lnet_msg *msg)
{
	bool goes;

	spin_lock(&stand_lock);
	goes = take(&msg->txpeer->tx, msg);
	if (goes)
		goes = take_ni(msg);
	else
		count(peer_waits);
	spin_unlock(&stand_lock);
	if (goes)
		hand_out(msg);
}

static void give_credits_back(struct lnet_msg *msg, struct list_head *go)
{
	struct lnet_msg *next;

	msg->has_credits = false;
	next = give_back(of_ni(msg));
	if (next)
		list_add_tail(&next->list, go);
	next = give_back(&msg->txpeer->tx);
	if (next && take_ni(next))
		list_add_tail(&next->list, go);
}

/* Returns true if an interface may send. */
static bool is_usable(struct lnet_ni *ni)
{
	return ni->life == STAND_ACTIVE;
}

/*
 * Returns the next interface of a net in turn. Prefers interfaces with a working NIC. The caller
 * holds stand_lock.
 */
static struct lnet_ni *choose(u32 net, struct lnet_ni *but)
{
	struct lnet_ni *ni, *best = NULL;

	list_for_each_entry(ni, &stand_nis, stand_list) {
		if (!is_usable(ni) || ni->ni_net->net_id != net)
			continue;
		if (!best || (atomic_read(&best->ni_fatal_error_on) && !atomic_read(&ni->ni_fatal_error_on)) ||
		    (!atomic_read(&ni->ni_fatal_error_on) && (best == but || (ni != but && ni->sent < best->sent))))
			best = ni;
	}
	return best;
}

/* Determines the next hop and the interface. */
static int find_way(struct lnet_msg *msg, struct lnet_ni *but)
{
	u32 net = stand_net_of(&msg->msg_hdr.dest_nid);
	struct lnet_nid hop = msg->msg_hdr.dest_nid;
	struct lnet_ni *ni = NULL;
	struct stand_peer *peer;

	spin_lock(&stand_lock);
	/* Answers use the interface on which the request arrived. */
	if (msg->msg_hdr.src_nid.nid_addr[0] && !msg->msg_routing) {
		ni = stand_ni_of_nid(&msg->msg_hdr.src_nid);
		if (ni && ni->ni_net->net_id != net && stand_gateway(net, &hop))
			msg->msg_target_is_router = 1;
		else if (ni && ni->ni_net->net_id != net)
			ni = NULL;
	} else {
		ni = choose(net, but);
		if (!ni && stand_gateway(net, &hop)) {
			msg->msg_target_is_router = 1;
			ni = choose(stand_net_of(&hop), but);
		}
	}
	if (ni)
		ni->refs++;
	peer = ni ? stand_find_peer(ni, &hop) : NULL;
	spin_unlock(&stand_lock);
	if (!ni)
		return -EHOSTUNREACH;
	if (!peer)
		peer = stand_make_peer(ni, &hop);
	if (!peer) {
		stand_ni_put(ni, 1);
		return -ENOMEM;
	}
	msg->txni = ni;
	msg->txpeer = peer;
	msg->msg_target.nid = hop;
	msg->msg_target.pid = 12345;
	if (msg->msg_routing)
		return 0;
	msg->msg_hdr.src_nid = ni->ni_nid;
	if (stand_odd(ODD_big)) {
		/* The address has excess bytes, which the receiver removes. */
		count(big_headers);
		msg->msg_hdr.src_nid.nid_size = 12;
		get_random_bytes(&msg->msg_hdr.src_nid.nid_addr[1], 12);
	}
	return 0;
}

/* Sends a message with a complete header. The message ends in any case. */
void stand_send(struct lnet_msg *msg)
{
	int rc = find_way(msg, NULL);

	if (rc) {
		msg->tries = -1;
		stand_end(msg, rc);
		return;
	}
	send_or_wait(msg);
}

static struct lnet_msg *request(struct lnet_libmd *md, const struct lnet_nid *to, u32 type, u64 match)
{
	struct lnet_msg *msg = stand_msg_new();

	if (!msg)
		return NULL;
	spin_lock(&stand_lock);
	md->refs++;
	spin_unlock(&stand_lock);
	msg->msg_md = md;
	msg->msg_type = type;
	msg->msg_hdr.type = type;
	msg->msg_hdr.dest_nid = *to;
	msg->msg_hdr.dest_pid = msg->msg_hdr.src_pid = 12345;
	msg->msg_hdr.part.ask.from = cpu_to_le64(md->cookie);
	msg->msg_hdr.part.ask.match = cpu_to_le64(match);
	return msg;
}

int stand_put(struct lnet_libmd *md, const struct lnet_nid *to, int portal, u64 match, u64 data, bool ack)
{
	struct lnet_msg *msg = request(md, to, LNET_MSG_PUT, match);

	if (!msg)
		return -ENOMEM;
	msg->msg_len = msg->msg_hdr.payload_length = md->mem->len;
	msg->msg_niov = md->mem->niov;
	msg->msg_kiov = md->mem->vecs;
	msg->msg_hdr.part.ask.portal = cpu_to_le32(portal);
	msg->msg_hdr.part.ask.data = cpu_to_le64(data);
	msg->msg_hdr.part.ask.flags = cpu_to_le32(ack);
	stand_send(msg);
	return 0;
}

int stand_get(struct lnet_libmd *md, const struct lnet_nid *to, int portal, u64 match, u32 offset)
{
	struct lnet_msg *msg = request(md, to, LNET_MSG_GET, match);

	if (!msg)
		return -ENOMEM;
	msg->msg_hdr.part.ask.portal = cpu_to_le32(portal);
	msg->msg_hdr.part.ask.offset = cpu_to_le32(offset);
	msg->msg_hdr.part.ask.length = cpu_to_le32(md->mem->len);
	stand_send(msg);
	return 0;
}

/* Sends the ACK that the sender of a received message requested. */
static void acknowledge(struct lnet_msg *msg)
{
	struct lnet_msg *ack = stand_msg_new();

	if (!ack)
		return;
	ack->msg_type = ack->msg_hdr.type = LNET_MSG_ACK;
	ack->msg_hdr.dest_nid = msg->msg_hdr.src_nid;
	ack->msg_hdr.src_nid = msg->msg_hdr.dest_nid;
	ack->msg_hdr.dest_pid = ack->msg_hdr.src_pid = 12345;
	ack->msg_hdr.part.answer.to = msg->msg_hdr.part.ask.from;
	ack->msg_hdr.part.answer.match = msg->msg_hdr.part.ask.match;
	ack->msg_hdr.part.answer.length = cpu_to_le32(msg->msg_len);
	stand_send(ack);
}

/* Ends of messages. */

/*
 * Returns true if the message was not delivered according to its health status, so that it may be
 * sent by another interface.
 */
static bool may_resend(struct lnet_msg *msg)
{
	if (msg->msg_type != LNET_MSG_PUT && msg->msg_type != LNET_MSG_GET)
		return false;
	if (msg->tries < 0 || msg->tries >= 2 || msg->msg_routing)
		return false;
	switch (msg->msg_health_status) {
	case LNET_MSG_STATUS_LOCAL_INTERRUPT:
	case LNET_MSG_STATUS_LOCAL_DROPPED:
	case LNET_MSG_STATUS_LOCAL_ABORTED:
	case LNET_MSG_STATUS_LOCAL_NO_ROUTE:
	case LNET_MSG_STATUS_LOCAL_TIMEOUT:
	case LNET_MSG_STATUS_REMOTE_DROPPED:
		return true;
	default:
		return false;
	}
}

/* Sends the message by another interface. Returns false if there is none. */
static bool resend(struct lnet_msg *msg)
{
	struct lnet_ni *old = msg->txni;
	struct lnet_nid none = {};
	bool other;

	spin_lock(&stand_lock);
	other = choose(old->ni_net->net_id, old) != old;
	spin_unlock(&stand_lock);
	if (!other)
		return false;
	msg->tries++;
	msg->txni = NULL;
	msg->msg_hdr.src_nid = none;
	if (find_way(msg, old)) {
		msg->txni = old;
		return false;
	}
	stand_ni_put(old, 1);
	count(resent);
	send_or_wait(msg);
	return true;
}

static enum stand_event event_of(struct lnet_msg *msg)
{
	if (!msg->received)
		return msg->msg_type == LNET_MSG_REPLY ? EV_GET : EV_SEND;
	switch (msg->msg_type) {
	case LNET_MSG_PUT:
		return EV_PUT;
	case LNET_MSG_ACK:
		return EV_ACK;
	default:
		return EV_REPLY;
	}
}

static void complete_msg(struct lnet_msg *msg)
{
	struct lnet_msg *other, *next;
	int status = msg->status;
	LIST_HEAD(go);

	if (msg->has_credits) {
		spin_lock(&stand_lock);
		give_credits_back(msg, &go);
		spin_unlock(&stand_lock);
	}
	if (status)
		count(failed);
	if (msg->msg_routing) {
		/* A routed message ends twice. The first end is its arrival. */
		if (msg->received && !status) {
			stand_forward(msg);
			goto others;
		}
		if (status || msg->received)
			count(route_drops);
		stand_routed(msg);
		goto others;
	}
	if (status && !msg->received && msg->txni && may_resend(msg) && resend(msg))
		goto others;
	if (msg->msg_md)
		stand_md_tell(msg->msg_md, event_of(msg), status, msg->received && msg->msg_type == LNET_MSG_ACK ?
			      le32_to_cpu(msg->msg_hdr.part.answer.length) : msg->msg_len);
	if (msg->received && msg->msg_type == LNET_MSG_PUT && !status && le32_to_cpu(msg->msg_hdr.part.ask.flags) & 1)
		acknowledge(msg);
	stand_msg_free(msg);
others:
	/* Messages that got the returned credits are sent on the same stack. */
	list_for_each_entry_safe(other, next, &go, list) {
		list_del_init(&other->list);
		count(nested_sends);
		hand_out(other);
	}
}

/*
 * Ends a message that belongs to the stand-in. The end runs on the same stack, unless another call
 * on this CPT is already ending messages.
 */
void stand_end(struct lnet_msg *msg, int status)
{
	const struct lnet_nid *nid = msg->received ? &msg->msg_hdr.src_nid : &msg->msg_target.nid;
	struct finals *f = &finals[stand_cpt_of(nid)];
	int i, slot = -1;

	msg->status = status;
	spin_lock(&stand_lock);
	list_add_tail(&msg->list, &f->queue);
	for (i = 0; i < f->slots; i++) {
		if (f->who[i] == current) {
			slot = -1;
			break;
		}
		if (!f->who[i] && slot < 0)
			slot = i;
	}
	if (slot < 0) {
		count(later_ends);
		spin_unlock(&stand_lock);
		return;
	}
	f->who[slot] = current;
	while ((msg = list_first_entry_or_null(&f->queue, struct lnet_msg, list))) {
		list_del_init(&msg->list);
		spin_unlock(&stand_lock);
		if (stand_odd(ODD_slow))
			usleep_range(100, 3000);
		complete_msg(msg);
		spin_lock(&stand_lock);
	}
	f->who[slot] = NULL;
	spin_unlock(&stand_lock);
}

void lnet_finalize(struct lnet_msg *msg, int status)
{
	enum stand_owner owner;

	if (!stand_context("lnet_finalize") || !msg)
		return;
	if (!stand_msg_ours(msg, "lnet_finalize"))
		return;
	/* Takes ownership atomically, so that a second call is detected. */
	owner = xchg(&msg->owner, STAND_OURS);
	if (owner == STAND_OURS) {
		defect("lnet_finalize of a message that the driver does not own");
		return;
	}
	if (status > 0 || status < -MAX_ERRNO) {
		defect("lnet_finalize with status %d", status);
		status = -EIO;
	}
	if (owner == STAND_SENT && !status != (msg->msg_health_status == LNET_MSG_STATUS_OK))
		defect("lnet_finalize with status %d and health %d", status, msg->msg_health_status);
	if (msg->msg_health_status >= LNET_MSG_STATUS_END)
		defect("lnet_finalize with health %d", msg->msg_health_status);
	stand_end(msg, status);
}
EXPORT_SYMBOL(lnet_finalize);

/* Reports messages that a driver holds for longer than its time-out. */
static void look(struct work_struct *work)
{
	struct lnet_msg *msg;
	char buf[NIDBUF];

	spin_lock(&stand_lock);
	list_for_each_entry(msg, &stand_msgs, all) {
		struct lnet_ni *ni = msg->owner == STAND_SENT ? msg->txni : msg->rxni;
		int timeout;

		if (smp_load_acquire(&msg->owner) == STAND_OURS || !ni || msg->reported)
			continue;
		timeout = ni->ni_net->net_lnd->lnd_get_timeout ? ni->ni_net->net_lnd->lnd_get_timeout() : 50;
		if (time_before(jiffies, msg->since + (timeout + 5) * HZ))
			continue;
		msg->reported = true;
		defect("a message, type %u, %u bytes, of %s, is %s for more than %d s", msg->msg_type, msg->msg_len,
		       stand_nid(msg->owner == STAND_SENT ? &msg->msg_target.nid : &msg->msg_hdr.src_nid, buf), owners[msg->owner], timeout + 5);
	}
	spin_unlock(&stand_lock);
	if (READ_ONCE(watching))
		queue_delayed_work(system_dfl_wq, &watch, HZ);
}

int stand_msg_init(void)
{
	int i;

	finals = kcalloc(stand_cpts, sizeof(*finals), GFP_KERNEL);
	if (!finals)
		return -ENOMEM;
	for (i = 0; i < stand_cpts; i++) {
		INIT_LIST_HEAD(&finals[i].queue);
		finals[i].slots = clamp_t(int, num_online_cpus() / stand_cpts, 1, ARRAY_SIZE(finals->who));
	}
	INIT_DELAYED_WORK(&watch, look);
	watching = true;
	queue_delayed_work(system_dfl_wq, &watch, HZ);
	return 0;
}

void stand_msg_exit(void)
{
	int i;

	WRITE_ONCE(watching, false);
	cancel_delayed_work_sync(&watch);
	if (messages)
		defect("%d messages at the end", messages);
	stand_msg_count();
	for (i = 0; i < RESTING; i++) {
		kfree(resting[i]);
		resting[i] = NULL;
	}
	kfree(finals);
}
