#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzz targets and runs each for a while; make fuzz.

Usage: fuzz.py [SECONDS [TARGET...]]   (60 seconds and all targets by default)

Inputs that widen the coverage grow in build/fuzz/grown, faults stand in build/fuzz/found and stay there. Exit status
1 when a target found a fault: fix its kind, give it a test, and keep the input in tests/fuzz/corpus.
"""
import concurrent.futures
import shutil
import subprocess
import sys

import tree

BUILD = tree.ROOT / "build/fuzz"
CORPUS = tree.ROOT / "tests/fuzz/corpus"
# A slow input is a fault too; so is one that asks for memory out of proportion (see run_target()).
LIMITS = ["-timeout=10", "-rss_limit_mb=3000", "-malloc_limit_mb=1024", "-max_len=65536"]


def build(names):
    """True when the targets are built; the reason to skip as a text without clang."""
    if not shutil.which("clang++"):
        return "clang++ not found"
    steps = (["cmake", "--preset", "fuzz"],
             ["cmake", "--build", "--preset", "fuzz", "-j", str(tree.jobs()),
              "--target", *[f"fuzz_{name}" for name in names]])
    return all(subprocess.run(step, cwd=tree.ROOT).returncode == 0 for step in steps)


def run(name, seconds):
    """(name, True without a fault, the last lines of the log)."""
    grown, found, log = BUILD / "grown" / name, BUILD / "found" / name, BUILD / f"{name}.log"
    grown.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)  # what an earlier run found stays until it is fixed
    with open(log, "w") as out:
        done = subprocess.run([BUILD / f"tests/fuzz/fuzz_{name}", f"-max_total_time={seconds}", *LIMITS,
                               f"-dict={tree.ROOT / 'tests/fuzz/json.dict'}",
                               f"-artifact_prefix={found}/", "-print_final_stats=1", grown,
                               CORPUS / name], stdout=out, stderr=subprocess.STDOUT)
    lines = log.read_text(errors="replace").splitlines()
    said = [x for x in lines if x.startswith("Done ") or "ERROR" in x or x.startswith("fault:")]
    return name, done.returncode == 0, said or [f"exit status {done.returncode}, see {log}"]


def main(seconds=60, names=()):
    """Runs the targets on all cores; True, False, or the reason why nothing was run."""
    names = names or sorted(p.name for p in CORPUS.iterdir())
    built = build(names)
    if built is not True:
        return built
    good = True
    with concurrent.futures.ThreadPoolExecutor(tree.jobs()) as pool:
        for name, passed, said in pool.map(lambda n: run(n, seconds), names):
            good &= passed
            print(f"{name:<12} {'ok' if passed else 'FAULT'}  {'; '.join(said)}", flush=True)
    return good


if __name__ == "__main__":
    outcome = main(int(sys.argv[1]) if sys.argv[1:] else 60, sys.argv[2:])
    if isinstance(outcome, str):
        print(f"make fuzz: {outcome}; nothing was run", file=sys.stderr)
    sys.exit(0 if outcome is True else 1)
