"""Modules of a directory that import each other in a circle, directly or through others.

A module is a file or a directory. Imports by a module of its own parts, and by a part of the modules around it, do not count.
"""
import collections
import re

import rust
from tree import Finding

PATH = re.compile(r"(?<![\w$:])(crate|self|super)\s*::\s*")
SEGMENT = re.compile(r"\s*(\w+)\s*(::)?\s*")


def module(root, path):
    """Returns the path of a file's module within its crate, as a tuple."""
    names = path[len(root) + 1:-len(".rs")].split("/")
    return tuple(names[:-1] if names[-1] in ("mod", "lib", "main") else names)


def targets(code, at):
    """Yields (names of a path, end) for each path of a tree `a::{b, c::d}` that begins at `at`."""
    if code[at:at + 1] == "{":
        end = rust.closing(code, at)
        at += 1
        while at < end:
            last = at
            for names, last in targets(code, at):
                yield names, end + 1
            comma = code.find(",", last, end)
            at = comma + 1 if comma >= 0 else end
        yield (), end + 1
        return
    m = SEGMENT.match(code, at)
    if not m:
        yield (), at
    elif not m.group(2):
        yield (m.group(1),), m.end()
    else:
        for names, end in targets(code, m.end()):
            yield (m.group(1),) + names, end


def imports(code, here):
    """Yields (offset, module path) of what a module refers to by `crate::`, `self::` and `super::`."""
    for m in PATH.finditer(code):
        for names, _ in targets(code, m.start(1)):
            if names and names[0] == "crate":
                yield m.start(1), names[1:]
            elif names:
                base = here
                while names and names[0] in ("self", "super"):
                    base = base[:-1] if names[0] == "super" else base
                    names = names[1:]
                yield m.start(1), base + names


def components(edges):
    """Returns the strongly connected components of more than one node."""
    def reach(start, graph):
        seen, todo = {start}, [start]
        while todo:
            for other in graph[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    ahead, back, done, found = collections.defaultdict(set), collections.defaultdict(set), set(), []
    for a, b in edges:
        ahead[a].add(b)
        back[b].add(a)
    for node in list(ahead):
        if node not in done:
            members = reach(node, ahead) & reach(node, back)
            done |= members
            if len(members) > 1:
                found.append(members)
    return found


def check(tree):
    """Returns each module that is part of a circle, at the first line that imports another part of it."""
    modules, edges = collections.defaultdict(set), collections.defaultdict(dict)
    sources = [(crate, path, module(tree.crates[crate], path)) for crate, path in tree.sources()]
    for crate, _, names in sources:
        modules[crate].update(names[:n] for n in range(1, len(names) + 1))
    for crate, path, here in sources:
        code = tree.code(path)
        for offset, target in imports(code, here):
            n = next((n for n, (a, b) in enumerate(zip(here, target)) if a != b), None)
            if n is not None and target[:n + 1] in modules[crate]:
                edge = (here[:n + 1], target[:n + 1])
                edges[crate].setdefault(edge, (path, rust.line(code, offset)))
    findings = []
    for crate in edges:
        for members in components(edges[crate]):
            folder = "/".join((crate,) + min(members)[:-1])
            key = f"{folder}: {' '.join(sorted(names[-1] for names in members))}"
            for member in sorted(members):
                path, line, other = next((p, i, b) for (a, b), (p, i) in edges[crate].items() if a == member and b in members)
                findings.append(Finding(path, line, key, f"{folder}: {member[-1]} imports {other[-1]}, which imports it"))
    return findings


def covered(key, known):
    """Returns the known circle in the same folder that has all modules of a circle, or the circle itself."""
    folder, _, members = key.partition(": ")
    for other in known:
        if other.partition(": ")[0] == folder and set(members.split()) <= set(other.partition(": ")[2].split()):
            return other
    return key
