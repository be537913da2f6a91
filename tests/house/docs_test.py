#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of the pages must be able to fail: drift is made and has to be found.

Usage: docs_test.py FACTS
"""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import doc_tables  # noqa: E402
import docs  # noqa: E402
import run_page  # noqa: E402

FACTS = {}


def marked(kind, name, body=""):
    return f"before\n<!-- begin {kind} {name}; written by make docs -->\n{body}<!-- end {kind} -->\nafter\n"


class Tables(unittest.TestCase):
    def test_every_table_has_a_row_and_is_shown_somewhere(self):
        shown = "".join(page.read_text() for page in docs.pages(ROOT))
        for name, render in doc_tables.TABLES.items():
            self.assertGreater(len(render(FACTS)), 20, name)
            self.assertIn(f"<!-- begin table {name}", shown)

    def test_every_table_follows_the_facts(self):
        """Each string of the facts that a table shows, changed, changes the table."""
        for name, key, change in (
            ("formats", "formats", lambda f: f[0].update(doc="Other.")),
            ("layouts", "formats", lambda f: f[0].update(stored_bytes=1)),
            ("identities", "formats", lambda f: f.pop()),
            ("gate_cpu", "gates", lambda g: g["cpu"]["nvfp4"].reverse()),
            ("gate_cuda", "gates", lambda g: g["cuda"]["nvfp4"].pop()),
            ("matrix_cpu", "matrix", lambda m: m["cpu"][0]["cells"].__setitem__(0, "dtype_unsupported")),
            ("matrix_cuda", "matrix", lambda m: m["cuda"].pop()),
            ("reasons", "reasons", lambda r: r.__setitem__(0, "other")),
            ("switches", "switches", lambda s: s[0].update(default="other")),
            ("strategies", "strategies", lambda s: s.pop()),
            ("presets", "presets", lambda p: p[0].update(hidden=1)),
            ("tiers", "tiers", lambda t: t[1].update(runs="other")),
            ("families", "families", lambda f: f.pop()),
            ("preferences", "preference_words", lambda w: w.pop()),
        ):
            other = copy.deepcopy(FACTS)
            change(other[key])
            before = docs.rendered(marked("table", name), FACTS, ROOT)
            self.assertEqual(docs.rendered(before, FACTS, ROOT), before, name)
            self.assertNotEqual(docs.rendered(before, other, ROOT), before, name)
            self.assertTrue(before.startswith("before\n") and before.endswith("after\n"))

    def test_an_edited_table_is_found(self):
        true = docs.rendered(marked("table", "tiers"), FACTS, ROOT)
        self.assertEqual(docs.rendered(true.replace("portable", "quick"), FACTS, ROOT), true)

    def test_the_command_fails_on_drift(self):
        with tempfile.TemporaryDirectory() as folder:
            liar = pathlib.Path(folder) / "facts"
            other = copy.deepcopy(FACTS)
            other["presets"][0]["hidden"] += 1
            liar.write_text(f"#!/bin/sh\ncat <<'X'\n{json.dumps(other)}\nX\n")
            liar.chmod(0o755)
            done = subprocess.run([sys.executable, ROOT / "scripts/docs.py", liar], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("docs/support.md: a generated part is not what the library says", done.stdout)

    def test_faulty_markers(self):
        for text in (marked("table", "nothing_of_that_name"), "<!-- begin table tiers -->\n", "<!-- end quote -->\n",
                     marked("quote", "examples/nothing.cc")):
            with self.assertRaises(SystemExit):
                docs.rendered(text, FACTS, ROOT)


class Tree(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.root = pathlib.Path(self.temp.name).resolve()
        (self.root / "docs").mkdir()

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def test_quotes(self):
        self.write("a.cc", "// SPDX-License-Identifier: Apache-2.0\nint x;\n")
        page = docs.rendered(marked("quote", "a.cc"), FACTS, self.root)
        self.assertIn("-->\n```cpp\nint x;\n```\n<!--", page)
        self.write("a.cc", "// SPDX-License-Identifier: Apache-2.0\nint y;\n")
        self.assertNotEqual(docs.rendered(page, FACTS, self.root), page)

    def test_examples_are_quoted(self):
        (self.root / "examples").mkdir()
        self.write("examples/a.cc", "int x;\n")
        self.assertEqual(docs.quote_faults(self.root), ["examples/a.cc: no page quotes it"])
        self.write("docs/a.md", marked("quote", "examples/a.cc"))
        self.assertEqual(docs.quote_faults(self.root), [])

    def test_links(self):
        self.write("README.md", "[a](docs/a.md) [b](docs/b.md#part) [out](https://example.org)")
        self.write("docs/a.md", "[up](../README.md)\n```cpp\nauto f = [&](Rank& r) {};\n```\n[b](b.md)")
        self.write("docs/b.md", "")
        self.assertEqual(docs.link_faults(self.root), [])
        self.write("docs/a.md", "[gone](gone.md)")
        self.write("docs/lost.md", "")
        self.assertEqual(docs.link_faults(self.root), ["docs/a.md: link to gone.md leads nowhere",
                                                       "docs/lost.md: no link leads to it from README.md"])

    def test_decisions(self):
        self.write("docs/decisions/0001-a.md", "# 0001: A\n")
        self.write("docs/decisions/0002-b.md", "# 0002: B\n")
        self.assertEqual(docs.decision_faults(self.root), [])
        self.write("docs/decisions/0002-c.md", "# 0002: C\n")
        self.write("docs/decisions/0002-b.md", "# 0003: B\n")
        self.assertEqual(docs.decision_faults(self.root), ["docs/decisions/0002-b.md: its heading has another number",
                                                           "docs/decisions/0002-c.md: the next number is 0003"])

    def test_messages(self):
        source = '// "a remark"\nrequire(ok, "width ", w, " is odd; "\n  "pad it");\n'
        sources = [docs.literals(source), ["other"]]

        def faults(heading, block=""):
            return docs.message_faults(f"### `{heading}`\n\nText.\n{block}", sources)
        self.assertEqual(faults("width … is odd; pad it"), [])
        self.assertEqual(faults("width … is odd;", "```console\n$ x\nwidth 3 is odd; pad it\n```\n"), [])
        for heading, block in (("width … is even", ""), ("width … other", ""), ("a remark", ""),
                               ("width … is odd", "```console\n$ x\nwidth 3 is fine\n```\n")):
            self.assertEqual(len(faults(heading, block)), 1, heading)
        self.assertEqual(len(docs.message_faults("### No message\n", sources)), 1)
        self.assertEqual(len(docs.message_faults("nothing", sources)), 1)


class Pages(unittest.TestCase):
    """Of a page whose commands are run."""

    def faults(self, *lines, info=""):
        page = "text\n```console" + info + "\n" + "\n".join(lines) + "\n```\n"
        with tempfile.TemporaryDirectory() as folder:
            return run_page.faults(page, folder, run_page.environment("/nowhere"))

    def test_what_is_true_passes(self):
        self.assertEqual(self.faults("$ echo one; echo two", "one", "two", "$ cd /; x=3", "$ pwd; echo $x", "/", "3"), [])
        self.assertEqual(self.faults("$ printf 'a  b\\nc\\n'", "a b", "..."), [])
        self.assertEqual(self.faults("$ echo 'in 12.5 us, 30% of 7e-03'", "in 99.1 us, 4% of 5e-03"), [])
        self.assertEqual(self.faults("$ echo read 17 of 18", "read ... of 18"), [])
        self.assertEqual(self.faults("$ echo quiet"), [])
        self.assertEqual(self.faults("$ ls /nowhere", "ls: ...", "$ echo $?", "2"), [])
        self.assertEqual(self.faults("$ for i in 1 2; do", ">   echo $i", "> done", "1", "2"), [])

    def test_what_is_not_true_is_found(self):
        for lines in (("$ echo one", "two"), ("$ echo one; echo two", "one"), ("$ echo one", "one", "two"),
                      ("$ echo 17", "18"), ("$ echo 1.5x", "1.5y"), ("$ false",), ("$ true", "something"),
                      ("$ false", "$ echo $?", "2"), ("$ no_such_command",), ("$ exit 0", "$ echo on", "on"),
                      ("$ echo 'a.b'", "a+b"), ("$ echo stdout >&2", "stderr")):
            self.assertEqual(len(self.faults(*lines)), 1, lines)

    def test_blocks_for_the_tree_are_apart(self):
        page = "```console\n$ a\n```\n```console tree\n$ b\n```\n"
        self.assertEqual(run_page.commands(page), [("a", [])])
        self.assertEqual(run_page.commands(page, in_tree=True), [("b", [])])

    def test_switches_do_not_leak_in(self):
        os.environ["SWITCHYARD_CPU_ISA"] = "portable"
        self.assertEqual(self.faults("$ echo [$SWITCHYARD_CPU_ISA]", "[]"), [])


if __name__ == "__main__":
    FACTS = json.loads(subprocess.run([sys.argv.pop(1)], check=True, capture_output=True).stdout)
    unittest.main()
