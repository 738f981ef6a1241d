"""Files of kernel crates that are too long."""
from tree import Finding

LINES = 500


def long_files(tree, most=LINES):
    """Returns the files of more than `most` lines."""
    return [Finding(path, most + 1, path, f"{tree.files[path].count(chr(10))} lines, more than {most}")
            for _, path in tree.sources((".rs", ".c", ".h")) if tree.files[path].count("\n") > most]
