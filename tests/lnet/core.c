// SPDX-License-Identifier: GPL-2.0-only
/* Drivers, networks, interfaces, peers, CPTs: see stand.h. */
#include <linux/ctype.h>
#include <linux/debug_locks.h>
#include <linux/delay.h>
#include <linux/inet.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include "stand.h"

int stand_cpts;
module_param_named(cpts, stand_cpts, int, 0444);
MODULE_PARM_DESC(cpts, "number of CPU partitions; 0: number of CPUs");

struct lnet the_lnet;
EXPORT_SYMBOL(the_lnet);

atomic_t stand_defects;
DEFINE_MUTEX(stand_api);
DEFINE_MUTEX(stand_lnd);
DEFINE_SPINLOCK(stand_lock);
LIST_HEAD(stand_nets);
LIST_HEAD(stand_nis);
LIST_HEAD(stand_msgs);
atomic_long_t stand_counts[COUNT_END];

bool stand_context(const char *what)
{
	if (in_interrupt() || irqs_disabled()) {
		defect("%s in an interrupt or with interrupts disabled", what);
		return false;
	}
	/*
	 * Without debug options, the kernel shows only by these two tests that a spinlock is held.
	 */
	if (in_atomic() || rcu_preempt_depth()) {
		defect("%s in a context that must not sleep", what);
		return false;
	}
#ifdef CONFIG_LOCKDEP
	/* Lockdep counts work items as locks. */
	if (debug_locks && lockdep_depth(current) && !(current->flags & PF_WQ_WORKER)) {
		debug_show_held_locks(current);
		defect("%s with locks held", what);
	}
#endif
	might_sleep();
	return true;
}

int libcfs_setup(void)
{
	return 0;
}
EXPORT_SYMBOL(libcfs_setup);

int cfs_cpt_number(struct cfs_cpt_table *table)
{
	return stand_cpts;
}
EXPORT_SYMBOL(cfs_cpt_number);

int cfs_cpt_of_node(struct cfs_cpt_table *table, int node)
{
	return node < 0 ? CFS_CPT_ANY : node % stand_cpts;
}
EXPORT_SYMBOL(cfs_cpt_of_node);

int cfs_cpt_bind(struct cfs_cpt_table *table, int cpt)
{
	int cpu;

	if (cpt < 0 || cpt >= stand_cpts)
		return cpt == CFS_CPT_ANY ? 0 : -EINVAL;
	cpu = cpumask_nth(cpt % num_online_cpus(), cpu_online_mask);
	return set_cpus_allowed_ptr(current, cpumask_of(cpu));
}
EXPORT_SYMBOL(cfs_cpt_bind);

int stand_cpt_of(const struct lnet_nid *nid)
{
	u32 addr = be32_to_cpu(nid->nid_addr[0]);

	return (addr + (addr >> 8) + (addr >> 16) + (addr >> 24)) % stand_cpts;
}

int lnet_nid2cpt(struct lnet_nid *nid, struct lnet_ni *ni)
{
	int cpt = stand_cpt_of(nid);

	return ni && ni->ni_cpts ? ni->ni_cpts[cpt % ni->ni_ncpts] : cpt;
}
EXPORT_SYMBOL(lnet_nid2cpt);

int lnet_ni_set_default_cpts(struct lnet_ni *ni)
{
	if (ni->life != STAND_INIT)
		defect("lnet_ni_set_default_cpts of an interface that has started");
	return 0;
}
EXPORT_SYMBOL(lnet_ni_set_default_cpts);

/* Names. */

static const char *const kinds[NUM_LNDS] = { [SOCKLND] = "tcp", [EXLND] = "ex" };

int libcfs_str2lnd(const char *name)
{
	int i;

	for (i = 0; i < NUM_LNDS; i++)
		if (kinds[i] && !strcmp(name, kinds[i]))
			return i;
	return -1;
}
EXPORT_SYMBOL(libcfs_str2lnd);

int libcfs_isknown_lnd(__u32 type)
{
	return type < NUM_LNDS && kinds[type];
}
EXPORT_SYMBOL(libcfs_isknown_lnd);

