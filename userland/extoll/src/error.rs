// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Errors of this crate.

use std::io;
use std::path::{Path, PathBuf};
use wire::rma::{DescriptorError, NotificationError};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of a function of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device node does not exist or has no driver.
    #[error("no Extoll device: {0} (is extoll.ko loaded?)")]
    NoDevice(PathBuf),
    /// This user may not open the device node.
    #[error("cannot open {path} as user {user}: {reason} ({})", who_may_open(.path))]
    NotPermitted {
        /// Path of the device node.
        path: PathBuf,
        /// Effective user ID of the process.
        user: u32,
        /// Error of the system call. The text contains it, so that it is not a `source()`.
        reason: io::Error,
    },
    /// The network of the NIC is down. A later attempt may succeed.
    #[error("{0}: the NIC's network is not up")]
    NetworkDown(PathBuf),
    /// All VPIDs of the NIC are in use.
    #[error("{0}: all ports are in use")]
    PortsUsed(PathBuf),
    /// The user already has the maximum number of ports per user.
    #[error(
        "{0}: this user has the maximum number of ports (parameter vpids_per_user of extoll.ko)"
    )]
    UserPortsUsed(PathBuf),
    /// Memory could not be registered. Either it exceeds the limit of locked memory (`ulimit -l`)
    /// or the translation tables, or it is not mapped, or the NIC did not confirm the registration
    /// in time.
    #[error("{bytes} bytes cannot be registered: {reason}{}", why_not_registered(.reason))]
    Register {
        /// Size of all pages in the range, in bytes.
        bytes: u64,
        /// Error of the driver. It is not a `std::error::Error::source`, because the text already
        /// contains it.
        reason: io::Error,
    },
    /// The driver could not create a queue. Either the queue exceeds the limit of locked memory
    /// (`ulimit -l`), or memory is short.
    #[error("no memory for the {what}: {reason}{}", locked_memory(.reason))]
    Queue {
        /// Name of the queue.
        what: &'static str,
        /// Error of the driver. The text contains it, so that it is not a `source()`.
        reason: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {reason}{}", privilege(.reason))]
    Os {
        /// Description of the failed operation.
        what: String,
        /// Error of the system call. The text contains it, so that it is not a `source()`.
        reason: io::Error,
    },
    /// The maximum of 255 packets is outstanding. The call sent nothing and may be repeated later.
    #[error("no room for another packet, try again later")]
    Full,
    /// The time limit of the call expired.
    #[error("timed out")]
    Timeout,
    /// A signal handler ran while the call waited. The NIC may have sent packets of the call. The
    /// program must wait for their completion and must not send them again.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The node ID is reserved (65,534 or 65,535).
    #[error("node {0} is reserved")]
    Node(u16),
    /// The multicast group does not exist.
    #[error("there is no multicast group {0}")]
    Group(u16),
    /// The sizes of the queue are invalid.
    #[error("invalid queue of {bytes} bytes in segments of {segment}: both must be multiples of the page size, and the queue of the segment")]
    QueueSize {
        /// Size of the queue in bytes.
        bytes: u64,
        /// Size of a physically contiguous segment in bytes.
        segment: u64,
    },
    /// The NIC was unbound or removed, or its registers read as all ones. The port stays unusable.
    /// The program must open another port when the NIC is present again.
    #[error("the NIC is gone")]
    Gone,
    /// The NIC dropped packets and did not accept their repetitions in time. All unconfirmed
    /// packets of the port are lost. The call that detects the loss returns this error once and
    /// sends nothing. Waiting calls that posted lost packets (`put_wait` and similar calls) also
    /// return it. The port remains usable.
    #[error("{packets} packets of this port are lost: {why}")]
    Lost {
        /// Number of lost packets.
        packets: u8,
        /// Cause of the loss.
        why: &'static str,
    },
    /// The NIC's writes to this number of queue slots never arrived, so that their messages or
    /// notifications are lost. The call that detects the loss returns this error once. Waiting
    /// calls whose notification may be lost (`put_wait` and similar calls) also return it. The
    /// queue remains usable.
    #[error("{0} slots of the queue were never written: their messages or notifications are lost")]
    Skipped(u32),
    /// The NIC would reject the command.
    #[error("{0}")]
    Descriptor(DescriptorError),
    /// The NIC would reject the message, or the status word of a received message is invalid.
    #[error("VELO: {0}")]
    Message(wire::velo::Error),
    /// The window to other nodes is shorter than requested.
    #[error("the window has fewer than {0} bytes")]
    Window(u64),
    /// The range exceeds the end of the memory.
    #[error("{len} bytes at offset {offset} exceed the size of {size} bytes")]
    Range {
        /// Offset of the first byte in the memory.
        offset: u64,
        /// Size of the range in bytes.
        len: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// The transfer failed. The bits identify the units that reported the error (HW §10.4).
    #[error("the transfer failed in the {}", units(*.0))]
    Transfer(u8),
    /// A notification is malformed.
    #[error("{0}")]
    Notification(NotificationError),
    /// The process may not post commands with these options: untranslated addresses or remote
    /// registers.
    #[error("commands with {} are for privileged programs (requester page {})", special(*.0), .0.index())]
    Forbidden(wire::rma::PageOptions),
    /// The port has no notification queue, because a change of its size failed and the old size
    /// could not be restored.
    #[error("the port has no notification queue, because changing its size failed")]
    NoQueue,
    /// The driver returned an invalid value.
    #[error("the driver reports {0}")]
    Driver(String),
}

fn locked_memory(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => " (limit of locked memory: ulimit -l)",
        _ => "",
    }
}

