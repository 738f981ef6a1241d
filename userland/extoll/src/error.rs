// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};
use wire::rma::{DescriptorError, NotificationError};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device node does not exist or has no driver behind it.
    #[error("no Extoll device: {0} (is extoll.ko loaded?)")]
    NoDevice(PathBuf),
    /// The system does not let this user open the device node.
    #[error("cannot open {path} as user {user}: {reason} ({})", who_may_open(.path))]
    NotPermitted {
        /// The node.
        path: PathBuf,
        /// Effective user of the process.
        user: u32,
        /// The system's answer, as in [`Error::Register`].
        reason: io::Error,
    },
    /// The NIC is not part of a network at the moment; opening may work later.
    #[error("{0}: the NIC's network is not up")]
    NetworkDown(PathBuf),
    /// All VPIDs are taken.
    #[error("{0}: all ports are in use")]
    PortsUsed(PathBuf),
    /// The user has as many ports as the driver allows one user.
    #[error(
        "{0}: this user has as many ports as are allowed (parameter vpids_per_user of extoll.ko)"
    )]
    UserPortsUsed(PathBuf),
    /// Registering failed: beyond the limit of locked memory (`ulimit -l`) or of the translation tables, not mapped, or the NIC did not
    /// confirm it in time.
    #[error("{bytes} bytes cannot be registered: {reason}{}", why_not_registered(.reason))]
    Register {
        /// Bytes of the pages asked for.
        bytes: u64,
        /// The driver's answer. Not a source in the sense of `std::error::Error`: the text has it already.
        reason: io::Error,
    },
    /// The driver makes no queue of this size: beyond the limit of locked memory (`ulimit -l`), or no memory.
    #[error("no memory for the {what}: {reason}{}", locked_memory(.reason))]
    Queue {
        /// Which one.
        what: &'static str,
        /// The driver's answer, as in [`Error::Register`].
        reason: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {reason}{}", privilege(.reason))]
    Os {
        /// What was tried.
        what: String,
        /// The system's answer, as in [`Error::Register`].
        reason: io::Error,
    },
    /// 255 packets are outstanding; nothing was sent. Try again later.
    #[error("no room for another packet at the moment")]
    Full,
    /// The time given is over.
    #[error("timed out")]
    Timeout,
    /// A signal handler ran while the call waited. What it had sent is on its way all the same: wait for
    /// that, and do not send it once more.
    #[error("interrupted by a signal")]
    Interrupted,
    /// Not a node: 65,534 and 65,535 are reserved.
    #[error("node {0} is reserved")]
    Node(u16),
    /// Not a multicast group.
    #[error("there is no multicast group {0}")]
    Group(u16),
    /// Sizes that a queue cannot have.
    #[error("a queue of {bytes} bytes in segments of {segment}: whole pages and whole segments are needed")]
    QueueSize {
        /// Of the queue.
        bytes: u64,
        /// Of each contiguous piece.
        segment: u64,
    },
    /// The NIC was unbound or removed, or reads as all ones. Final: open another port when it is back.
    #[error("the NIC is gone")]
    Gone,
    /// The NIC dropped packets and did not take them again in time. They are given up: all that were not confirmed, in order.
    /// Told once, by the call that found out, which sent nothing itself, and by the calls that wait for what one of them asked
    /// for (`put_wait` and the like); the port goes on.
    #[error("{packets} packets of this port are lost: {why}")]
    Lost {
        /// How many.
        packets: u8,
        /// What happened.
        why: &'static str,
    },
    /// What the NIC wrote into this many slots of the queue got lost on its way, and with it messages or notifications. Told once, by
    /// the call that found out, and by `put_wait` and the like, whose notification may be among them; the queue goes on.
    #[error("{0} slots of the queue were never written: what was in them is lost")]
    Skipped(u32),
    /// Not a descriptor that the NIC would take.
    #[error("{0}")]
    Descriptor(DescriptorError),
    /// Not a message that the NIC would take, or an impossible status word.
    #[error("VELO: {0}")]
    Message(wire::velo::Error),
    /// The window to other nodes has fewer bytes than asked for.
    #[error("the window has fewer than {0} bytes")]
    Window(u64),
    /// A range outside the memory.
    #[error("bytes {offset}…{offset}+{len} are not inside {size} bytes")]
    Range {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The transfer failed; the text names the units that reported it (HW §10.4).
    #[error("the transfer failed in the {}", units(*.0))]
    Transfer(u8),
    /// A notification that makes no sense.
    #[error("{0}")]
    Notification(NotificationError),
    /// This process may not use commands with these options (untranslated addresses, remote registers).
    #[error("commands with {} are for privileged programs (requester page {})", special(*.0), .0.index())]
    Forbidden(wire::rma::PageOptions),
    /// The queue of notifications is gone: its size could neither be changed nor be changed back.
    #[error("the port has no notification queue any more: changing its size failed")]
    NoQueue,
    /// What the driver reported does not fit together.
    #[error("the driver reports {0}")]
    Driver(String),
}

fn locked_memory(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => " (limit of locked memory: ulimit -l)",
        _ => "",
    }
}

/// What the driver means by the error numbers of REGISTER_REGION (docs/uapi.md).
fn why_not_registered(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EFAULT) => " (it is not mapped, or cannot be written)",
        Some(libc::EDQUOT) => {
            " (address tables of this user: parameter tables_per_user of extoll.ko)"
        }
        Some(libc::ENOSPC) => " (no network addresses are left)",
        Some(libc::EAGAIN) => " (it was unmapped meanwhile)",
        Some(libc::EOPNOTSUPP) => " (processor and NIC do not see each other's writes)",
        Some(libc::EIO) => " (the machine cannot map it for the NIC)",
        Some(libc::ETIMEDOUT) => " (the NIC did not confirm it)",
        _ => locked_memory(source),
    }
}

/// The driver refuses calls on an open file for this reason only.
fn privilege(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM) => {
            " (for programs that open the device with CAP_SYS_RAWIO; kernel lockdown refuses some to all)"
        }
        _ => "",
    }
}

/// What `EPERM` can mean when a device node is opened.
fn who_may_open(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("velo2" | "rma2") => {
            "unprivileged users, and root under kernel lockdown, need an ID among the 65,535 from parameter first_user of extoll.ko on, see docs/security.md; a container needs the device in its device rules"
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
    /// A failed system call on an open device.
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENODEV) => Error::Gone,
            _ => Error::Os {
                what: what.into(),
                reason: source,
            },
        }
    }

    /// A failed registration.
    pub(crate) fn register(bytes: u64, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENODEV) => Error::Gone,
            _ => Error::Register {
                bytes,
                reason: source,
            },
        }
    }

    /// A queue that could not be mapped: it is made then, and charged to the process.
    pub(crate) fn queue(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOMEM) => Error::Queue {
                what,
                reason: source,
            },
            _ => Error::os(format!("cannot map the {what}"), source),
        }
    }

    /// The nearest error number, for C.
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

    /// A failed open of a device node.
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

/// Fails unless `offset..offset + len` lies in `size` bytes.
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
        // The file is there, so the driver is, too.
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
            // Who prints a chain of errors, as the tools do, adds the sources to the text.
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
