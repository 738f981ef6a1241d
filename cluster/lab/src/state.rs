//! Files of labs on disk.

use crate::proc;
use crate::spec::{check_name, Spec};
use anyhow::{bail, Context, Result};
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum time that a command waits for another command on the same lab.
const LOCK_PATIENCE: Duration = Duration::from_secs(600);

/// Directories that `lab` uses. The defaults are those of the build root; environment variables
/// override them.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Parent of the labs' directories (`LAB_STATE`, default `/out/lab`). The path must be short,
    /// because paths of sockets begin with it.
    pub state: PathBuf,
    /// Guest images (`LAB_GUEST`, default `/guest`).
    pub guest: PathBuf,
    /// The project's kernel modules (`LAB_MODULES`, default `/out/modules`).
    pub modules: PathBuf,
    /// Host programs, `lab-agent` and `extoll-emu` (`LAB_BIN`, default `/out/target/release`).
    pub bin: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        let dir = |var: &str, default: &str| {
            std::env::var_os(var).map_or_else(|| default.into(), PathBuf::from)
        };
        Self {
            state: dir("LAB_STATE", "/out/lab"),
            guest: dir("LAB_GUEST", "/guest"),
            modules: dir("LAB_MODULES", "/out/modules"),
            bin: dir("LAB_BIN", "/out/target/release"),
        }
    }
}

/// Content of the file that describes a lab on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Description of the lab.
    pub spec: Spec,
    /// Token in the environment of the lab's processes.
    pub token: String,
    /// Start time in seconds since 1970.
    pub started: u64,
    /// True if `up` has succeeded.
    pub ready: bool,
}

/// The directory of one lab.
#[derive(Clone, Debug)]
pub struct LabDir {
    /// Path of the directory.
    pub path: PathBuf,
    /// Name of the lab.
    pub name: String,
}

impl LabDir {
    /// Returns the directory of the lab with this name, which need not exist.
    ///
    /// # Errors
    /// When the name is malformed or the path is too long for sockets.
    pub fn new(paths: &Paths, name: &str) -> Result<Self> {
        check_name(name)?;
        let path = paths.state.join(name);
        if path.as_os_str().len() > 80 {
            bail!(
                "the path {} is too long for sockets; set LAB_STATE to a shorter one",
                path.display()
            );
        }
        Ok(Self {
            path,
            name: name.into(),
        })
    }

    /// Returns all labs that have a record on disk.
    pub fn all(paths: &Paths) -> Vec<Self> {
        let Ok(dir) = std::fs::read_dir(&paths.state) else {
            return Vec::new();
        };
        let mut names: Vec<_> = dir
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|n| check_name(n).is_ok())
            .collect();
        names.sort();
        names
            .into_iter()
            .filter_map(|n| Self::new(paths, &n).ok())
            .filter(|d| d.path.join("lab.json").exists())
            .collect()
    }

    /// Returns the directory of a node.
    pub fn node(&self, index: usize) -> PathBuf {
        self.path.join(format!("node{index}"))
    }

    /// Reads the record; `None` if no lab has this name.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn record(&self) -> Result<Option<Record>> {
        let path = self.path.join("lab.json");
        match std::fs::read(&path) {
            Ok(text) => {
                Ok(Some(serde_json::from_slice(&text).with_context(|| {
                    format!("{} is damaged", path.display())
                })?))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// When the directory can't be written.
    pub fn save(&self, record: &Record) -> Result<()> {
        store(
            &self.path.join("lab.json"),
            &serde_json::to_vec_pretty(record)?,
        )
    }

    /// Locks the lab. Other commands can't start or stop processes of the lab until the returned
    /// file is closed. Waits for a command that holds the lock.
    ///
    /// # Errors
    /// When another command holds the lock for longer than ten minutes.
    pub fn lock(&self) -> Result<File> {
        let path = self.path.with_extension("lock");
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))
            .with_context(|| format!("cannot create the directory of {}", path.display()))?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let start = Instant::now();
        let mut told = false;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if !told {
                told = true;
                eprintln!(
                    "lab: waiting for another command that works on lab '{}'",
                    self.name
                );
            }
            if start.elapsed() > LOCK_PATIENCE {
                bail!(
                    "another command has worked on lab '{}' for {} s (lock {})",
                    self.name,
                    LOCK_PATIENCE.as_secs(),
                    path.display()
                );
            }
            proc::interrupted()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(file)
    }

    /// Ends all processes of the lab and removes its directory. Returns the number of processes
    /// ended. The caller holds the lock.
    ///
    /// # Errors
    /// When a process does not end or the directory can't be removed.
    pub fn wipe(&self) -> Result<usize> {
        let mut ended = 0;
        // Without the token of a damaged record processes cannot be found, but the directory can be
        // removed.
        match self.record() {
            Ok(Some(record)) => {
                // Nodes end first, because QEMU aborts when its NIC disappears.
                ended += proc::end(&record.token, true, |p| p.role != "emu")?;
                ended += proc::end(&record.token, false, |_| true)?;
            }
            Ok(None) => {}
            Err(e) => eprintln!("lab: {e:#}; processes of this lab, if any, cannot be found"),
        }
        match std::fs::remove_dir_all(&self.path) {
            Ok(()) => Ok(ended),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(ended),
            Err(e) => Err(e).with_context(|| format!("cannot remove {}", self.path.display())),
        }
    }
}

