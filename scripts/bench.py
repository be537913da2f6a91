#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times one MoE layer of a published shape in every format and holds it against the measured roof.

Usage: bench.py [PRESET]   (default qwen3-30b-a3b)
"""
import json
import subprocess
import sys

import tree

FORMATS = ("bf16", "fp8", "fp8_block_scales", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8",
           "w4a8_mxfp4_fp8", "w4a8_nvfp4_fp8")
TOKENS = (1, 8, 64)


def measure(preset, name, tokens):
    """The first measurement of one run; None when the run failed (its line is shown)."""
    args = ["run", "--preset", preset, "--format", name, "--tokens", str(tokens), "--json"]
    done = subprocess.run([tree.COMMAND, *args], cwd=tree.ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"{name:<18} {tokens:>6}  FAILED: {done.stderr.strip() or 'exit ' + str(done.returncode)}")
        return None
    return json.loads(done.stdout)["measurements"][0]


def main():
    preset = sys.argv[1] if len(sys.argv) > 1 else "qwen3-30b-a3b"
    tree.build_command()
    print(f"preset {preset}\n{'format':<18} {'tokens':>6} {'p50 us':>10} {'p99 us':>10} {'GB/s':>8} "
          f"{'GFLOP/s':>9} {'of roof':>8} {'rel L2':>9}")
    failed = 0
    for name in FORMATS:
        for tokens in TOKENS:
            m = measure(preset, name, tokens)
            if m is None:
                failed += 1
                continue
            print(f"{name:<18} {tokens:>6} {m['time_us']['p50']:>10.1f} {m['time_us']['p99']:>10.1f} "
                  f"{m['gbps']:>8.1f} {m['gflops']:>9.1f} {m['share_of_roof']:>8.2f} "
                  f"{m['rel_l2']:>9.1e}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
