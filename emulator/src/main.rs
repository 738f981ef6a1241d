//! `extoll-emu`: the emulated Tourmalet NICs and their fabric, one vfio-user socket per NIC.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
