// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extoll-trace; see `extoll_tools::trace`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extoll-trace", extoll_tools::trace::run)
}
