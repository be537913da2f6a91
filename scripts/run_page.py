#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page as they stand there, and compares what they print with what it shows.

    run_page.py PAGE BUILD [--tree]

A page's ```console blocks are one bash session in a scratch folder, in which tests/, examples/, scripts/ and build/cpu
(that is BUILD) are those of the repository. With --tree only the blocks marked ```console tree run, in a copy of the sources.
Within a block:

    $ command       is run; "> " continues it
    anything else   is what it must print, stdout and stderr together; nothing shown means that nothing is compared

A run of blanks equals any other; "..." in a line stands for any text, on a line of its own for any lines; a decimal number
and a percentage stand for any other, because errors and times differ between machines. A whole number must be equal.
A command must succeed unless the next one is `echo $?`.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import tree

TIMEOUT_S = 280
BLOCK = re.compile(r"^```console([^\n]*)\n(.*?)^```", re.S | re.M)
MARK = "\001"
# What stands for more than itself: any text, or a number that may differ (a point, an exponent, a percent sign).
LOOSE = re.compile(r"(\.\.\.)|-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]\d+|\d+(?=%)")
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def commands(page, in_tree=False):
    """[(command, expected lines)] of a page's blocks."""
    found = []
    for info, body in BLOCK.findall(page):
        if ("tree" in info.split()) != in_tree:
            continue
        for line in body.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif not found:
                raise SystemExit(f"a console block starts with '{line}', which is no command")
            elif line.startswith("> ") and not found[-1][1]:
                found[-1] = (found[-1][0] + "\n" + line[2:], [])
            else:
                found[-1][1].append(line)
    return found


def line_pattern(line):
    """The regular expression of one shown line."""
    out, at = "", 0
    for loose in LOOSE.finditer(line):
        out += re.escape(line[at:loose.start()]) + (r"[^\n]*" if loose.group(1) else NUMBER)
        at = loose.end()
    return out + re.escape(line[at:]) + r"\n"


def pattern(lines):
    """The regular expression of all shown lines, blanks normalised."""
    shown = [" ".join(line.split()) for line in lines]
    return re.compile("".join(r"(?:[^\n]*\n)*?" if line == "..." else line_pattern(line) for line in shown) + r"\Z")


def matches(lines, output):
    """Whether `output` is what the page shows."""
    got = "".join(" ".join(line.split()) + "\n" for line in output.strip("\n").splitlines())
    return not lines or pattern(lines).match(got) is not None


def run(steps, folder, env):
    """[(status, output)] of the commands, run one after another in one bash."""
    script = "exec 2>&1\n"
    for command, _ in steps:
        script += f"{command}\n__status=$?; printf '\\n{MARK}%d\\n' $__status; (exit $__status)\n"
    shell = subprocess.Popen(["bash", "--norc"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True, start_new_session=True)
    try:
        output, _ = shell.communicate(script, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        output, _ = shell.communicate()
        output += f"\nnot finished within {TIMEOUT_S} s\n{MARK}124\n"
    pieces = re.split(rf"\n{MARK}(\d+)\n", output)
    return [(int(status), text) for text, status in zip(pieces[0::2], pieces[1::2])]


def faults(page, folder, env, in_tree=False):
    """What does not come out as the page says, one text each."""
    steps = commands(page, in_tree)
    results = run(steps, folder, env)
    found = []
    for number, ((command, lines), (status, output)) in enumerate(zip(steps, results)):
        asked = number + 1 < len(steps) and steps[number + 1][0] == "echo $?"
        if status and not asked:
            found.append(f"$ {command}\nexit status {status}; it printed:\n{output}")
        elif not matches(lines, output):
            found.append(f"$ {command}\nthe page shows:\n" + "\n".join(lines) + f"\nit printed:\n{output}")
    if len(results) < len(steps):
        found.append(f"$ {steps[len(results)][0]}\ndid not end")
    return found


def environment(build):
    """Ours without switches, the built command in front."""
    env = {name: value for name, value in os.environ.items() if not re.match("SWITCHYARD_|TRTLLM_|TLLM_", name)}
    env["PATH"] = f"{build}:{env['PATH']}"
    if shutil.which("ccache"):
        env.update(CMAKE_CXX_COMPILER_LAUNCHER="ccache", CCACHE_NOHASHDIR="1")
    return env


def furnish(folder, build):
    """Gives a scratch folder the parts of the repository that pages name."""
    for name in ("tests", "examples", "scripts"):
        (folder / name).symlink_to(tree.ROOT / name)
    (folder / "build").mkdir()
    (folder / "build/cpu").symlink_to(build)


def copy_sources(folder):
    """The tree as a user would have cloned it, as one commit."""
    for name in tree.output("git", "ls-files", "-co", "--exclude-standard").splitlines():
        if not name.startswith("tests/data/") and (tree.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree.ROOT / name, folder / name)
    for step in (["init", "-q"], ["add", "-A"],
                 ["-c", "user.name=page", "-c", "user.email=page@localhost", "commit", "-qm", "before"]):
        subprocess.run(["git", *step], cwd=folder, check=True)


def main():
    in_tree = "--tree" in sys.argv
    page, build = [pathlib.Path(arg).resolve() for arg in sys.argv[1:] if arg != "--tree"]
    text = page.read_text()
    if not commands(text, in_tree):
        raise SystemExit(f"{page}: no command to run")
    with tempfile.TemporaryDirectory(prefix="page_") as scratch:
        folder = pathlib.Path(scratch).resolve()
        if in_tree:
            copy_sources(folder)
        else:
            furnish(folder, build)
        env = environment(build) | {"CCACHE_BASEDIR": str(folder)}
        found = faults(text, folder, env, in_tree)
    for fault in found:
        print(f"{page.name}: {fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
