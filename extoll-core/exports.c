// SPDX-License-Identifier: GPL-2.0-only
/* Exports the Rust symbols of the library crates for modules above; the list is generated. */
#include <linux/export.h>

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
