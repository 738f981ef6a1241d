// SPDX-License-Identifier: GPL-2.0-only
/*
 * C part of the LNet driver. It contains what Rust cannot express:
 *
 * - the operation table, whose function types change with LNet's version;
 * - fields of LNet's structures that are packed, are bit fields or depend on LNet's configuration;
 * - inline functions of LNet and wait macros of the kernel.
 *
 * Functions whose name begins with exlnd_rs_ are in ffi/entry.rs. Process context unless noted.
 */
#include <linux/kthread.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uio.h>
#include <linux/wait.h>

#define DEBUG_SUBSYSTEM S_LND
#if __has_include(<linux/libcfs/libcfs.h>)
#include <linux/libcfs/libcfs.h>
#else
#include <libcfs/libcfs.h>
#endif
#if __has_include(<linux/lnet/lib-lnet.h>)
#include <linux/lnet/lib-lnet.h>
#else
#include <lnet/lib-lnet.h>
#endif
#include "lnet.h"

static struct lnet_lnd exlnd_lnd;

/*
 * Sets the tunables for which the user gave no value. LNet restores values from its command line
 * afterwards.
 */
static void exlnd_tunables(struct lnet_ioctl_config_lnd_cmn_tunables *t)
{
	int credits, peer, router, timeout;

	exlnd_rs_tunables(&credits, &peer, &router, &timeout);
	if (t->lct_peer_timeout == -1)
		t->lct_peer_timeout = timeout;
	if (t->lct_max_tx_credits == -1)
		t->lct_max_tx_credits = credits;
	if (t->lct_peer_tx_credits == -1)
		t->lct_peer_tx_credits = peer;
	if (t->lct_peer_tx_credits > t->lct_max_tx_credits)
		t->lct_peer_tx_credits = t->lct_max_tx_credits;
	if (t->lct_peer_rtr_credits == -1)
		t->lct_peer_rtr_credits = router;
}

/*
 * Settings of an interface. They are stored in the union of LNet's tunables, of which each driver
 * defines its own member.
 */
struct exlnd_settings {
	s32 immediate;
};

static struct exlnd_settings *exlnd_settings(struct lnet_lnd_tunables *tunables)
{
	BUILD_BUG_ON(sizeof(struct exlnd_settings) > sizeof(tunables->lnd_tun_u));
	return (struct exlnd_settings *)&tunables->lnd_tun_u;
}

static int exlnd_startup(struct lnet_ni *ni)
{
	struct exlnd_settings *settings = exlnd_settings(&ni->ni_lnd_tunables);
	int rc;

	if (!ni->ni_interface)
		return -ENODEV;
	exlnd_tunables(&ni->ni_net->net_tunables);
	if (!ni->ni_lnd_tunables_set || settings->immediate <= 0)
		settings->immediate = exlnd_rs_immediate();
	__module_get(THIS_MODULE);
	rc = exlnd_rs_startup(ni, ni->ni_interface, settings->immediate,
			      ni->ni_net->net_tunables.lct_max_tx_credits,
			      ni->ni_net->net_tunables.lct_peer_tx_credits);
	if (rc)
		module_put(THIS_MODULE);
	/* On -EEXIST, LNet uses the interface after it has freed it. */
	return rc == -EEXIST ? -EBUSY : rc;
}

static void exlnd_shutdown(struct lnet_ni *ni)
{
	void *data = ni->ni_data;

	if (!data)
		return;
	/* Until this returns, LNet may receive pending messages and call lnd_recv for them. */
	exlnd_rs_shutdown(data);
	ni->ni_data = NULL;
	module_put(THIS_MODULE);
}

/*
 * Allocations must not wait for file systems, because LNet may send in order to free memory. With
 * vmflush they must not wait for reclaim either.
 */
static int exlnd_send(struct lnet_ni *ni, void *private, struct lnet_msg *msg)
{
	unsigned int nofs = memalloc_nofs_save(), noreclaim = 0;
	bool vmflush = msg->msg_vmflush;
	int rc;

	if (vmflush)
		noreclaim = memalloc_noreclaim_save();
	rc = exlnd_rs_send(ni->ni_data, msg);
	if (vmflush)
		memalloc_noreclaim_restore(noreclaim);
	memalloc_nofs_restore(nofs);
	return rc;
}

