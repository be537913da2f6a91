#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the sources that changed since a commit.

Usage: tidy.py BUILD_DIR   (environment: BASE, a commit, default HEAD~1; TIDY_BUDGET_S, default 300)

A commit that this clone does not have (a shallow one, or the first commit) means all sources. Files
that the time budget leaves over are named: a check that did not run must be visible.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

import tree


def changed(base):
    """(names, description of the range) of the sources that differ from `base`."""
    known = subprocess.run(["git", "rev-parse", "-q", "--verify", base + "^{commit}"], cwd=tree.ROOT,
                           capture_output=True).returncode == 0
    if not known:
        return tree.cpp_sources(), f"all sources ({base} is not in this clone)"
    names = set(tree.output("git", "diff", "--name-only", "--diff-filter=d", base).splitlines())
    return [f for f in tree.cpp_sources() if f in names], f"sources changed since {base}"


def units(names, compiled):
    """Translation units that show the changed files: each .cc itself, for a header one that has it."""
    found = {n for n in names if n in compiled}
    for header in (n for n in names if n.endswith(".h")):
        own = header[:-2] + ".cc"
        include = f'#include "{header.removeprefix("src/")}"'
        users = [own] if own in compiled else [
            c for c in sorted(compiled) if include in (tree.ROOT / c).read_text()]
        if not found & set(users):
            found.update(users[:1])
    return sorted(found)


def check(unit, build, deadline):
    """(unit, findings); findings is None when the budget was spent before its turn."""
    if time.monotonic() > deadline:
        return unit, None
    # The compile commands are g++'s; clang need not know all of its warnings.
    done = subprocess.run(["clang-tidy", "-p", build, "--quiet",
                           "--extra-arg=-Wno-unknown-warning-option", unit],
                          cwd=tree.ROOT, capture_output=True, text=True)
    return unit, done.stdout.strip() if done.returncode else ""


def main():
    build = pathlib.Path(sys.argv[1])
    database = json.loads((build / "compile_commands.json").read_text())
    compiled = {os.path.relpath(entry["file"], tree.ROOT) for entry in database}
    names, what = changed(os.environ.get("BASE") or "HEAD~1")
    todo = units(names, {c for c in compiled if not c.startswith(("..", "build"))})
    deadline = time.monotonic() + float(os.environ.get("TIDY_BUDGET_S") or 300)
    left, bad = [], 0
    with concurrent.futures.ThreadPoolExecutor(tree.jobs()) as pool:
        for unit, findings in pool.map(lambda u: check(u, build, deadline), todo):
            if findings is None:
                left.append(unit)
            elif findings:
                bad += 1
                print(findings, flush=True)
    print(f"{what}: {len(todo) - len(left)} units checked, {bad} with findings")
    if left:
        print(f"SKIPPED tidy: the time budget left over {', '.join(left)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
