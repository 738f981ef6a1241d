//! The project's kernel modules, from `modules.list`.

/// A line of `modules.list`, which explains the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Directory of the sources.
    pub dir: &'static str,
    /// Name of the crate.
    pub krate: &'static str,
    /// Module that the crate is part of.
    pub module: &'static str,
    /// In the line of the module's own crate, the occasion on which the module is loaded (`boot` or
    /// `hand`); else `-`.
    pub load: &'static str,
}

/// Returns all kernel crates, each behind the crates that it needs.
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

/// Returns the modules that nodes load during boot, in order.
pub fn at_boot() -> impl DoubleEndedIterator<Item = &'static str> {
    entries().filter(|e| e.load == "boot").map(|e| e.module)
}

/// Returns the command that unloads the modules of [`at_boot`].
pub fn unload() -> String {
    at_boot()
        .rev()
        .fold("rmmod".to_owned(), |line, m| line + " " + m)
}

/// Debugfs file of `extoll.ko` with the tunables in force. Modules read them when they are loaded.
const TUNABLES: &str = "/sys/kernel/debug/extoll/tunables";

/// Splits options into module parameters (`slow=10`) and tunables (`extoll.atu_gats=1`).
fn split(options: &str) -> (String, String) {
    let is_tunable = |word: &&str| {
        word.split('=')
            .next()
            .is_some_and(|name| name.contains('.'))
    };
    let (tunables, parameters): (Vec<_>, Vec<_>) = options.split_whitespace().partition(is_tunable);
    (parameters.join(" "), tunables.join(" "))
}

/// Returns the command that loads all boot modules. `options` has the options of some of them:
/// parameters and tunables.
pub fn load(options: &[(&str, &str)]) -> String {
    let of = |module: &str| -> Vec<&str> {
        let words = options.iter().filter(|(m, _)| *m == module);
        words.map(|(_, o)| *o).collect()
    };
    let all: Vec<&str> = options.iter().map(|(_, words)| *words).collect();
    let (_, tunables) = split(&all.join(" "));
    let one = |module: &str| {
        let (parameters, _) = split(&of(module).join(" "));
        match module {
            "extoll" => base(&parameters, &tunables),
            _ => format!("modprobe {module} {parameters}"),
        }
    };
    at_boot().map(one).collect::<Vec<_>>().join(" && ")
}

/// Returns the command that loads `extoll`. If there are tunables, they are set before its NICs are
/// bound.
fn base(parameters: &str, tunables: &str) -> String {
    let modprobe = format!("modprobe extoll {parameters}");
    if tunables.is_empty() {
        return modprobe;
    }
    let autoprobe = "/sys/bus/pci/drivers_autoprobe";
    format!(
        "echo 0 >{autoprobe}; {modprobe}; rc=$?; echo 1 >{autoprobe}; [ $rc = 0 ] && echo '{tunables}' >{TUNABLES} && \
         for nic in $(lspci -Dn -d 1cad: | cut -d ' ' -f 1); do echo $nic >/sys/bus/pci/drivers_probe; done"
    )
}

/// Returns the command that loads `module`, which needs `extoll`, with parameters and tunables. Its
/// tunables replace all tunables that were set before.
pub fn modprobe(module: &str, options: &str) -> String {
    let (parameters, tunables) = split(options);
    format!("modprobe extoll && echo '{tunables}' >{TUNABLES} && modprobe {module} {parameters}")
}

/// Returns lines for a file in `/etc/modprobe.d` that give `module` these parameters and tunables
/// whenever it is loaded.
pub fn configuration(module: &str, options: &str) -> String {
    let (parameters, tunables) = split(options);
    format!(
        "options {module} {parameters}\n\
         install {module} modprobe extoll && echo {tunables} >{TUNABLES} && modprobe --ignore-install {module} $CMDLINE_OPTS\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_unloaded_in_reverse() {
        let order: Vec<_> = at_boot().collect();
        assert_eq!(order[0], "extoll", "all other modules need it");
        let unload = unload();
        let mut words: Vec<_> = unload.split(' ').skip(1).collect();
        words.reverse();
        assert_eq!(words, order);
        assert!(load(&[("extoll", "a=1 b=2")]).starts_with("modprobe extoll a=1 b=2 && modprobe "));
    }

    #[test]
    fn tunables_are_set_before_the_modules_that_read_them() {
        let line = load(&[
            ("extoll", "slow=3 extoll.atu_gats=1"),
            ("exn", "exn.rdv_timeout_ms=9"),
        ]);
        let set = line.find("echo 'extoll.atu_gats=1 exn.rdv_timeout_ms=9' >");
        assert!(line.contains("modprobe extoll slow=3;"), "{line}");
        assert!(set < line.find("drivers_probe") && set.is_some(), "{line}");
        assert!(set < line.find("modprobe exn"), "{line}");
        let line = modprobe("vpci", "leases=2 vpci.timeout_ms=9");
        assert!(line.contains("echo 'vpci.timeout_ms=9' >"), "{line}");
        assert!(line.ends_with("&& modprobe vpci leases=2"), "{line}");
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
