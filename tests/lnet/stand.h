/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * LNet stand-in for tests: the interface of LNet to its drivers, without Lustre. It passes messages
 * to the driver and receives messages from it. It has memory that messages match, credits, routes
 * and held messages. It checks the context of the driver's calls, and that each message ends
 * exactly once. It implements what drivers must know of LNet, and communicates only with other
 * stand-ins.
 *
 *     core.c    drivers, networks, interfaces, peers, CPTs
 *     msg.c     messages: creation, transmission, end; credits
 *     parse.c   received messages; routing
 *     memory.c  memory for messages, patterns
 *     work.c    a service and its clients
 *     control.c /dev/lnet_stand: commands as text
 *
 *     sock.c    a driver that sends over TCP
 *     misuse.c  a driver that makes mistakes
 *
 * Lock order: stand_api, stand_lnd, stand_lock. Drivers are called without stand_lock, except for
 * lnd_get_timeout and lnd_nl_get.
 */
#ifndef STAND_H
#define STAND_H

#include <linux/completion.h>
#include <linux/jiffies.h>
#include <linux/libcfs/libcfs.h>
#include <linux/lnet/lib-lnet.h>
#include <linux/mutex.h>
#include <linux/seq_buf.h>
#include <linux/seq_file.h>
#include <linux/wait.h>

#define STAND_MAGIC 0x6c6e65746d736731ULL
#define STAND_POISON 0x6b

