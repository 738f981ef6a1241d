//! The project's kernel modules, out of `modules.list`.

/// A line of `modules.list`, which explains the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Directory of the sources.
    pub dir: &'static str,
    /// Name of the crate.
    pub krate: &'static str,
    /// The module that it is part of.
    pub module: &'static str,
    /// Who loads the module, in the line of its own crate.
    pub load: &'static str,
}

/// All kernel crates, each after the ones it needs.
pub fn entries() -> impl DoubleEndedIterator<Item = Entry> {
    include_str!("../../../modules.list")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (dir, _root, krate) = (words.next()?, words.next()?, words.next()?);
            Some(Entry {
                dir,
                krate,
                module: words.next()?,
                load: words.next()?,
            })
        })
}

/// The modules that nodes load when they come up, in order.
pub fn at_boot() -> impl DoubleEndedIterator<Item = &'static str> {
    entries().filter(|e| e.load == "boot").map(|e| e.module)
}

/// The command that unloads what nodes loaded when they came up.
pub fn unload() -> String {
    at_boot()
        .rev()
        .fold("rmmod".to_owned(), |line, m| line + " " + m)
}

/// The command that loads it again; `options` gives some of the modules options.
pub fn load(options: &[(&str, &str)]) -> String {
    let one = |module: &str| {
        let words = options.iter().filter(|(m, _)| *m == module);
        words.fold(format!("modprobe {module}"), |line, (_, o)| line + " " + o)
    };
    at_boot().map(one).collect::<Vec<_>>().join(" && ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_unloaded_in_reverse() {
        let order: Vec<_> = at_boot().collect();
        assert_eq!(order[0], "extoll", "everything needs it");
        let unload = unload();
        let mut words: Vec<_> = unload.split(' ').skip(1).collect();
        words.reverse();
        assert_eq!(words, order);
        assert!(load(&[("extoll", "a=1 b=2")]).starts_with("modprobe extoll a=1 b=2 && modprobe "));
    }

    #[test]
    fn every_line_has_all_columns() {
        let lines = include_str!("../../../modules.list").lines();
        let table: Vec<_> = lines.filter(|l| !l.starts_with('#')).collect();
        assert_eq!(table.len(), entries().count());
        for line in table {
            assert_eq!(line.split_whitespace().count(), 7, "{line}");
        }
    }
}
