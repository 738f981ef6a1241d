// SPDX-License-Identifier: GPL-2.0-only
/* Tracepoints of system "extl", in C because tracepoints cannot be defined in Rust. */
#define CREATE_TRACE_POINTS
#include "extl_trace.h"
#include "extl.h"

void extoll_trace_extl_fallback(const struct sock *sk, u8 reason, const char *name, int len)
{
	trace_extl_fallback(sk, reason, name, len);
}

void extoll_trace_extl_tx(const struct sock *sk, u64 bytes, bool direct)
{
	trace_extl_tx(sk, bytes, direct);
}

void extoll_trace_extl_rx(const struct sock *sk, u64 bytes, bool direct)
{
	trace_extl_rx(sk, bytes, direct);
}

void extoll_trace_extl_shutdown(const struct sock *sk, int how, bool direct)
{
	trace_extl_shutdown(sk, how, direct);
}