char *libcfs_nidstr_r(const struct lnet_nid *nid, char *buf, size_t size)
{
	unsigned int num = be16_to_cpu(nid->nid_num);
	int n;

	if (nid->nid_type == SOCKLND)
		n = scnprintf(buf, size, "%pI4", &nid->nid_addr[0]);
	else
		n = scnprintf(buf, size, "%u", be32_to_cpu(nid->nid_addr[0]));
	if (!libcfs_isknown_lnd(nid->nid_type) || nid->nid_size)
		scnprintf(buf + n, size - n, "@<%u:%u>", nid->nid_type, num);
	else if (num)
		scnprintf(buf + n, size - n, "@%s%u", kinds[nid->nid_type], num);
	else
		scnprintf(buf + n, size - n, "@%s", kinds[nid->nid_type]);
	return buf;
}
EXPORT_SYMBOL(libcfs_nidstr_r);

const char *stand_nid(const struct lnet_nid *nid, char *buf)
{
	return libcfs_nidstr_r(nid, buf, NIDBUF);
}

int stand_str2net(const char *text, u32 *net)
{
	u16 num = 0;
	size_t n;
	u32 i;

	for (i = 0; i < NUM_LNDS; i++) {
		n = kinds[i] ? strlen(kinds[i]) : 0;
		if (!n || strncmp(text, kinds[i], n) || (text[n] && kstrtou16(text + n, 10, &num)))
			continue;
		*net = i << 16 | num;
		return 0;
	}
	return -ENOENT;
}

int stand_str2nid(const char *text, struct lnet_nid *nid)
{
	const char *at = strchr(text, '@');
	char addr[16];
	__be32 quad;
	u32 n, net;

	if (!at || at - text >= sizeof(addr) || stand_str2net(at + 1, &net))
		return -EINVAL;
	strscpy(addr, text, at - text + 1);
	if (net >> 16 == SOCKLND) {
		if (!in4_pton(addr, -1, (u8 *)&quad, -1, NULL))
			return -EINVAL;
		n = be32_to_cpu(quad);
	} else if (kstrtou32(addr, 10, &n)) {
		return -EINVAL;
	}
	stand_nid4_from((u64)net << 32 | n, nid);
	return 0;
}

bool stand_same(const struct lnet_nid *a, const struct lnet_nid *b)
{
	return !memcmp(a, b, sizeof(*a));
}

u32 stand_net_of(const struct lnet_nid *nid)
{
	return nid->nid_type << 16 | be16_to_cpu(nid->nid_num);
}

/* Drivers. */

void lnet_register_lnd(const struct lnet_lnd *lnd)
{
	if (!stand_context("lnet_register_lnd"))
		return;
	mutex_lock(&stand_lnd);
	if (!libcfs_isknown_lnd(lnd->lnd_type) || the_lnet.ln_lnds[lnd->lnd_type])
		defect("a driver with type %u, which is unknown or has a driver", lnd->lnd_type);
	else if (!lnd->lnd_startup || !lnd->lnd_shutdown || !lnd->lnd_send || !lnd->lnd_recv)
		defect("a driver without a mandatory function");
	else
		the_lnet.ln_lnds[lnd->lnd_type] = lnd;
	mutex_unlock(&stand_lnd);
}
EXPORT_SYMBOL(lnet_register_lnd);

void lnet_unregister_lnd(const struct lnet_lnd *lnd)
{
	struct lnet_net *net;

	if (!stand_context("lnet_unregister_lnd"))
		return;
	mutex_lock(&stand_lnd);
	list_for_each_entry(net, &stand_nets, stand_list)
		if (net->net_lnd == lnd)
			defect("lnet_unregister_lnd of a driver that has interfaces");
	if (lnd->lnd_type >= NUM_LNDS || the_lnet.ln_lnds[lnd->lnd_type] != lnd)
		defect("lnet_unregister_lnd of a driver that is not registered");
	else
		the_lnet.ln_lnds[lnd->lnd_type] = NULL;
	mutex_unlock(&stand_lnd);
}
EXPORT_SYMBOL(lnet_unregister_lnd);

