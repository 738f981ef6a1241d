// SPDX-License-Identifier: GPL-2.0-only
#define CREATE_TRACE_POINTS
#include "trace.h"
#include "helpers.h"

void extoll_trace_velo_post(u32 nic, u8 vpid, u8 slot, u64 descriptor)
{
	trace_extoll_velo_post(nic, vpid, slot, descriptor);
}

void extoll_trace_velo_complete(u32 nic, u8 vpid, u32 slot, u64 status)
{
	trace_extoll_velo_complete(nic, vpid, slot, status);
}

void extoll_trace_rma_post(u32 nic, u8 vpid, u64 word0, u64 word1, u64 word2)
{
	trace_extoll_rma_post(nic, vpid, word0, word1, word2);
}

void extoll_trace_rma_complete(u32 nic, u8 vpid, u32 slot, u64 word0, u64 word1)
{
	trace_extoll_rma_complete(nic, vpid, slot, word0, word1);
}

void extoll_trace_interrupt(u32 nic, u32 entries, u16 read_pointer)
{
	trace_extoll_interrupt(nic, entries, read_pointer);
}

void extoll_trace_event(u32 nic, u32 trigger, u32 part, u64 word)
{
	trace_extoll_event(nic, trigger, part, word);
}

void extoll_trace_error(u32 nic, u32 reason, u64 detail)
{
	trace_extoll_error(nic, reason, detail);
}
