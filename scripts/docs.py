#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks (or with --apply rewrites) the parts of the pages that are made from the library.

    docs.py [--apply] [FACTS]

FACTS is the program switchyard_facts; build/cpu has it by default. A page marks such a part:

    <!-- begin table NAME -->   rendered by scripts/doc_tables.py from the facts
    <!-- end table -->
    <!-- begin quote FILE -->   the whole file without its licence line
    <!-- end quote -->

A link that leads to no file, a page that no other leads to, an example that no page quotes, and a message in
docs/troubleshooting.md that the sources do not have, are faults too.
"""
import json
import pathlib
import re
import subprocess
import sys

import doc_tables
import tree

BLOCK = re.compile(r"(<!-- begin (table|quote) ([^;\s]+)[^\n]* -->\n)(.*?)([ ]*<!-- end \2 -->)", re.S)
MARKER = re.compile(r"<!-- (?:begin|end) (?:table|quote)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)  # code, where [](...) is no link
FACTS = tree.ROOT / "build/cpu/tests/house/switchyard_facts"
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".txt": "cmake", ".sh": "sh"}


def pages(root):
    """The pages of a tree: those in its root and in docs/."""
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))


def quote(root, name):
    """A file's text as a fenced block, its licence line left out."""
    path = root / name
    if not path.is_file():
        raise SystemExit(f"{name}: a page quotes it, but there is no such file")
    lines = [line for line in path.read_text().splitlines() if "SPDX-License-Identifier" not in line]
    return f"```{LANGUAGES.get(path.suffix, '')}\n" + "\n".join(lines).strip("\n") + "\n```\n"


def rendered(text, facts, root):
    """`text` with every marked part made anew."""
    def part(match):
        _, kind, name = match.group(1, 2, 3)
        if kind == "quote":
            return match.group(1) + quote(root, name) + match.group(5)
        if name not in doc_tables.TABLES:
            raise SystemExit(f"a page asks for table {name}; known: {', '.join(doc_tables.TABLES)}")
        return match.group(1) + doc_tables.TABLES[name](facts) + match.group(5)
    out, count = BLOCK.subn(part, text)
    if 2 * count != len(MARKER.findall(text)):
        raise SystemExit("a page has a begin or end marker without its partner")
    return out


def link_faults(root):
    """Links that lead nowhere, and pages that README.md does not lead to."""
    faults, reached, todo = [], set(), [root / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in LINK.findall(FENCED.sub("", page.read_text())):
            path = (page.parent / target).resolve()
            if not path.exists():
                faults.append(f"{page.relative_to(root)}: link to {target} leads nowhere")
            elif path.suffix == ".md":
                todo.append(path)
            elif path.is_dir():
                todo += sorted(path.glob("*.md"))
    lost = [page for page in pages(root) if page not in reached]
    return faults + [f"{page.relative_to(root)}: no link leads to it from README.md" for page in lost]


def quote_faults(root):
    """Examples that no page quotes."""
    quoted = {name for page in pages(root) for _, kind, name, _, _ in BLOCK.findall(page.read_text()) if kind == "quote"}
    return [f"{path.relative_to(root)}: no page quotes it" for path in sorted(root.glob("examples/*.cc"))
            if str(path.relative_to(root)) not in quoted]


def literals(source):
    """A C++ source's string literals, those that the compiler joins joined, and those of one call too."""
    text = re.sub(r"^\s*//.*$", "", source, flags=re.M)
    text = re.sub(r'"\s*,?\s*\n\s*"', "", text)
    return [piece.replace('\\"', '"') for piece in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)]


def decision_faults(root):
    """Decisions that share a number, leave one out, or head their page with another."""
    faults = []
    for number, path in enumerate(sorted((root / "docs/decisions").glob("*.md")), 1):
        if path.name[:5] != f"{number:04d}-":
            faults.append(f"docs/decisions/{path.name}: the next number is {number:04d}")
        elif not path.read_text().startswith(f"# {number:04d}: "):
            faults.append(f"docs/decisions/{path.name}: its heading has another number")
    return faults


def message_faults(page, sources):
    """Headings that are no message of the sources; and entries whose block shows another one.

    A heading is a message with "…" for what differs: its pieces stand in one file.
    """
    faults = []
    entries = re.split(r"^### ", page, flags=re.M)[1:]
    for entry in entries:
        heading = re.match(r"`(.+)`\n", entry)
        if not heading:
            faults.append(f"heading '{entry.splitlines()[0]}' is no message")
            continue
        pieces = [piece for piece in heading.group(1).split("…") if piece.strip(" :;=',")]
        if not any(all(any(piece in text for text in texts) for piece in pieces) for texts in sources):
            faults.append(f"no source has the message `{heading.group(1)}`")
        block = re.search(r"^```console\n(.*?)^```", entry, re.S | re.M)
        shown = ".*".join(re.escape(piece) for piece in heading.group(1).split("…"))
        if block and not re.search(shown, block.group(1)):
            faults.append(f"the block below `{heading.group(1)}` does not show it")
    return faults if entries else ["docs/troubleshooting.md has no entry"]


def main():
    args = sys.argv[1:]
    apply = "--apply" in args
    programs = [arg for arg in args if arg != "--apply"]
    facts = json.loads(subprocess.run([programs[0] if programs else FACTS], check=True, capture_output=True).stdout)
    faults = []
    for page in pages(tree.ROOT):
        before = page.read_text()
        after = rendered(before, facts, tree.ROOT)
        if before == after:
            continue
        if apply:
            page.write_text(after)
        else:
            faults.append(f"{page.relative_to(tree.ROOT)}: a generated part is not what the library says; run make docs")
    faults += link_faults(tree.ROOT) + quote_faults(tree.ROOT) + decision_faults(tree.ROOT)
    sources = [literals((tree.ROOT / name).read_text()) for name in tree.cpp_sources() if name.startswith(("src/", "cli/"))]
    faults += message_faults((tree.ROOT / "docs/troubleshooting.md").read_text(), sources)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
