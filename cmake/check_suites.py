#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a test binary in no suite, and on a suite's line without its binary.

Usage: check_suites.py SUITES BINARIES   (BINARIES: one name a line, as the build wrote it)
"""
import pathlib
import sys

SUITES = ("cpu", "mpi", "gpu", "gpu2")
FLAGS = ("asan", "tsan", "serial", "many")


def parse(text):
    """({binary: (suite, flags)}, faults) of a suites file."""
    table, faults = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        binary, suite, flags = words[0], (words[1:2] or [""])[0], words[2:]
        if suite not in SUITES:
            faults.append(f"line {number}: {binary}: suite '{suite}' is none of {', '.join(SUITES)}")
        for flag in flags:
            if flag not in FLAGS:
                faults.append(f"line {number}: {binary}: flag '{flag}' is none of {', '.join(FLAGS)}")
        if binary in table:
            faults.append(f"line {number}: {binary} is listed twice")
        table[binary] = (suite, tuple(flags))
    return table, faults


def faults_of(suites_text, binaries):
    """All faults, one line each; empty when list and build agree."""
    table, faults = parse(suites_text)
    missing = sorted(set(binaries) - set(table))
    faults += [f"{b} is in no suite; add a line like '{b} cpu asan'" for b in missing]
    faults += [f"{b} is listed but no such test binary is built; remove its line"
               for b in sorted(set(table) - set(binaries))]
    return faults


def main():
    suites, binaries = (pathlib.Path(p).read_text() for p in sys.argv[1:3])
    faults = faults_of(suites, binaries.split())
    for fault in faults:
        print(f"{sys.argv[1]}: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
