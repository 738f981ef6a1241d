//! Lustre networking (`kexlnd.ko`), with a stand-in for LNet.

pub mod faults;
pub mod messages;
pub mod nets;
pub mod stand_in;
