//! The NVMe drive with a small driver: queues, blocks, errors, resets.
#![forbid(unsafe_code)]

mod host;
mod mistakes;
mod work;
