"""Compares the tree with scripts/lint-baseline, whose numbers may only fall.

Reads paths, an empty line and a diff since the last change of the baseline from standard input. First each check must find
exactly the lines marked WRONG in its sample. With --lower, writes the baseline again where the sum of a check has not risen.
"""
import collections
import sys

import circles
import length
import prose
import tree as files
import typenames
import unused

BASELINE = "scripts/lint-baseline"
SAMPLES = "scripts/lint.d/samples/"
HEAD = """\
# Numbers that may only fall, written by scripts/lint --lower: check, number, what is counted. docs/testing.md describes the checks.
# After a conflict in this file, scripts/lint --lower counts again.
"""
# Maximum number of findings that are printed for one row.
SHOWN = 20

Check = collections.namedtuple("Check", "name find sample what")
CHECKS = [
    Check("prose", prose.check, prose.check, "flagged sentences"),
    Check("circles", circles.check, circles.check, "modules in a circle of imports"),
    Check("long-files", length.long_files, lambda tree: length.long_files(tree, 3), "files that are too long"),
    Check("unused", unused.check, unused.check, "public functions without a caller"),
    Check("impls", typenames.spread, typenames.spread, "files with methods of one type"),
    Check("type-names", typenames.names, typenames.names, "types of one name"),
    Check("long-lines", length.long_lines, length.long_lines, "lines that are too long"),
]


def sample(path):
    """Reads a sample file. Returns its texts by path, and (path, line) of each line that ends in `// WRONG`.

    A line `| == PATH` begins a text. The margin of each line hides the samples from programs that read comments.
    """
    texts, wrong, name = collections.defaultdict(str), set(), None
    with open(path, encoding="utf-8") as file:
        for line in file.read().split("\n")[:-1]:
            margin, line = line[:2], line[2:]
            if margin not in ("|", "| "):
                continue
            if line.startswith("== "):
                name = line[3:]
            elif name:
                text = line.removesuffix(" // WRONG")
                texts[name] += text + "\n"
                if text != line:
                    wrong.add((name, texts[name].count("\n")))
    return dict(texts), wrong


def self_test(check, crates):
    """Returns a message for each line of the sample that the check misses, and for each that it finds without a mark WRONG."""
    path = SAMPLES + check.name + ".txt"
    texts, wrong = sample(path)
    found = {(f.file, f.line) for f in check.sample(files.Tree(texts, crates))}
    unmarked = ["no line is marked WRONG"] if not wrong else []
    return [f"{path}: {what}" for what in unmarked
            + [f"{file}:{line} is marked WRONG and not found" for file, line in sorted(wrong - found)]
            + [f"{file}:{line} is found and not marked WRONG" for file, line in sorted(found - wrong)]]


def read_baseline():
    """Returns the numbers of each check by row. If a merge conflict leaves two numbers for a row, returns the higher one."""
    known = collections.defaultdict(dict)
    try:
        with open(BASELINE, encoding="utf-8") as file:
            for line in file:
                if line[:1] not in "#<=>|\n":
                    name, count, row = line.rstrip("\n").split(" ", 2)
                    known[name][row] = max(int(count), known[name].get(row, 0))
    except FileNotFoundError:
        pass
    return known


def write_baseline(numbers):
    """Writes the baseline. A check that finds nothing keeps a row, so that its next finding is compared with 0."""
    with open(BASELINE, "w", encoding="utf-8") as file:
        file.write(HEAD)
        for check in CHECKS:
            file.write("\n")
            for row, count in sorted(numbers[check.name].items()) or [("-", 0)]:
                file.write(f"{check.name} {count} {row}\n")


def compare(check, findings, known, added):
    """Prints the rows that are higher than the baseline, with their findings. Prefers findings on lines added since the baseline."""
    rows = collections.defaultdict(list)
    for finding in findings:
        rows[circles.covered(finding.key, known) if check.name == "circles" else finding.key].append(finding)
    higher = {row for row in rows if len(rows[row]) > known.get(row, 0)}
    for row in sorted(higher):
        print(f"{check.name}: {row}: {len(rows[row])} {check.what}, {known.get(row, 0)} in {BASELINE}")
        new = [f for f in rows[row] if files.touches(added, f.file, f.line, prose.SPAN if check.name == "prose" else 1)]
        new = new or (rows[row] if len(rows[row]) <= SHOWN else [])
        if not new:
            print("  none of them is on a line that was added since the baseline was written")
        for finding in new[:SHOWN]:
            print(f"  {finding.file}:{finding.line}: {finding.what}")
        if len(new) > SHOWN:
            print(f"  and {len(new) - SHOWN} more")
    if higher and len(findings) <= sum(known.values()):
        print(f"{check.name}: no more in all than before: if this is old code that has moved, scripts/lint --lower accepts it")
    return not higher, sum(len(rows[row]) < count for row, count in known.items())


def lowered(check, findings, known):
    """Prints how the numbers of a check change."""
    before = sum(known.values())
    if len(findings) != before:
        print(f"{check.name}: {before} -> {len(findings)}")
    for row, count in sorted(collections.Counter(finding.key for finding in findings).items()):
        if known and count > known.get(row, 0):
            print(f"  {row}: {known.get(row, 0)} -> {count}")


def main():
    """Returns the exit status."""
    paths, added = files.read_input()
    tree = files.load(paths)
    lower, good, fallen = sys.argv[1:] == ["--lower"], True, 0
    known, numbers = read_baseline(), {}
    for check in CHECKS:
        for fault in self_test(check, tree.crates):
            print(fault)
            good = False
        findings, before = check.find(tree), known[check.name]
        if not lower or before and len(findings) > sum(before.values()):
            fits, less = compare(check, findings, before, added)
            good, fallen = good and fits, fallen + less
            numbers[check.name] = before
        else:
            lowered(check, findings, before)
            numbers[check.name] = collections.Counter(finding.key for finding in findings)
    if lower:
        write_baseline(numbers)
    elif fallen:
        print(f"{fallen} numbers are lower than in {BASELINE}: scripts/lint --lower writes them")
    return 0 if good else 1


sys.exit(main())
