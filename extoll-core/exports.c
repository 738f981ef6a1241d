// SPDX-License-Identifier: GPL-2.0-only
/* Exports Rust symbols of the library crates to modules above. The list is generated. */
#include <linux/export.h>

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
