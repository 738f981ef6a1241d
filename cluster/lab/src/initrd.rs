//! The initramfs of a lab: the kernel's initramfs, followed by an archive with the agent and the
//! project's modules.

use crate::spec::BringUp;
use crate::state::Paths;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Number of archives that are kept in the cache; older ones are removed.
const KEEP: usize = 4;
const BRINGUP: &[u8] = include_bytes!("../../agent/bringup");
/// Programs and libraries of the project that nodes receive if they are built: name in the host's
/// program directory, path in the node.
const USERLAND: &[(&str, &str)] = &[
    ("extollctl", "usr/bin/extollctl"),
    ("extoll-ping", "usr/bin/extoll-ping"),
    ("extoll-perf", "usr/bin/extoll-perf"),
    ("extoll-trace", "usr/bin/extoll-trace"),
    ("extl-run", "usr/bin/extl-run"),
    ("extlctl", "usr/bin/extlctl"),
    ("extlss", "usr/bin/extlss"),
    ("librma.so", "usr/lib/x86_64-linux-gnu/librma.so.2"),
    ("libvelo.so", "usr/lib/x86_64-linux-gnu/libvelo.so.1"),
    ("libsmfu.so", "usr/lib/x86_64-linux-gnu/libsmfu.so.1"),
    ("libextl.so", "usr/lib/x86_64-linux-gnu/libextl.so.1"),
];

/// A kernel below the guest images.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Kernel image for QEMU's `-kernel`.
    pub image: PathBuf,
    /// Image with the stock modules.
    pub modules: PathBuf,
    /// Release name, as `uname -r` prints it.
    pub abi: String,
    dir: PathBuf,
}

impl Kernel {
    /// Finds the kernel with this name.
    ///
    /// # Errors
    /// When the guest images are missing.
    pub fn find(paths: &Paths, name: &str) -> Result<Self> {
        let dir = paths.guest.join(name);
        let abi = std::fs::read_to_string(dir.join("abi")).with_context(|| {
            format!(
                "no guest images for kernel '{name}' in {}; run 'make setup' (scripts/guest-image)",
                dir.display()
            )
        })?;
        Ok(Self {
            image: dir.join("kernel"),
            modules: dir.join("modules.img"),
            abi: abi.trim().into(),
            dir,
        })
    }
}

/// Returns the path of the root file system image.
pub fn rootfs(paths: &Paths) -> PathBuf {
    paths.guest.join("rootfs.img")
}

/// Adds all `.ko` files below a directory, by file name.
fn modules_below(dir: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            modules_below(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "ko") {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(other) = found.insert(name, path.clone()) {
                bail!(
                    "two modules have the same name: {} and {}",
                    other.display(),
                    path.display()
                );
            }
        }
    }
    Ok(())
}

fn hash_file(path: &Path, hasher: &mut DefaultHasher) -> Result<Vec<u8>> {
    let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    data.hash(hasher);
    Ok(data)
}

/// Returns the initramfs for a kernel with the current agent and modules. Builds it if one of these
/// has changed.
///
/// # Errors
/// When a file is missing or a tool fails.
pub fn make(paths: &Paths, kernel: &Kernel, bring_up: BringUp) -> Result<PathBuf> {
    // Only one thread may build at a time, because temporary files are named after the process.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    let base = hash_file(&kernel.dir.join("initrd.img"), &mut hasher)?;
    let agent = paths.bin.join("lab-agent");
    hash_file(&agent, &mut hasher)
        .context("the host programs are not built (scripts/host-build)")?;
    BRINGUP.hash(&mut hasher);
    boot_order().hash(&mut hasher);
    kernel.abi.hash(&mut hasher);
    std::fs::read(kernel.dir.join("modules/modules.dep"))
        .unwrap_or_default()
        .hash(&mut hasher);
    let mut modules = BTreeMap::new();
    modules_below(&paths.modules, &mut modules)?;
    if bring_up != BringUp::None {
        for name in crate::modules::at_boot().map(|m| format!("{m}.ko")) {
            ensure!(
                modules.contains_key(&name),
                "no {name} below {}; run 'make modules'",
                paths.modules.display()
            );
        }
    }
    for (name, path) in &modules {
        name.hash(&mut hasher);
        hash_file(path, &mut hasher)?;
    }
    let mut programs = vec![(agent, "usr/sbin/lab-agent")];
    for (name, target) in USERLAND {
        let path = paths.bin.join(name);
        if path.exists() {
            target.hash(&mut hasher);
            hash_file(&path, &mut hasher)?;
            programs.push((path, *target));
        }
    }
    let cache = paths.state.join(".initrd");
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("cannot create {}", cache.display()))?;
    let path = cache.join(format!("{:016x}.img", hasher.finish()));
    if path.exists() {
        // Marks the archive as recently used, so that `expire` keeps it.
        let _ = std::fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|f| f.set_modified(std::time::SystemTime::now()));
        return Ok(path);
    }
    let stage = cache.join(format!("stage-{}", std::process::id()));
    let result = build(&stage, kernel, &base, &modules, &programs);
    // Leftovers in the cache directory do no harm.
    let _ = std::fs::remove_dir_all(&stage);
    crate::state::store(&path, &result?)?;
    expire(&cache);
    Ok(path)
}