/// Returns an explanation of the driver's error from REGISTER_REGION (docs/uapi.md).
fn why_not_registered(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EFAULT) => " (it is not mapped, or cannot be written)",
        Some(libc::EDQUOT) => {
            " (the user has the maximum number of address tables: parameter tables_per_user of extoll.ko)"
        }
        Some(libc::ENOSPC) => " (no network addresses are left)",
        Some(libc::EAGAIN) => " (it was unmapped during the call)",
        Some(libc::EOPNOTSUPP) => " (CPU and NIC are not cache-coherent)",
        Some(libc::EIO) => " (it cannot be mapped for DMA)",
        Some(libc::ETIMEDOUT) => " (the NIC did not confirm it)",
        _ => locked_memory(source),
    }
}

/// Returns an explanation of `EPERM` from a call on an open file. The driver returns this error
/// only for missing privileges.
fn privilege(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM) => {
            " (requires CAP_SYS_RAWIO when the device is opened; kernel lockdown forbids some operations to all programs)"
        }
        _ => "",
    }
}

/// Returns an explanation of `EPERM` from opening a device node.
fn who_may_open(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("velo2" | "rma2") => {
            "the user ID must be one of the 65,535 that begin with parameter first_user of extoll.ko (docs/security.md); this applies to unprivileged users, and to root under kernel lockdown; in a container, the device rules must permit the device"
        }
        _ => "kernel lockdown, or the device rules of a container",
    }
}

fn special(page: wire::rma::PageOptions) -> &'static str {
    match (page.translate, page.rra) {
        (false, true) => "untranslated addresses and remote registers",
        (false, false) => "untranslated addresses",
        (true, _) => "remote registers",
    }
}

fn units(bits: u8) -> String {
    let names = ["requester", "responder", "completer"];
    let set: Vec<&str> = (0..3)
        .filter(|i| bits & (1 << i) != 0)
        .map(|i| names[i])
        .collect();
    set.join(" and ")
}

impl Error {
    /// Converts the error of a system call on an open device.
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENODEV) => Error::Gone,
            _ => Error::Os {
                what: what.into(),
                reason: source,
            },
        }
    }

    /// Converts the error of a failed registration.
    pub(crate) fn register(bytes: u64, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENODEV) => Error::Gone,
            _ => Error::Register {
                bytes,
                reason: source,
            },
        }
    }

    /// Converts the error of mapping a queue. The mapping makes the driver allocate the queue and
    /// charge it to the process.
    pub(crate) fn queue(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOMEM) => Error::Queue {
                what,
                reason: source,
            },
            _ => Error::os(format!("cannot map the {what}"), source),
        }
    }

    /// Returns the errno value that C programs receive for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoDevice(_) | Error::Gone => libc::ENODEV,
            Error::NetworkDown(_) => libc::ENETDOWN,
            Error::PortsUsed(_) => libc::EBUSY,
            Error::UserPortsUsed(_) => libc::EDQUOT,
            Error::NotPermitted { reason, .. }
            | Error::Register { reason, .. }
            | Error::Queue { reason, .. }
            | Error::Os { reason, .. } => reason.raw_os_error().unwrap_or(libc::EIO),
            Error::Full => libc::EAGAIN,
            Error::Timeout => libc::ETIMEDOUT,
            Error::Interrupted => libc::EINTR,
            Error::Descriptor(_)
            | Error::Message(_)
            | Error::Range { .. }
            | Error::Window(_)
            | Error::Node(_)
            | Error::Group(_)
            | Error::QueueSize { .. } => libc::EINVAL,
            Error::Forbidden(_) => libc::EPERM,
            Error::Lost { .. } | Error::Skipped(_) | Error::Transfer(_) | Error::NoQueue => {
                libc::EIO
            }
            Error::Notification(_) | Error::Driver(_) => libc::EPROTO,
        }
    }

    /// Converts the error of opening a device node.
    pub(crate) fn open(path: PathBuf, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO) => Error::NoDevice(path),
            Some(libc::EAGAIN | libc::ENETDOWN) => Error::NetworkDown(path),
            Some(libc::EBUSY | libc::ENOSPC | libc::EUSERS) => Error::PortsUsed(path),
            Some(libc::EDQUOT) => Error::UserPortsUsed(path),
            Some(libc::EPERM) => Error::NotPermitted {
                path,
                user: rustix::process::geteuid().as_raw(),
                reason: source,
            },
            _ => Error::os(format!("cannot open {}", path.display()), source),
        }
    }
}

