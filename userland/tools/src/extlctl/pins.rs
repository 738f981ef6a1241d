// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Storage of the enabled settings in a BPF file system. Each setting has a directory with pinned
//! objects.

use anyhow::{ensure, Context, Result};
use extl_bpf::sys;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directory of the settings, relative to the root directory.
pub const DIRECTORY: &str = "sys/fs/bpf/extl";
/// File name of the pinned link in the directory of a setting.
const LINK: &str = "link";
const STATE: &str = "state";
/// Suffix of the name of a directory that is not complete yet.
const NEW: &str = "-new";
/// Magic number of a BPF file system.
const BPF: i64 = 0xcafe_4a11;

/// Programs to which a setting applies. The value is the name of the setting's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(String);

impl Scope {
    /// Selects all programs.
    pub fn system() -> Self {
        Self("system".into())
    }

    /// Selects the programs of a control group, which its inode number identifies.
    pub fn cgroup(directory: &Path) -> Result<Self> {
        let about = fs::metadata(directory)
            .with_context(|| format!("no control group {}", directory.display()))?;
        Ok(Self(format!("cgroup-{}", about.ino())))
    }

    /// Returns a description of the selected programs.
    pub fn words(&self) -> String {
        match self.0.strip_prefix("cgroup-") {
            Some(number) => format!("control group {number}"),
            None => "the system".into(),
        }
    }
}

/// An enabled setting.
#[derive(Debug)]
pub struct Pinned {
    /// Programs to which the setting applies.
    pub scope: Scope,
    directory: PathBuf,
}

impl Pinned {
    /// Returns the value of the setting's state array.
    pub fn state(&self) -> Result<Vec<u8>> {
        let path = self.directory.join(STATE);
        let array = sys::Array::at(&path);
        let array = array.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(array.read()?)
    }

    /// Disables the setting.
    pub fn remove(&self) -> Result<()> {
        remove(&self.directory)
    }
}

/// Returns all enabled settings, sorted by name.
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
            // An incomplete directory is removed together with the complete one.
            scope: Scope(name.strip_suffix(NEW).unwrap_or(&name).to_owned()),
            directory,
        });
    }
    all.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(all)
}

/// Removes a directory and its files, if they exist.
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

/// Returns the directory of all settings. Mounts the BPF file system if necessary.
pub fn directory(root: &Path) -> Result<PathBuf> {
    let directory = root.join(DIRECTORY);
    let mount = directory.parent().context("no parent")?;
    let kind = rustix::fs::statfs(mount).with_context(|| format!("no {}", mount.display()))?;
    if kind.f_type as i64 != BPF {
        // A BPF file system in a private mount namespace disappears with the last process of the
        // namespace. The setting would disappear, too.
        let namespace =
            |process: &str| fs::read_link(root.join("proc").join(process).join("ns/mnt"));
        ensure!(
            namespace("self").ok() == namespace("1").ok(),
            "no BPF file system at {}: mount one outside of this private mount namespace",
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
        "{} must be a directory that belongs to root and that only root may write to",
        directory.display()
    );
    Ok(directory)
}

fn make(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.with_context(|| format!("cannot create {}", directory.display()))
}

/// Pins a link and an array, and replaces the previous objects. After an error, the previous
/// objects remain.
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
        .with_context(|| format!("cannot create files in {}", new.display()));
    // For a short time, both the old and the new program are attached. This has no effect, because
    // the second program leaves a replaced protocol unchanged.
    let done = pinned.and_then(|()| {
        remove(&place)?;
        fs::rename(&new, &place).with_context(|| format!("cannot create {}", place.display()))
    });
    if done.is_err() {
        // The caller gets the error of the attempt, not that of the removal.
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
        // The file is not a BPF array.
        assert!(found[2].state().is_err());
        found.iter().for_each(|p| p.remove().unwrap());
        assert!(all(&top).unwrap().is_empty());
        // A repeated removal is not an error.
        found[2].remove().unwrap();
    }

    #[test]
    fn a_failure_leaves_nothing_half_done() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("extl");
        make(&top.join("system")).unwrap();
        let file = fs::File::open(dir.path()).unwrap();
        use std::os::fd::AsFd;
        // A directory is not a BPF object.
        let failed = replace(&top, &Scope::system(), file.as_fd(), file.as_fd());
        assert!(failed.is_err());
        assert_eq!(all(&top).unwrap().len(), 1);
        assert!(top.join("system").exists());
    }
}
