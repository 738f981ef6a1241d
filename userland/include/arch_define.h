/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Architecture switches of the vendor's package (MICEXTOLL, LS3BEXTOLL). Tourmalet on x86-64
 * defines neither. The file exists because librma and pmap.h include it.
 */
#ifndef EXTOLL_ARCH_DEFINE_H
#define EXTOLL_ARCH_DEFINE_H
#endif
