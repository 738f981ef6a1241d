//! Copies files and directories between the host and nodes, as `cp -r` would.

use crate::cluster::{Cluster, Node};
use crate::exec::{Command, Input};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Maximum time for a query about a path in a node.
const ASK: Duration = Duration::from_secs(30);

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path on the host.
    Host(PathBuf),
    /// A path in a node; a relative path begins at `/root`.
    Node(usize, String),
}

impl Place {
    /// Parses `node0:/path`, `0:/path` or a host path. A host file with a colon in its name needs a
    /// slash before the colon, for example `./0:x`.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((node, path)) if !node.contains('/') => match crate::spec::parse_node(node) {
                Ok(index) => Place::Node(
                    index,
                    if path.is_empty() {
                        ".".into()
                    } else {
                        path.into()
                    },
                ),
                Err(_) => Place::Host(text.into()),
            },
            _ => Place::Host(text.into()),
        }
    }
}

/// Type of the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    /// A file with these permission bits.
    File(u32),
    Nothing,
}

#[derive(Clone)]
enum Side {
    Host(PathBuf),
    Node(Node, String),
}

impl Side {
    fn new(cluster: &Cluster, place: &Place, host: &dyn Fn(&Path) -> PathBuf) -> Result<Self> {
        Ok(match place {
            Place::Host(p) => Side::Host(host(p)),
            Place::Node(i, p) => Side::Node(cluster.running_node(*i)?, p.clone()),
        })
    }

