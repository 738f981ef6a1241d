// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Entry point; see `extoll_tools::extlss`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extlss", extoll_tools::extlss::run)
}
