// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The manual pages of the programs, made from their options.

use anyhow::Result;
use clap::{Command, CommandFactory};

/// Section of the manual.
pub const SECTION: &str = "8";

/// The programs, with everything that clap adds: global options in the subcommands, --help.
pub fn programs() -> Vec<Command> {
    let mut all = [
        crate::ctl::Args::command(),
        crate::extl::Args::command(),
        crate::extlctl::Args::command(),
        crate::extlss::Args::command(),
        crate::perf::Args::command(),
        crate::ping::Args::command(),
        crate::trace::Args::command(),
    ]
    // "help" as a subcommand says what the pages say.
    .map(|c| c.disable_help_subcommand(true));
    all.iter_mut().for_each(Command::build);
    all.into()
}

/// A command and all below it, each of which has a page of its own, as git has them: `extollctl-reg-read`.
pub fn tree(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(tree);
    [command].into_iter().chain(below).collect()
}

/// Name of a command's page.
pub fn name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

/// File name and text of every page.
pub fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for program in programs() {
        for command in tree(&program) {
            let mut text = Vec::new();
            clap_mangen::Man::new(command.clone())
                .section(SECTION)
                .render(&mut text)?;
            see_also(&mut text, &program, command);
            all.push((format!("{}.{SECTION}", name(command)), text));
        }
    }
    Ok(all)
}

/// The page above this one; below are those in the list of subcommands.
fn see_also(text: &mut Vec<u8>, program: &Command, command: &Command) {
    let is_above = |c: &&Command| c.get_subcommands().any(|s| name(s) == name(command));
    if let Some(above) = tree(program).into_iter().find(is_above) {
        let line = format!(
            ".SH \"SEE ALSO\"\n{}({SECTION})\n",
            name(above).replace('-', "\\-")
        );
        text.extend(line.into_bytes());
    }
}
