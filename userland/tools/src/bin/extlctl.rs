// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! See the module of the library.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extlctl", extoll_tools::extlctl::run)
}
