#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The totals of make test: nothing that did not run may count as passed."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402

GTEST = """<testsuites><testsuite name="Suite">
<testcase name="Good" status="run" result="completed" classname="Suite"/>
<testcase name="Bad" status="run" classname="Suite"><failure message="x"/></testcase>
<testcase name="Off" status="notrun" result="suppressed" classname="Suite"/>
<testcase name="Gpu" status="run" result="skipped" classname="Suite">
<skipped message="file.cc:3&#x0A;no CUDA device"/></testcase>
</testsuite></testsuites>"""


class Tally(unittest.TestCase):
    def tally(self, junit, reports=None):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if junit is not None:
                (folder / "ctest.junit").write_text(f"<testsuite>{junit}</testsuite>")
            for name, text in (reports or {}).items():
                (folder / f"{name}.xml").write_text(text)
            tally = results.Tally()
            tally.add("cpu", folder)
        return tally

    def test_cases_of_a_binary(self):
        tally = self.tally('<testcase name="a_test" status="fail"/>', {"a_test": GTEST})
        self.assertEqual(tally.line(), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(tally.skips, [("cpu", "Suite.Off", "disabled in the source"),
                                       ("cpu", "Suite.Gpu", "no CUDA device")])

    def test_a_script_counts_as_one(self):
        self.assertEqual(self.tally('<testcase name="docs" status="run"/>').line(),
                         "1 passed, 0 failed, 0 skipped")

    def test_a_crash_is_a_failure(self):
        for report in ({}, {"a_test": "<testsuites><tests"}, {"a_test": GTEST.replace("failure", "x")}):
            self.assertEqual(self.tally('<testcase name="a_test" status="fail"/>', report).failed, 1)

    def test_what_could_not_start_is_a_failure(self):
        junit = '<testcase name="a" status="notrun"><skipped message="Unable to find it"/></testcase>'
        self.assertEqual(self.tally(junit).line(), "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.tally(None).failed, 1)

    def test_a_skipping_script_gives_its_reason(self):
        junit = ('<testcase name="a" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
                 "<system-out>working\nno such tool</system-out></testcase>")
        self.assertEqual(self.tally(junit).skips, [("cpu", "a", "no such tool")])


if __name__ == "__main__":
    unittest.main()
