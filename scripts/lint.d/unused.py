"""Public functions of the crates below the modules that no module and no program calls.

Functions are matched by name, so this is a lower bound: a function counts as called if any code that runs has a word like its name.
Code that runs: modules, programs, trait implementations, code outside of functions, and functions whose names such code has.
"""
import collections
import re

import rust
from tree import Finding

CRATES = ("wire", "protocol", "kernel-ext", "extoll-core")
# Directories of programs, with the last crate of CRATES that they use.
PROGRAMS = {"emulator/": "wire", "userland/": "protocol", "cluster/": "wire"}
# Unused accessors of registers are accepted, because the accessors together describe the register map. Aids for test modules have no other users.
EXEMPT = re.compile(r"^(wire/src/regs/|kernel-ext/testing\.rs$)")
WORD = re.compile(r"[A-Za-z_]\w*")
USE = re.compile(r"^[ \t]*(?:pub(?:\s*\([^)]*\))?\s+)?use\s[^;]*;", re.M)


def functions(code):
    """Returns (offset, end, name, whether it is public, whether it always runs) of each function outside of others."""
    traits = [(start, end) for start, end, _, is_trait in rust.impls(code) if is_trait]
    traits += [(m.start(), rust.item_end(code, m.end())) for m in re.finditer(r"\btrait\s+\w+", code)]
    found, last = [], 0
    for m in rust.FUNCTION.finditer(code):
        if m.start() >= last:
            last = rust.item_end(code, m.end())
            public = m.group().startswith("pub") and not m.group("limits")
            always = m.group("name") == "main" or "extern" in m.group() or any(a <= m.start() < b for a, b in traits)
            found.append((m.start(), last, m.group("name"), public, always))
    return found


def check(tree):
    """Returns the public functions that are never called."""
    order = list(tree.crates)
    visible = {crate: [c for c in CRATES if order.index(c) <= order.index(crate)] for crate in order}
    bodies, public, todo = collections.defaultdict(list), [], []
    for crate, path in tree.sources():
        code = USE.sub(lambda m: rust.blank(m.group()), tree.code(path))
        if crate not in CRATES:
            todo.append((crate, code))
            continue
        outside, last = [], 0
        for start, end, name, is_public, always in functions(code):
            outside.append(code[last:start])
            last = end
            if always:
                outside.append(code[start:end])
                continue
            bodies[crate, name].append(code[start:end].replace(name, "", 1))
            if is_public and not EXEMPT.match(path):
                public.append((crate, name, path, rust.line(code, start)))
        todo.append((crate, " ".join(outside + [code[last:]])))
    todo += [(crate, tree.files[path]) for crate, path in tree.sources((".c", ".h"))]
    for path in tree.files:
        for prefix, crate in PROGRAMS.items():
            if path.startswith(prefix) and path.endswith(".rs") and "/tests/" not in path and not path.endswith("tests.rs"):
                todo.append((crate, tree.code(path)))
    called = set()
    while todo:
        crate, text = todo.pop()
        for word in set(WORD.findall(text)):
            for other in visible[crate]:
                if (other, word) not in called:
                    called.add((other, word))
                    todo += [(other, body) for body in bodies.get((other, word), [])]
    return [Finding(path, line, name, f"{name} has no caller in a module or program")
            for crate, name, path, line in public if (crate, name) not in called]