/* Peers. The caller holds stand_lock. */

struct stand_peer *stand_find_peer(struct lnet_ni *ni, const struct lnet_nid *nid)
{
	struct stand_peer *peer;

	list_for_each_entry(peer, &ni->peers, list)
		if (stand_same(&peer->nid, nid))
			return peer;
	return NULL;
}

static void credits(struct stand_credits *c, int n)
{
	c->now = c->min = c->all = n;
	INIT_LIST_HEAD(&c->queue);
}

/*
 * Returns the peer, which is created if necessary. NULL: no memory. The caller holds stand_api or
 * no lock.
 */
struct stand_peer *stand_make_peer(struct lnet_ni *ni, const struct lnet_nid *nid)
{
	struct stand_peer *peer = kzalloc(sizeof(*peer), GFP_NOFS), *other;
	struct lnet_ioctl_config_lnd_cmn_tunables *t = &ni->ni_net->net_tunables;

	if (!peer)
		return NULL;
	peer->nid = *nid;
	peer->ni = ni;
	peer->alive = true;
	credits(&peer->tx, t->lct_peer_tx_credits);
	credits(&peer->rtr, t->lct_peer_rtr_credits > 0 ? t->lct_peer_rtr_credits : t->lct_peer_tx_credits);
	spin_lock(&stand_lock);
	other = stand_find_peer(ni, nid);
	if (!other)
		list_add_tail(&peer->list, &ni->peers);
	spin_unlock(&stand_lock);
	if (!other)
		return peer;
	kfree(peer);
	return other;
}

int lnet_notify(struct lnet_ni *ni, struct lnet_nid *nid, bool alive, bool reset, time64_t when)
{
	struct stand_peer *peer;
	bool down = false;

	if (!stand_context("lnet_notify"))
		return -EINVAL;
	if (when > ktime_get_seconds())
		defect("lnet_notify with a time in the future");
	count(notified);
	spin_lock(&stand_lock);
	peer = stand_find_peer(ni, nid);
	if (peer) {
		down = peer->alive && !alive;
		peer->alive = alive;
	}
	spin_unlock(&stand_lock);
	if (down && ni->ni_net->net_lnd->lnd_notify_peer_down)
		ni->ni_net->net_lnd->lnd_notify_peer_down(nid);
	return 0;
}
EXPORT_SYMBOL(lnet_notify);

void lnet_mark_ping_buffer_for_update(void)
{
}
EXPORT_SYMBOL(lnet_mark_ping_buffer_for_update);

/* Interfaces. */

struct lnet_ni *stand_ni_of_nid(const struct lnet_nid *nid)
{
	struct lnet_ni *ni;

	list_for_each_entry(ni, &stand_nis, stand_list)
		if (ni->life == STAND_ACTIVE && stand_same(&ni->ni_nid, nid))
			return ni;
	return NULL;
}

void stand_ni_put(struct lnet_ni *ni, int refs)
{
	spin_lock(&stand_lock);
	ni->refs -= refs;
	if (ni->refs < 0)
		defect("an interface with %d references", ni->refs);
	spin_unlock(&stand_lock);
}

/* Sets a tunable of the driver like netlink does. */
static int set_key(const struct lnet_lnd *lnd, struct lnet_ni *ni, const char *name, s64 value)
{
	struct {
		struct nlattr head;
		s64 value;
	} __packed attr = {
		.head = { .nla_len = sizeof(attr), .nla_type = LN_SCALAR_ATTR_INT_VALUE },
		.value = value,
	};
	int i;

	if (!lnd->lnd_keys || !lnd->lnd_nl_set)
		return -EOPNOTSUPP;
	for (i = 1; i <= lnd->lnd_keys->lkl_maxattr; i++)
		if (lnd->lnd_keys->lkl_list[i].lkp_value && !strcmp(lnd->lnd_keys->lkl_list[i].lkp_value, name))
			return lnd->lnd_nl_set(LNET_CMD_NETS, &attr.head, i, &ni->ni_lnd_tunables);
	return -ENOENT;
}

