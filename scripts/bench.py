#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the layers that have a speed to reach, and routing; holds them against the bars and the measured roof.

    bench.py [--seconds X] [--threads N]

Results stand in build/bench/*.json afterwards, ready for render_benchmarks.py and `switchyard bench compare`.
Exit status: 0 ok, 1 a result is wrong or misses its bar.
"""
import argparse
import json
import subprocess
import sys
import time

import render_benchmarks
import tree

RUNS = {"qwen3-30b-a3b": ("layer", "--preset", "qwen3-30b-a3b", "--formats", "all", "--bars"),
        "gpt-oss-20b": ("layer", "--preset", "gpt-oss-20b", "--formats", "w4a16_mxfp4", "--bars"),
        "routing": ("routing",)}
START_MS = 20  # least time of `switchyard --help` over STARTS calls
STARTS = 20


def slow_start():
    """Times the command's start; true when it takes longer than it may."""
    times = []
    for _ in range(STARTS):
        begin = time.perf_counter()
        subprocess.run([tree.COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(1000 * (time.perf_counter() - begin))
    print(f"start: {min(times):.1f} ms at best of {STARTS} calls of --help, limit {START_MS} ms", flush=True)
    return min(times) > START_MS


def measure(name, args, folder):
    """Runs one benchmark and shows its tables; its exit status."""
    done = subprocess.run([tree.COMMAND, "bench", *args, "--json"], cwd=tree.ROOT, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        return done.returncode or 1
    (folder / f"{name}.json").write_text(done.stdout)
    print(render_benchmarks.render([json.loads(done.stdout)]), flush=True)
    return done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", default="2", help="of calls per row and cache state")
    parser.add_argument("--threads", default=str(tree.jobs()))
    args = parser.parse_args()
    tree.build_command()
    folder = tree.ROOT / "build/bench"
    folder.mkdir(parents=True, exist_ok=True)
    failed = ["start"] if slow_start() else []
    for name, words in RUNS.items():
        extra = ["--threads", args.threads] + (["--seconds", args.seconds] if words[0] == "layer" else [])
        if measure(name, [*words, *extra], folder):
            failed.append(name)
    if failed:
        print(f"missed a bar, or wrong: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
