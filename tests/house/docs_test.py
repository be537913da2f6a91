#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of the pages must be able to fail: drift is made and has to be found.

Usage: docs_test.py FACTS
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import doc_tables  # noqa: E402
import docs  # noqa: E402

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
        (self.root / name).write_text(text)

    def test_quotes(self):
        self.write("a.cc", "// SPDX-License-Identifier: Apache-2.0\nint x;\n")
        page = docs.rendered(marked("quote", "a.cc"), FACTS, self.root)
        self.assertIn("-->\n```cpp\nint x;\n```\n<!--", page)
        self.write("a.cc", "// SPDX-License-Identifier: Apache-2.0\nint y;\n")
        self.assertNotEqual(docs.rendered(page, FACTS, self.root), page)

    def test_links(self):
        self.write("README.md", "[a](docs/a.md) [b](docs/b.md#part) [out](https://example.org)")
        self.write("docs/a.md", "[up](../README.md)")
        self.write("docs/b.md", "")
        self.assertEqual(docs.link_faults(self.root), [])
        self.write("docs/a.md", "[gone](gone.md)")
        self.write("docs/lost.md", "")
        self.assertEqual(docs.link_faults(self.root), ["docs/a.md: link to gone.md leads nowhere",
                                                       "docs/lost.md: no link leads to it from README.md"])


if __name__ == "__main__":
    FACTS = json.loads(subprocess.run([sys.argv.pop(1)], check=True, capture_output=True).stdout)
    unittest.main()
