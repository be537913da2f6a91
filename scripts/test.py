#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that a change must pass, in stages with their wall times; make test, make tsan and make soak.

All stages run even when one fails. Exit status 1 when any stage failed. Test cases that skip are
listed with their reasons, because a skip that nobody sees is a hole.
"""
import os
import shutil
import subprocess
import sys
import time

import fuzz
import results
import tree

PYTHON = sys.executable
BUDGET_MIN = 25
TEST_TIMEOUT_S, SOAK_TIMEOUT_S = 300, 7200
CUDA_HOME = "/usr/local/cuda"


class Run:
    """The stages' results in order, and what the test binaries reported."""

    def __init__(self, timeout_s):
        self.timeout_s = timeout_s
        self.stages = []  # (name, word, seconds)
        self.tests = results.Tally()

    def stage(self, name, action):
        """Runs `action`, which returns True (passed), False (failed) or a reason to skip.

        Returns True when it passed.
        """
        print(f"\n=== {name}", flush=True)
        start = time.monotonic()
        outcome = action()
        seconds = time.monotonic() - start
        if isinstance(outcome, str):
            print(f"SKIPPED {name}: {outcome}")
        word = "skipped" if isinstance(outcome, str) else "passed" if outcome else "FAILED"
        self.stages.append((name, word, seconds))
        print(f"=== {name}: {word} in {seconds:.1f} s", flush=True)
        return word == "passed"

    def ctest(self, preset, *options):
        """Runs a preset's tests and books every case; False when one failed."""
        build = tree.ROOT / "build" / preset
        reports = build / "reports"
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        env = dict(os.environ, GTEST_OUTPUT=f"xml:{reports}/", GTEST_COLOR="no")
        ok = call("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j",
                  tree.jobs(), "--timeout", self.timeout_s, "--output-junit", reports / "ctest.junit",
                  *options, env=env)
        self.tests.add(preset, reports)
        return ok

    def summary(self):
        """Prints the totals; True when nothing failed."""
        print("\n=== summary")
        self.tests.print_skips()
        for name, word, seconds in self.stages:
            print(f"{name:<24} {word:<8} {seconds:7.1f} s")
        total = sum(seconds for _, _, seconds in self.stages)
        print(f"{'total':<24} {'':<8} {total:7.1f} s")
        if self.timeout_s == TEST_TIMEOUT_S and total > BUDGET_MIN * 60:
            print(f"NOTE: over the budget of {BUDGET_MIN} minutes on 2 cores")
        failed_stages = [name for name, word, _ in self.stages if word == "FAILED"]
        if failed_stages:
            print("failed stages:", ", ".join(failed_stages))
        print(self.tests.line())
        return not failed_stages and not self.tests.failed


def call(*args, env=None):
    """Runs a command in the root with its output shown; True on exit status 0."""
    args = [str(a) for a in args]
    print("$", " ".join(args), flush=True)
    return subprocess.run(args, cwd=tree.ROOT, env=env).returncode == 0


def build(preset, targets=(), env=None):
    """Configures and builds; all targets when none are named."""
    quiet = [] if sys.stdout.isatty() else ["--", "--quiet"]
    wanted = ["--target", *targets] if targets else []
    return (call("cmake", "--preset", preset, env=env)
            and call("cmake", "--build", "--preset", preset, "-j", tree.jobs(), *wanted, *quiet, env=env))


def suite(word):
    """Test binaries whose line in tests/suites.txt has `word` as suite or flag."""
    lines = (tree.ROOT / "tests/suites.txt").read_text().splitlines()
    table = [line.split("#")[0].split() for line in lines]
    return [words[0] for words in table if word in words[1:]]


def house():
    """The cheap checks of the source text; all of them run."""
    checks = (
        (PYTHON, "cmake/check_layers.py", "src/switchyard", "cmake/layers.txt"),
        (PYTHON, "cmake/check_docs.py", "src/switchyard"),
        (PYTHON, "cmake/sizes.py", "."),
        (PYTHON, "scripts/format.py"),
    )
    return all([call(*check) for check in checks])


def sanitizer(run, preset, whole=False):
    """Builds and runs under a sanitizer what tests/suites.txt lists for it, or with `whole` all."""
    if whole:
        return build(preset) and run.ctest(preset)
    return build(preset, suite(preset)) and run.ctest(preset, "-L", f"^{preset}$")


def installed(env):
    """A program in C++ alone links what a CUDA build installs, and runs on the CPU."""
    build_dir = tree.ROOT / "build/cuda"
    prefix, examples = build_dir / "inst", build_dir / "examples"
    shutil.rmtree(prefix, ignore_errors=True)
    with open(build_dir / "install.log", "w") as log:
        done = subprocess.run(["cmake", "--install", build_dir, "--prefix", prefix], stdout=log).returncode == 0
    return (done and call("cmake", "-S", "examples", "-B", examples, f"-DCMAKE_PREFIX_PATH={prefix}", env=env)
            and call("cmake", "--build", examples, "--target", "ranks", env=env) and call(examples / "ranks"))


def cuda(run):
    """Compiles the CUDA twins; their tests run where a device is and skip visibly elsewhere."""
    env = dict(os.environ)
    if not shutil.which("nvcc"):
        if not os.access(f"{CUDA_HOME}/bin/nvcc", os.X_OK):
            return "nvcc not found"
        env["CUDACXX"] = f"{CUDA_HOME}/bin/nvcc"
    tests = suite("gpu") + suite("gpu2")
    if not build("cuda", ["switchyard", "switchyard_cli", *tests], env) or not installed(env):
        return False
    return run.ctest("cuda", "-L", "^gpu2?$") if tests else True


def stages_of_test(run):
    run.stage("house", house)
    if run.stage("cpu build", lambda: build("cpu")):
        run.stage("cpu tests", lambda: run.ctest("cpu"))
    run.stage("asan subset", lambda: sanitizer(run, "asan"))
    run.stage("cuda", lambda: cuda(run))
    run.stage("tidy", lambda: call(PYTHON, "scripts/tidy.py", tree.ROOT / "build/cpu"))


def stages_of_soak(run):
    # Tests widen their matrices when they see this variable (tests/support/soak.h).
    os.environ["TEST_SOAK"] = "1"
    if run.stage("cpu build", lambda: build("cpu")):
        run.stage("cpu tests, 3 times", lambda: run.ctest("cpu", "--repeat", "until-fail:3"))
    run.stage("asan, everything", lambda: sanitizer(run, "asan", whole=True))
    run.stage("tsan subset", lambda: sanitizer(run, "tsan"))
    run.stage("cuda", lambda: cuda(run))
    run.stage("fuzz, an hour each", lambda: fuzz.main(3600))


def stages_of_tsan(run):
    run.stage("tsan subset", lambda: sanitizer(run, "tsan"))


def main():
    soak, tsan = "--soak" in sys.argv[1:], "--tsan" in sys.argv[1:]
    run = Run(TEST_TIMEOUT_S if not (soak or tsan) else SOAK_TIMEOUT_S)
    (stages_of_soak if soak else stages_of_tsan if tsan else stages_of_test)(run)
    return 0 if run.summary() else 1


if __name__ == "__main__":
    sys.exit(main())