static int set_keys(const struct lnet_lnd *lnd, struct lnet_ni *ni, const char *options)
{
	char name[24], *end;
	const char *at;
	s64 value;
	int rc;

	for (at = strstr(options, "lnd."); at; at = strstr(at, "lnd.")) {
		at += 4;
		strscpy(name, at, sizeof(name));
		end = strchr(name, '=');
		if (!end)
			return -EINVAL;
		*end = 0;
		value = simple_strtoll(at + (end - name) + 1, NULL, 10);
		rc = set_key(lnd, ni, name, value);
		if (rc)
			return rc;
	}
	return 0;
}

static void ni_free(struct lnet_ni *ni)
{
	struct stand_peer *peer, *next;
	int i;

	list_for_each_entry_safe(peer, next, &ni->peers, list) {
		if (peer->tx.now != peer->tx.all || !list_empty(&peer->tx.queue) || !list_empty(&peer->rtr.queue))
			defect("a peer with %d of %d credits at the end of its interface", peer->tx.now, peer->tx.all);
		kfree(peer);
	}
	for (i = 0; ni->tx && i < stand_cpts; i++)
		if (ni->tx[i].now != ni->tx[i].all || !list_empty(&ni->tx[i].queue))
			defect("an interface with %d of %d credits at its end", ni->tx[i].now, ni->tx[i].all);
	kfree(ni->tx);
	kfree(ni->ni_interface);
	kfree(ni);
}

static void net_put(struct lnet_net *net)
{
	if (--net->stand_nis)
		return;
	list_del(&net->stand_list);
	kfree(net);
}

static struct lnet_net *net_get(u32 id)
{
	struct lnet_ioctl_config_lnd_cmn_tunables none = { 0, -1, -1, -1, -1 };
	struct lnet_net *net;

	list_for_each_entry(net, &stand_nets, stand_list)
		if (net->net_id == id) {
			net->stand_nis++;
			return net;
		}
	net = kzalloc(sizeof(*net), GFP_KERNEL);
	if (!net)
		return NULL;
	net->net_id = id;
	net->net_tunables = none;
	net->stand_nis = 1;
	list_add_tail(&net->stand_list, &stand_nets);
	return net;
}

static void given(s32 *to, const char *options, const char *name)
{
	long value = stand_number(options, name, -1);

	if (value >= 0)
		*to = value;
}

static void all_given(struct lnet_ioctl_config_lnd_cmn_tunables *t, const char *options)
{
	given(&t->lct_max_tx_credits, options, "credits");
	given(&t->lct_peer_tx_credits, options, "peer_credits");
	given(&t->lct_peer_rtr_credits, options, "peer_buffer_credits");
	given(&t->lct_peer_timeout, options, "peer_timeout");
}

static int ni_start(struct lnet_ni *ni, const char *options)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *t = &ni->ni_net->net_tunables;
	const struct lnet_lnd *lnd = ni->ni_net->net_lnd;
	int rc, i, n;

	if (ni->ni_net->stand_nis == 1 && lnd->lnd_tun_defaults && stand_number(options, "defaults", 1)) {
		rc = lnd->lnd_tun_defaults(&ni->ni_lnd_tunables, t);
		if (rc)
			return rc;
	}
	all_given(t, options);
	ni->ni_lnd_tunables_set = stand_number(options, "defaults", 1) || strstr(options, "lnd.");
	rc = set_keys(lnd, ni, options);
	if (rc)
		return rc;
	mutex_lock(&stand_lnd);
	ni->inside++;
	rc = lnd->lnd_startup(ni);
	ni->inside--;
	mutex_unlock(&stand_lnd);
	if (rc == -EEXIST)
		defect("lnd_startup says EEXIST, for which LNet frees the interface twice");
	if (rc)
		return rc < 0 ? rc : -EINVAL;
	all_given(t, options);
	if (t->lct_max_tx_credits <= 0 || t->lct_peer_tx_credits <= 0) {
		defect("an interface without credits");
		rc = -EINVAL;
		goto shutdown;
	}
	if (!ni->ni_nid.nid_addr[0]) {
		defect("an interface without address");
		rc = -EINVAL;
		goto shutdown;
	}
	rc = -ENOMEM;
	ni->tx = kcalloc(stand_cpts, sizeof(*ni->tx), GFP_KERNEL);
	if (!ni->tx)
		goto shutdown;
	n = stand_cpts == 1 ? t->lct_max_tx_credits :
	    min(max(t->lct_max_tx_credits / stand_cpts, 8 * t->lct_peer_tx_credits), t->lct_max_tx_credits);
	for (i = 0; i < stand_cpts; i++)
		credits(&ni->tx[i], n);
	spin_lock(&stand_lock);
	rc = stand_ni_of_nid(&ni->ni_nid) ? -EEXIST : 0;
	if (!rc) {
		ni->life = STAND_ACTIVE;
		list_add_tail(&ni->stand_list, &stand_nis);
	}
	spin_unlock(&stand_lock);
	if (!rc)
		return 0;