/// Writes a file atomically. Leaves no file behind on failure.
///
/// # Errors
/// When the directory can't be written, or the disk is full.
pub fn store(path: &Path, data: &[u8]) -> Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = std::fs::write(&new, data)
        .with_context(|| format!("cannot write {}", new.display()))
        .and_then(|()| {
            std::fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
        });
    if written.is_err() {
        // Removes a partly written file, which would otherwise stay. The first error is returned.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Returns a random token.
pub fn token() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// Returns a random number.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // This branch is never used on Linux. The fallback only needs to be unique.
        _ => {
            let t = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            t.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32)
        }
    }
}

/// Returns the number of seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Returns the last `lines` lines of a file without control characters; empty if the file cannot be
/// read.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let clean = |l: &&str| {
        l.chars()
            .filter(|c| !c.is_control() || *c == '\t')
            .collect::<String>()
    };
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(clean)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_takes_the_last_lines() {
        let path = std::env::temp_dir().join(format!("lab-tail-{}", std::process::id()));
        std::fs::write(&path, "a\nb\x1b[0m\r\nc\n").unwrap();
        assert_eq!(tail(&path, 2), "b[0m\nc");
        assert_eq!(tail(&path, 20), "a\nb[0m\nc");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tail(&path, 2), "");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let dir = std::env::temp_dir().join(format!("lab-store-{}", std::process::id()));
        // Renaming to a non-empty directory fails after the temporary file was written, like a
        // rename on a disk that has just become full.
        std::fs::create_dir_all(dir.join("a.img/x")).unwrap();
        assert!(store(&dir.join("a.img"), b"data").is_err());
        let names: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a.img"]);
        store(&dir.join("b.img"), b"data").unwrap();
        assert_eq!(std::fs::read(dir.join("b.img")).unwrap(), b"data");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn records_survive_and_wiping_is_repeatable() {
        let paths = Paths {
            state: std::env::temp_dir().join(format!("lab-state-{}", std::process::id())),
            ..Paths::default()
        };
        let dir = LabDir::new(&paths, "x").unwrap();
        let _lock = dir.lock().unwrap();
        assert!(dir.record().unwrap().is_none());
        std::fs::create_dir_all(&dir.path).unwrap();
        let record = Record {
            spec: Spec::default(),
            token: token(),
            started: now(),
            ready: false,
        };
        dir.save(&record).unwrap();
        assert_eq!(dir.record().unwrap().unwrap().token, record.token);
        assert_eq!(LabDir::all(&paths).len(), 1);
        assert_eq!(dir.wipe().unwrap(), 0);
        assert_eq!(dir.wipe().unwrap(), 0);
        assert!(!dir.path.exists());
        std::fs::remove_dir_all(&paths.state).unwrap();
    }
}
