// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Writes the manual pages of the tools, made from their options: `extoll-man DIRECTORY`.

use anyhow::{Context, Result};
use clap::CommandFactory;

fn page(dir: &str, command: clap::Command) -> Result<()> {
    let name = command.get_name().to_string();
    let path = format!("{dir}/{name}.8");
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .section("8")
        .render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {path}"))
}

fn main() -> Result<()> {
    let dir = std::env::args()
        .nth(1)
        .context("usage: extoll-man DIRECTORY")?;
    std::fs::create_dir_all(&dir)?;
    for command in [
        extoll_tools::ctl::Args::command(),
        extoll_tools::perf::Args::command(),
        extoll_tools::ping::Args::command(),
        extoll_tools::trace::Args::command(),
    ] {
        // One page per subcommand too, as git has them.
        for sub in command.get_subcommands() {
            let name = format!("{}-{}", command.get_name(), sub.get_name());
            // The names live as long as this short program.
            page(&dir, sub.clone().name(&*name.leak()))?;
        }
        page(&dir, command)?;
    }
    Ok(())
}
