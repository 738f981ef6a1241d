// SPDX-License-Identifier: GPL-2.0-only
/* The C part of kexlnd.ko, built with the stand-in's headers. */
#include "../../exlnd/lnet.c"
