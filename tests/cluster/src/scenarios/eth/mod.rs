//! Ethernet over Extoll (`exn.ko`).

pub mod checksums;
pub mod hostile;
pub mod options;
pub mod stack;
pub mod survival;
pub mod traffic;
