# SPDX-License-Identifier: Apache-2.0
"""Counts test cases from ctest's report and from the reports that the test binaries wrote."""
import xml.etree.ElementTree as xml


class Tally:
    """Passed, failed and skipped cases over all runs of ctest."""

    def __init__(self):
        self.passed = self.failed = 0
        self.skips = []  # (preset, case, reason)

    def add(self, preset, reports):
        """Books one run: a binary that wrote a report counts by cases, everything else as one."""
        junit = reports / "ctest.junit"
        if not junit.is_file():
            self.failed += 1
            return
        for test in xml.parse(junit).getroot().iter("testcase"):
            name, status = test.get("name"), test.get("status")
            cases = self.cases(reports, name)
            failed = sum(outcome == "failed" for _, outcome, _ in cases)
            if not cases or (status != "run" and failed == 0):
                cases = cases + [(name, *self.outcome_of(test, status))]
            for case, outcome, reason in cases:
                self.book(preset, case, outcome, reason)

    @staticmethod
    def outcome_of(test, status):
        """(outcome, reason) of a test as a whole; one that could not start has failed."""
        skipped = test.find("skipped")
        reason = "" if skipped is None else skipped.get("message", "")
        if status == "notrun" and reason.startswith("SKIP_"):
            words = (test.findtext("system-out") or reason).strip().splitlines()
            return "skipped", words[-1]
        return ("passed", "") if status == "run" else ("failed", reason)

    def book(self, preset, case, outcome, reason):
        if outcome == "skipped":
            self.skips.append((preset, case, reason))
        elif outcome == "passed":
            self.passed += 1
        else:
            self.failed += 1

    @staticmethod
    def cases(reports, binary):
        """[(case, outcome, reason)] of a GoogleTest binary; empty when it wrote no whole report."""
        try:
            root = xml.parse(reports / f"{binary}.xml").getroot()
        except (OSError, xml.ParseError):
            return []
        found = []
        for case in root.iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None:
                found.append((name, "failed", ""))
            elif skipped is not None:
                words = (skipped.get("message") or skipped.text or "").strip().splitlines()
                found.append((name, "skipped", words[-1] if words else "no reason given"))
            elif case.get("status") == "run":
                found.append((name, "passed", ""))
            else:
                found.append((name, "skipped", "disabled in the source"))
        return found

    def print_skips(self):
        """One line per skipped case, with its reason."""
        for preset, case, reason in self.skips:
            print(f"SKIPPED {preset}: {case}: {reason}")

    def line(self):
        """The total, the last line of a run."""
        return f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped"
