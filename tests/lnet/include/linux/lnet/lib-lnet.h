/* SPDX-License-Identifier: GPL-2.0-only */
/* LNet stand-in (see stand.h): the functions that drivers call. */
#ifndef STAND_LIB_LNET_H
#define STAND_LIB_LNET_H

#include <linux/lnet/lib-types.h>
#include <linux/string.h>
#include <linux/unaligned.h>

extern struct lnet the_lnet;

static inline struct cfs_cpt_table *lnet_cpt_table(void)
{
	return the_lnet.ln_cpt_table;
}

int libcfs_str2lnd(const char *name);
int libcfs_isknown_lnd(__u32 type);
char *libcfs_nidstr_r(const struct lnet_nid *nid, char *buf, size_t size);

void lnet_register_lnd(const struct lnet_lnd *lnd);
void lnet_unregister_lnd(const struct lnet_lnd *lnd);
int lnet_ni_set_default_cpts(struct lnet_ni *ni);
int lnet_nid2cpt(struct lnet_nid *nid, struct lnet_ni *ni);
int lnet_notify(struct lnet_ni *ni, struct lnet_nid *nid, bool alive, bool reset, time64_t when);
void lnet_mark_ping_buffer_for_update(void);
bool lnet_send_error_simulation(struct lnet_msg *msg, enum lnet_msg_hstatus *hstatus);
int lnet_parse(struct lnet_ni *ni, struct lnet_hdr *hdr, struct lnet_nid *from, void *private, int rdma_req);
void lnet_finalize(struct lnet_msg *msg, int status);

/* The stand-in has no GPU memory. */
static inline bool lnet_md_is_gpu(struct lnet_libmd *md)
{
	return false;
}

/*
 * Writes the two formats of a header on the wire: addresses of 8 or 20 bytes, then little-endian
 * words of 4 bytes, then the part that depends on the type.
 */
static inline void stand_hdr_rest(const struct lnet_hdr *hdr, __u8 *to)
{
	put_unaligned_le32(hdr->dest_pid, to);
	put_unaligned_le32(hdr->src_pid, to + 4);
	put_unaligned_le32(hdr->type, to + 8);
	put_unaligned_le32(hdr->payload_length, to + 12);
	memcpy(to + 16, &hdr->part, sizeof(hdr->part));
}

static inline void stand_hdr_rest_from(struct lnet_hdr *hdr, const __u8 *from)
{
	hdr->dest_pid = get_unaligned_le32(from);
	hdr->src_pid = get_unaligned_le32(from + 4);
	hdr->type = get_unaligned_le32(from + 8);
	hdr->payload_length = get_unaligned_le32(from + 12);
	memcpy(&hdr->part, from + 16, sizeof(hdr->part));
}

static inline __u64 stand_nid4(const struct lnet_nid *nid)
{
	__be32 addr = nid->nid_addr[0];
	__be16 num = nid->nid_num;

	return (__u64)nid->nid_type << 48 | (__u64)be16_to_cpu(num) << 32 | be32_to_cpu(addr);
}

static inline void stand_nid4_from(__u64 nid4, struct lnet_nid *nid)
{
	memset(nid, 0, sizeof(*nid));
	nid->nid_type = nid4 >> 48;
	nid->nid_num = cpu_to_be16(nid4 >> 32);
	nid->nid_addr[0] = cpu_to_be32(nid4);
}

static inline void lnet_hdr_to_nid4(const struct lnet_hdr *hdr, struct lnet_hdr_nid4 *to)
{
	put_unaligned_le64(stand_nid4(&hdr->dest_nid), to->bytes);
	put_unaligned_le64(stand_nid4(&hdr->src_nid), to->bytes + 8);
	stand_hdr_rest(hdr, to->bytes + 16);
}

static inline void lnet_hdr_from_nid4(struct lnet_hdr *hdr, const struct lnet_hdr_nid4 *from)
{
	stand_nid4_from(get_unaligned_le64(from->bytes), &hdr->dest_nid);
	stand_nid4_from(get_unaligned_le64(from->bytes + 8), &hdr->src_nid);
	stand_hdr_rest_from(hdr, from->bytes + 16);
}

static inline void lnet_hdr_to_nid16(const struct lnet_hdr *hdr, struct lnet_hdr_nid16 *to)
{
	memcpy(to->bytes, &hdr->dest_nid, 20);
	memcpy(to->bytes + 20, &hdr->src_nid, 20);
	stand_hdr_rest(hdr, to->bytes + 40);
}

static inline void lnet_hdr_from_nid16(struct lnet_hdr *hdr, const struct lnet_hdr_nid16 *from)
{
	memcpy(&hdr->dest_nid, from->bytes, 20);
	memcpy(&hdr->src_nid, from->bytes + 20, 20);
	stand_hdr_rest_from(hdr, from->bytes + 40);
}

#endif
