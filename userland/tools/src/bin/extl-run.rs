// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extl-run; see `extoll_tools::extl`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extl-run", extoll_tools::extl::run)
}
