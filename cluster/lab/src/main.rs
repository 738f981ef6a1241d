//! `lab`: a cluster of emulated nodes on one machine.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => ExitCode::from(code),
        Err(e) if cli::is_broken_pipe(&e) => ExitCode::from(141),
        Err(e) => {
            let text = cli::shown(&format!("{e:#}"));
            eprintln!("{} {text}", lab::ui::Paint::stderr().red("lab:"));
            ExitCode::from(if lab::proc::was_interrupted() {
                cli::INTERRUPTED
            } else {
                cli::FAILURE
            })
        }
    }
}
