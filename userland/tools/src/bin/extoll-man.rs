// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Writes the manual pages of the tools: `extoll-man DIRECTORY`.

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let dir = std::env::args()
        .nth(1)
        .context("usage: extoll-man DIRECTORY")?;
    std::fs::create_dir_all(&dir)?;
    for (name, text) in extoll_tools::man::pages()? {
        let path = format!("{dir}/{name}");
        std::fs::write(&path, text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}
