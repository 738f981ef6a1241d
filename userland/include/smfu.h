/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * SMFU for C programs: loads and stores to the memory of other nodes. smfu(3) explains the
 * functions. Link with -lsmfu.
 *
 * Functions of type int return 0 or a negative error number. A mapping remains valid until
 * smfu_unmap(), also after smfu_close(). After the NIC was removed, an access to a mapping raises
 * SIGBUS.
 */
#ifndef EXTOLL_SMFU_H
#define EXTOLL_SMFU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque handles of the open SMFU of a NIC and of a mapping. */
typedef struct smfu smfu_t;
typedef struct smfu_mapping smfu_mapping_t;

/* Opens the SMFU. device: directory of the device files; NULL for EXTOLL_DEV or /dev/extoll. */
int smfu_open(const char *device, smfu_t **smfu);
void smfu_close(smfu_t *smfu);
/* Returns the ID of this node. */
uint16_t smfu_node(const smfu_t *smfu);
/* Returns the size in bytes of the local memory that other nodes can access. */
uint64_t smfu_exported(const smfu_t *smfu);

/*
 * Maps the first len bytes of the window to other nodes. The mapping may be write-combining, so
 * that only smfu_flush() orders stores.
 */
int smfu_map_window(smfu_t *smfu, size_t len, smfu_mapping_t **mapping);
/* Maps the first len bytes of the local memory that other nodes can access. */
int smfu_map_local(smfu_t *smfu, size_t len, smfu_mapping_t **mapping);
/* These functions return the first address of a mapping and its size in bytes. */
volatile void *smfu_address(const smfu_mapping_t *mapping);
size_t smfu_length(const smfu_mapping_t *mapping);
void smfu_unmap(smfu_mapping_t *mapping);
/* Sends the stores that are still in the write-combining buffers of the CPU. */
void smfu_flush(void);

#ifdef __cplusplus
}
#endif

#endif
