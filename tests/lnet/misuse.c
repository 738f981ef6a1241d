// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test aid: a driver for the stand-in that delivers messages to its own node and makes one mistake,
 * which the stand-in must detect. A payload has up to MOST bytes.
 */
#include <linux/delay.h>
#include <linux/lnet/lib-lnet.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#define MOST 65536

enum {
	NONE,
	TWICE,			/* ends a message twice */
	NO_BH, /* ends a message with bottom halves disabled */
	LOCKED, /* ends a message with a spinlock held */
	HEALTH, /* ends a message with an error but a good health status */
	REFUSED, /* ends a message that it rejects */
	PARSE_NO_IRQ, /* calls lnet_parse with interrupts disabled */
	FUTURE, /* reports an event with a time in the future */
	WRITES,			/* writes to a message that has ended */
	EXISTS, /* returns EEXIST from lnd_startup */
	NO_CREDITS, /* starts an interface without credits */
	NO_ADDRESS, /* starts an interface without an address */
	KEEPS,			/* keeps a message for too long */
	MORE, /* writes more than LNet accepts */
	OTHER, /* writes wrong data */
};

static int mistake;
module_param(mistake, int, 0444);
static atomic_t made;

struct message {
	struct work_struct work;
	struct lnet_ni *ni;
	struct lnet_msg *msg;
	struct lnet_hdr hdr;
	u32 len;
	u8 bytes[];
};

static struct workqueue_struct *queue;
static DEFINE_SPINLOCK(lock);
static atomic_t letters;

/* Returns true once, if this is the selected mistake. */
static bool now(int which)
{
	return mistake == which && !atomic_xchg(&made, 1);
}

static void end(struct lnet_msg *msg)
{
	if (now(TWICE)) {
		lnet_finalize(msg, 0);
		lnet_finalize(msg, 0);
	} else if (now(NO_BH)) {
		local_bh_disable();
		lnet_finalize(msg, 0);
		local_bh_enable();
		lnet_finalize(msg, 0);
	} else if (now(LOCKED)) {
		spin_lock(&lock);
		lnet_finalize(msg, 0);
		spin_unlock(&lock);
		lnet_finalize(msg, 0);
	} else if (now(HEALTH)) {
		lnet_finalize(msg, -EIO);
	} else if (now(WRITES)) {
		lnet_finalize(msg, 0);
		msg->msg_len = 7;
	} else if (now(KEEPS)) {
		msleep(8000);
		lnet_finalize(msg, 0);
	} else {
		lnet_finalize(msg, 0);
	}
}

static void deliver(struct work_struct *work)
{
	struct message *message = container_of(work, struct message, work);
	struct lnet_nid from = message->ni->ni_nid;
	struct lnet_msg *msg = message->msg;

	if (now(PARSE_NO_IRQ)) {
		local_irq_disable();
		lnet_parse(message->ni, &message->hdr, &from, message, 0);
		local_irq_enable();
	}
	if (now(FUTURE))
		lnet_notify(message->ni, &from, true, false, ktime_get_seconds() + 1000);
	if (lnet_parse(message->ni, &message->hdr, &from, message, 0)) {
		kfree(message);
		atomic_dec(&letters);
	}
	end(msg);
}

static int misuse_send(struct lnet_ni *ni, void *private, struct lnet_msg *msg)
{
	bool has = msg->msg_type == LNET_MSG_PUT || msg->msg_type == LNET_MSG_REPLY;
	u32 len = has ? msg->msg_len : 0;
	struct message *message;
	struct iov_iter from;

	if (len > MOST)
		return -EMSGSIZE;
	if (now(REFUSED)) {
		msg->msg_health_status = LNET_MSG_STATUS_LOCAL_ERROR;
		lnet_finalize(msg, -EIO);
		return -EIO;
	}
	message = kmalloc(sizeof(*message) + len, GFP_NOFS);
	if (!message)
		return -ENOMEM;
	INIT_WORK(&message->work, deliver);
	message->ni = ni;
	message->msg = msg;
	message->hdr = msg->msg_hdr;
	message->len = len;
	if (len) {
		iov_iter_bvec(&from, ITER_SOURCE, msg->msg_kiov, msg->msg_niov, msg->msg_offset + len);
		iov_iter_advance(&from, msg->msg_offset);
		if (copy_from_iter(message->bytes, len, &from) != len) {
			kfree(message);
			return -EFAULT;
		}
	}
	if (now(OTHER) && len > 20)
		message->bytes[len / 2] ^= 1;
	atomic_inc(&letters);
	queue_work(queue, &message->work);
	return 0;
}

static int misuse_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed, struct iov_iter *to, unsigned int rlen)
{
	struct message *message = private;
	size_t n = iov_iter_count(to);
	const struct bio_vec *vec = n ? to->bvec : NULL;

	if (n && copy_to_iter(message->bytes, n, to) != n)
		pr_err("lnet_misuse: no place for %zu bytes\n", n);
	if (vec && vec->bv_offset + vec->bv_len < PAGE_SIZE && now(MORE))
		((u8 *)page_address(vec->bv_page))[vec->bv_offset + vec->bv_len] = 0;
	if (msg)
		lnet_finalize(msg, 0);
	kfree(message);
	atomic_dec(&letters);
	return 0;
}

static int misuse_startup(struct lnet_ni *ni)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *t = &ni->ni_net->net_tunables;

	if (now(EXISTS))
		return -EEXIST;
	t->lct_max_tx_credits = t->lct_peer_tx_credits = now(NO_CREDITS) ? 0 : 8;
	t->lct_peer_rtr_credits = t->lct_peer_timeout = 0;
	if (!now(NO_ADDRESS))
		ni->ni_nid.nid_addr[0] = cpu_to_be32(1);
	__module_get(THIS_MODULE);
	return 0;
}

static void misuse_shutdown(struct lnet_ni *ni)
{
	while (atomic_read(&letters))
		msleep(20);
	flush_workqueue(queue);
	module_put(THIS_MODULE);
}

static int misuse_timeout(void)
{
	return 1;
}

static const struct lnet_lnd misuse = {
	.lnd_type = EXLND,
	.lnd_startup = misuse_startup,
	.lnd_shutdown = misuse_shutdown,
	.lnd_send = misuse_send,
	.lnd_recv = misuse_recv,
	.lnd_get_timeout = misuse_timeout,
};

static int __init misuse_init(void)
{
	/*
	 * The queue is ordered. lnet_finalize leaves a message to a thread that is already ending
	 * messages, and such a message would end after the mistake.
	 */
	queue = alloc_ordered_workqueue("lnet_misuse", 0);
	if (!queue)
		return -ENOMEM;
	lnet_register_lnd(&misuse);
	return 0;
}

static void __exit misuse_exit(void)
{
	lnet_unregister_lnd(&misuse);
	destroy_workqueue(queue);
}

module_init(misuse_init);
module_exit(misuse_exit);

MODULE_DESCRIPTION("Test aid: a driver of the LNet stand-in that makes a mistake");
MODULE_LICENSE("GPL");