shutdown:
	ni->life = STAND_DELETING;
	mutex_lock(&stand_lnd);
	lnd->lnd_shutdown(ni);
	mutex_unlock(&stand_lnd);
	return rc;
}

int stand_net_add(const char *name, const char *interface, char *options, struct seq_buf *out)
{
	const struct lnet_lnd *lnd;
	struct lnet_ni *ni;
	char buf[NIDBUF];
	u32 id;
	int rc = stand_str2net(name, &id);

	if (rc)
		return rc;
	lnd = the_lnet.ln_lnds[id >> 16];
	if (!lnd)
		return -EINVAL;
	ni = kzalloc(sizeof(*ni), GFP_KERNEL);
	if (!ni)
		return -ENOMEM;
	INIT_LIST_HEAD(&ni->peers);
	ni->ni_dev_cpt = CFS_CPT_ANY;
	ni->ni_ncpts = stand_cpts;
	ni->health = 1000;
	stand_nid4_from((u64)id << 32, &ni->ni_nid);
	mutex_lock(&stand_api);
	ni->ni_interface = interface ? kstrdup(interface, GFP_KERNEL) : NULL;
	ni->ni_net = net_get(id);
	rc = ni->ni_net ? 0 : -ENOMEM;
	if (!rc) {
		ni->ni_net->net_lnd = lnd;
		rc = ni_start(ni, options);
		if (rc)
			net_put(ni->ni_net);
	}
	mutex_unlock(&stand_api);
	if (rc) {
		ni_free(ni);
		return rc;
	}
	seq_buf_printf(out, "nid %s\n", stand_nid(&ni->ni_nid, buf));
	return 0;
}

/* Maximum seconds that the end of an interface takes; its messages must have ended by then. */
#define PATIENCE 120

static int ni_stop(struct lnet_ni *ni)
{
	const struct lnet_lnd *lnd = ni->ni_net->net_lnd;
	int n = 0, left, rc = 0;

	/* Senders no longer find the interface; its held messages are discarded. */
	for (;;) {
		stand_discard(ni);
		spin_lock(&stand_lock);
		left = ni->refs;
		spin_unlock(&stand_lock);
		if (!left)
			break;
		if (++n == PATIENCE * 10) {
			defect("%s: %d messages have not ended within %d s", ni->ni_interface, left, PATIENCE);
			rc = -ETIMEDOUT;
		}
		msleep(100);
	}
	mutex_lock(&stand_lnd);
	lnd->lnd_shutdown(ni);
	spin_lock(&stand_lock);
	if (ni->refs || ni->inside)
		defect("%s: %d messages, %d calls, when it has ended", ni->ni_interface, ni->refs, ni->inside);
	list_del(&ni->stand_list);
	spin_unlock(&stand_lock);
	mutex_unlock(&stand_lnd);
	return rc;
}