/// Fails unless `size` bytes contain `offset..offset + len`.
pub(crate) fn check_range(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, len, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_their_names() {
        assert_eq!(
            Error::Transfer(6).to_string(),
            "the transfer failed in the responder and completer"
        );
        let page = |index| wire::rma::PageOptions::from_index(index);
        assert_eq!(
            Error::Forbidden(page(20)).to_string(),
            "commands with remote registers are for privileged programs (requester page 20)"
        );
        assert!(Error::Forbidden(page(0))
            .to_string()
            .contains("with untranslated addresses are"));
        let open = |code| Error::open("/dev/x".into(), io::Error::from_raw_os_error(code));
        assert!(matches!(open(libc::EAGAIN), Error::NetworkDown(_)));
        assert!(matches!(open(libc::ENOENT), Error::NoDevice(_)));
        assert!(matches!(open(libc::ENOSPC), Error::PortsUsed(_)));
        assert!(matches!(open(libc::EACCES), Error::Os { .. }));
        // Opening an existing file fails with ENODEV if the driver is loaded but the NIC was
        // removed.
        assert!(matches!(open(libc::ENODEV), Error::Gone));
    }

    #[test]
    fn a_user_who_may_not_open_a_port_is_told_which_setting_decides() {
        let open = |node: &str, code| {
            let path = Path::new("/dev/extoll").join(node);
            Error::open(path, io::Error::from_raw_os_error(code))
        };
        for node in ["velo2", "rma2"] {
            let e = open(node, libc::EPERM);
            assert_eq!(e.errno(), libc::EPERM);
            let user = format!("as user {}", rustix::process::geteuid().as_raw());
            for words in ["first_user", "device rules", &user] {
                assert!(e.to_string().contains(words), "{e}");
            }
            let e = open(node, libc::EDQUOT);
            assert_eq!(e.errno(), libc::EDQUOT);
            assert!(e.to_string().contains("vpids_per_user"), "{e}");
            let e = open(node, libc::ENOSPC).to_string();
            assert!(!e.contains("user"), "{e}");
        }
        let e = open("pmap", libc::EPERM).to_string();
        assert!(!e.contains("first_user") && e.contains("lockdown"), "{e}");
    }

    #[test]
    fn a_refused_call_names_the_capability() {
        let text =
            |code| Error::os("cannot set it", io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::EPERM).contains("CAP_SYS_RAWIO"));
        assert!(!text(libc::EINVAL).contains("CAP_SYS_RAWIO"));
    }

    #[test]
    fn what_the_driver_means_by_its_answer_is_said() {
        let text = |code| Error::register(4096, io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::EDQUOT).contains("tables_per_user"));
        assert!(text(libc::ENOSPC).contains("network addresses"));
        assert!(text(libc::EFAULT).contains("not mapped"));
    }

    #[test]
    fn a_device_that_is_gone_is_no_other_failure() {
        let no = |code| io::Error::from_raw_os_error(code);
        for gone in [
            Error::os("cannot do it", no(libc::ENODEV)),
            Error::register(4096, no(libc::ENODEV)),
        ] {
            assert!(matches!(gone, Error::Gone));
            assert_eq!(gone.errno(), libc::ENODEV);
        }
        let other = Error::os("cannot do it", no(libc::EFAULT));
        assert!(matches!(other, Error::Os { .. }));
    }

    #[test]
    fn the_systems_answer_is_told_once() {
        let no = |code| io::Error::from_raw_os_error(code);
        for e in [
            Error::os("cannot do it", no(libc::EFAULT)),
            Error::register(4096, no(libc::EFAULT)),
            Error::queue("mailbox", no(libc::ENOMEM)),
            Error::queue("mailbox", no(libc::EFAULT)),
        ] {
            // Programs that print a chain of errors, such as the tools, append the sources to the
            // text.
            assert!(std::error::Error::source(&e).is_none(), "{e:?}");
            let answer = no(e.errno()).to_string();
            assert_eq!(e.to_string().matches(&answer).count(), 1, "{e}");
        }
    }

    #[test]
    fn only_a_limit_is_called_one() {
        let text = |code| Error::register(4096, io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::ENOMEM).contains("ulimit -l"));
        for code in [libc::EFAULT, libc::EINVAL, libc::ENOSPC, libc::ETIMEDOUT] {
            assert!(!text(code).contains("ulimit"), "{}", text(code));
        }
        let queue = |code| Error::queue("mailbox", io::Error::from_raw_os_error(code));
        assert!(queue(libc::ENOMEM).to_string().contains("ulimit -l"));
        assert!(matches!(queue(libc::EINVAL), Error::Os { .. }));
        assert!(matches!(queue(libc::ENODEV), Error::Gone));
    }

    #[test]
    fn ranges_do_not_overflow() {
        assert!(check_range(0, 8, 8).is_ok());
        assert!(check_range(8, 0, 8).is_ok());
        assert!(check_range(1, 8, 8).is_err());
        assert!(check_range(u64::MAX, 2, 8).is_err());
    }
}
