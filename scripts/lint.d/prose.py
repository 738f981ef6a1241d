"""Sentences that need an editor; scripts/prose is the program for people."""
import argparse
import collections
import re
import sys

import rust
import tree as files
from tree import Finding

# Name and pattern of each rule. The third field lists words of which each match contains one. They are a quick test that saves
# time, because most sentences contain none of them.
RULES = [
    ("person as subject", r"(?i)(^|[.;:,(] |\b(and|or|but|so|if|because|as|for|that|than|by|to|of|with) )(whoever|somebody|nobody|everybody|who)\b(?! (is|are) (it|they)\b)", "who|body"),
    ("clause as subject", r"^(What|Whatever|That which|Those that|Those who|How many|How much|Where|Whether)\b [^?]*?\b(is|are|was|has|have|goes|go|comes|gets|waits|ends|costs|counts|leads|takes|means|remains|belongs|follows|arrives|fails|leaves|keeps)\b(?!.*\?)", None),
    ("relative without antecedent", r"(?i)\b(for|of|by|to|from|with|in|and|or|than|that|if|as|on|at|all|but|until|is|are) what (is|are|was|has|have|it|they|the|a|an|there|goes|comes|this|one|its|came|this)\b", " what "),
    ("have X do Y", r"\b(has|have|had|having) (the |a |an |its |his |their |one |each |all |another |some |no )?(\w+ ){0,2}?(NIC|peer|driver|owner|user|caller|kernel|processor|node|module|queue|lender|borrower|emulator|device|program)s? (\w+ )?(send|deliver|poll|read|write|look|wait|end|go|come|take|give|call|tell|ask|fetch|run|make|do|let|know|see|answer|access|interrupt)\b", "has|have|had|having"),
    ("vague verb", r"(?i)\b(hears? of|is told of|are told of|looks? after|looks? at it again|lies? in|stands? in|stands? still|goes? (past|by)|has to do with|makes? do|is had|are had|is gone|are gone|is over|are over|comes? of)\b", None),
    ("maximum and minimum", r"(?i)\b(at (the )?most|the most|the least) (of|that|there|it|they)\b|\b(so many|so much|as many as there|as much as there|so long as|for so long|for as long)\b", "most|least|so |as "),
    ("pronoun for a thing", r"(?i)\b(he|his|him|she|her)\b(?! majesty)", "he|hi"),
    ("nobody, nothing as subject", r"(^|[.;:] )(Nobody|Nothing|None|Neither|No one)\b", "nobody|nothing|none|neither|no one"),
    ("archaic", r"(?i)\b(as yet|thereby|therein|thereof|whereof|wherein|whereby|herein|henceforth|meanwhile|otherwise it|be it|lest|in turn it|of its own accord|anew|moreover|shall not|needn't|mustn't|oneself)\b", None),
    ("double negation", r"(?i)\b(not|n't|never|no|nobody|nothing|none)\b[^.;:,]{0,30}\b(without|unless|not|never|nothing|nobody)\b", "no|n't|never"),
    ("elliptic", r"^(As (that|those|the trait|before|above|X\b)|(Those|That|One|Ones|The one|The ones|All that|All those) (of|that|which|with|by|for)\b|(By|From|To|For|With|Of|At) (it|that|this|these|those|them|which|whom)\b[^a-z]|(So|Such) (that|as|is|are|it|they)\b|(Also|Or|And|But|Else|Likewise)\b)|\b(as (is|are|was|were|do|does|did) (the|a|an|all|those|that)|(was|were|is|are|has|have|had) to\s*[.,;:)]|that they (were|are) to|(it|they) (is|are|was|were) to (be )?(?=[a-z]+[.;,]))", None),
]
COMPILED = [(name, re.compile(pattern), words and re.compile(words)) for name, pattern, words in RULES]
# Maximum number of words in a sentence.
WORDS = 34
# Number of lines from the start of a paragraph that are compared with a diff. Only the paragraph's first line is known, not the
# sentence's.
SPAN = 6
HEAD = re.compile(r"^\s*(///|//!|//|\*(?!/)|/\*\*?|#(?![!\[a-z]))\s?")
POINT = re.compile(r"^\s*([*+-]|\d+\.)\s+")
ENDS = (".rs", ".c", ".h", ".md", ".3", ".8", ".7", ".1", ".sh")
MAN = re.compile(r"\.[1-9]$")
LOGS = re.compile(r"\b(?:pr_\w+|dev_\w+|netdev_\w+|eprintln|anyhow|bail|ensure|panic|error|warn|info|build_error)!\s*[(\[{]|#\[error\(|"
                  r"\.(?:expect|context|with_context)\(|\b(?:printk|pr_\w+|dev_\w+|netdev_\w+|fprintf|perror|errx?|warnx?)\(")
DESCRIPTION = re.compile(r"\bdescription:\s*\"")


def is_prose(path):
    """Whether a file has text to check. Samples of the checks are wrong on purpose."""
    return (path.endswith(ENDS) or path.startswith("scripts/")) and not path.startswith(("scripts/lint.d/samples/", "scripts/lint-baseline"))


def paragraphs(path, text):
    """Yields (line of the first word, text) of each comment or paragraph."""
    lines = text.split("\n") + [""]
    return markdown(lines) if path.endswith(".md") else manual(lines) if MAN.search(path) else comments(lines)


