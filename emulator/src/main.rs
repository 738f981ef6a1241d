//! `extoll-emu`: emulates Tourmalet NICs and their fabric. Each NIC has a vfio-user socket.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
