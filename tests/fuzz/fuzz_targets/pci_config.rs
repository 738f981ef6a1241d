// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| wire_fuzz::fuzz_pci_config(data));
