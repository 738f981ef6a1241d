// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Where the kernel keeps what is enabled: files of a BPF file system, a directory for each switch.

use anyhow::{ensure, Context, Result};
use extl_bpf::sys;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory, below the root.
pub const DIRECTORY: &str = "sys/fs/bpf/extl";
/// The two files of a switch.
const LINK: &str = "link";
const STATE: &str = "state";
/// End of the name of a directory that is being made.
const NEW: &str = "-new";
/// Type of a BPF file system.
const BPF: i64 = 0xcafe_4a11;

/// Whose sockets: the name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(String);

impl Scope {
    /// Those of all programs.
    pub fn system() -> Self {
        Self("system".into())
    }

    /// Those of a control group, by its number.
    pub fn cgroup(directory: &Path) -> Result<Self> {
        let about = fs::metadata(directory)
            .with_context(|| format!("no control group {}", directory.display()))?;
        Ok(Self(format!("cgroup-{}", about.ino())))
    }

    /// In words.
    pub fn words(&self) -> String {
        match self.0.strip_prefix("cgroup-") {
            Some(number) => format!("control group {number}"),
            None => "the system".into(),
        }
    }
}

/// A switch that is enabled.
#[derive(Debug)]
pub struct Pinned {
    /// For whom.
    pub scope: Scope,
    directory: PathBuf,
}

impl Pinned {
    /// The value of its array.
    pub fn state(&self) -> Result<Vec<u8>> {
        let path = self.directory.join(STATE);
        let array = sys::Array::at(&path);
        let array = array.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(array.read()?)
    }

    /// Ends it.
    pub fn remove(&self) -> Result<()> {
        remove(&self.directory)
    }
}

/// All of them, in the order of their names.
pub fn all(directory: &Path) -> Result<Vec<Pinned>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => {
            return Err(e).with_context(|| format!("cannot read {}", directory.display()));
        }
    };
    let mut all = vec![];
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let directory = directory.join(&name);
        all.push(Pinned {
            // What was left half done is removed with the rest.
            scope: Scope(name.strip_suffix(NEW).unwrap_or(&name).to_owned()),
            directory,
        });
    }
    all.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(all)
}

/// Removes a directory with its files, whichever are there.
fn remove(directory: &Path) -> Result<()> {
    let gone = |result: std::io::Result<()>| match result {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    for file in [LINK, STATE] {
        let path = directory.join(file);
        gone(fs::remove_file(&path))
            .with_context(|| format!("cannot remove {}", path.display()))?;
    }
    gone(fs::remove_dir(directory))
        .with_context(|| format!("cannot remove {}", directory.display()))
}

/// The directory of all switches, whose file system is mounted if need be.
pub fn directory(root: &Path) -> Result<PathBuf> {
    let directory = root.join(DIRECTORY);
    let mount = directory.parent().context("no parent")?;
    let kind = rustix::fs::statfs(mount).with_context(|| format!("no {}", mount.display()))?;
    if kind.f_type as i64 != BPF {
        // In a mount namespace of its own it would be gone with the last process there, and the switch as well.
        let namespace =
            |process: &str| fs::read_link(root.join("proc").join(process).join("ns/mnt"));
        ensure!(
            namespace("self").ok() == namespace("1").ok(),
            "no BPF file system at {}: mount one outside, as this is a mount namespace of its own",
            mount.display()
        );
        let flags = rustix::mount::MountFlags::NOSUID
            | rustix::mount::MountFlags::NODEV
            | rustix::mount::MountFlags::NOEXEC;
        rustix::mount::mount("bpf", mount, "bpf", flags, Some(c"mode=700"))
            .with_context(|| format!("cannot mount a BPF file system at {}", mount.display()))?;
    }
    make(&directory)?;
    let kept = fs::symlink_metadata(&directory)?;
    ensure!(
        kept.is_dir() && kept.uid() == 0 && kept.mode() & 0o022 == 0,
        "{} is somebody else's: only root may write to it, and it must be a directory",
        directory.display()
    );
    Ok(directory)
}

fn make(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.with_context(|| format!("cannot make {}", directory.display()))
}

/// Keeps a link and an array, in place of what there was. Without success there is what there was.
pub fn replace(
    directory: &Path,
    scope: &Scope,
    link: BorrowedFd<'_>,
    state: BorrowedFd<'_>,
) -> Result<()> {
    let place = directory.join(&scope.0);
    let new = directory.join(format!("{}{NEW}", scope.0));
    remove(&new)?;
    make(&new)?;
    let pinned = [(STATE, state), (LINK, link)]
        .into_iter()
        .try_for_each(|(name, object)| sys::pin(object, &new.join(name)))
        .with_context(|| format!("cannot make files in {}", new.display()));
    // For a moment both are attached, which does no harm: the first that switches a socket is the last that is asked.
    let done = pinned.and_then(|()| {
        remove(&place)?;
        fs::rename(&new, &place).with_context(|| format!("cannot make {}", place.display()))
    });
    if done.is_err() {
        // The error is that of the attempt.
        let _ = remove(&new);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_listed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("extl");
        assert!(all(&top).unwrap().is_empty());
        for name in ["system", "cgroup-7", "cgroup-8-new"] {
            make(&top.join(name)).unwrap();
        }
        fs::write(top.join("system").join(LINK), "").unwrap();
        let found = all(&top).unwrap();
        let words: Vec<String> = found.iter().map(|p| p.scope.words()).collect();
        assert_eq!(words, ["control group 7", "control group 8", "the system"]);
        assert_eq!(found[2].scope, Scope::system());
        // No array in this file system.
        assert!(found[2].state().is_err());
        found.iter().for_each(|p| p.remove().unwrap());
        assert!(all(&top).unwrap().is_empty());
        // Once more is no error.
        found[2].remove().unwrap();
    }

    #[test]
    fn a_failure_leaves_nothing_half_done() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("extl");
        make(&top.join("system")).unwrap();
        let file = fs::File::open(dir.path()).unwrap();
        use std::os::fd::AsFd;
        // A directory is no object of BPF.
        let failed = replace(&top, &Scope::system(), file.as_fd(), file.as_fd());
        assert!(failed.is_err());
        assert_eq!(all(&top).unwrap().len(), 1);
        assert!(top.join("system").exists());
    }
}
