#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks (or with --apply rewrites) the README's table of formats against the leaves themselves."""
import re
import sys

import tree

LEAVES = tree.ROOT / "src/switchyard/leaves"
README = tree.ROOT / "README.md"
BLOCK = re.compile(r"(<!-- begin formats[^\n]*-->\n).*?(<!-- end formats -->)", re.S)


def field(source, name, path):
    """The (joined) string that a leaf file gives to `.name`."""
    found = re.search(rf'\.{name} =\s*((?:"[^"]*"\s*)+)', source)
    if not found:
        raise SystemExit(f"{path}: no string for .{name}; the support table needs one")
    return "".join(re.findall(r'"([^"]*)"', found.group(1)))


def row(name):
    """The table's line for the format that leaves/<name>.cc defines."""
    path = LEAVES / f"{name}.cc"
    source = path.read_text()
    segment = field(source, "format", path)

    def cell(device):
        built = not re.search(rf"\.{device}_ffn = nullptr", source)
        return f"`switchyard.{device}.fused_moe.{segment}`" if built else "not built"

    shown = "bf16" if segment == "none" else segment
    return f"| `{shown}` | {cell('cpu')} | {cell('cuda')} | {field(source, 'doc', path)} |\n"


def table():
    names = re.findall(r"^SWITCHYARD_LEAF\((\w+)\)", (LEAVES / "leaves.def").read_text(), re.M)
    head = "| format | on the CPU | on CUDA | stored and computed as |\n|---|---|---|---|\n"
    return head + "".join(row(name) for name in names)


def main():
    before = README.read_text()
    after, count = BLOCK.subn(lambda m: m.group(1) + table() + m.group(2), before)
    if count != 1:
        raise SystemExit("README.md: the markers of the format table are not there once")
    if after == before:
        return 0
    if "--apply" in sys.argv[1:]:
        README.write_text(after)
        return 0
    print("README.md: the format table is not that of the leaves; run make format")
    return 1


if __name__ == "__main__":
    sys.exit(main())
