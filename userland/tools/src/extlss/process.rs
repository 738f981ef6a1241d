// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Search for the processes that use a socket.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Processes by the inode numbers of their sockets.
#[derive(Default, Debug)]
pub struct Owners(BTreeMap<u64, Vec<String>>);

impl Owners {
    /// Finds the sockets of all processes that this user may inspect. Ignores processes that end
    /// during the search.
    pub fn find(root: &Path) -> Self {
        let mut all = Self::default();
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let mut processes: Vec<(u32, _)> = entries(&root.join("proc"))
            .filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path())))
            .collect();
        processes.sort();
        for (pid, path) in processes {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            for file in entries(&path.join("fd")) {
                let Ok(target) = fs::read_link(file.path()) else {
                    continue;
                };
                let inode = target
                    .to_str()
                    .and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
                if let Some(inode) = inode {
                    let fd = file.file_name();
                    let words = format!(
                        "(\"{}\",pid={pid},fd={})",
                        name.trim_end(),
                        fd.to_string_lossy()
                    );
                    all.0.entry(inode).or_default().push(words);
                }
            }
        }
        all
    }

    /// Returns the processes that use a socket.
    pub fn of(&self, inode: u64) -> Vec<String> {
        self.0.get(&inode).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
impl<const N: usize> From<[(u64, &str); N]> for Owners {
    fn from(all: [(u64, &str); N]) -> Self {
        Self(
            all.map(|(inode, words)| (inode, vec![words.to_owned()]))
                .into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn descriptors_lead_to_processes() {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, fd, target) in [
            ("12", "b", "4", "socket:[77]"),
            ("5", "a", "3", "socket:[77]"),
            ("5", "a", "0", "/dev/null"),
            ("5", "a", "1", "socket:[8]"),
            ("self", "x", "1", "socket:[77]"),
        ] {
            let dir = root.path().join("proc").join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
            symlink(target, dir.join("fd").join(fd)).unwrap();
        }
        let owners = Owners::find(root.path());
        assert_eq!(owners.of(77), ["(\"a\",pid=5,fd=3)", "(\"b\",pid=12,fd=4)"]);
        assert!(owners.of(9).is_empty());
    }
}
