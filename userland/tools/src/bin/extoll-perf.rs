// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Program extoll-perf; see `extoll_tools::perf`.

fn main() -> std::process::ExitCode {
    extoll_tools::main("extoll-perf", extoll_tools::perf::run)
}
