/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * RMA for C programs: put, get, notification and lock commands on registered memory.
 *
 * Names, values and layouts are those of the public librma, so that programs written for it compile
 * and run. rma2(3) explains the functions. Link with -lrma. The names -lrma2 and -lrma2rc lead to
 * the same library.
 *
 * Functions of type RMA2_ERROR return RMA2_SUCCESS (0) or one of the values below. Threads may
 * share a port. Only one call returns a notification. The notification belongs to the thread of
 * that call until this thread frees it. A closed port, connection or region must not be passed to
 * any function. rma2_close and rma2_disconnect close nothing when they return
 * RMA2_ERR_POLL_EXCEEDED or RMA2_ERR_INTERRUPTED. The program must then call them again.
 */
#ifndef EXTOLL_RMA2_H
#define EXTOLL_RMA2_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "extoll2_list.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "rma2_region.h"

typedef enum {
	RMA2_SUCCESS             = 0,
	RMA2_ERR_ERROR           = -1,	/* error without a code of its own */
	RMA2_ERR_INV_HANDLE      = -2,	/* the connection is NULL */
	RMA2_ERR_INV_PORT        = -3,	/* the port is NULL */
	RMA2_ERR_INV_VALUE       = -4,	/* a value is out of range */
	RMA2_ERR_NO_ROUTE        = -5,	/* not used */
	RMA2_ERR_PORTS_USED      = -6,	/* all VPIDs, or all of this user, are in use */
	RMA2_ERR_NO_MEM          = -7,	/* the memory cannot be registered */
	RMA2_NO_NOTI             = -9,	/* the notification queue is empty */
	RMA2_ERR_POLL_EXCEEDED   = -10,	/* the NIC was too slow: call the function again */
	RMA2_ERR_WRONG_ARG       = -11,	/* not permitted for this program */
	RMA2_ERR_NOT_YET         = -12,	/* not used */
	RMA2_ERR_NO_DESC_MEM     = -13,	/* 255 commands are outstanding: try again */
	RMA2_ERR_NO_MATCH        = -15,	/* there are notifications, but no matching one */
	RMA2_ERR_WRONG_CMD       = -16,	/* the function does not support this command */
	RMA2_ERR_NO_DEVICE       = -17,	/* the driver is not loaded, or the NIC was removed */
	RMA2_ERR_NO_CONNECT      = -18,	/* not used */
	RMA2_ERR_INVALID_VERSION = -22,	/* the versions of library and driver do not match */
	RMA2_ERR_IOCTL           = -23,	/* the driver refused the operation */
	RMA2_ERR_MMAP            = -24,	/* the port cannot be mapped */
	RMA2_ERR_FD              = -25,	/* cannot open the device file, or network down */
	RMA2_ERR_MAP             = -26,	/* not used */
	RMA2_ERR_INTERRUPTED     = -27,	/* a signal handler ran during a wait; an addition */
	RMA2_ERR_DOUBLE_MAP      = 27,	/* not used */
	RMA2_ERR_NO_TABLE        = 28,	/* not used */
	RMA2_ERR_NOT_FREE        = 29,	/* the NIC did not confirm the end of a region in time */
	RMA2_ERR_PART            = 30,	/* not used */
	RMA2_ERR_ATU             = 31,	/* the driver could not unregister a region */
	RMA2_ERR_MLOCKLIMIT      = 32	/* the limit of locked memory is reached (ulimit -l) */
} RMA2_ERROR;

typedef uint16_t RMA2_Nodeid;	/* 0 to 65,533; 0xFFFE and 0xFFFF are reserved */
typedef uint16_t RMA2_VPID;	/* number of a port on its node, 0 to 255 */
typedef uint64_t RMA2_NLA;	/* network logical address: address of registered memory */
typedef uint8_t RMA2_Class;	/* class of a notification put; 0xFE and 0xFF are for matching */

/* Notifications that a command creates. Values may be combined by or. */
typedef enum {
	RMA2_NO_NOTIFICATION        = 0,
	RMA2_REQUESTER_NOTIFICATION = 1,	/* at the origin: the request was sent */
	RMA2_RESPONDER_NOTIFICATION = 2,	/* at the target of a get or lock: done there */
	RMA2_COMPLETER_NOTIFICATION = 4,	/* where the data arrived */
	RMA2_REQCOMPL_NOTIFICATION  = 5,
	RMA2_RESPCOMPL_NOTIFICATION = 6,
	RMA2_ALL_NOTIFICATIONS      = 7
} RMA2_Notification_Spec;