/* Reports a violation of a driver, once for each line that checks for it. */
#define defect(fmt, ...) \
	({ atomic_inc(&stand_defects); WARN(1, "lnet_stand: " fmt "\n", ##__VA_ARGS__); })

extern atomic_t stand_defects;
extern struct mutex stand_api, stand_lnd;
extern spinlock_t stand_lock;
extern struct list_head stand_nets, stand_nis, stand_msgs;

/* Checks the context of a call of the driver. Returns false if the call must be ignored. */
bool stand_context(const char *what);

/* Counters, shown by the command `counters`. */
#define STAND_COUNTS(X) \
	X(sent) X(sent_put) X(sent_get) X(sent_ack) X(sent_reply) X(refused) X(failed) X(resent) \
	X(received) X(received_put) X(received_get) X(received_ack) X(received_reply) X(short) X(zero) \
	X(dropped) X(kept) X(eager) X(eager_failed) X(not_parsed) X(routed) X(route_waits) X(route_drops) \
	X(peer_waits) X(ni_waits) X(later_ends) X(nested_sends) X(notified) X(late_recvs) X(odd_drops) X(odd_refusals) \
	X(odd_sends) X(big_headers) X(faults) X(unknown_peers)
enum stand_count {
#define X(n) COUNT_##n,
	STAND_COUNTS(X)
#undef X
	COUNT_END,
};
extern atomic_long_t stand_counts[COUNT_END];
#define count(n) atomic_long_inc(&stand_counts[COUNT_##n])

/* Unusual but legal behaviour. Each value is the frequency in thousandths. */
#define STAND_ODDS(X) \
	X(late)		/* another thread names the destination later, after lnd_eager_recv */ \
	X(drop)		/* such a held message is dropped */ \
	X(refuse)	/* lnet_parse returns an error */ \
	X(send)		/* a message is sent while another one is received */ \
	X(slow)		/* calls take some milliseconds */ \
	X(first)	/* the REPLY is sent before the GET is released */ \
	X(big)		/* the header has an address of 20 bytes */
enum stand_odd {
#define X(n) ODD_##n,
	STAND_ODDS(X)
#undef X
	ODD_END,
};
extern unsigned int stand_odds[ODD_END];
extern const char *const stand_odd_names[ODD_END];
bool stand_odd(enum stand_odd what);
u64 stand_random(void);
u64 stand_mix(u64 seed);

/* core.c */
extern int stand_cpts;
struct stand_peer {
	struct list_head list;
	struct lnet_nid nid;
	struct lnet_ni *ni;
	struct stand_credits tx;
	struct stand_credits rtr;
	bool alive;
	int health;
};
int stand_cpt_of(const struct lnet_nid *nid);
bool stand_same(const struct lnet_nid *a, const struct lnet_nid *b);
u32 stand_net_of(const struct lnet_nid *nid);
int stand_str2net(const char *text, u32 *net);
int stand_str2nid(const char *text, struct lnet_nid *nid);
const char *stand_nid(const struct lnet_nid *nid, char *buf);
#define NIDBUF 40
struct stand_peer *stand_find_peer(struct lnet_ni *ni, const struct lnet_nid *nid);
struct stand_peer *stand_make_peer(struct lnet_ni *ni, const struct lnet_nid *nid);
struct lnet_ni *stand_ni_of_nid(const struct lnet_nid *nid);
void stand_ni_put(struct lnet_ni *ni, int refs);
int stand_net_add(const char *net, const char *interface, char *options, struct seq_buf *out);
int stand_net_del(const char *net, const char *interface);
void stand_show_nets(struct seq_buf *out);
int stand_core_init(void);
void stand_core_exit(void);

/* msg.c */
struct lnet_msg *stand_msg_new(void);
void stand_msg_free(struct lnet_msg *msg);
int stand_msg_count(void);
bool stand_msg_ours(struct lnet_msg *msg, const char *what);
void stand_give(struct lnet_msg *msg, enum stand_owner owner);
void stand_end(struct lnet_msg *msg, int status);
void stand_send(struct lnet_msg *msg);
void stand_forward(struct lnet_msg *msg);
int stand_put(struct lnet_libmd *md, const struct lnet_nid *to, int portal, u64 match, u64 data, bool ack);
int stand_get(struct lnet_libmd *md, const struct lnet_nid *to, int portal, u64 match, u32 offset);
void stand_answer(struct lnet_msg *msg);
int stand_fault(const char *every, const char *health);
int stand_msg_init(void);
void stand_msg_exit(void);

/* parse.c */
void stand_recv(struct lnet_ni *ni, void *private, struct lnet_msg *msg, int delayed, unsigned int offset, unsigned int mlen,
		unsigned int rlen);
void stand_attached(int portal);
void stand_discard(struct lnet_ni *ni);
void stand_routed(struct lnet_msg *msg);
int stand_route(const char *net, const char *gateway);
bool stand_gateway(u32 net, struct lnet_nid *gateway);
int stand_routing(bool on);
void stand_show_routes(struct seq_buf *out);
void stand_flush_late(void);
int stand_parse_init(void);
void stand_parse_exit(void);

/* memory.c */
enum {
	PORTAL_PING,
	PORTAL_ASK,
	PORTAL_ANSWER,
	PORTAL_BULK,
	PORTALS,
};

enum stand_event {
	EV_SEND,
	EV_ACK,
	EV_REPLY,
	EV_PUT,
	EV_GET,
	EVENTS,
};

/* Memory for a message. */
struct stand_mem {
	struct list_head again; /* entry of the cache of unused unchecked memory */
	bool unchecked;
	unsigned int len;
	unsigned int niov;
	struct bio_vec *vecs;
	unsigned int npages;
	struct page **pages;
	void *heap;
	size_t heap_len;
};

struct stand_shape {
	u32 size;
	u32 frags;	/* 0: whole pages */
	u32 offset; /* offset in the first page, in bytes */
	bool heap;
	bool unchecked; /* whole pages with any contents, which are reused in measurements */
};

struct stand_mem *stand_mem_new(const struct stand_shape *shape, u64 seed);
void stand_mem_free(struct stand_mem *mem);
void stand_mem_blank(struct stand_mem *mem);
/* Blanks the first `len` bytes. The caller knows that no other bytes were written. */
void stand_mem_blank_first(struct stand_mem *mem, u32 len);
/* Frees the cache of unchecked memory. */
void stand_mem_forget(void);
void stand_mem_part(struct stand_mem *mem, u64 seed, u32 len);
void stand_mem_fill(struct stand_mem *mem, u64 seed);
/*
 * Returns the number of wrong bytes. The first `len` bytes must have the pattern from offset `from`
 * on, and the remainder must be blank.
 */
u64 stand_mem_wrong(struct stand_mem *mem, u64 seed, u32 from, u32 len);
void stand_mem_read(struct stand_mem *mem, u32 at, void *to, u32 len);
void stand_mem_write(struct stand_mem *mem, u32 at, const void *from, u32 len);

/* Memory descriptor, which messages match. */
struct lnet_libmd {
	struct list_head list; /* entry of the list of its portal */
	struct list_head all;
	u64 cookie;
	int portal;
	u64 match, ignore;
	bool put, get, truncate;
	int threshold; /* number of messages that it accepts; -1: any number */
	bool linked;
	int refs;
	struct stand_mem *mem;
	wait_queue_head_t wait;
	int got[EVENTS], status[EVENTS];
	u32 len[EVENTS];
	u64 data;
	struct lnet_nid from;
	void (*event)(struct lnet_libmd *md, enum stand_event event);
	void *arg;
};

struct lnet_libmd *stand_md_new(struct stand_mem *mem);
void stand_md_attach(struct lnet_libmd *md, int portal, u64 match);
struct lnet_libmd *stand_md_match(int portal, u64 match, bool put, u32 rlen, u32 *mlen);
struct lnet_libmd *stand_md_by_cookie(u64 cookie);
void stand_md_tell(struct lnet_libmd *md, enum stand_event event, int status, u32 len);
void stand_md_unlink(struct lnet_libmd *md);
/* Waits until no message uses the descriptor, then frees it with its memory. Sleeps. */
void stand_md_free(struct lnet_libmd *md);
bool stand_md_wait(struct lnet_libmd *md, enum stand_event event, unsigned long timeout);
int stand_memory_left(struct seq_buf *out);
void stand_memory_exit(void);

/* work.c */
int stand_serve(char *options);
int stand_serve_stop(void);
int stand_ping(const char *nid, char *options, struct seq_buf *out);
int stand_test(char *options, struct seq_buf *out);
int stand_work_init(void);
void stand_work_exit(void);
void stand_odd_send(struct lnet_ni *ni, const struct lnet_nid *to);

/* control.c */
/* Returns the value of `name=value` among words, or NULL. */
const char *stand_option(const char *options, const char *name, char *buf, size_t size);
long stand_number(const char *options, const char *name, long otherwise);
int stand_control_init(void);
void stand_control_exit(void);

#endif
