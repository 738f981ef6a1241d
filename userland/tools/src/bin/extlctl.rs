// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extlctl; see `extoll_tools::extlctl`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extlctl", extoll_tools::extlctl::run)
}