def markdown(lines):
    """Yields paragraphs, list entries and long cells of tables."""
    held, start, fence = [], 0, False
    for i, line in enumerate(lines, 1):
        body = None
        if line.lstrip().startswith("```"):
            fence = not fence
        elif fence or line.startswith(("#", "<!--")):
            pass
        elif line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split("|"):
                if len(cell.split()) > 3:
                    yield i, cell.strip()
        elif line.strip():
            body = POINT.sub("", line)
            if POINT.match(line) and held:
                yield start, " ".join(held)
                held = []
        if body is None:
            if held:
                yield start, " ".join(held)
            held = []
        else:
            start = start if held else i
            held.append(body.strip())


def comments(lines):
    """Yields blocks of comments in code and scripts. A comment `SAFETY:` is yielded without this word."""
    held, start = [], 0
    for i, line in enumerate(lines, 1):
        m = HEAD.match(line) if "/" in line or "*" in line or "#" in line else None
        body = line[m.end():].rstrip("*/ ") if m else None
        if body is not None and (not body.strip() or body.lstrip().startswith(("```", "|", "SPDX", "SAFETY:"))):
            body = body.split("SAFETY:", 1)[1] if "SAFETY:" in body else None
        if held and (body is None or POINT.match(body)):
            yield start, " ".join(held)
            held = []
        if body is not None:
            start = start if held else i
            held.append(body.strip())


def manual(lines):
    """Yields paragraphs of a page in mdoc. Macros within a sentence count as a word X."""
    held, start = [], 0
    for i, line in enumerate(lines, 1):
        macro = re.match(r"\.(\w\w)\b ?(.*)", line)
        if macro and macro.group(1) in ("Fn", "Fa", "Dv", "Xr", "Nm", "Er", "Va", "Ar", "Fl", "Vt", "Ft", "Em", "Li", "Pa", "Cm", "Ql", "In", "Sy"):
            body = "X" + "".join(re.findall(r" ([.,;:)])$", macro.group(2))) if held else None
        else:
            body = None if macro or not line.strip() or line.startswith(".") else line.strip()
        if body is not None:
            start = start if held else i
            held.append(body)
        elif held:
            yield start, " ".join(held)
            held = []


def strings(tree, path):
    """Yields (line, row, text) of the messages and module descriptions in a source file."""
    code, literals = tree.parts(path)
    spans = [(m.start(), rust.closing(code, m.end() - 1), "strings") for m in LOGS.finditer(code)]
    spans += [(m.end() - 1, m.end(), "modinfo") for m in DESCRIPTION.finditer(code)]
    for at, text in literals:
        row = next((row for start, end, row in spans if start <= at < end), None)
        if row:
            text = re.sub(r"\\\n\s*", "", text).replace("\\n", " ").replace('\\"', "")
            text = re.sub(r"\{[^{}]*\}|%[-+#0-9.]*(?:l|ll|z|h)?[a-zA-Z]\w*", "X", text).strip()
            yield rust.line(code, at), row, text[:1].upper() + text[1:]


def sentences(text):
    """Yields the sentences of a paragraph, with an X for each piece of code."""
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\[([^\]]*)\](\([^)]*\))?", r"\1", text)
    text = re.sub(r"\b(e\.g|i\.e|cf|vs|no|etc)\.", r"\1", text)
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z(X])", text):
        sentence = sentence.strip()
        if len(sentence.split()) >= 3:
            yield sentence


def faults(sentence):
    """Returns the names of the rules that a sentence breaks."""
    lower = sentence.lower()
    found = [name for name, pattern, words in COMPILED if (not words or words.search(lower)) and pattern.search(sentence)]
    return found + (["too long"] if len(sentence.split()) > WORDS else [])


def everything(tree):
    """Yields (file, line, row of the baseline, sentence) of the whole tree."""
    for path, text in tree.files.items():
        if not is_prose(path):
            continue
        row = "man" if MAN.search(path) else path.split("/")[0]
        for line, paragraph in paragraphs(path, text):
            for sentence in sentences(paragraph):
                yield path, line, row, sentence
        if path.endswith((".rs", ".c")) and not files.is_test(path):
            for line, row, message in strings(tree, path):
                for sentence in sentences(message):
                    yield path, line, row, sentence


def check(tree):
    """Returns the flagged sentences."""
    return [Finding(path, line, row, ", ".join(found) + ": " + sentence[:300])
            for path, line, row, sentence in everything(tree) for found in [faults(sentence)] if found]


def main():
    """The part of scripts/prose that needs no git: reads paths, an empty line and perhaps a diff from standard input."""
    options = argparse.ArgumentParser()
    options.add_argument("--list", action="store_true")
    options.add_argument("--base", action="store_true")
    options = options.parse_args()
    paths, added = files.read_input()
    total, flagged, rules = collections.Counter(), collections.Counter(), collections.Counter()
    for path, line, row, sentence in everything(files.load(paths)):
        if options.base and not files.touches(added, path, line, SPAN):
            continue
        found = faults(sentence)
        total[row] += 1
        rules.update(found)
        if found:
            flagged[row] += 1
            if options.list:
                print(f"{path}:{line}: {', '.join(found)}: {sentence[:300]}")
    if not options.list:
        for row in sorted(total, key=lambda row: -flagged[row]):
            print(f"{row:14} {flagged[row]:6} of {total[row]:6}  {100 * flagged[row] // total[row]:3} %")
        for name, count in rules.most_common():
            print(f"  {name}: {count}")
    every, bad = sum(total.values()), sum(flagged.values())
    print(f"flagged {bad} of {every} sentences ({100 * bad / max(every, 1):.1f} %)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
