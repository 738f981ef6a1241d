// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests that the manual pages of the libraries agree with their headers and refer only to existing
//! pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Headers whose functions must have manual pages.
const HEADERS: [&str; 3] = ["rma2", "velo", "smfu"];
/// Pages of the system to which the project's pages may refer.
const SYSTEM: [&str; 2] = ["poll(2)", "mlock(2)"];

fn userland(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns a header without comments.
fn header(name: &str) -> String {
    let text = std::fs::read_to_string(userland(&format!("include/{name}.h"))).unwrap();
    let mut out = String::new();
    let mut rest = &text[..];
    while let Some((code, comment)) = rest.split_once("/*") {
        out += code;
        rest = comment.split_once("*/").unwrap().1;
    }
    out + rest
}

/// Normalizes white space: one blank between words, and no blank after a star.
fn tidy(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("* ", "*")
}

/// Returns the functions of a header by name, with their prototypes `type name(parameters)`.
fn functions(name: &str) -> BTreeMap<String, String> {
    let text = header(name);
    let prefix = format!("{name}_");
    let mut all = BTreeMap::new();
    for piece in text.split([';', '{', '}']) {
        let piece = tidy(piece);
        let Some((head, parameters)) = piece.split_once('(') else {
            continue;
        };
        let at = head.rfind([' ', '*']).map_or(0, |i| i + 1);
        if head[at..].starts_with(&prefix) && parameters.ends_with(')') {
            all.insert(head[at..].to_string(), piece);
        }
    }
    all
}

/// Returns the names of the values of all enumerations in a header.
fn values(name: &str) -> BTreeSet<String> {
    let text = header(name);
    let mut all = BTreeSet::new();
    for body in text.split("enum {").skip(1) {
        let body = body.split_once('}').unwrap().0;
        all.extend(body.split(',').filter_map(|value| {
            let name = value.split('=').next()?.trim();
            (!name.is_empty()).then(|| name.to_string())
        }));
    }
    all
}

/// Returns the members of a structure in a header.
fn members(text: &str, name: &str) -> Vec<String> {
    let (_, body) = text.split_once(&format!("struct {name} {{")).unwrap();
    let body = body.split_once('}').unwrap().0;
    body.split(';')
        .map(tidy)
        .filter(|m| !m.is_empty())
        .collect()
}

/// Returns the texts of all library pages by name without the section.
fn pages() -> BTreeMap<String, String> {
    let dir = std::fs::read_dir(userland("man")).unwrap();
    dir.map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = name.strip_suffix(".3").unwrap().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    })
    .collect()
}

/// Returns the lines of a section of a page.
fn section<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let heading = format!(".Sh {name}");
    page.lines()
        .skip_while(move |l| *l != heading)
        .skip(1)
        .take_while(|l| !l.starts_with(".Sh "))
}

/// Returns the names in the NAME section of a page. They include the name of the page.
fn named(page: &str) -> Vec<&str> {
    section(page, "NAME")
        .filter_map(|l| l.strip_prefix(".Nm "))
        .map(|l| l.trim_end_matches(" ,"))
        .collect()
}

/// Returns the words of a macro line. A quoted text is one word.
fn words(line: &str) -> Vec<String> {
    line.split('"')
        .enumerate()
        .flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(String::from).collect(),
            _ => vec![part.to_string()],
        })
        .collect()
}

