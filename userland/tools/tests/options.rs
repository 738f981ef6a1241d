// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests that the manual pages and docs/userland.md contain only options that the programs have.
//! All options must be in `--help` and in the manual pages.

use clap::{Arg, Command, CommandFactory};
use extoll_tools::man::{self, programs as commands, tree};
use extoll_tools::perf;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the texts of the pages that extoll-man writes, by name and without formatting.
fn written() -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_extoll-man"))
        .arg(dir.path())
        .status();
    assert!(status.unwrap().success());
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut text = text.replace("\\-", "-");
        for mark in ["\\fB", "\\fI", "\\fR"] {
            text = text.replace(mark, " ");
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        (name.to_string(), text)
    };
    std::fs::read_dir(dir.path()).unwrap().map(read).collect()
}

fn names(arg: &Arg) -> Vec<String> {
    let short = arg.get_short().map(|c| format!("-{c}"));
    let long = arg.get_long().map(|l| format!("--{l}"));
    short.into_iter().chain(long).collect()
}

/// Returns the words of a text that have the form of options.
fn options(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '-'))
        .filter(|w| {
            let name = w.trim_start_matches('-');
            let dashes = w.len() - name.len();
            (dashes == 1 && name.len() == 1 || dashes == 2 && name.len() > 1)
                && (name.starts_with(char::is_alphabetic) || ["4", "6"].contains(&name))
        })
        .map(String::from)
        .collect()
}

#[test]
fn pages_and_help_have_the_same_options() {
    let pages = written();
    let mut seen = BTreeSet::new();
    for command in commands() {
        for command in tree(&command) {
            let name = command.get_bin_name().unwrap_or(command.get_name());
            // clap checks this only in debug builds.
            let arguments = command.get_arguments();
            let all: Vec<String> = arguments.flat_map(names).collect();
            let once: BTreeSet<&String> = all.iter().collect();
            assert_eq!(all.len(), once.len(), "{name}: twice in {all:?}");
            let file = format!("{}.8", man::name(command));
            let page = pages.get(&file);
            let page = page.unwrap_or_else(|| panic!("{name} has no page {file}"));
            seen.insert(file);
            let help = command.clone().render_long_help().to_string();
            let visible = command.get_arguments().filter(|a| !a.is_hide_set());
            for arg in visible {
                if arg.is_positional() {
                    for value in arg.get_value_names().unwrap_or_default() {
                        assert!(
                            page.contains(value.as_str()) && help.contains(value.as_str()),
                            "{name}: {value} is not explained"
                        );
                    }
                }
                for option in names(arg) {
                    for (text, what) in [(page, "manual page"), (&help, "--help")] {
                        assert!(
                            options(text).contains(&option),
                            "{name}: {option} is not in the {what}"
                        );
                    }
                }
                for value in arg.get_possible_values() {
                    if matches!(value.get_name(), "true" | "false") {
                        continue;
                    }
                    assert!(
                        page.contains(value.get_name()) && help.contains(value.get_name()),
                        "{name}: value {} is not explained",
                        value.get_name()
                    );
                }
            }
            let known: BTreeSet<String> = tree(command)
                .into_iter()
                .flat_map(Command::get_arguments)
                .flat_map(names)
                .collect();
            for option in options(&help) {
                assert!(
                    known.contains(&option),
                    "{name}: --help speaks of {option}, which it does not know"
                );
            }
        }
    }
    let all: BTreeSet<String> = pages.into_keys().collect();
    assert_eq!(all, seen, "pages of nothing");
}

#[test]
fn pages_name_only_pages_that_exist() {
    let pages = written();
    let mut named = 0;
    for (name, text) in &pages {
        for word in text.split(|c: char| c.is_whitespace() || c == ',' || c == '"') {
            let Some(page) = word.strip_suffix("(8)") else {
                continue;
            };
            let page = format!("{page}.8");
            assert!(pages.contains_key(&page), "{name} names {page}");
            named += 1;
        }
    }
    assert!(named >= 20, "only {named}");
    // The page of a subcommand must contain the options of the subcommand.
    for (page, words) in [
        (
            "extollctl-reg-read.8",
            &["--index", "--force", "--json", "--nic"][..],
        ),
        (
            "extollctl-reg-write.8",
            &["VALUE", "--index", "--node", "--device"],
        ),
        (
            "extoll-perf-run.8",
            &["--timeout", "--port", "HOST", "put-bw"],
        ),
    ] {
        for word in words {
            assert!(pages[page].contains(word), "{word} is not in {page}");
        }
    }
}

#[test]
fn the_documentation_uses_options_that_exist() {
    let text = include_str!("../../../docs/userland.md");
    let (mut lines, mut options_named, mut fenced) = (0, 0, false);
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let line = line.strip_prefix("$ ").unwrap_or(line);
        if !fenced || !line.starts_with("extoll") {
            continue;
        }
        let (run, comment) = line.split_once('#').unwrap_or((line, ""));
        let mut last = None;
        for part in run.split(';') {
            let part = part.split(['&', '>']).next().unwrap_or(part).trim();
            let words: Vec<&str> = part.split_whitespace().collect();
            let command = commands().into_iter().find(|c| c.get_name() == words[0]);
            let command = command.unwrap_or_else(|| panic!("no program {}", words[0]));
            if let Err(e) = command.clone().try_get_matches_from(&words) {
                panic!("'{part}': {e}");
            }
            lines += 1;
            last = Some((command, part.to_string()));
        }
        let Some((command, part)) = last else {
            continue;
        };
        let used = tree(&command)
            .into_iter()
            .filter(|c| part.split_whitespace().any(|w| w == c.get_name()))
            .last()
            .unwrap_or(&command);
        let known: BTreeSet<String> = used.get_arguments().flat_map(names).collect();
        for option in options(comment) {
            assert!(known.contains(&option), "'{part}' has no {option}");
            options_named += 1;
        }
    }
    assert!(lines >= 8, "only {lines} command lines found");
    assert!(options_named >= 7, "only {options_named} options found");
}

#[test]
fn the_documentation_has_all_tests() {
    let text = include_str!("../../../docs/userland.md");
    let command = perf::Args::command();
    let run = command.find_subcommand("run").unwrap();
    let test = run.get_arguments().find(|a| a.get_id() == "test").unwrap();
    for value in test.get_possible_values() {
        let name = format!("`{}`", value.get_name());
        assert!(
            text.lines()
                .any(|l| l.starts_with('|') && l.contains(&name)),
            "{name} is not in docs/userland.md"
        );
    }
    for sub in command.get_subcommands() {
        let line = format!("extoll-perf {}", sub.get_name());
        assert!(text.contains(&line), "'{line}' is not in docs/userland.md");
    }
}
