"""Files that a check reads, and its findings."""
import collections
import re
import sys

import rust

# A violation of a rule. `key` is the row of scripts/lint-baseline that counts it.
Finding = collections.namedtuple("Finding", "file line key what")


class Tree:
    """Texts of files by path, and the source directories of the kernel crates by name."""

    def __init__(self, files, crates):
        self.files = files
        self.crates = crates
        self._code = {}

    def sources(self, ends=(".rs",)):
        """Yields (crate, path) for each source file of a kernel crate that is not a test."""
        for path in self.files:
            if path.endswith(ends) and not is_test(path):
                for crate, root in self.crates.items():
                    if path.startswith(root + "/"):
                        yield crate, path

    def parts(self, path):
        """Returns the code of a Rust or C file and its string literals, see `rust.parts`."""
        if path not in self._code:
            self._code[path] = rust.parts(self.files[path])
        return self._code[path]

    def code(self, path):
        """Returns the code of a Rust file without tests, comments and the text of strings."""
        return self.parts(path)[0]


def crates(modules_list):
    """Returns the kernel crates in the order of modules.list: each crate after the crates that it uses.

    Leaves out benchmarks and test modules. Adds exlnd, which modules.list does not name because only scripts/exlnd builds it.
    """
    rows = [line.split() for line in modules_list.splitlines() if line.strip() and not line.startswith("#")]
    rows = [(row[0], row[1]) for row in rows if not row[0].startswith(("bench/", "tests/"))] + [("exlnd", "lib.rs")]
    return {name: (name + "/" + root).rsplit("/", 1)[0] for name, root in rows}


def is_test(path):
    """Whether a file has only tests, by its path."""
    parts = path.split("/")
    return "tests" in parts[:-1] or parts[0] == "sim" or parts[-1] == "tests.rs" or parts[-1].endswith("_tests.rs")


def read_input():
    """Reads paths, one a line, up to an empty line, then a diff. Returns the paths and the added lines by path."""
    paths, _, diff = sys.stdin.buffer.read().decode(errors="replace").partition("\n\n")
    added, path = collections.defaultdict(set), None
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") else None
        m = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if m and path:
            first = int(m.group(1))
            added[path].update(range(first, first + int(m.group(2) or 1)))
    return [path for path in paths.split("\n") if path], added


def touches(added, path, line, count=1):
    """Whether one of `count` lines from `line` on was added."""
    return any(n in added.get(path, ()) for n in range(line, line + count))


def load(paths):
    """Reads files and modules.list, relative to the working directory. Skips files that do not exist."""
    texts = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
                texts[path] = file.read()
        except (FileNotFoundError, IsADirectoryError):
            continue
    with open("modules.list", encoding="utf-8") as file:
        return Tree(texts, crates(file.read()))
