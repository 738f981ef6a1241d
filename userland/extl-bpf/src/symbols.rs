// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Addresses of kernel symbols (`/proc/kallsyms`).

/// Returns the address of a variable of the kernel itself, not of a module. Returns `None` if the
/// variable does not exist or several variables have the name. The result is also `None` if the
/// kernel hides addresses from this user, for whom they are 0.
pub fn variable(text: &str, name: &str) -> Option<u64> {
    let mut found = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (address, kind, symbol) = (words.next()?, words.next()?, words.next()?);
        let is_it =
            symbol == name && matches!(kind, "b" | "B" | "d" | "D") && words.next().is_none();
        is_it
            .then(|| u64::from_str_radix(address, 16).ok())
            .flatten()
    });
    match (found.next(), found.next()) {
        (Some(address), None) if address != 0 => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_is_found() {
        let text = "ffffffff81000000 T inetsw\n\
                    ffffffff82000040 b inetsw\n\
                    ffffffff82000080 b inetsw6\n\
                    ffffffffc0000080 b inetsw6\t[other]\n\
                    ffffffff82000090 d twice\n\
                    ffffffff820000a0 d twice\n\
                    0000000000000000 d hidden\n";
        assert_eq!(variable(text, "inetsw"), Some(0xffff_ffff_8200_0040));
        assert_eq!(variable(text, "inetsw6"), Some(0xffff_ffff_8200_0080));
        for name in ["twice", "hidden", "inet", "absent"] {
            assert_eq!(variable(text, name), None, "{name}");
        }
    }
}