static int exlnd_receive(struct lnet_ni *ni, void *private, struct lnet_msg *msg,
			 struct iov_iter *to)
{
	unsigned int nofs = memalloc_nofs_save();
	/*
	 * Memory of a GPU cannot be registered. Without `msg` this module discards the payload, and
	 * LNet finalizes the message with the returned error.
	 */
	bool gpu = msg && lnet_md_is_gpu(msg->msg_md);
	int rc;

	if (gpu)
		msg = NULL;
	rc = exlnd_rs_recv(ni->ni_data, (unsigned long)private - 1, msg, msg ? to : NULL);
	memalloc_nofs_restore(nofs);
	return gpu ? -EOPNOTSUPP : rc;
}

/*
 * Called if LNet cannot process a message yet. The private value stays the same even if the payload
 * is copied, because LNet may drop the message by its old value.
 */
static int exlnd_eager_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg,
			    void **new_private)
{
	unsigned int nofs = memalloc_nofs_save();

	exlnd_rs_keep(ni->ni_data, (unsigned long)private - 1);
	*new_private = private;
	memalloc_nofs_restore(nofs);
	return 0;
}

#ifdef EXLND_RECV_BVECS
static int exlnd_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed,
		      unsigned int niov, struct bio_vec *kiov, unsigned int offset,
		      unsigned int mlen, unsigned int rlen)
{
	struct iov_iter to;

	iov_iter_bvec(&to, ITER_DEST, kiov, niov, offset + mlen);
	iov_iter_advance(&to, offset);
	return exlnd_receive(ni, private, msg, &to);
}
#else
static int exlnd_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed,
		      struct iov_iter *to, unsigned int rlen)
{
	return exlnd_receive(ni, private, msg, to);
}
#endif

static int exlnd_ctl(struct lnet_ni *ni, unsigned int cmd, void *arg)
{
	return exlnd_rs_ctl(ni->ni_data, cmd);
}

enum {
	EXLND_KEY_IMMEDIATE = 1,
	EXLND_KEY_TIMEOUT,
	EXLND_KEYS,
};

/* Names of the values in the output of `lnetctl net show -v` and the input of `lnetctl import`. */
static const struct ln_key_list exlnd_keys = {
	.lkl_maxattr = EXLND_KEYS - 1,
	.lkl_list = {
		[EXLND_KEY_IMMEDIATE] = { .lkp_value = "immediate", .lkp_data_type = NLA_S32 },
		[EXLND_KEY_TIMEOUT] = { .lkp_value = "timeout", .lkp_data_type = NLA_S32 },
	},
};

static int exlnd_nl_put(int cmd, struct sk_buff *skb, int type, void *data, bool backup)
{
	struct lnet_ni *ni = data;

	if (!ni || !skb)
		return -EINVAL;
	if (cmd != LNET_CMD_NETS || type != LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES)
		return -EOPNOTSUPP;
	if (nla_put_s32(skb, EXLND_KEY_IMMEDIATE, exlnd_settings(&ni->ni_lnd_tunables)->immediate))
		return -EMSGSIZE;
	/* The timeout is a module parameter and cannot be imported for an interface. */
	if (!backup && nla_put_s32(skb, EXLND_KEY_TIMEOUT, exlnd_rs_timeout()))
		return -EMSGSIZE;
	return 0;
}

#ifdef EXLND_HAS_NL_BACKUP
#define exlnd_nl_get exlnd_nl_put
#else
static int exlnd_nl_get(int cmd, struct sk_buff *skb, int type, void *data)
{
	return exlnd_nl_put(cmd, skb, type, data, false);
}
#endif

