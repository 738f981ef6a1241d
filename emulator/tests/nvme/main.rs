//! Tests of the NVMe drive with a small driver: queues, blocks, errors and resets.
#![forbid(unsafe_code)]

mod host;
mod mistakes;
mod work;
