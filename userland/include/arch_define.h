/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Architecture switches of the vendor's package. Tourmalet on x86-64 sets none of them: no MICEXTOLL, no LS3BEXTOLL.
 * The file exists because librma and pmap.h include it.
 */
#ifndef EXTOLL_ARCH_DEFINE_H
#define EXTOLL_ARCH_DEFINE_H
#endif
