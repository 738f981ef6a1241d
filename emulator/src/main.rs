//! `extoll-emu`: the emulated Tourmalet NICs and their fabric, one vfio-user socket per NIC.
fn main() {}
