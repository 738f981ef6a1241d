// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Manual pages of the programs, generated from their options.

use anyhow::Result;
use clap::{Command, CommandFactory};

/// Manual section of the pages.
pub const SECTION: &str = "8";

/// Returns the programs with the options that clap adds: global options in subcommands, and --help.
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
    // The subcommand "help" is not needed, because each subcommand has a manual page.
    .map(|c| c.disable_help_subcommand(true));
    all.iter_mut().for_each(Command::build);
    all.into()
}

/// Returns a command and all of its subcommands. Each has a separate page, whose name has the form
/// of git's pages: `extollctl-reg-read`.
pub fn tree(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(tree);
    [command].into_iter().chain(below).collect()
}

/// Returns the name of a command's page.
pub fn name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

/// Returns the file name and text of all pages.
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

/// Adds a reference to the page of the parent command. References to subcommands are in the list of
/// subcommands.
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