    fn kind(&self) -> Result<Kind> {
        match self {
            Side::Host(path) => Ok(match std::fs::metadata(path) {
                Ok(m) if m.is_dir() => Kind::Directory,
                Ok(m) => Kind::File(m.permissions().mode() & 0o7777),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Kind::Nothing,
                Err(e) => {
                    return Err(e).with_context(|| format!("cannot access {}", path.display()))
                }
            }),
            Side::Node(node, path) => {
                let script = "if [ -d \"$1\" ]; then echo d; elif [ -e \"$1\" ]; then stat -L -c %a -- \"$1\"; else echo n; fi";
                let text = Command::new(["/bin/sh", "-c", script, "sh", path])
                    .timeout(ASK)
                    .run(node)?
                    .ok()?
                    .text();
                Ok(match text.trim() {
                    "d" => Kind::Directory,
                    "n" => Kind::Nothing,
                    mode => Kind::File(u32::from_str_radix(mode, 8).with_context(|| {
                        format!("{}: {path}: unexpected mode {mode}", node.name())
                    })?),
                })
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Side::Host(p) => p.display().to_string(),
            Side::Node(n, p) => format!("{}:{p}", n.name()),
        }
    }

    fn base_name(&self) -> Result<String> {
        let path = match self {
            Side::Host(p) => p.clone(),
            Side::Node(_, p) => PathBuf::from(p),
        };
        // `.` and `..` have no file name.
        path.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .with_context(|| format!("{} has no file name; give the target one", self.describe()))
    }

    fn child(&self, name: &str) -> Self {
        match self {
            Side::Host(p) => Side::Host(p.join(name)),
            Side::Node(n, p) => {
                Side::Node(n.clone(), format!("{}/{name}", p.trim_end_matches('/')))
            }
        }
    }

    /// Writes the content of this file, or a tar archive of this directory, into `to`.
    fn read_into(&self, kind: Kind, to: OwnedFd) -> Result<()> {
        let mut to = File::from(to);
        match self {
            Side::Host(path) if kind == Kind::Directory => {
                let status = std::process::Command::new("tar")
                    .arg("-C")
                    .arg(path)
                    .args(["-cf", "-", "."])
                    .stdin(Stdio::null())
                    .stdout(to)
                    .status()?;
                ensure!(
                    status.success(),
                    "tar could not read all of {}: {status}",
                    path.display()
                );
            }
            Side::Host(path) => {
                let mut from =
                    File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                std::io::copy(&mut from, &mut to)?;
            }
            Side::Node(node, path) => {
                let command = if kind == Kind::Directory {
                    Command::new(["tar", "-C", path, "-cf", "-", "."])
                } else {
                    Command::new(["cat", "--", path])
                };
                let mut error = Vec::new();
                let status = command.run_with(node, None, &mut |is_error, data| {
                    if is_error {
                        error.extend_from_slice(data);
                        return Ok(());
                    }
                    to.write_all(data)
                        .context("the writing side has closed the pipe")
                })?;
                ensure!(
                    status.success(),
                    "{}: {}",
                    self.describe(),
                    String::from_utf8_lossy(&error).trim()
                );
            }
        }
        Ok(())
    }

    /// Reads data from `from` and creates a file or directory from them.
    fn write_from(&self, kind: Kind, from: OwnedFd) -> Result<()> {
        match (self, kind) {
            (_, Kind::Nothing) => bail!("the source does not exist"),
            (Side::Host(path), Kind::Directory) => {
                std::fs::create_dir_all(path)
                    .with_context(|| format!("cannot create {}", path.display()))?;
                let status = std::process::Command::new("tar")
                    .arg("-C")
                    .arg(path)
                    .args(["-xf", "-", "--no-same-owner"])
                    .stdin(from)
                    .status()?;
                ensure!(
                    status.success(),
                    "tar could not write all of {}: {status}",
                    path.display()
                );
            }
            (Side::Host(path), Kind::File(mode)) => {
                let mut to = File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                std::io::copy(&mut File::from(from), &mut to)?;
                to.set_permissions(Permissions::from_mode(mode))?;
            }
            (Side::Node(node, path), kind) => {
                let command = match kind {
                    Kind::File(mode) => Command::new([
                        "/bin/sh",
                        "-c",
                        "cat >\"$1\" && chmod \"$2\" -- \"$1\"",
                        "sh",
                        path,
                        &format!("{mode:o}"),
                    ]),
                    _ => Command::new([
                        "/bin/sh",
                        "-c",
                        "mkdir -p -- \"$1\" && exec tar -C \"$1\" -xf - --no-same-owner",
                        "sh",
                        path,
                    ]),
                };
                command
                    .input(Input::Fd(from))
                    .run(node)?
                    .ok()
                    .with_context(|| self.describe())?;
            }
        }
        Ok(())
    }
}

/// Copies sources to a target. Directories are copied with their content. An existing directory as
/// target receives each source under its own name. `host` maps host paths of the user to paths of
/// this process.
///
/// # Errors
/// When a source does not exist, does not fit the target, or data cannot be read or written.
pub fn copy(
    cluster: &Cluster,
    sources: &[Place],
    target: &Place,
    host: &dyn Fn(&Path) -> PathBuf,
) -> Result<()> {
    let target = Side::new(cluster, target, host)?;
    let target_kind = target.kind()?;
    ensure!(
        sources.len() == 1 || target_kind == Kind::Directory,
        "{} is not a directory, but there are several sources",
        target.describe()
    );
    for source in sources {
        let source = Side::new(cluster, source, host)?;
        let kind = source.kind()?;
        ensure!(
            kind != Kind::Nothing,
            "{} does not exist",
            source.describe()
        );
        let to = if target_kind == Kind::Directory {
            target.child(&source.base_name()?)
        } else {
            target.clone()
        };
        ensure!(
            !(kind == Kind::Directory && matches!(to.kind()?, Kind::File(_))),
            "{} is a file, but {} is a directory",
            to.describe(),
            source.describe()
        );
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| source.read_into(kind, write));
            let written = to.write_from(kind, read);
            let read = reader
                .join()
                .unwrap_or_else(|_| bail!("the reading side panicked"));
            // If the writing side fails, the reading side fails with a broken pipe. The writer's
            // error is the cause, so it is reported first.
            written.and(read)
        })
        .with_context(|| format!("cannot copy {} to {}", source.describe(), to.describe()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!(
            Place::parse("node0:/etc/hosts"),
            Place::Node(0, "/etc/hosts".into())
        );
        assert_eq!(Place::parse("3:x"), Place::Node(3, "x".into()));
        assert_eq!(Place::parse("node1:"), Place::Node(1, ".".into()));
        assert_eq!(Place::parse("a/b"), Place::Host("a/b".into()));
        assert_eq!(Place::parse("./0:x"), Place::Host("./0:x".into()));
        assert_eq!(
            Place::parse("file:with:colons"),
            Place::Host("file:with:colons".into())
        );
    }
}