static int exlnd_nl_set(int cmd, struct nlattr *attr, int type, void *data)
{
	s64 value;

	if (cmd != LNET_CMD_NETS)
		return -EOPNOTSUPP;
	if (!attr)
		return 0;
	if (nla_type(attr) != LN_SCALAR_ATTR_INT_VALUE)
		return -EINVAL;
	value = nla_get_s64(attr);
	switch (type) {
	case EXLND_KEY_IMMEDIATE:
		if (!exlnd_rs_is_immediate(value))
			return -ERANGE;
		exlnd_settings(data)->immediate = value;
		return 0;
	case EXLND_KEY_TIMEOUT:
		return value == exlnd_rs_timeout() ? 0 : -EOPNOTSUPP;
	default:
		return -EINVAL;
	}
}

#ifdef EXLND_HAS_GET_TIMEOUT
static int exlnd_tun_defaults(struct lnet_lnd_tunables *tunables,
			      struct lnet_ioctl_config_lnd_cmn_tunables *cmn)
{
	memset(tunables, 0, sizeof(*tunables));
	exlnd_settings(tunables)->immediate = exlnd_rs_immediate();
	exlnd_tunables(cmn);
	return 0;
}

static int exlnd_nid_metadata(struct lnet_ni *ni, struct lnet_nid_md_entry *entry)
{
	/* Peers need to know only a node's address. */
	return -ENOENT;
}
#endif

static struct lnet_lnd exlnd_lnd = {
	.lnd_startup = exlnd_startup,
	.lnd_shutdown = exlnd_shutdown,
	.lnd_ctl = exlnd_ctl,
	.lnd_send = exlnd_send,
	.lnd_recv = exlnd_recv,
	.lnd_eager_recv = exlnd_eager_recv,
	.lnd_nl_get = exlnd_nl_get,
	.lnd_nl_set = exlnd_nl_set,
	.lnd_keys = &exlnd_keys,
#ifdef EXLND_HAS_GET_TIMEOUT
	.lnd_get_timeout = exlnd_rs_timeout,
	.lnd_tun_defaults = exlnd_tun_defaults,
	.lnd_get_nid_metadata = exlnd_nid_metadata,
#endif
};

/* Returns the number of the type `ex`, if LNet knows that name. */
int exlnd_known_type(void)
{
	return libcfs_str2lnd("ex");
}

/* Registers the driver. Checks the type first, because LNet asserts that it is unused. */
int exlnd_register(u32 type)
{
	int rc = libcfs_setup();

	if (rc)
		return rc;
	if (type >= NUM_LNDS || !libcfs_isknown_lnd(type))
		return -EPROTONOSUPPORT;
	if (the_lnet.ln_lnds[type])
		return -EBUSY;
	exlnd_lnd.lnd_type = type;
	lnet_register_lnd(&exlnd_lnd);
	return 0;
}

void exlnd_unregister(void)
{
	lnet_unregister_lnd(&exlnd_lnd);
}

/* Sets the address of an interface. */
void exlnd_ni_address(struct lnet_ni *ni, u32 address)
{
	ni->ni_nid.nid_addr[0] = cpu_to_be32(address);
}

void exlnd_ni_data(struct lnet_ni *ni, void *data)
{
	ni->ni_data = data;
}

/* Sets the device of an interface, which determines its CPTs. Called before exlnd_ni_cpt(). */
int exlnd_ni_numa(struct lnet_ni *ni, struct device *dev)
{
	int node = dev_to_node(dev);

	ni->ni_dev_cpt = node < 0 ? CFS_CPT_ANY : cfs_cpt_of_node(lnet_cpt_table(), node);
#ifdef EXLND_HAS_DEFAULT_CPTS
	return lnet_ni_set_default_cpts(ni);
#else
	return 0;
#endif
}

/* Returns CPT number `i` of an interface, or the number of its CPTs for i = -1. */
int exlnd_ni_cpt(struct lnet_ni *ni, int i)
{
	int count = ni->ni_cpts ? ni->ni_ncpts : cfs_cpt_number(lnet_cpt_table());

	if (i < 0)
		return count;
	return ni->ni_cpts ? ni->ni_cpts[i] : i;
}

static void exlnd_nid(struct lnet_ni *ni, u32 address, struct lnet_nid *nid)
{
	*nid = ni->ni_nid;
	nid->nid_size = 0;
	memset(nid->nid_addr, 0, sizeof(nid->nid_addr));
	nid->nid_addr[0] = cpu_to_be32(address);
}

