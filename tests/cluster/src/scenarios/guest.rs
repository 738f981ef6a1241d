//! The Python programs that run inside the nodes: `tests/cluster/guest`.

use crate::cluster::{Lab, PATIENCE};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Returns the directory of the programs.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Copies the programs to a node, unless it has them since its boot.
pub fn install(lab: &Lab, number: usize) -> Result<()> {
    if lab
        .sh_for(number, "[ -e /tmp/guest/uapi.py ]", PATIENCE)?
        .status
        != 0
    {
        let from = source();
        let from = from.to_str().context("path")?;
        lab.run("cp", &[from, &format!("node{number}:/tmp/")], PATIENCE)?;
        // Programs also run as other users.
        lab.ok(number, "chmod -R a+rX /tmp/guest")?;
    }
    Ok(())
}

/// Returns the command line of a program.
pub fn program(name: &str) -> String {
    format!("python3 /tmp/guest/{name}.py")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_in_order() -> Result<()> {
        let out = std::process::Command::new("python3")
            .arg("-B")
            .arg(source().join("lint.py"))
            .output()?;
        let said = String::from_utf8_lossy(&out.stdout);
        anyhow::ensure!(
            out.status.success() && said.contains(" programs"),
            "{said}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(())
    }
}
