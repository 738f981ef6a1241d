//! The programs that work inside the nodes, in Python: `tests/cluster/guest`.

use crate::cluster::{Lab, PATIENCE};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Where they come from.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Puts them into a node, unless they are there since it booted.
pub fn install(lab: &Lab, number: usize) -> Result<()> {
    if lab
        .sh_for(number, "[ -e /tmp/guest/uapi.py ]", PATIENCE)?
        .status
        != 0
    {
        let from = source();
        let from = from.to_str().context("path")?;
        lab.run("cp", &[from, &format!("node{number}:/tmp/")], PATIENCE)?;
        // Programs run as other users, too.
        lab.ok(number, "chmod -R a+rX /tmp/guest")?;
    }
    Ok(())
}

/// The words that run one of them.
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
