"""Files and lines of kernel crates that are too long."""
from tree import Finding

LINES, COLUMNS = 500, 100


def long_files(tree, most=LINES):
    """Returns the files of more than `most` lines."""
    return [Finding(path, most + 1, path, f"{tree.files[path].count(chr(10))} lines, more than {most}")
            for _, path in tree.sources((".rs", ".c", ".h")) if tree.files[path].count("\n") > most]


def long_lines(tree):
    """Returns the lines of more than `COLUMNS` columns, with tabs of eight."""
    return [Finding(path, i, crate, f"{len(line.expandtabs())} columns, more than {COLUMNS}")
            for crate, path in tree.sources((".rs", ".c", ".h"))
            for i, line in enumerate(tree.files[path].split("\n"), 1) if len(line.expandtabs()) > COLUMNS]
