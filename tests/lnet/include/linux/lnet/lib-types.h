/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * LNet stand-in (see stand.h): the types that drivers of LNet use. Names and meanings are those of
 * LNet; further members are the stand-in's own.
 */
#ifndef STAND_LIB_TYPES_H
#define STAND_LIB_TYPES_H

#include <linux/atomic.h>
#include <linux/bvec.h>
#include <linux/list.h>
#include <linux/netlink.h>
#include <linux/spinlock.h>
#include <linux/uio.h>
#include <net/netlink.h>

/* Network types that have a name here, and the number of all types. */
#define SOCKLND 2
#define EXLND 20
#define NUM_LNDS 21

#define LNET_MTU (1U << 20)
#define LNET_MAX_IOV 256

struct lnet_nid {
	__u8 nid_size;
	__u8 nid_type;
	__be16 nid_num;
	__be32 nid_addr[4];
} __packed;

struct lnet_processid {
	struct lnet_nid nid;
	__u32 pid;
};

enum {
	LNET_MSG_ACK,
	LNET_MSG_PUT,
	LNET_MSG_GET,
	LNET_MSG_REPLY,
};

enum lnet_msg_hstatus {
	LNET_MSG_STATUS_OK,
	LNET_MSG_STATUS_LOCAL_INTERRUPT,
	LNET_MSG_STATUS_LOCAL_DROPPED,
	LNET_MSG_STATUS_LOCAL_ABORTED,
	LNET_MSG_STATUS_LOCAL_NO_ROUTE,
	LNET_MSG_STATUS_LOCAL_ERROR,
	LNET_MSG_STATUS_LOCAL_TIMEOUT,
	LNET_MSG_STATUS_REMOTE_ERROR,
	LNET_MSG_STATUS_REMOTE_DROPPED,
	LNET_MSG_STATUS_REMOTE_TIMEOUT,
	LNET_MSG_STATUS_NETWORK_TIMEOUT,
	LNET_MSG_STATUS_END,
};

/* The 40 bytes of a header that depend on its type. Both ends of a network are stand-ins. */
union stand_part {
	struct {
		__le64 from; /* memory that receives the ACK or REPLY */
		__le64 match;
		__le64 data;
		__le32 portal;
		__le32 offset;
		__le32 length; /* number of bytes that a GET requests */
		__le32 flags;
	} __packed ask;
	struct {
		__le64 to;
		__le64 match;
		__le32 length;
		__le32 status;
	} __packed answer;
	__u8 bytes[40];
};

struct lnet_hdr {
	struct lnet_nid dest_nid;
	struct lnet_nid src_nid;
	__u32 dest_pid;
	__u32 src_pid;
	__u32 type;
	__u32 payload_length;
	union stand_part part;
} __packed;

struct lnet_hdr_nid4 {
	__u8 bytes[72];
} __packed;

struct lnet_hdr_nid16 {
	__u8 bytes[96];
} __packed;

struct lnet_ioctl_config_lnd_cmn_tunables {
	__u32 lct_version;
	__s32 lct_peer_timeout;
	__s32 lct_peer_tx_credits;
	__s32 lct_peer_rtr_credits;
	__s32 lct_max_tx_credits;
};

/* Space for each driver's own tunables. */
struct lnet_lnd_tunables {
	union {
		__u8 bytes[152];
	} lnd_tun_u;
};

/* Keys of the tunables in netlink messages. */
struct ln_key_props {
	char *lkp_value;
	__u16 lkp_key_format;
	__u16 lkp_data_type;
};

struct ln_key_list {
	__u16 lkl_maxattr;
	struct ln_key_props lkl_list[];
};

enum {
	LNET_CMD_NETS = 2,
};

enum {
	LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES = 8,
};

enum {
	LN_SCALAR_ATTR_VALUE = 1,
	LN_SCALAR_ATTR_INT_VALUE = 3,
};

struct lnet_nid_md_entry;
struct lnet_ni;
struct lnet_msg;
struct socket;

