#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the size of the code as numbers for review; fails over the limits of CONTRIBUTING.md.

Limits: 600 lines a file (sources, tests and scripts); 100 lines a function outside *_cuda.cu.
Usage: sizes.py ROOT [FILE...]   (without files: all that git tracks under ROOT)
"""
import collections
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cpp_scan  # noqa: E402

MAX_FILE, MAX_FUNCTION = 600, 100
CPP = {".h", ".cc", ".cu", ".cuh"}
COUNTED = CPP | {".py", ".sh", ".cmake"}


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files"], check=True, capture_output=True, text=True)
    return [f for f in listed.stdout.splitlines() if not f.startswith("tests/data/")]


def function_lengths(path):
    """Lines of each function with a body; a test case counts as one."""
    return [(d.last_line - d.first_line + 1, d) for d in cpp_scan.declarations(path.read_text())
            if d.kind == "function" and d.has_body]


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def room(name):
    """Folder that a file is counted under: src/switchyard/<room>, or the top folder."""
    parts = pathlib.PurePath(name).parts
    depth = 3 if parts[:2] == ("src", "switchyard") else 1
    return "/".join(parts[:depth]) if len(parts) > depth else "/".join(parts[:-1]) or "."


def main():
    root = pathlib.Path(sys.argv[1])
    names = sys.argv[2:] or tracked(root)
    rooms, functions, faults = collections.defaultdict(list), [], []
    for name in names:
        path = root / name
        if path.suffix not in COUNTED or not path.is_file():
            continue
        lines = len(path.read_text().splitlines())
        rooms[room(name)].append(lines)
        if lines > MAX_FILE:
            faults.append(f"{name}: {lines} lines, the limit is {MAX_FILE}; split it by idea")
        if path.suffix in CPP:
            for length, d in function_lengths(path):
                functions.append(length)
                if length > MAX_FUNCTION and not name.endswith("_cuda.cu"):
                    faults.append(f"{name}:{d.first_line}: function {d.name} has {length} lines, "
                                  f"the limit is {MAX_FUNCTION}")
    print(f"{'room':<30} {'files':>5} {'lines':>7} {'median':>7} {'p90':>5} {'max':>5}")
    for name, sizes in sorted(rooms.items()):
        print(f"{name:<30} {len(sizes):>5} {sum(sizes):>7} {quantile(sizes, .5):>7} "
              f"{quantile(sizes, .9):>5} {max(sizes):>5}")
    total = [n for sizes in rooms.values() for n in sizes]
    print(f"{'all':<30} {len(total):>5} {sum(total):>7}")
    print(f"functions: {len(functions)}, median {quantile(functions, .5)}, "
          f"p90 {quantile(functions, .9)}, max {max(functions, default=0)} lines")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
