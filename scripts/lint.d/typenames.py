"""Types of kernel crates: names with several meanings, and types whose methods are in many files."""
import collections
import re

import rust
from tree import Finding

# Maximum number of types with the same name, and maximum number of files with methods of one type.
NAMES, FILES = 2, 3
TYPE = re.compile(r"^[ \t]*(?:pub(?:\s*\([^)]*\))?\s+)?(?:unsafe\s+)?(struct|enum|union|trait|type)\s+(\w+)", re.M)
TRAIT = re.compile(r"^[ \t]*(?:pub(?:\s*\([^)]*\))?\s+)?(?:unsafe\s+)?trait\s+\w+", re.M)


def definitions(tree):
    """Yields (crate, path, line, name) of each type. Types that belong to a trait do not count."""
    for crate, path in tree.sources():
        code = tree.code(path)
        inside = [(start, end) for start, end, _, _ in rust.impls(code)]
        inside += [(m.end(), rust.item_end(code, m.end())) for m in TRAIT.finditer(code)]
        for m in TYPE.finditer(code):
            if not any(start < m.start(1) < end for start, end in inside):
                yield crate, path, rust.line(code, m.start(1)), m.group(2)


def names(tree):
    """Returns the definitions of the names that more than `NAMES` types have."""
    found = collections.defaultdict(list)
    for _, path, line, name in definitions(tree):
        found[name].append((path, line))
    return [Finding(path, line, name, f"{name} is the name of {len(places)} types")
            for name, places in found.items() if len(places) > NAMES for path, line in places]


def spread(tree):
    """Returns the files with methods of the types that have them in more than `FILES` files."""
    homes, files = collections.defaultdict(list), collections.defaultdict(dict)
    for crate, path, _, name in definitions(tree):
        homes[crate, name].append(path)
    for crate, path in tree.sources():
        code = tree.code(path)
        for start, _, name, is_trait in rust.impls(code):
            if not is_trait and homes[crate, name]:
                home = nearest(path, homes[crate, name])
                files[crate, name, home].setdefault(path, rust.line(code, start))
    return [Finding(path, line, f"{crate} {name}", f"methods of {name} of {home} are in {len(places)} files")
            for (crate, name, home), places in files.items() if len(places) > FILES for path, line in places.items()]


def nearest(path, homes):
    """Returns the file that shares most folders with `path`; a module's file is in the module's folder."""
    def folders(file):
        return re.sub(r"(/mod)?\.rs$", "", file).split("/")

    def shared(home):
        return next((n for n, (a, b) in enumerate(zip(folders(home) + [None], folders(path) + [""])) if a != b), 0)

    return max(homes, key=lambda home: (home == path, shared(home), -len(home)))
