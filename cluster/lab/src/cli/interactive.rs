//! Commands on a terminal: `sh` and `exec -t`.

use super::nodes::{exit_code, explain, running};
use anyhow::{Context, Result};
use lab::exec::{Control, Remote};
use lab::{Cluster, Command, Input, Node, Paths, WinSize};
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGTERM, SIGWINCH};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

/// Size of the terminal if it cannot be determined.
const DEFAULT_SIZE: WinSize = WinSize { rows: 24, cols: 80 };

/// Runs `lab sh`.
pub fn shell(paths: &Paths, name: &str, node: &str) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let node = running(&cluster, node)?;
    run(&node, Command::new(["/bin/bash", "-l"])).map_err(|e| explain(&cluster, &node, e))
}

fn size() -> WinSize {
    match tcgetwinsize(std::io::stdout()) {
        Ok(s) if s.ws_row > 0 && s.ws_col > 0 => WinSize {
            rows: s.ws_row,
            cols: s.ws_col,
        },
        _ => DEFAULT_SIZE,
    }
}

/// Raw mode of the terminal on standard input; the previous settings are restored on drop.
struct Raw(Option<Termios>);

impl Raw {
    fn new() -> Result<Self> {
        let input = std::io::stdin();
        if !input.is_terminal() {
            return Ok(Self(None));
        }
        let before = tcgetattr(&input).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&input, OptionalActions::Now, &raw).context("cannot set the terminal")?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The call fails if the terminal was closed. This does no harm.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, before);
        }
    }
}

/// Runs a command on a terminal in the node, connected to the user's terminal.
pub fn run(node: &Node, command: Command) -> Result<u8> {
    let term = std::env::var_os("TERM")
        .filter(|t| t != "dumb")
        .unwrap_or_else(|| "xterm".into());
    let command = command
        .terminal(size())
        .env("TERM", term)
        .input(Input::Fd(std::io::stdin().as_fd().try_clone_to_owned()?));
    let (remote, end) = Remote::new()?;
    let mut signals = signal_hook::iterator::Signals::new([SIGWINCH, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let watcher = std::thread::spawn(move || {
        for signal in &mut signals {
            remote.send(match signal {
                SIGWINCH => Control::Resize(size()),
                // `Raw` restores the terminal when the command has ended.
                _ => Control::Abandon,
            });
        }
    });
    let result = {
        let _raw = Raw::new()?;
        command.run_with(node, Some(&end), &mut |_, data| {
            let mut out = std::io::stdout().lock();
            out.write_all(data)?;
            Ok(out.flush()?)
        })
    };
    handle.close();
    // The thread ends because the handle is closed. A panic in it has already been printed.
    let _ = watcher.join();
    Ok(exit_code(result?))
}
