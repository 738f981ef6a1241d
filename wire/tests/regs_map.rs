// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Checks that `data/registers.map` equals the map that this test generates from the CSV file.
//! `BLESS=1 cargo test -p wire --test regs_map` writes the file again.

use std::collections::{BTreeMap, HashMap, HashSet};
use wire::ids::RegOffset;
use wire::regs::map::{Access, Field, Register, RegisterIndex, DESTRUCTIVE, PREFIX, TEXT};

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Kind {
    access: String,
    entries: u32,
    stride: u32,
    fields: Vec<(String, u8, u8)>,
}

/// Returns the registers of the CSV file in its order: name without prefix, offset, other columns.
fn csv() -> Vec<(String, u32, Kind)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/tourmalet-registers.csv");
    let mut out: Vec<(String, u32, Kind)> = Vec::new();
    for record in csv::Reader::from_path(path).unwrap().deserialize() {
        let r: HashMap<String, String> = record.unwrap();
        let name = r["name"].strip_prefix(PREFIX).unwrap();
        if out.last().is_none_or(|(last, _, _)| last != name) {
            let offset = u32::from_str_radix(r["offset_hex"].trim_start_matches("0x"), 16).unwrap();
            let kind = Kind {
                access: r["access"].clone(),
                entries: r["entries"].parse().unwrap(),
                stride: r["stride"].parse().unwrap(),
                fields: Vec::new(),
            };
            out.push((name.to_string(), offset, kind));
        }
        if !r["field"].is_empty() {
            let field = (
                r["field"].clone(),
                r["msb"].parse().unwrap(),
                r["lsb"].parse().unwrap(),
            );
            out.last_mut().unwrap().2.fields.push(field);
        }
    }
    out
}

/// Returns the name with its numbers replaced by `#`, and the numbers.
fn split(name: &str) -> (String, Vec<u32>) {
    let (mut pattern, mut numbers) = (String::new(), Vec::<u32>::new());
    let mut inside = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(d) if inside => *numbers.last_mut().unwrap() = numbers.last().unwrap() * 10 + d,
            Some(d) => {
                numbers.push(d);
                pattern.push('#');
            }
            None => pattern.push(c),
        }
        inside = c.is_ascii_digit();
    }
    (pattern, numbers)
}

fn line(name: &str, offset: u32, kind: &Kind, dims: &[(u32, u32, u32)]) -> String {
    let list = |items: Vec<String>, by: &str| match items.len() {
        0 => "-".to_string(),
        _ => items.join(by),
    };
    let dims = dims.iter().map(|(f, c, s)| format!("{f},{c},{s:x}"));
    let fields = kind.fields.iter().map(|(n, m, l)| format!("{n}:{m}:{l}"));
    format!(
        "{name} {offset:x} {} {} {:x} {} {}\n",
        kind.access,
        kind.entries,
        kind.stride,
        list(dims.collect(), ";"),
        list(fields.collect(), ",")
    )
}

/// Returns a set of similar registers as one line of the map. Returns `None` unless all
/// combinations of the indices occur and the offsets are linear in the indices.
fn as_one(pattern: &str, kind: &Kind, set: &[(Vec<u32>, u32)]) -> Option<(u32, String)> {
    let n = set[0].0.len();
    let at: HashMap<&[u32], u32> = set.iter().map(|(i, o)| (&i[..], *o)).collect();
    let first: Vec<u32> = (0..n)
        .map(|d| set.iter().map(|s| s.0[d]).min().unwrap())
        .collect();
    let base = *at.get(&first[..])?;
    let mut dims = Vec::new();
    for d in 0..n {
        let values: HashSet<u32> = set.iter().map(|s| s.0[d]).collect();
        let count = values.len() as u32;
        let mut second = first.clone();
        second[d] += 1;
        let stride = match count {
            1 => 0,
            _ => at.get(&second[..])?.checked_sub(base)?,
        };
        dims.push((first[d], count, stride));
    }
    let fill: u32 = dims.iter().map(|d| d.1).product();
    let linear = set.iter().all(|(i, o)| {
        let steps = i.iter().zip(&dims);
        *o == base + steps.map(|(i, d)| (i - d.0) * d.2).sum::<u32>()
    });
    if fill as usize != set.len() || !linear {
        return None;
    }
    // Numbers that are equal in all names become part of the name.
    let mut name = String::new();
    let mut left = Vec::new();
    let mut next = dims.iter();
    for c in pattern.chars() {
        match c {
            '#' => match next.next().unwrap() {
                (first, 1, _) => name += &first.to_string(),
                dim => {
                    name.push('#');
                    left.push(*dim);
                }
            },
            c => name.push(c),
        }
    }
    (left.len() <= 4).then(|| (base, line(&name, base, kind, &left)))
}

