// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extlss; see `extoll_tools::extlss`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extlss", extoll_tools::extlss::run)
}
