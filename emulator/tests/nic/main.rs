//! Tests of the behaviour of one NIC and of small groups of NICs. The test controls memory, network
//! and time.
#![forbid(unsafe_code)]

mod atu;
mod borrow;
mod devices;
mod drive;
mod hostile;
mod kinds;
mod probe;

mod reclaim;
mod requester;
mod rig;
mod rma;
mod rma_fragments;
mod rma_matrix;
mod rma_special;
mod root_port;
mod rra;
mod setup;
mod smfu;
mod smfu_late;
mod snq;
mod velo;
mod velo_queues;
