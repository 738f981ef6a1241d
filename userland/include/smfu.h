/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * SMFU for C programs: loads and stores to the memory of other nodes. smfu(3) explains the functions; link with -lsmfu.
 *
 * Functions return 0 or a negative error number. A mapping stays valid until smfu_unmap(), also after smfu_close(), as long as
 * the NIC is there.
 */
#ifndef EXTOLL_SMFU_H
#define EXTOLL_SMFU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smfu smfu_t;
typedef struct smfu_mapping smfu_mapping_t;

/* device: directory of the device files, NULL for the first NIC. */
int smfu_open(const char *device, smfu_t **smfu);
void smfu_close(smfu_t *smfu);
uint16_t smfu_node(const smfu_t *smfu);
/* Bytes of local memory that other nodes can reach. */
uint64_t smfu_exported(const smfu_t *smfu);

/* The first len bytes of the window to other nodes; perhaps write-combining, so that stores are ordered by smfu_flush only. */
int smfu_map_window(smfu_t *smfu, size_t len, smfu_mapping_t **mapping);
/* The first len bytes of the local memory that other nodes can reach. */
int smfu_map_local(smfu_t *smfu, size_t len, smfu_mapping_t **mapping);
volatile void *smfu_address(const smfu_mapping_t *mapping);
size_t smfu_length(const smfu_mapping_t *mapping);
void smfu_unmap(smfu_mapping_t *mapping);
/* Sends what the processor still combines. */
void smfu_flush(void);

#ifdef __cplusplus
}
#endif

#endif