fn make() -> String {
    let mut sets = BTreeMap::<(String, Kind), Vec<(Vec<u32>, u32)>>::new();
    for (name, offset, kind) in csv() {
        let (pattern, numbers) = split(&name);
        sets.entry((pattern, kind))
            .or_default()
            .push((numbers, offset));
    }
    let mut lines = Vec::new();
    for ((pattern, kind), set) in sets {
        match as_one(&pattern, &kind, &set) {
            Some(one) => lines.push(one),
            None => lines.extend(set.iter().map(|(numbers, offset)| {
                let mut numbers = numbers.iter();
                let parts = pattern.split('#').map(str::to_string);
                let name = parts.reduce(|a, b| format!("{a}{}{b}", numbers.next().unwrap()));
                (*offset, line(&name.unwrap(), *offset, &kind, &[]))
            })),
        }
    }
    lines.sort();
    lines.into_iter().map(|l| l.1).collect()
}

#[test]
fn the_map_is_up_to_date() {
    let made = make();
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/registers.map");
        std::fs::write(path, &made).unwrap();
        return;
    }
    assert!(
        made == TEXT,
        "data/registers.map is not what the CSV file gives"
    );
}

#[test]
fn every_register_is_as_in_the_csv_file() {
    let mut rows: HashMap<String, (u32, Kind)> =
        csv().into_iter().map(|(n, o, k)| (n, (o, k))).collect();
    assert_eq!(rows.len(), 2525);
    for r in Register::all() {
        let name = r.to_string();
        let (offset, kind) = rows
            .remove(&name)
            .unwrap_or_else(|| panic!("{name} is not in the CSV"));
        assert_eq!(r.offset(0), RegOffset(offset), "{name}");
        assert_eq!(
            (r.entries(), r.stride()),
            (kind.entries, kind.stride),
            "{name}"
        );
        let access = match kind.access.as_str() {
            "rw" => Access::ReadWrite,
            "ro" => Access::ReadOnly,
            "wo" => Access::WriteOnly,
            _ => Access::Hardware,
        };
        assert_eq!(r.access(), access, "{name}");
        let fields: Vec<_> = r
            .fields()
            .map(|f| (f.name.to_string(), f.msb, f.lsb))
            .collect();
        assert_eq!(fields, kind.fields, "{name}");
        let index = RegisterIndex::from_number(r.index().get());
        assert!(index.get() < 1 << 28);
        let same = Register::at(index).unwrap();
        assert_eq!(same.to_string(), name);
        for entry in [0, kind.entries / 2, kind.entries - 1] {
            let offset = r.offset(entry);
            let (found, index) =
                Register::find(offset).unwrap_or_else(|| panic!("{name}[{entry}]"));
            // Some addresses have two names.
            let twin = found.to_string() != name;
            assert!(
                !twin || found.offset(index) == offset,
                "{name}[{entry}] is {found}[{index}]"
            );
            assert!(
                twin || index == entry,
                "{name}[{entry}] is found as [{index}]"
            );
        }
        assert_eq!(r.offset(kind.entries), RegOffset::INVALID);
    }
    assert!(rows.is_empty(), "not in the map: {:?}", rows.keys());
}

#[test]
fn lookup_of_what_is_not_there() {
    for offset in [4, 0x8004, 0x1F_FFF8, RegOffset::WINDOW - 8] {
        assert!(Register::find(RegOffset(offset)).is_none(), "{offset:#x}");
    }
    assert!(Register::find(RegOffset::INVALID).is_none());
}

#[test]
fn fields() {
    let f = |msb, lsb| Field { name: "", msb, lsb };
    assert_eq!(f(63, 0).mask(), u64::MAX);
    assert_eq!(f(7, 4).of(0x1234_5678), 7);
    assert_eq!(f(63, 63).mask(), 1 << 63);
    assert_eq!(f(32, 32).of(1 << 32), 1);
}

#[test]
fn sections_and_dumps() {
    let sections: Vec<&str> = Register::sections().collect();
    let set: HashSet<&str> = sections.iter().copied().collect();
    assert_eq!(set.len(), sections.len());
    assert_eq!(set, Register::all().map(|r| r.section()).collect());
    for s in [
        "info_rf",
        "pcie_rf",
        "snq_rf",
        "nw_xbar_rf",
        "nw_phy_rf",
        "rma_rf",
        "buffer_queue_rf",
    ] {
        assert!(sections.contains(&s), "{s}: {sections:?}");
    }
    assert!(sections.len() < 30, "{sections:?}");
    let all: Vec<Register> = Register::all().collect();
    for name in DESTRUCTIVE {
        let r = all.iter().find(|r| r.to_string() == name);
        let r = r.unwrap_or_else(|| panic!("no register {name}"));
        assert!(r.is_destructive() && !r.is_dumped(), "{name}");
    }
    assert_eq!(
        all.iter().filter(|r| r.is_destructive()).count(),
        DESTRUCTIVE.len()
    );
    assert!(all
        .iter()
        .all(|r| r.is_dumped() || r.is_destructive() || !r.access().reads()));
    // A dump contains nearly all registers.
    assert!(all.iter().filter(|r| r.is_dumped()).count() > 2400);
}
