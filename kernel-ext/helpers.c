// SPDX-License-Identifier: GPL-2.0-only
#include <asm/barrier.h>
#include "helpers.h"

void extoll_wmb(void)
{
	wmb();
}
