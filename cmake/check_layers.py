#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an include that goes up in layers.txt, or between comm and leaves (either way)."""
import pathlib
import re
import sys


def violations(root, layers):
    rank = {name: i for i, name in enumerate(layers)}
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(root).parts[0]
        if folder not in rank:
            yield f"{path}: folder '{folder}' is not in layers.txt"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]switchyard/([a-z_]+)/', line)
            if not match:
                continue
            target = match.group(1)
            if target not in rank:
                yield f"{path}:{number}: includes unknown folder '{target}'"
            elif rank[target] > rank[folder]:
                yield f"{path}:{number}: {folder} includes {target}, which stands below it"
            elif {target, folder} == {"comm", "leaves"}:
                yield f"{path}:{number}: comm and leaves may not include each other"


def main():
    root, layers_file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    found = list(violations(root, layers_file.read_text().split()))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
