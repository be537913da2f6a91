#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a weak symbol in an object built for an instruction tier.

The linker keeps one copy of a weak function for the whole program. A copy that came from a file with
-mavx512f would crash every machine without it, far from the run-time check.
Usage: check_isa_objects.py BUILD_DIR
"""
import pathlib
import re
import subprocess
import sys


def weak_symbols(path):
    listing = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
    return [line.split(" ", 2)[2] for line in listing.splitlines() if re.match(r"^[0-9a-f]+ [WVu] ", line)]


def main():
    root = pathlib.Path(sys.argv[1])
    objects = [p for p in root.rglob("*.o") if re.search(r"_(avx2|avx512|amx)\.cc\.o$", p.name)]
    if not objects:
        print(f"no object of an instruction tier under {root}; build the library first")
        return 1
    found = [f"{p.name}: {s}" for p in objects for s in weak_symbols(p)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
