#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the command and runs bundled checkpoints of real model families in their native formats."""
import json
import subprocess
import sys

import tree

DATA = "tests/data"
# The last one is shown in full; the others are one line each.
CHECKPOINTS = ("qwen3_moe", "deepseek_v3_fp8_block", "qwen3_moe_nvfp4", "gpt_oss_mxfp4")


def call(*args):
    """Runs the command and shows it as a user would type it; True on exit status 0."""
    print("\n$ switchyard", " ".join(args), flush=True)
    return subprocess.run([tree.COMMAND, *args], cwd=tree.ROOT).returncode == 0


def data(*args):
    """The JSON that the command prints, also when a check in it failed."""
    done = subprocess.run([tree.COMMAND, *args, "--json"], cwd=tree.ROOT, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"switchyard {' '.join(args)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def verify_args(name):
    return ["verify", f"{DATA}/{name}", "--io", f"{DATA}/{name}/moe_io.safetensors"]


def summary(name):
    """One line: what ran, how far it is from the oracle and the expected output, how long it took."""
    layer = data(*verify_args(name))["layers"][0]
    timed = data("run", "--checkpoint", f"{DATA}/{name}", "--tokens", "24")["measurements"][0]
    ok = layer["ok"] and timed["ok"]
    print(f"{name:<22} {layer['leaf']:<38} {layer['rel_l2_oracle']:>9.1e} {layer['budget']['rel_l2_oracle']:>7.0e} "
          f"{layer['rel_l2']:>9.1e} {layer['budget']['rel_l2']:>7.0e} "
          f"{timed['time_us']['p50']:>9.1f} {'ok' if ok else 'FAILED':>7}", flush=True)
    return ok


def main():
    tree.build_command()
    shown = CHECKPOINTS[-1]
    ok = call(*verify_args(shown))
    ok = call("run", "--checkpoint", f"{DATA}/{shown}", "--tokens", "24") and ok
    print(f"\n{'checkpoint':<22} {'leaf':<38} {'to oracle':>9} {'limit':>7} "
          f"{'to output':>9} {'limit':>7} {'p50 us':>9}")
    ok = all([summary(name) for name in CHECKPOINTS]) and ok
    print("'to output': against the bundled output, computed with unquantised activations, so a format that "
          "quantises them differs by its own error")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
