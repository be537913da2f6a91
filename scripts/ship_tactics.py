#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the winners of tables that `switchyard tune --device cuda --out` wrote into the library.

Usage: ship_tactics.py TABLE.json...   (all of one build, on one H200; replaces what shipped before)

The winners hold for the kernels that they were measured with, so the tile kernels of the working tree must
be those of the tables' commit.
"""
import hashlib
import json
import pathlib
import subprocess
import sys

import tree

GPU = "NVIDIA H200"
OPS = "src/switchyard/ops/"
KERNELS = [OPS + "grouped_gemm/*sm90*.h", OPS + "grouped_gemm/*.cu", OPS + "grouped_ffn/*.cu"]
OUT = tree.ROOT / "src/switchyard/tune"


def digest(root=tree.ROOT):
    """As cmake/version.cmake computes it."""
    files = sorted(str(f) for pattern in KERNELS for f in root.glob(pattern))
    text = "".join(hashlib.sha256(pathlib.Path(f).read_bytes()).hexdigest() for f in files)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    specs = [":(glob)" + k for k in KERNELS]
    if subprocess.run(["git", "diff", "--quiet", commit, "--", *specs], cwd=tree.ROOT).returncode:
        raise SystemExit(f"the tile kernels are not those of {commit}, which was measured; measure these")


def literal(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def row(entry):
    call = {k: v for k, v in entry["call"].items() if k != "threads"}
    tactic = entry["tactic"]
    fields = [literal(v) for v in call.values()]
    fields.append(f"{{{tactic['fc1_tile']}, {tactic['fc2_tile']}}}")
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