fn expire(cache: &Path) {
    let Ok(dir) = std::fs::read_dir(cache) else {
        return;
    };
    let mut files: Vec<_> = dir
        .flatten()
        .filter(|e| !is_abandoned(e))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .filter(|(_, p)| p.is_file())
        .collect();
    files.sort();
    let old = files.len().saturating_sub(KEEP);
    for (_, path) in &files[..old] {
        let _ = std::fs::remove_file(path);
    }
}

/// Removes a file that a killed process left half-made (`….new-PID`, `stage-PID`). Returns true for
/// any file with such a name.
fn is_abandoned(entry: &std::fs::DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    let maker = name
        .split_once(".new-")
        .map(|(_, pid)| pid)
        .or_else(|| name.strip_prefix("stage-"));
    let Some(maker) = maker else { return false };
    if !Path::new("/proc").join(maker).exists() {
        // If the removal fails, the next run tries again.
        let _ = std::fs::remove_file(entry.path());
        let _ = std::fs::remove_dir_all(entry.path());
    }
    true
}

fn run(command: &mut Command) -> Result<()> {
    let out = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        out.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(())
}

/// Returns the modules that the bring-up script loads, one per line.
fn boot_order() -> String {
    crate::modules::at_boot()
        .map(|m| m.to_owned() + "\n")
        .collect()
}

/// Copies a file without its debug information, which stays on the host.
fn strip(how: &str, from: &Path, to: &Path) -> Result<()> {
    run(Command::new("strip").arg(how).arg("-o").arg(to).arg(from))
}

/// Returns the kernel's initramfs followed by the archive with the project's files.
fn build(
    stage: &Path,
    kernel: &Kernel,
    base: &[u8],
    modules: &BTreeMap<String, PathBuf>,
    programs: &[(PathBuf, &str)],
) -> Result<Vec<u8>> {
    let mut archive = Cpio::new(base);
    archive.file("overlay/usr/lib/lab/bringup", 0o755, BRINGUP);
    archive.file(
        "overlay/usr/lib/lab/modules",
        0o644,
        boot_order().as_bytes(),
    );
    std::fs::create_dir_all(stage)?;
    for (path, target) in programs {
        let stripped = stage.join("program");
        strip("--strip-unneeded", path, &stripped)?;
        archive.file(
            &format!("overlay/{target}"),
            0o755,
            &std::fs::read(&stripped)?,
        );
    }
    if !modules.is_empty() {
        let tree = stage.join("lib/modules").join(&kernel.abi);
        let (extra, out) = (tree.join("extra"), stage.join("out"));
        std::fs::create_dir_all(&extra)?;
        std::fs::create_dir_all(&out)?;
        let stock = kernel.dir.join("modules");
        for name in [
            "kernel",
            "modules.order",
            "modules.builtin",
            "modules.builtin.modinfo",
        ] {
            if stock.join(name).exists() {
                std::os::unix::fs::symlink(stock.join(name), tree.join(name))?;
            }
        }
        for (name, path) in modules {
            strip("--strip-debug", path, &extra.join(name))?;
        }
        run(Command::new("depmod")
            .arg("-b")
            .arg(stage)
            .arg("-o")
            .arg(&out)
            .arg(&kernel.abi))?;
        let target = format!("overlay/usr/lib/modules/{}", kernel.abi);
        for name in modules.keys() {
            archive.file(
                &format!("{target}/extra/{name}"),
                0o644,
                &std::fs::read(extra.join(name))?,
            );
        }
        let listed = out.join("lib/modules").join(&kernel.abi);
        for entry in std::fs::read_dir(&listed)
            .with_context(|| format!("depmod wrote nothing to {}", listed.display()))?
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file()
                && !matches!(
                    name.as_str(),
                    "modules.order" | "modules.builtin" | "modules.builtin.modinfo"
                )
            {
                archive.file(
                    &format!("{target}/{name}"),
                    0o644,
                    &std::fs::read(entry.path())?,
                );
            }
        }
    }
    Ok(archive.finish())
}

/// Writer of the "newc" archive format that the kernel unpacks.
struct Cpio {
    out: Vec<u8>,
    inode: u32,
    dirs: HashSet<String>,
}

impl Cpio {
    /// Begins an archive behind the archives in `before`.
    fn new(before: &[u8]) -> Self {
        let mut out = before.to_vec();
        out.resize(out.len().next_multiple_of(512), 0);
        Self {
            out,
            inode: 1,
            dirs: HashSet::new(),
        }
    }

    fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        for (i, _) in path.match_indices('/') {
            if self.dirs.insert(path[..i].to_owned()) {
                self.entry(&path[..i], 0o040_755, &[]);
            }
        }
        self.entry(path, 0o100_000 | mode, data);
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.inode += 1;
        self.out.extend_from_slice(b"070701");
        for f in fields {
            self.out.extend_from_slice(format!("{f:08X}").as_bytes());
        }
        self.out.extend_from_slice(path.as_bytes());
        self.out.push(0);
        self.pad();
        self.out.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[]);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn cpio_reads_our_archive() {
        let mut a = Cpio::new(&[]);
        a.file("overlay/a/x", 0o644, b"hello");
        a.file("overlay/a/y", 0o755, b"");
        let mut child = Command::new("cpio")
            .args(["-itv", "--quiet"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&a.finish()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        let text = String::from_utf8(out.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with("overlay"));
        assert!(
            lines[2].starts_with("-rw-r--r--")
                && lines[2].contains(" 5 ")
                && lines[2].ends_with("overlay/a/x")
        );
        assert!(lines[3].starts_with("-rwxr-xr-x"));
    }
}
