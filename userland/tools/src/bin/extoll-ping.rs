// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extoll-ping; see `extoll_tools::ping`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extoll-ping", extoll_tools::ping::run)
}
