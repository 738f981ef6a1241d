/* SPDX-License-Identifier: GPL-2.0-only */
/* LNet stand-in (see stand.h): CPU partitions (CPTs) and set-up. */
#ifndef STAND_LIBCFS_H
#define STAND_LIBCFS_H

#include <linux/types.h>

#define CFS_CPT_ANY (-1)

struct cfs_cpt_table;

int libcfs_setup(void);
int cfs_cpt_number(struct cfs_cpt_table *table);
int cfs_cpt_of_node(struct cfs_cpt_table *table, int node);
int cfs_cpt_bind(struct cfs_cpt_table *table, int cpt);

#endif