/* Returns the CPT whose thread serves a peer. */
int exlnd_peer_cpt(struct lnet_ni *ni, u32 address)
{
	struct lnet_nid nid;

	exlnd_nid(ni, address, &nid);
	return lnet_nid2cpt(&nid, ni);
}

void exlnd_notify(struct lnet_ni *ni, u32 address, bool alive)
{
	struct lnet_nid nid;

	exlnd_nid(ni, address, &nid);
	lnet_notify(ni, &nid, alive, alive, ktime_get_seconds());
}

/* Reports an interface as unusable or usable. LNet prefers other interfaces to an unusable one. */
void exlnd_ni_fatal(struct lnet_ni *ni, bool fatal)
{
	if (atomic_xchg(&ni->ni_fatal_error_on, fatal) != fatal)
		lnet_mark_ping_buffer_for_update();
}

int exlnd_msg_send_request(struct lnet_msg *msg, struct exlnd_send_request *request)
{
	const struct lnet_nid *to = &msg->msg_target.nid;
	bool small = !msg->msg_hdr.dest_nid.nid_size && !msg->msg_hdr.src_nid.nid_size;
	struct bio_vec *vecs = NULL;

	memset(request, 0, sizeof(*request));
	if (to->nid_size || lnet_md_is_gpu(msg->msg_md))
		return -EOPNOTSUPP;
	request->address = be32_to_cpu(to->nid_addr[0]);
	request->form = !small;
	BUILD_BUG_ON(sizeof(struct lnet_hdr_nid4) != 72 || sizeof(struct lnet_hdr_nid16) != 96);
	if (small)
		lnet_hdr_to_nid4(&msg->msg_hdr, (void *)request->header);
	else
		lnet_hdr_to_nid16(&msg->msg_hdr, (void *)request->header);
	if (msg->msg_type == LNET_MSG_PUT || msg->msg_type == LNET_MSG_REPLY) {
		vecs = msg->msg_kiov;
		request->len = msg->msg_len;
	}
	if (request->len) {
		request->vecs = vecs;
		request->count = msg->msg_niov;
		request->skip = msg->msg_offset;
	}
	return 0;
}

/* Copies payload of an outgoing message from offset `at`; writes zeros beyond its end. */
void exlnd_msg_read(struct lnet_msg *msg, u32 at, void *to, u32 len)
{
	struct iov_iter from;

	if (at > msg->msg_len || len > msg->msg_len - at) {
		memset(to, 0, len);
		return;
	}
	iov_iter_bvec(&from, ITER_SOURCE, msg->msg_kiov, msg->msg_niov, msg->msg_offset + at + len);
	iov_iter_advance(&from, msg->msg_offset + at);
	if (copy_from_iter(to, len, &from) != len)
		memset(to, 0, len);
}

static const enum lnet_msg_hstatus exlnd_health[] = {
	LNET_MSG_STATUS_OK,
	LNET_MSG_STATUS_LOCAL_DROPPED,
	LNET_MSG_STATUS_LOCAL_ABORTED,
	LNET_MSG_STATUS_LOCAL_ERROR,
	LNET_MSG_STATUS_REMOTE_DROPPED,
	LNET_MSG_STATUS_REMOTE_ERROR,
	LNET_MSG_STATUS_REMOTE_TIMEOUT,
	LNET_MSG_STATUS_NETWORK_TIMEOUT,
};

/* Sets the health status of a message before it is finalized or returned to LNet. */
void exlnd_msg_health(struct lnet_msg *msg, u32 health)
{
	if (health < ARRAY_SIZE(exlnd_health))
		msg->msg_health_status = exlnd_health[health];
}

void exlnd_msg_finalize(struct lnet_msg *msg, int status)
{
	lnet_finalize(msg, status);
}

/* Returns whether a rule of `lnetctl fault` lets this message fail, and sets its health status. */
bool exlnd_msg_fault(struct lnet_msg *msg)
{
	enum lnet_msg_hstatus health = LNET_MSG_STATUS_OK;

	if (!lnet_send_error_simulation(msg, &health))
		return false;
	msg->msg_health_status = health;
	return true;
}

