// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! See the module of the library.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extlss", extoll_tools::extlss::run)
}
