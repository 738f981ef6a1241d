/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/* Checks at compile time the values and layouts on which programs for the public librma rely. */
#include "rma2.h"
#include "rma2_ioctl.h"
#include "velo.h"
#include "velo2_ioctl.h"
#include "smfu.h"
#include "smfu2_ioctl.h"
#include "pmap.h"
#include "extoll_rf_access_ioctl.h"

#ifdef __cplusplus
#define CHECK(what) static_assert(what, #what)
#else
#define CHECK(what) _Static_assert(what, #what)
#endif

/* The notification is packed, so that no gap precedes it after a single byte. */
struct behind {
	char byte;
	RMA2_Notification notification;
};
CHECK(sizeof(RMA2_Notification) == 16 && offsetof(struct behind, notification) == 1);
CHECK(sizeof(extoll_list_head_t) == 16 && sizeof(extoll2_pool_item_t) == 32 && sizeof(extoll2_list_t) == 104);
CHECK(sizeof(RMA2_Descriptor) == 64);
CHECK(offsetof(RMA2_Descriptor, handle) == 16 && offsetof(RMA2_Descriptor, value) == 32);
CHECK(sizeof(RMA2_Region) == 80);
CHECK(offsetof(RMA2_Region, start) == 16 && offsetof(RMA2_Region, nla) == 24);
CHECK(offsetof(RMA2_Region, count) == 32 && offsetof(RMA2_Region, offset) == 36);
CHECK(offsetof(RMA2_Region, end) == 40 && offsetof(RMA2_Region, size) == 48);
CHECK(sizeof(RMA2_Nodeid) == 2 && sizeof(RMA2_VPID) == 2 && sizeof(RMA2_NLA) == 8 && sizeof(RMA2_Class) == 1);
CHECK(sizeof(RMA2_ERROR) == sizeof(int) && sizeof(RMA2_Command) == sizeof(int));

CHECK(RMA2_SUCCESS == 0 && RMA2_ERR_ERROR == -1 && RMA2_ERR_INV_HANDLE == -2 && RMA2_ERR_INV_PORT == -3);
CHECK(RMA2_ERR_INV_VALUE == -4 && RMA2_ERR_NO_ROUTE == -5 && RMA2_ERR_PORTS_USED == -6 && RMA2_ERR_NO_MEM == -7);
CHECK(RMA2_NO_NOTI == -9 && RMA2_ERR_POLL_EXCEEDED == -10 && RMA2_ERR_WRONG_ARG == -11 && RMA2_ERR_NOT_YET == -12);
CHECK(RMA2_ERR_NO_DESC_MEM == -13 && RMA2_ERR_NO_MATCH == -15 && RMA2_ERR_WRONG_CMD == -16);
CHECK(RMA2_ERR_NO_DEVICE == -17 && RMA2_ERR_NO_CONNECT == -18 && RMA2_ERR_INVALID_VERSION == -22);
CHECK(RMA2_ERR_IOCTL == -23 && RMA2_ERR_MMAP == -24 && RMA2_ERR_FD == -25 && RMA2_ERR_MAP == -26);
CHECK(RMA2_ERR_INTERRUPTED == -27);
CHECK(RMA2_ERR_DOUBLE_MAP == 27 && RMA2_ERR_NO_TABLE == 28 && RMA2_ERR_NOT_FREE == 29 && RMA2_ERR_PART == 30);
CHECK(RMA2_ERR_ATU == 31 && RMA2_ERR_MLOCKLIMIT == 32);

CHECK(RMA2_REQUESTER_NOTIFICATION == 1 && RMA2_RESPONDER_NOTIFICATION == 2 && RMA2_COMPLETER_NOTIFICATION == 4);
CHECK(RMA2_REQCOMPL_NOTIFICATION == 5 && RMA2_RESPCOMPL_NOTIFICATION == 6 && RMA2_ALL_NOTIFICATIONS == 7);
CHECK(RMA2_CONN_DEFAULT == 16 && RMA2_CONN_RRA == 4 && RMA2_CONN_IRQ == 8 && RMA2_CONN_TE == 16);
CHECK(RMA2_BT_GET == 0 && RMA2_QW_GET == 1 && RMA2_BT_PUT == 2 && RMA2_QW_PUT == 3);
CHECK(RMA2_NOTIFICATION_PUT == 5 && RMA2_IMMEDIATE_PUT == 6 && RMA2_GET_BT_RSP == 10 && RMA2_GET_QW_RSP == 11);
CHECK(RMA2_LOCK_REQ == 12 && RMA2_LOCK_RSP == 13 && RMA2_PUTS == 7 && RMA2_GETS == 14 && RMA2_ANY == 15);
CHECK(RMA2_CMD_MC == 1 && RMA2_CMD_NTR == 2 && RMA2_CMD_ERA == 4 && RMA2_CMD_EWA == 8);
CHECK(RMA2_NOTI_RRA == 1 && RMA2_NOTI_IRQ == 2 && RMA2_NOTI_TE == 4 && RMA2_NOTI_EWA == 8);
CHECK(RMA2_NOTI_NTR == 16 && RMA2_NOTI_ERA == 32);
CHECK(RMA2_ERROR_REQ == 1 && RMA2_ERROR_RESP == 2 && RMA2_ERROR_CMPL == 4);
CHECK(RMA2_REPLAY_POST == 1 && RMA2_REPLAY_NOTI == 2 && RMA2_REPLAY_CLOSE == 4 && RMA2_REPLAY_ALL == 7);

CHECK(RMA2_IOCTL_GET_NOTIQ_SIZE == 0x80046B00 && RMA2_IOCTL_REGISTER_REGION == 0x40086B0A);
CHECK(RMA2_IOCTL_SET_HISTMODE == 0x40046B18 && VELO2_IOCG_GET_SLOT_SIZE == 0x80046B15);
CHECK(VELO2_IOCG_GET_VPID == 0x80086B04 && SMFU2_IOCTL_GET_NODE_ID == 0x80086B02);
CHECK(PMAP_IOCTL_GET_PADDR == 0x80046B06 && EXTOLL_RF_IOCTL_SET_RRA_RMA_TIMEOUT == 0x40086E05);

CHECK(sizeof(struct velo_to) == 8 && sizeof(struct velo_message) == 128);
CHECK(offsetof(struct velo_message, data) == 8);
