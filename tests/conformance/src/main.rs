//! What scenarios run inside the nodes of a cluster, over the crate `extoll` as any program would use it.
//!
//! Every verb prints one line that says what is needed to start its peer ("ready …"), and in the end "ok …", or fails with
//! the reason on standard error. Nothing waits without a deadline.
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
    /// Messages, transfers and locks without end, each of which must end in time.
    #[command(subcommand)]
    Traffic(traffic::Verb),
    /// A sender whose receiver, or whose NIC, takes nothing for a while.
    Backlog {
        /// The NIC takes nothing of this unit (velo, rma) from the beginning on: says "full" when the sender is told, and waits.
        #[arg(long)]
        stuck: Option<String>,
    },
}

/// Says a line at once, also to a file or pipe.
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
