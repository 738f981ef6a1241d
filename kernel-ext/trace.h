/* SPDX-License-Identifier: GPL-2.0-only */
/* Tracepoints of extoll.ko, system "extoll". nic = PCI domain << 16 | bus << 8 | devfn. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM extoll

#if !defined(EXTOLL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EXTOLL_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(extoll_velo_post,
	TP_PROTO(u32 nic, u8 vpid, u8 slot, u64 descriptor),
	TP_ARGS(nic, vpid, slot, descriptor),
	TP_STRUCT__entry(__field(u32, nic) __field(u8, vpid) __field(u8, slot)
			 __field(u64, descriptor)),
	TP_fast_assign(__entry->nic = nic; __entry->vpid = vpid; __entry->slot = slot;
		       __entry->descriptor = descriptor;),
	TP_printk("nic=%08x vpid=%u slot=%u descriptor=%016llx", __entry->nic, __entry->vpid,
		  __entry->slot, __entry->descriptor)
);

TRACE_EVENT(extoll_velo_complete,
	TP_PROTO(u32 nic, u8 vpid, u32 slot, u64 status),
	TP_ARGS(nic, vpid, slot, status),
	TP_STRUCT__entry(__field(u32, nic) __field(u8, vpid) __field(u32, slot)
			 __field(u64, status)),
	TP_fast_assign(__entry->nic = nic; __entry->vpid = vpid; __entry->slot = slot;
		       __entry->status = status;),
	TP_printk("nic=%08x vpid=%u slot=%u status=%016llx", __entry->nic, __entry->vpid,
		  __entry->slot, __entry->status)
);

TRACE_EVENT(extoll_rma_post,
	TP_PROTO(u32 nic, u8 vpid, u64 word0, u64 word1, u64 word2),
	TP_ARGS(nic, vpid, word0, word1, word2),
	TP_STRUCT__entry(__field(u32, nic) __field(u8, vpid) __field(u64, word0) __field(u64, word1)
			 __field(u64, word2)),
	TP_fast_assign(__entry->nic = nic; __entry->vpid = vpid; __entry->word0 = word0;
		       __entry->word1 = word1; __entry->word2 = word2;),
	TP_printk("nic=%08x vpid=%u words=%016llx,%016llx,%016llx", __entry->nic, __entry->vpid,
		  __entry->word0, __entry->word1, __entry->word2)
);

TRACE_EVENT(extoll_rma_complete,
	TP_PROTO(u32 nic, u8 vpid, u32 slot, u64 word0, u64 word1),
	TP_ARGS(nic, vpid, slot, word0, word1),
	TP_STRUCT__entry(__field(u32, nic) __field(u8, vpid) __field(u32, slot) __field(u64, word0)
			 __field(u64, word1)),
	TP_fast_assign(__entry->nic = nic; __entry->vpid = vpid; __entry->slot = slot;
		       __entry->word0 = word0; __entry->word1 = word1;),
	TP_printk("nic=%08x vpid=%u slot=%u words=%016llx,%016llx", __entry->nic, __entry->vpid,
		  __entry->slot, __entry->word0, __entry->word1)
);

TRACE_EVENT(extoll_interrupt,
	TP_PROTO(u32 nic, u32 entries, u16 read_pointer),
	TP_ARGS(nic, entries, read_pointer),
	TP_STRUCT__entry(__field(u32, nic) __field(u32, entries) __field(u16, read_pointer)),
	TP_fast_assign(__entry->nic = nic; __entry->entries = entries;
		       __entry->read_pointer = read_pointer;),
	TP_printk("nic=%08x entries=%u read_pointer=%u", __entry->nic, __entry->entries,
		  __entry->read_pointer)
);

TRACE_EVENT(extoll_event,
	TP_PROTO(u32 nic, u32 trigger, u32 part, u64 word),
	TP_ARGS(nic, trigger, part, word),
	TP_STRUCT__entry(__field(u32, nic) __field(u32, trigger) __field(u32, part)
			 __field(u64, word)),
	TP_fast_assign(__entry->nic = nic; __entry->trigger = trigger; __entry->part = part;
		       __entry->word = word;),
	TP_printk("nic=%08x trigger=%u part=%u word=%016llx", __entry->nic, __entry->trigger,
		  __entry->part, __entry->word)
);

TRACE_EVENT(extoll_error,
	TP_PROTO(u32 nic, u32 reason, u64 detail),
	TP_ARGS(nic, reason, detail),
	TP_STRUCT__entry(__field(u32, nic) __field(u32, reason) __field(u64, detail)),
	TP_fast_assign(__entry->nic = nic; __entry->reason = reason; __entry->detail = detail;),
	TP_printk("nic=%08x reason=%u detail=%016llx", __entry->nic, __entry->reason,
		  __entry->detail)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
