"""Finds comments, strings, braces, functions and `impl` blocks in Rust and C files."""
import re

TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?c?r(?P<hash>\#*)".*?"(?P=hash)|"(?:\\.|[^"\\])*"|'(?:\\[^'\n]+|\\'|[^'\\\n])'""", re.S)
TEST = re.compile(r"#\[(?:cfg\((?:all\(|any\()?test\b[^\]]*|kunit_tests\([^\]]*)\]")
FUNCTION = re.compile(r"(?:\bpub(?P<limits>\s*\([^)]*\))?\s+)?(?:(?:const|async|unsafe|extern\s*\"[^\"]*\")\s+)*\bfn\s+(?P<name>\w+)")
IMPL = re.compile(r"^[ \t]*(?:unsafe[ \t]+)?impl\b", re.M)
CLOSING = {"{": "}", "(": ")", "[": "]"}


def blank(text):
    """Replaces all characters of a text except line ends by spaces."""
    return re.sub(r"[^\n]", " ", text)


def parts(text):
    """Returns the code of a file and its string literals as a list of (offset, text).

    In the code, comments, the text of strings and tests are blank. Offsets and lines remain.
    """
    out, strings, end = [], [], 0
    for m in TOKENS.finditer(text):
        token = m.group()
        out.append(text[end:m.start()])
        end = m.end()
        if token[0] in "/'":
            out.append(blank(token))
        else:
            strings.append((m.start(), token[token.index('"') + 1:token.rindex('"')]))
            out.append('"' + blank(token[1:-1]) + '"')
    out.append(text[end:])
    code = "".join(out)
    for m in TEST.finditer(code):
        stop = item_end(code, m.end())
        code = code[:m.start()] + blank(code[m.start():stop]) + code[stop:]
    return code, [(at, s) for at, s in strings if code[at] == '"']


def closing(code, start):
    """Returns the offset of the bracket that closes the one at `start`."""
    pair, depth = (code[start], CLOSING[code[start]]), 0
    for m in re.compile(r"[%s]" % re.escape("".join(pair))).finditer(code, start):
        depth += 1 if m.group() == pair[0] else -1
        if depth == 0:
            return m.start()
    return len(code)


def body(code, start):
    """Returns the offset of the `{` or `;` that ends the head of an item, outside of parentheses and brackets."""
    while True:
        m = re.compile(r"[{(\[;]").search(code, start)
        if not m:
            return len(code)
        if m.group() in "{;":
            return m.start()
        start = closing(code, m.start()) + 1


def item_end(code, start):
    """Returns the offset behind the item whose head, attributes included, begins at `start`."""
    at = body(code, start)
    return min(len(code), (closing(code, at) if code[at:at + 1] == "{" else at) + 1)


def line(code, offset):
    """Returns the number of the line at an offset."""
    return code.count("\n", 0, offset) + 1


def impls(code):
    """Yields (offset, end, name of the type, whether a trait is implemented) of each `impl` block."""
    for m in IMPL.finditer(code):
        at = body(code, m.end())
        head = code[m.end():at]
        if code[at:at + 1] != "{":
            continue
        head = without_generics(head).split(" where ")[0]
        name = re.search(r"(\w+)\W*$", re.sub(r"\s+", " ", head.split("\nwhere")[0]).strip())
        yield m.start(), closing(code, at) + 1, name.group(1) if name else "", bool(re.search(r"\bfor\b", head))


def without_generics(head):
    """Returns the head of an `impl` block without its generic parameters."""
    head, before = head.replace("->", "  "), None
    while before != head:
        before, head = head, re.sub(r"<[^<>]*>", " ", head)
    return head