struct lnet_lnd {
	__u32 lnd_type;
	int (*lnd_startup)(struct lnet_ni *ni);
	void (*lnd_shutdown)(struct lnet_ni *ni);
	int (*lnd_ctl)(struct lnet_ni *ni, unsigned int cmd, void *arg);
	int (*lnd_send)(struct lnet_ni *ni, void *private, struct lnet_msg *msg);
	int (*lnd_recv)(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed, struct iov_iter *to,
			unsigned int rlen);
	int (*lnd_eager_recv)(struct lnet_ni *ni, void *private, struct lnet_msg *msg, void **new_private);
	void (*lnd_notify_peer_down)(struct lnet_nid *peer);
	int (*lnd_accept)(struct lnet_ni *ni, struct socket *sock);
	unsigned int (*lnd_get_dev_prio)(struct lnet_ni *ni, unsigned int dev_idx);
	int (*lnd_get_timeout)(void);
	int (*lnd_tun_defaults)(struct lnet_lnd_tunables *lnd, struct lnet_ioctl_config_lnd_cmn_tunables *cmn);
	int (*lnd_nl_get)(int cmd, struct sk_buff *msg, int type, void *data, bool export_backup);
	int (*lnd_nl_set)(int cmd, struct nlattr *attr, int type, void *data);
	int (*lnd_get_nid_metadata)(struct lnet_ni *ni, struct lnet_nid_md_entry *entry);
	const struct ln_key_list *lnd_keys;
};

struct lnet_net {
	struct list_head stand_list;
	__u32 net_id;
	struct lnet_ioctl_config_lnd_cmn_tunables net_tunables;
	const struct lnet_lnd *net_lnd;
	int stand_nis;
};

/* Credits of an interface on a CPT, and the messages that wait for them. */
struct stand_credits {
	int now;
	int min;
	int all;
	struct list_head queue;
};

enum stand_life {
	STAND_INIT,
	STAND_ACTIVE,
	STAND_DELETING,
};

struct lnet_ni {
	struct list_head stand_list;
	struct lnet_nid ni_nid;
	struct lnet_net *ni_net;
	void *ni_data;
	char *ni_interface;
	int ni_ncpts;
	__u32 *ni_cpts;
	int ni_dev_cpt;
	struct lnet_lnd_tunables ni_lnd_tunables;
	int ni_lnd_tunables_set;
	atomic_t ni_fatal_error_on;
	/* Members of the stand-in, protected by stand_lock. */
	enum stand_life life;
	int refs;
	int inside; /* threads within a call of the driver */
	struct stand_credits *tx;
	struct list_head peers;
	int health;
	u64 sent, received;
};

enum stand_owner {
	STAND_OURS,
	STAND_SENT, /* passed to the driver for transmission */
	STAND_WANTED, /* passed to the driver for reception */
};

struct stand_peer;
struct stand_buffer;
struct lnet_libmd;

struct lnet_msg {
	u64 magic;
	struct list_head list; /* entry of the queue in which the message waits */
	struct list_head all;
	struct lnet_processid msg_target;
	__u32 msg_type;
	enum lnet_msg_hstatus msg_health_status;
	unsigned int msg_vmflush : 1;
	unsigned int msg_target_is_router : 1;
	unsigned int msg_routing : 1;
	void *msg_private;
	struct lnet_libmd *msg_md;
	unsigned int msg_len;
	unsigned int msg_offset;
	unsigned int msg_niov;
	struct bio_vec *msg_kiov;
	struct lnet_hdr msg_hdr;
	/* Members of the stand-in. */
	enum stand_owner owner;
	unsigned long since; /* time of the last change of the owner */
	int status;
	unsigned int wanted; /* bytes of a received message that LNet accepts: rlen of lnd_recv */
	struct lnet_ni *rxni;
	struct stand_peer *rxpeer;
	struct lnet_ni *txni;
	struct stand_peer *txpeer;
	bool has_credits; /* holds credits of txpeer and txni */
	bool has_rtr_credit; /* holds a router credit of rxpeer */
	bool received;
	bool kept; /* waits for its destination memory */
	bool reported; /* was reported as held too long */
	int tries;
	struct stand_buffer *buffer;
	u64 magic_end;
};

struct lnet_cpts;

struct lnet {
	const struct lnet_lnd *ln_lnds[NUM_LNDS];
	struct cfs_cpt_table *ln_cpt_table;
};

#endif
