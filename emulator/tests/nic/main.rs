//! Behaviour of one NIC and of small groups of them, with memory, network and time in the test's hands.
#![forbid(unsafe_code)]

mod atu;
mod hostile;
mod probe;
mod rig;
mod rma;
mod rma_matrix;
mod rma_special;
mod rra;
mod snq;
mod velo;
mod velo_queues;
