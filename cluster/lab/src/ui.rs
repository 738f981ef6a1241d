//! Output for users, with colours and a progress line only on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Colours of an output stream, used only on a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    fn wanted(terminal: bool) -> Self {
        let set = |v: &str| std::env::var_os(v).is_some_and(|x| !x.is_empty());
        Self(terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb"))
    }

    /// Returns the colours for standard output.
    pub fn stdout() -> Self {
        Self::wanted(std::io::stdout().is_terminal())
    }

    /// Returns the colours for standard error.
    pub fn stderr() -> Self {
        Self::wanted(std::io::stderr().is_terminal())
    }

    /// Returns true if colours are used.
    pub fn on(self) -> bool {
        self.0
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Returns the text in bold, for emphasis.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// Returns the text dimmed, for less important words.
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// Returns the text in green, for a good state.
    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    /// Returns the text in red, for a bad state.
    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    /// Returns the text in yellow, for a state that needs attention.
    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// Returns the text in cyan, for a name.
    pub fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}

/// Receiver of the progress of a long operation.
pub trait Progress: Send {
    /// Begins a phase; `usual` is its typical duration.
    fn phase(&mut self, text: &str, usual: Duration);
    /// Reports an event within the phase.
    fn news(&mut self, text: &str);
    /// Ends the phase.
    fn done(&mut self, text: &str);
}

/// Discards all progress.
pub struct Silent;

impl Progress for Silent {
    fn phase(&mut self, _text: &str, _usual: Duration) {}
    fn news(&mut self, _text: &str) {}
    fn done(&mut self, _text: &str) {}
}

/// Shows progress on standard error: one line with a clock on a terminal, otherwise plain lines.
pub struct Shown {
    paint: Paint,
    bar: Option<ProgressBar>,
    live: bool,
    since: Instant,
}

impl Default for Shown {
    fn default() -> Self {
        let live =
            std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Self {
            paint: Paint::stderr(),
            bar: None,
            live,
            since: Instant::now(),
        }
    }
}

impl Progress for Shown {
    fn phase(&mut self, text: &str, usual: Duration) {
        self.since = Instant::now();
        if !self.live {
            return;
        }
        let template = if self.paint.on() {
            "  {spinner:.cyan} {prefix} {wide_msg:.dim}"
        } else {
            "  {spinner} {prefix} {wide_msg}"
        };
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
        bar.set_prefix(format!("{text} (usually {} s)", usual.as_secs().max(1)));
        bar.enable_steady_tick(Duration::from_millis(100));
        self.bar = Some(bar);
    }

    fn news(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => eprintln!("  {text}"),
        }
    }

    fn done(&mut self, text: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let seconds = format!("({:.1} s)", self.since.elapsed().as_secs_f64());
        eprintln!(
            "  {} {text} {}",
            self.paint.green("ok"),
            self.paint.dim(&seconds)
        );
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Formats a table with columns as wide as their widest cell, without counting colour codes.
pub fn table(rows: &[Vec<String>]) -> String {
    let width = |s: &str| {
        let mut visible = 0;
        let mut escape = false;
        for c in s.chars() {
            match c {
                '\x1b' => escape = true,
                'm' if escape => escape = false,
                _ if !escape => visible += 1,
                _ => {}
            }
        }
        visible
    };
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            rows.iter()
                .filter_map(|r| r.get(c))
                .map(|s| width(s))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, w) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(w - width(cell) + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_coloured_cells() {
        let rows = vec![
            vec!["a".into(), "b".into()],
            vec![Paint(true).green("long"), "c".into()],
        ];
        assert_eq!(table(&rows), "a     b\n\x1b[32mlong\x1b[0m  c\n");
    }

    #[test]
    fn without_a_terminal_there_are_no_escapes() {
        assert_eq!(Paint(false).red("x"), "x");
    }
}