/*
 * Requester page of a connection. Values may be combined by or. Only privileged programs may use
 * RRA and physical addresses.
 */
typedef enum {
	RMA2_CONN_DEFAULT  = 16,
	RMA2_CONN_TC0      = 0,	/* traffic class, 0 to 3 */
	RMA2_CONN_TC1      = 1,
	RMA2_CONN_TC2      = 2,
	RMA2_CONN_TC3      = 3,
	RMA2_CONN_RRA      = 4,	/* the remote side is the register file of the node */
	RMA2_CONN_IRQ      = 8,	/* notifications raise interrupts, which wake sleeping programs */
	RMA2_CONN_TE       = 16,	/* addresses are NLAs */
	RMA2_CONN_PHYSICAL = 0	/* addresses are physical */
} RMA2_Connection_Options;

/* Commands. Names with BT transfer bytes, names with QW transfer quadwords. */
typedef enum {
	RMA2_BT_GET           = 0,
	RMA2_QW_GET           = 1,
	RMA2_BT_PUT           = 2,
	RMA2_QW_PUT           = 3,
	RMA2_NOTIFICATION_PUT = 5,
	RMA2_IMMEDIATE_PUT    = 6,
	RMA2_GET_BT_RSP       = 10,	/* responses of a NIC, in notifications only */
	RMA2_GET_QW_RSP       = 11,
	RMA2_LOCK_REQ         = 12,
	RMA2_LOCK_RSP         = 13,
	RMA2_PUTS             = 7,	/* for matching: any put */
	RMA2_GETS             = 14,	/* for matching: any get */
	RMA2_ANY              = 15	/* for matching: any command */
} RMA2_Command;

/* Modifiers of a command. Values may be combined by or. */
typedef enum {
	RMA2_CMD_DEFAULT = 0,
	RMA2_CMD_MC      = 1,	/* the node is a multicast group */
	RMA2_CMD_NTR     = 2,	/* every fragment creates notifications */
	RMA2_CMD_ERA     = 4,	/* remote read address of a function unit beside the NIC */
	RMA2_CMD_EWA     = 8	/* remote write address of a function unit beside the NIC */
} RMA2_Command_Modifier;

/* Mode bits of a notification, from the options and modifiers of its command. */
typedef enum {
	RMA2_NOTI_RRA = 1,
	RMA2_NOTI_IRQ = 2,
	RMA2_NOTI_TE  = 4,
	RMA2_NOTI_EWA = 8,
	RMA2_NOTI_NTR = 16,
	RMA2_NOTI_ERA = 32
} RMA2_Notification_Modifier;

/* Units of the NIC in which a command failed. */
typedef enum {
	RMA2_ERROR_REQ  = 1,	/* requester */
	RMA2_ERROR_RESP = 2,	/* responder */
	RMA2_ERROR_CMPL = 4	/* completer */
} RMA2_Notification_Error;

/* Calls that repeat commands which the NIC dropped. Values may be combined by or. */
typedef enum {
	RMA2_REPLAY_MANUAL = 0,	/* none of the following */
	RMA2_REPLAY_POST   = 1,	/* posting waits up to two seconds for room */
	RMA2_REPLAY_NOTI   = 2,	/* probing for notifications without success */
	RMA2_REPLAY_CLOSE  = 4,	/* disconnecting and closing wait for the NIC */
	RMA2_REPLAY_ALL    = 7	/* initial mode */
} RMA2_Replay_Buffer_Mode;

/*
 * Notification in the format of the NIC. Programs read it with the rma2_noti_get functions. It is
 * packed, because programs embed it in packed structures.
 */
typedef struct __attribute__((packed)) {
	union {
		uint64_t value;
	} word0;
	union {
		uint64_t value;
	} word1;
} RMA2_Notification;

/* Opaque handle of a connection to a port of a node. */
typedef struct rma2_connection RMA2_Connection;
typedef RMA2_Connection *RMA2_Handle;
/* Opaque handle of an open port. */
typedef struct rma2_endpoint RMA2_Endpoint;
typedef RMA2_Endpoint *RMA2_Port;

