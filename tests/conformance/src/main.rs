//! Programs that scenarios run inside the nodes of a cluster. They use the crate `extoll` like any
//! program.
//!
//! Each subcommand prints a line for the start of its peer ("ready …") and a final line "ok …". If
//! it fails, it prints the reason to standard error. Every wait has a deadline.
#![forbid(unsafe_code)]

mod backlog;
mod matrix;
mod multicast;
mod traffic;
mod window;

use anyhow::Result;
use clap::Parser;
use std::io::Write;

#[derive(Parser)]
#[command(about = "Conformance programs for the nodes of a lab")]
enum Args {
    /// Every RMA command in every form, compared byte for byte.
    #[command(subcommand)]
    Matrix(matrix::Verb),
    /// Loads and stores to another node's memory.
    #[command(subcommand)]
    Window(window::Verb),
    /// VELO messages to a group of nodes.
    #[command(subcommand)]
    Multicast(multicast::Verb),
    /// Endless messages, transfers and locks, each of which must end in time.
    #[command(subcommand)]
    Traffic(traffic::Verb),
    /// A sender whose receiver or NIC accepts nothing for a while.
    Backlog {
        /// The NIC accepts nothing of this unit (velo, rma) from the start. Prints "full" when the
        /// sender gets an error, and waits.
        #[arg(long)]
        stuck: Option<String>,
    },
}

/// Prints a line and flushes it, because the output may be a file or pipe.
fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

fn main() -> Result<()> {
    match Args::parse() {
        Args::Matrix(verb) => matrix::run(verb),
        Args::Window(verb) => window::run(verb),
        Args::Multicast(verb) => multicast::run(verb),
        Args::Traffic(verb) => traffic::run(verb),
        Args::Backlog { stuck } => backlog::run(stuck.as_deref()),
    }
}
