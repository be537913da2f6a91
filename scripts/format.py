#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks (or with --apply rewrites) the layout of all tracked C++ sources with clang-format."""
import concurrent.futures
import subprocess
import sys

import tree

# Releases disagree about details, so one of them decides: that of Debian 12.
PINNED_MAJOR = "14"


def is_formatted(name):
    return subprocess.run(["clang-format", "--dry-run", "-Werror", name], cwd=tree.ROOT,
                          capture_output=True).returncode == 0


def main():
    files = tree.cpp_sources()
    if "--apply" in sys.argv[1:]:
        return subprocess.run(["clang-format", "-i", *files], cwd=tree.ROOT).returncode
    version = tree.output("clang-format", "--version").split("version ")[1].split(".")[0]
    if version != PINNED_MAJOR:
        print(f"SKIPPED format: clang-format {version} found, release {PINNED_MAJOR} decides")
        return 0
    with concurrent.futures.ThreadPoolExecutor(tree.jobs()) as pool:
        bad = [f for f, good in zip(files, pool.map(is_formatted, files)) if not good]
    for name in bad:
        print(f"{name}: not formatted; run make format")
    print(f"{len(files)} files checked, {len(bad)} not formatted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