/* Prepared command. The rma2_desc_set functions fill it in. */
typedef struct {
	extoll_list_head_t list;
	RMA2_Handle handle;
	uint64_t reserved0;
	uint64_t value[3];
	uint64_t reserved1;
} RMA2_Descriptor;

/* Wildcards and flags of the match functions, see rma2_notification (3). */
extern const RMA2_Class RMA2_CLASS_ANY;
extern const RMA2_Nodeid RMA2_NODEID_ANY;
extern const RMA2_VPID RMA2_VPID_ANY;
extern const uint32_t RMA2_LOCK_ANY;
extern const RMA2_NLA RMA2_ANY_NLA;
extern const uint32_t RMA2_DEFAULT_FLAG;
extern const uint32_t RMA2_BLOCK_FLAG;
extern const uint32_t RMA2_MATCH_LAST_NLA_FLAG;

/* Functions for ports and connections, see rma2_port (3) and rma2_connection (3). */
RMA2_ERROR rma2_open(RMA2_Port *port);
RMA2_ERROR rma2_close(RMA2_Port port);
RMA2_ERROR rma2_connect(RMA2_Port port, RMA2_Nodeid node, RMA2_VPID vpid, RMA2_Connection_Options options,
			RMA2_Handle *handle);
RMA2_ERROR rma2_disconnect(RMA2_Port port, RMA2_Handle handle);
RMA2_Nodeid rma2_handle_get_node(RMA2_Handle handle);
RMA2_VPID rma2_handle_get_vpid(RMA2_Handle handle);

/*
 * Functions that post commands, see rma2_post (3). They return at once. Notifications report the
 * progress. Sizes are 1 to 8,388,608 bytes. The qw variants require sizes and addresses that are
 * multiples of 8. The direct variants also take an NLA for the local side.
 */
