#!/usr/bin/env python3
"""Checks the other programs of this directory without running them: syntax, with warnings as
errors, and undefined names."""
import builtins, pathlib, symtable, sys, warnings

HERE = pathlib.Path(__file__).parent


def defined(path):
    """Returns the top-level names of a program, including those imported from others of this
    directory."""
    text = path.read_text()
    names = {s.get_name() for s in symtable.symtable(text, str(path), "exec").get_symbols() if s.is_assigned() or s.is_imported()}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["from"] and words[2:] == ["import", "*"]:
            names |= defined(HERE / f"{words[1]}.py")
    return names


def unknown(table, known):
    """Returns the names in a scope and its inner scopes that are undefined at the top level."""
    top = table.get_type() == "module"
    for s in table.get_symbols():
        if s.is_referenced() and (top or s.is_global()) and s.get_name() not in known:
            yield s.get_name(), table.get_lineno()
    for inner in table.get_children():
        yield from unknown(inner, known)


def main():
    warnings.simplefilter("error")
    bad = 0
    programs = sorted(HERE.glob("*.py"))
    for path in programs:
        text = path.read_text()
        compile(text, str(path), "exec")
        known = defined(path) | set(dir(builtins)) | {"__file__", "__name__"}
        for name, line in unknown(symtable.symtable(text, str(path), "exec"), known):
            print(f"{path.name}: {name}, used in the scope that begins in line {line}, is nowhere defined")
            bad += 1
    print(f"{len(programs)} programs")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