int stand_net_del(const char *name, const char *interface)
{
	struct lnet_ni *ni, *found;
	u32 id;
	int rc = stand_str2net(name, &id), n = 0;

	if (rc)
		return rc;
	for (;;) {
		found = NULL;
		mutex_lock(&stand_api);
		spin_lock(&stand_lock);
		list_for_each_entry(ni, &stand_nis, stand_list)
			if (ni->ni_net->net_id == id && ni->life == STAND_ACTIVE && (!interface || !strcmp(interface, ni->ni_interface)))
				found = ni;
		if (found)
			found->life = STAND_DELETING;
		spin_unlock(&stand_lock);
		/*
		 * Releases the lock, because ending an interface must not block commands that need
		 * the lock.
		 */
		mutex_unlock(&stand_api);
		if (!found)
			return n ? rc : -ENOENT;
		n++;
		if (ni_stop(found))
			rc = -ETIMEDOUT;
		mutex_lock(&stand_api);
		net_put(found->ni_net);
		mutex_unlock(&stand_api);
		ni_free(found);
	}
}

static void show_keys(struct lnet_ni *ni, struct seq_buf *out)
{
	const struct lnet_lnd *lnd = ni->ni_net->net_lnd;
	struct sk_buff *skb = alloc_skb(NLMSG_GOODSIZE, GFP_KERNEL);
	struct nlattr *attr;
	int rc, left;

	if (!skb)
		return;
	if (lnd->lnd_nl_get && lnd->lnd_keys) {
		spin_lock(&stand_lock);
		rc = lnd->lnd_nl_get(LNET_CMD_NETS, skb, LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES, ni, false);
		spin_unlock(&stand_lock);
		if (rc)
			seq_buf_printf(out, " lnd_nl_get=%d", rc);
		nla_for_each_attr(attr, (struct nlattr *)skb->data, skb->len, left)
			if (nla_type(attr) <= lnd->lnd_keys->lkl_maxattr && lnd->lnd_keys->lkl_list[nla_type(attr)].lkp_value)
				seq_buf_printf(out, " %s=%d", lnd->lnd_keys->lkl_list[nla_type(attr)].lkp_value, nla_get_s32(attr));
	}
	kfree_skb(skb);
}

void stand_show_nets(struct seq_buf *out)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *t;
	struct stand_peer *peer;
	struct lnet_ni *ni;
	char buf[NIDBUF];
	int i;

	mutex_lock(&stand_api);
	/* Interfaces may end at the same time, which needs only stand_lnd. */
	mutex_lock(&stand_lnd);
	list_for_each_entry(ni, &stand_nis, stand_list) {
		t = &ni->ni_net->net_tunables;
		seq_buf_printf(out, "ni %s %s life %d fatal %d refs %d sent %llu received %llu credits %d peer_credits %d rtr %d timeout %d",
			       stand_nid(&ni->ni_nid, buf), ni->ni_interface, ni->life, atomic_read(&ni->ni_fatal_error_on), ni->refs, ni->sent,
			       ni->received, t->lct_max_tx_credits, t->lct_peer_tx_credits, t->lct_peer_rtr_credits, t->lct_peer_timeout);
		show_keys(ni, out);
		seq_buf_printf(out, "\n");
		spin_lock(&stand_lock);
		for (i = 0; i < stand_cpts; i++)
			seq_buf_printf(out, "cpt %d credits %d min %d all %d\n", i, ni->tx[i].now, ni->tx[i].min, ni->tx[i].all);
		list_for_each_entry(peer, &ni->peers, list)
			seq_buf_printf(out, "peer %s alive %d health %d credits %d min %d all %d rtr %d\n", stand_nid(&peer->nid, buf),
				       peer->alive, peer->health, peer->tx.now, peer->tx.min, peer->tx.all, peer->rtr.now);
		spin_unlock(&stand_lock);
	}
	mutex_unlock(&stand_lnd);
	mutex_unlock(&stand_api);
}

int stand_core_init(void)
{
	if (stand_cpts < 0 || stand_cpts > 64)
		return -EINVAL;
	if (!stand_cpts)
		stand_cpts = num_online_cpus();
	return 0;
}

void stand_core_exit(void)
{
	int i;

	for (i = 0; i < NUM_LNDS; i++)
		if (the_lnet.ln_lnds[i])
			defect("a driver is still registered at the end");
}
