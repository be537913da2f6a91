# SPDX-License-Identifier: Apache-2.0
"""What the scripts know about the repository: its root, its files and its build folders."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMAND = ROOT / "build/cpu/switchyard"
CPP = (".h", ".cc", ".cu", ".cuh")


def jobs():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def output(*args):
    """Stdout of a command that must succeed, run in the root."""
    return subprocess.run(args, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def cpp_sources():
    """All tracked C++ and CUDA sources that exist, as names relative to the root."""
    return [f for f in output("git", "ls-files").splitlines()
            if f.endswith(CPP) and (ROOT / f).is_file()]


def build_command():
    """Builds the command in build/cpu; its path. Exits with a line when that fails."""
    steps = (["cmake", "--preset", "cpu"],
             ["cmake", "--build", "--preset", "cpu", "--target", "switchyard_cli", "-j", str(jobs())])
    for step in steps:
        if subprocess.run(step, cwd=ROOT, stdout=subprocess.DEVNULL if step is steps[0] else None).returncode:
            raise SystemExit(f"failed: {' '.join(step)}")
    return COMMAND
