#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the winners of tables that `switchyard tune --device cuda --out` wrote into the library.

Usage: ship_tactics.py TABLE.json...   (all of one build, on one H200; replaces what shipped before)

The winners hold for the kernels that they were measured with, so the tile kernels of the working tree must
be those of the tables' commit.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import tree

GPU = "NVIDIA H200"
OUT = tree.ROOT / "src/switchyard/tune"


def digest(root=tree.ROOT):
    """Of the tile kernels under `root`, as a build computes it."""
    script = tree.ROOT / "cmake/tile_kernels.cmake"
    out = subprocess.run(["cmake", f"-DSWITCHYARD_SRC={root}/src", "-P", str(script)],
                         capture_output=True, text=True, check=True)
    return out.stderr.strip()


def digest_at(commit):
    """The same of a commit. Exits with a line for one that is not in this repository."""
    known = subprocess.run(["git", "cat-file", "-e", commit + "^{commit}"], cwd=tree.ROOT, capture_output=True)
    if known.returncode:
        raise SystemExit(f"the tables are of commit '{commit}', which this repository has not; fetch it, or measure here")
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src/switchyard/ops"], cwd=tree.ROOT,
                                 capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return digest(folder)


def read(paths):
    """(build, entries of all tables). Exits with a line for tables that do not belong together."""
    tables = [json.loads(pathlib.Path(p).read_text()) for p in paths]
    builds = {t["build"] for t in tables}
    gpus = {t["machine"]["gpu"] for t in tables}
    if len(builds) != 1 or gpus != {GPU}:
        raise SystemExit(f"the tables are of builds {sorted(builds)} on {sorted(gpus)}; give those of one build on {GPU}")
    return builds.pop(), [e for t in tables for e in t["entries"]]


def require_same_kernels(build):
    commit = build.split("+")[-1]
    measured, here = digest_at(commit), digest()
    if measured != here:
        raise SystemExit(f"the tile kernels of {commit}, which was measured, have digest {measured}, those here "
                         f"{here}: they differ; measure these")


def literal(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def row(entry):
    call = {k: v for k, v in entry["call"].items() if k != "threads"}
    tactic = entry["tactic"]
    fields = [literal(v) for v in call.values()]
    fields.append(f"{{{tactic['fc1_tile']}, {tactic['fc2_tile']}, {tactic['routing']}}}")
    fields += [f"{entry['us']:.1f}", f"{entry['plan_us']:.1f}", f"{entry['noise']:.4f}"]
    return "{" + ", ".join(fields) + "},"


def main():
    if len(sys.argv) < 2:
        raise SystemExit("usage: ship_tactics.py TABLE.json...")
    build, entries = read(sys.argv[1:])
    require_same_kernels(build)
    winners = [e for e in entries if e["tactic"] != e["plan"] and e["call"]["threads"] == 0]
    head = "// SPDX-License-Identifier: Apache-2.0\n// Written by scripts/ship_tactics.py.\n"
    (OUT / "shipped_h200.inc").write_text(head + "".join(row(e) + "\n" for e in winners))
    (OUT / "shipped_h200.h").write_text(
        head + "#pragma once\n\n#include <string_view>\n\nnamespace switchyard::tune {\n\n"
        "/// What was measured on an H200: the kernels' digest, and the build.\n"
        f'inline constexpr std::string_view kH200Kernels = "{digest()}", kH200Build = "{build}";\n\n'
        "}  // namespace switchyard::tune\n")
    print(f"{len(winners)} of {len(entries)} calls have a winner")


if __name__ == "__main__":
    main()
