//! The NVMe drive, driven by a small driver: queues, blocks, mistakes, resets.
#![forbid(unsafe_code)]

mod host;
mod mistakes;
mod work;