RMA2_ERROR rma2_post_put_bt(RMA2_Port port, RMA2_Handle handle, RMA2_Region *source, uint32_t offset, uint32_t size,
			    RMA2_NLA destination, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_put_bt_direct(RMA2_Port port, RMA2_Handle handle, RMA2_NLA source, uint32_t size,
				   RMA2_NLA destination, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_put_qw(RMA2_Port port, RMA2_Handle handle, RMA2_Region *source, uint32_t offset, uint32_t size,
			    RMA2_NLA destination, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_put_qw_direct(RMA2_Port port, RMA2_Handle handle, RMA2_NLA source, uint32_t size,
				   RMA2_NLA destination, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_get_bt(RMA2_Port port, RMA2_Handle handle, RMA2_Region *to, uint32_t offset, uint32_t size,
			    RMA2_NLA from, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_get_bt_direct(RMA2_Port port, RMA2_Handle handle, RMA2_NLA to, uint32_t size, RMA2_NLA from,
				   RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_get_qw(RMA2_Port port, RMA2_Handle handle, RMA2_Region *to, uint32_t offset, uint32_t size,
			    RMA2_NLA from, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_get_qw_direct(RMA2_Port port, RMA2_Handle handle, RMA2_NLA to, uint32_t size, RMA2_NLA from,
				   RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_lock(RMA2_Port port, RMA2_Handle handle, uint32_t target, uint32_t lock_number, int32_t compare,
			  int32_t add, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_notification(RMA2_Port port, RMA2_Handle handle, RMA2_Class mclass, uint64_t value,
				  RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_immediate_put(RMA2_Port port, RMA2_Handle handle, uint32_t count, uint64_t value,
				   RMA2_NLA destination, RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier);
RMA2_ERROR rma2_post_descriptor(RMA2_Port port, RMA2_Handle handle, RMA2_Descriptor *desc);

/* Functions for prepared commands, see rma2_descriptor (3). */
RMA2_ERROR rma2_desc_alloc(RMA2_Port port, RMA2_Descriptor **desc);
RMA2_ERROR rma2_desc_free(RMA2_Port port, RMA2_Descriptor *desc);
RMA2_ERROR rma2_desc_query_free(RMA2_Port port, int *num);
RMA2_ERROR rma2_desc_set_put_get(RMA2_Descriptor *desc, RMA2_Handle handle, RMA2_Command command, uint32_t count,
				 RMA2_Notification_Spec spec, RMA2_Command_Modifier modifier, uint64_t read_address,
				 uint64_t write_address);
RMA2_ERROR rma2_desc_set_immediate_put(RMA2_Descriptor *desc, RMA2_Handle handle, RMA2_Notification_Spec spec,
				       RMA2_Command_Modifier modifier, uint32_t count, uint64_t write_address,
				       uint64_t value);
RMA2_ERROR rma2_desc_set_noti_put(RMA2_Descriptor *desc, RMA2_Handle handle, RMA2_Notification_Spec spec,
				  RMA2_Command_Modifier modifier, RMA2_Class mclass, uint64_t value);
RMA2_ERROR rma2_desc_set_lock(RMA2_Descriptor *desc, RMA2_Handle handle, RMA2_Notification_Spec spec,
			      RMA2_Command_Modifier modifier, uint8_t target, uint32_t lock_number, uint32_t compare,
			      uint32_t add);
RMA2_ERROR rma2_desc_set_notification_value(RMA2_Descriptor *desc, RMA2_Class mclass, uint64_t value);

/*
 * Functions for notifications, see rma2_notification (3) and rma2_noti_get (3). Programs must free
 * each returned notification with rma2_noti_free.
 */
RMA2_ERROR rma2_noti_probe(RMA2_Port port, RMA2_Notification **notification);
RMA2_ERROR rma2_noti_get_block(RMA2_Port port, RMA2_Notification **notification);
RMA2_ERROR rma2_noti_match(RMA2_Port port, RMA2_Command command, RMA2_Nodeid node, RMA2_VPID vpid,
			   RMA2_Notification_Spec type, RMA2_NLA nla, int flags, RMA2_Notification **notification);
RMA2_ERROR rma2_noti_match_block(RMA2_Port port, RMA2_Command command, RMA2_Nodeid node, RMA2_VPID vpid,
				 RMA2_Notification_Spec type, RMA2_NLA nla, int flags,
				 RMA2_Notification **notification);
RMA2_ERROR rma2_noti_noti_match(RMA2_Port port, RMA2_Class mclass, RMA2_Nodeid node, RMA2_VPID vpid,
				RMA2_Notification **notification);
RMA2_ERROR rma2_noti_noti_match_block(RMA2_Port port, RMA2_Class mclass, RMA2_Nodeid node, RMA2_VPID vpid,
				      RMA2_Notification **notification);
RMA2_ERROR rma2_noti_lock_match(RMA2_Port port, uint32_t lock_number, RMA2_Nodeid node, RMA2_VPID vpid,
				RMA2_Notification **notification);
RMA2_ERROR rma2_noti_lock_match_block(RMA2_Port port, uint32_t lock_number, RMA2_Nodeid node, RMA2_VPID vpid,
				      RMA2_Notification **notification);
RMA2_ERROR rma2_noti_free(RMA2_Port port, RMA2_Notification *notification);
RMA2_ERROR rma2_noti_dup(RMA2_Notification *input, RMA2_Notification *output);
void rma2_noti_dump(RMA2_Notification *notification);
void rma2_noti_fdump(RMA2_Notification *notification, FILE *file);
void rma2_noti_sdump(RMA2_Notification *notification, char *text, int size);
RMA2_Command rma2_noti_get_cmd(RMA2_Notification *notification);
RMA2_Notification_Spec rma2_noti_get_notification_type(RMA2_Notification *notification);
RMA2_Notification_Modifier rma2_noti_get_mode(RMA2_Notification *notification);
uint8_t rma2_noti_get_error(RMA2_Notification *notification);
RMA2_Nodeid rma2_noti_get_remote_nodeid(RMA2_Notification *notification);
RMA2_VPID rma2_noti_get_remote_vpid(RMA2_Notification *notification);
uint64_t rma2_noti_get_local_address(RMA2_Notification *notification);
uint32_t rma2_noti_get_size(RMA2_Notification *notification);
uint32_t rma2_noti_get_total_size(RMA2_NLA start, RMA2_Notification *notification);
uint32_t rma2_noti_get_lock_value(RMA2_Notification *notification);
uint32_t rma2_noti_get_lock_number(RMA2_Notification *notification);
uint8_t rma2_noti_get_lock_result(RMA2_Notification *notification);
uint64_t rma2_noti_get_notiput_payload(RMA2_Notification *notification);
uint8_t rma2_noti_get_notiput_class(RMA2_Notification *notification);

/*
 * Functions for registered memory, see rma2_region (3). Peers may read and write all pages that
 * contain the memory until it is unregistered.
 */
RMA2_ERROR rma2_register(RMA2_Port port, void *address, size_t size, RMA2_Region **region);
RMA2_ERROR rma2_register_nomalloc(RMA2_Port port, void *address, size_t size, RMA2_Region *region);
RMA2_ERROR rma2_register_cached(RMA2_Port port, void *address, size_t size, RMA2_Region **region);
RMA2_ERROR rma2_register_adhoc(RMA2_Port port, void *address, RMA2_Region **region);
RMA2_ERROR rma2_unregister(RMA2_Port port, RMA2_Region *region);
RMA2_ERROR rma2_unregister_nofree(RMA2_Port port, RMA2_Region *region);
RMA2_ERROR rma2_unregister_cached(RMA2_Port port, RMA2_Region *region);
RMA2_ERROR rma2_unregister_adhoc(RMA2_Port port, RMA2_Region *region);
RMA2_ERROR rma2_get_nla(RMA2_Region *region, size_t offset, RMA2_NLA *nla);
RMA2_ERROR rma2_get_va(RMA2_Region *region, size_t offset, void **address);
RMA2_ERROR rma2_get_size(RMA2_Region *region, size_t *size);
RMA2_ERROR rma2_get_page_count(RMA2_Region *region, size_t *count);
int rma2_get_region_contained(RMA2_Region *region, void *start, size_t size);
int rma2_get_region_overlap(RMA2_Region *region, void *start, size_t size);
int rma2_get_region_equal(RMA2_Region *region, void *start, size_t size);

/* Functions for error texts, see rma2_error (3). */
void rma2_serror(RMA2_ERROR error, char *text, int size);
void rma2_perror(RMA2_ERROR error, char *header);

/* Functions for properties of ports and connections, see rma2_port (3), rma2_connection (3). */
RMA2_Nodeid rma2_get_nodeid(RMA2_Port port);
RMA2_VPID rma2_get_vpid(RMA2_Port port);
RMA2_Nodeid rma2_get_node_num(RMA2_Port port);
RMA2_VPID rma2_get_proc_num(RMA2_Port port);
RMA2_ERROR rma2_request_interrupt(RMA2_Port port, RMA2_Handle handle);
uint32_t rma2_get_interrupt(RMA2_Port port, RMA2_Handle handle);
RMA2_ERROR rma2_request_rra(RMA2_Port port, RMA2_Handle handle);
uint32_t rma2_get_rra(RMA2_Port port, RMA2_Handle handle);
RMA2_ERROR rma2_request_physical_access(RMA2_Port port, RMA2_Handle handle);
uint32_t rma2_get_physical_access(RMA2_Port port, RMA2_Handle handle);
RMA2_ERROR rma2_request_tcs(RMA2_Port port, RMA2_Handle handle, uint32_t request_tc, uint32_t response_tc);
RMA2_ERROR rma2_get_tcs(RMA2_Port port, RMA2_Handle handle, uint32_t *request_tc, uint32_t *response_tc);
RMA2_ERROR rma2_set_protectionid(RMA2_Port port, uint16_t id);
uint32_t rma2_get_queue_size(RMA2_Port port);
RMA2_ERROR rma2_set_queue_size(RMA2_Port port, uint32_t bytes);
uint32_t rma2_get_queue_segment_size(RMA2_Port port);
RMA2_ERROR rma2_set_queue_segment_size(RMA2_Port port, uint32_t bytes);
void rma2_replay_buffer_drain(RMA2_Port port);
void rma2_set_replay_mode(RMA2_Port port, RMA2_Replay_Buffer_Mode mode);
RMA2_Replay_Buffer_Mode rma2_get_replay_buffer_mode(RMA2_Port port);

/*
 * Functions for event loops, which the public librma lacks.
 *
 * The descriptor is for poll(2). Arming requests the interrupt that makes the descriptor readable.
 * The timeout for poll(2) must be read after each call of rma2_arm. It is in milliseconds; -1 means
 * no limit.
 */
int rma2_get_fd(RMA2_Port port);
RMA2_ERROR rma2_arm(RMA2_Port port);
int rma2_poll_timeout(RMA2_Port port);

#ifdef __cplusplus
}
#endif

#endif