int exlnd_parse(struct lnet_ni *ni, u32 form, const u64 *header, u32 address, unsigned long number)
{
	struct lnet_hdr hdr;
	struct lnet_nid from;

	exlnd_nid(ni, address, &from);
	if (form == 0)
		lnet_hdr_from_nid4(&hdr, (const void *)header);
	else
		lnet_hdr_from_nid16(&hdr, (const void *)header);
	return lnet_parse(ni, &hdr, &from, (void *)(number + 1), 0);
}

/* Returns the segments of an iterator over pages. LNet uses no other type of iterator. */
int exlnd_iter_vecs(const struct iov_iter *iter, const struct bio_vec **vecs, u32 *count, u32 *skip)
{
	if (!iov_iter_is_bvec(iter))
		return -EOPNOTSUPP;
	*vecs = iter->bvec;
	*count = iter->nr_segs;
	*skip = iter->iov_offset;
	return 0;
}

size_t exlnd_iter_count(const struct iov_iter *iter)
{
	return iov_iter_count(iter);
}

size_t exlnd_iter_write(struct iov_iter *iter, const void *from, size_t len)
{
	return copy_to_iter(from, len, iter);
}

/* Doorbell on which a thread waits. */
struct exlnd_doorbell {
	wait_queue_head_t wait;
	atomic_t notified;
};

struct exlnd_doorbell *exlnd_doorbell_new(void)
{
	struct exlnd_doorbell *doorbell = kzalloc(sizeof(*doorbell), GFP_KERNEL);

	if (doorbell)
		init_waitqueue_head(&doorbell->wait);
	return doorbell;
}

void exlnd_doorbell_free(struct exlnd_doorbell *doorbell)
{
	kfree(doorbell);
}

/* Notifies a doorbell. Any context. */
void exlnd_doorbell_notify(struct exlnd_doorbell *doorbell)
{
	if (!atomic_xchg(&doorbell->notified, 1))
		wake_up(&doorbell->wait);
}

/*
 * Waits for a doorbell, without limit if `jiffies` is negative. Returns false if the thread must
 * stop.
 */
bool exlnd_doorbell_wait(struct exlnd_doorbell *doorbell, long jiffies)
{
	long timeout = jiffies < 0 ? MAX_SCHEDULE_TIMEOUT : jiffies;

	wait_event_idle_timeout(doorbell->wait,
				atomic_xchg(&doorbell->notified, 0) || kthread_should_stop(),
				timeout);
	cond_resched();
	return !kthread_should_stop();
}

struct exlnd_thread {
	struct task_struct *task;
	void (*run)(void *arg);
	void *arg;
	int cpt;
};

static int exlnd_thread_main(void *data)
{
	struct exlnd_thread *thread = data;
	unsigned int nofs = memalloc_nofs_save();

	if (thread->cpt >= 0)
		cfs_cpt_bind(lnet_cpt_table(), thread->cpt);
	thread->run(thread->arg);
	memalloc_nofs_restore(nofs);
	/* kthread_stop() also works for a thread that has returned. */
	return 0;
}

/*
 * Starts a thread that is bound to a CPT, or not bound if cpt < 0. Returns NULL if memory is short.
 * `arg` must stay valid until the thread was joined.
 */
struct exlnd_thread *exlnd_thread_start(void (*run)(void *arg), void *arg, int cpt,
					const char *name, int n, int m)
{
	struct exlnd_thread *thread = kmalloc(sizeof(*thread), GFP_KERNEL);

	if (!thread)
		return NULL;
	*thread = (struct exlnd_thread){ .run = run, .arg = arg, .cpt = cpt };
	thread->task = kthread_create(exlnd_thread_main, thread, "ex%d_%s_%d", n, name, m);
	if (IS_ERR(thread->task)) {
		kfree(thread);
		return NULL;
	}
	get_task_struct(thread->task);
	wake_up_process(thread->task);
	return thread;
}

/* Stops a thread and waits for its end. The thread may not have run at all. */
void exlnd_thread_join(struct exlnd_thread *thread)
{
	kthread_stop(thread->task);
	put_task_struct(thread->task);
	kfree(thread);
}
