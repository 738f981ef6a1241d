// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extollctl; see `extoll_tools::ctl`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extollctl", extoll_tools::ctl::run)
}