#[test]
fn every_function_is_named_by_one_page_which_explains_it() {
    let pages = pages();
    for header in HEADERS {
        let functions = functions(header);
        assert!(functions.len() >= 8, "{header}: {functions:?}");
        for (function, prototype) in &functions {
            let homes: Vec<&String> = pages
                .iter()
                .filter(|(_, text)| named(text).contains(&function.as_str()))
                .map(|(name, _)| name)
                .collect();
            let [home] = homes[..] else {
                panic!("{function} is in the NAME sections of {homes:?}");
            };
            let mut kind = String::new();
            let mut synopsis = BTreeSet::new();
            for line in section(&pages[home], "SYNOPSIS") {
                if let Some(text) = line.strip_prefix(".Ft ") {
                    kind = words(text).join(" ");
                } else if let Some(text) = line.strip_prefix(".Fn ") {
                    let words = words(text);
                    let (name, parameters) = words.split_first().unwrap();
                    synopsis.insert(tidy(&format!("{kind} {name}({})", parameters.join(", "))));
                }
            }
            assert!(
                synopsis.contains(prototype),
                "{home}: the synopsis has no {prototype}: {synopsis:#?}"
            );
            let mention = format!(".Fn {function}");
            let explained = section(&pages[home], "DESCRIPTION")
                .any(|l| l == mention || l.starts_with(&format!("{mention} ")));
            assert!(explained, "{home}: {function} is not explained");
        }
    }
}

#[test]
fn pages_name_nothing_else() {
    let functions: BTreeSet<String> = HEADERS
        .iter()
        .flat_map(|h| functions(h).into_keys())
        .collect();
    for (name, text) in pages() {
        let named = named(&text);
        assert_eq!(named.first(), Some(&name.as_str()), "{name}");
        for other in &named[1..] {
            assert!(functions.contains(*other), "{name} names {other}");
        }
        // Pages must not mention other functions.
        for line in text.lines().filter_map(|l| l.strip_prefix(".Fn ")) {
            let function = &words(line)[0];
            assert!(functions.contains(function), "{name}: {function}");
        }
    }
}

#[test]
fn pages_that_are_referred_to_exist() {
    let pages = pages();
    let tools = extoll_tools::man::pages().unwrap();
    let tools: BTreeSet<&str> = tools.iter().map(|(name, _)| name.as_str()).collect();
    let mut references = 0;
    for (name, text) in &pages {
        assert!(section(text, "SEE ALSO").count() > 0, "{name}: SEE ALSO");
        for line in text.lines() {
            let line = line.strip_prefix(".It Xr ").or(line.strip_prefix(".Xr "));
            let Some(line) = line else { continue };
            let words = words(line);
            let (page, number) = (&words[0], &words[1]);
            let exists = match number.as_str() {
                "3" => pages.contains_key(page),
                "8" => tools.contains(format!("{page}.8").as_str()),
                _ => SYSTEM.contains(&format!("{page}({number})").as_str()),
            };
            assert!(exists, "{name} refers to {page}({number})");
            references += 1;
        }
    }
    assert!(references >= 20);
}

#[test]
fn values_and_structures_are_shown() {
    let pages = pages();
    let has_word = |text: &str, word: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|w| w == word)
    };
    let values = values("rma2");
    assert!(values.len() > 60, "{values:?}");
    for value in values {
        let shown = pages
            .iter()
            .any(|(name, text)| name.starts_with("rma2_") && has_word(text, &value));
        assert!(shown, "{value} is in no page");
    }
    let code = header("velo");
    let mut page = String::new();
    let mut rest = &pages["velo"][..];
    while let Some((text, comment)) = rest.split_once("/*") {
        page += text;
        rest = comment.split_once("*/").unwrap().1;
    }
    page += rest;
    for name in ["velo_to", "velo_message"] {
        assert_eq!(members(&page, name), members(&code, name), "{name}");
    }
}

#[test]
fn examples_are_the_programs_of_the_sources() {
    let pages = pages();
    for (page, program) in [("velo", "hello_velo"), ("rma2", "hello_rma")] {
        let shown: Vec<&str> = section(&pages[page], "EXAMPLES")
            .skip_while(|l| !l.starts_with("#include"))
            .take_while(|l| *l != ".Ed")
            .collect();
        let shown = shown.join("\n").replace("\\e", "\\");
        let path = userland(&format!("examples/{program}.c"));
        let file = std::fs::read_to_string(path).unwrap();
        let code = &file[file.find("#include").unwrap()..];
        assert_eq!(shown, code.trim_end(), "{page}: {program}");
    }
}
