/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions that lnet.c and the Rust files of this module call in each other. */
#ifndef EXLND_LNET_H
#define EXLND_LNET_H

#include <linux/types.h>

struct bio_vec;
struct device;
struct exlnd_doorbell;
struct exlnd_thread;
struct iov_iter;
struct lnet_msg;
struct lnet_ni;

/* An outgoing LNet message; RawSendRequest in ffi/lnet.rs has the same layout. */
struct exlnd_send_request {
	u64 header[12];
	const struct bio_vec *vecs;
	u32 count;
	u32 skip;
	u32 len;
	/* LNet address of the next hop. */
	u32 address;
	/* Size of the addresses in the header. 0 means 8 bytes, 1 means 20 bytes. */
	u32 form;
};

/* Defined in ffi/entry.rs. */
int exlnd_rs_startup(struct lnet_ni *ni, const char *interface, u32 immediate, u32 credits,
		     u32 peer_credits);
void exlnd_rs_shutdown(void *data);
int exlnd_rs_send(void *data, struct lnet_msg *msg);
int exlnd_rs_recv(void *data, unsigned long number, struct lnet_msg *msg, struct iov_iter *to);
void exlnd_rs_keep(void *data, unsigned long number);
int exlnd_rs_timeout(void);
s32 exlnd_rs_immediate(void);
bool exlnd_rs_is_immediate(s64 bytes);
void exlnd_rs_tunables(int *credits, int *peer_credits, int *router_credits, int *peer_timeout);
int exlnd_rs_ctl(void *data, unsigned int cmd);

/* Defined and documented in lnet.c. */
int exlnd_known_type(void);
int exlnd_register(u32 type);
void exlnd_unregister(void);
void exlnd_ni_address(struct lnet_ni *ni, u32 address);
void exlnd_ni_data(struct lnet_ni *ni, void *data);
int exlnd_ni_numa(struct lnet_ni *ni, struct device *dev);
int exlnd_ni_cpt(struct lnet_ni *ni, int i);
int exlnd_peer_cpt(struct lnet_ni *ni, u32 address);
void exlnd_notify(struct lnet_ni *ni, u32 address, bool alive);
void exlnd_ni_fatal(struct lnet_ni *ni, bool fatal);
int exlnd_msg_send_request(struct lnet_msg *msg, struct exlnd_send_request *request);
void exlnd_msg_read(struct lnet_msg *msg, u32 at, void *to, u32 len);
void exlnd_msg_health(struct lnet_msg *msg, u32 health);
void exlnd_msg_finalize(struct lnet_msg *msg, int status);
bool exlnd_msg_fault(struct lnet_msg *msg);
int exlnd_parse(struct lnet_ni *ni, u32 form, const u64 *header, u32 address, unsigned long index);
int exlnd_iter_vecs(const struct iov_iter *iter, const struct bio_vec **vecs, u32 *count,
		    u32 *skip);
size_t exlnd_iter_count(const struct iov_iter *iter);
size_t exlnd_iter_write(struct iov_iter *iter, const void *from, size_t len);
struct exlnd_doorbell *exlnd_doorbell_new(void);
void exlnd_doorbell_free(struct exlnd_doorbell *doorbell);
void exlnd_doorbell_notify(struct exlnd_doorbell *doorbell);
bool exlnd_doorbell_wait(struct exlnd_doorbell *doorbell, long jiffies);
struct exlnd_thread *exlnd_thread_start(void (*run)(void *arg), void *arg, int cpt,
					const char *name, int n, int m);
void exlnd_thread_join(struct exlnd_thread *thread);

#endif
