"""What a run of a client's suite says, compared with the failures that are known.

Pure: reads no file and starts nothing.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from enum import Enum

import msgspec


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Result(msgspec.Struct, frozen=True):
    """`reason`: the first line of what a failed test says."""

    outcome: Outcome
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """Names of tests. `new`: failed and not listed; `unsteady`: not listed, failed, and passed on its own
    afterwards; `healed`: listed and passed; `missing`: listed, and no test of that name failed or passed.
    `results` holds every test."""

    results: Mapping[str, Result]
    new: tuple[str, ...]
    unsteady: tuple[str, ...]
    healed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def ran(self) -> bool:
        """At least one test passed: a suite that finds no cluster, or no test, has shown nothing."""
        return any(each.outcome is Outcome.PASSED for each in self.results.values())

    @property
    def good(self) -> bool:
        return self.ran and not self.new

    def summary(self) -> str:
        """Such as `38 passed, 1 failed as listed, 7 skipped`."""
        failed = self._names(Outcome.FAILED)
        words = [f"{len(self._names(Outcome.PASSED))} passed"]
        if known := len(failed) - len(self.new):
            words.append(f"{known} failed as listed")
        if self.new:
            words.append(f"{len(self.new)} failed and not listed")
        if skipped := len(self._names(Outcome.SKIPPED)):
            words.append(f"{skipped} skipped")
        return ", ".join(words)

    def _names(self, outcome: Outcome) -> list[str]:
        return [name for name, each in self.results.items() if each.outcome is outcome]


def unlisted(results: Mapping[str, Result], known: Mapping[str, str]) -> list[str]:
    """The tests that failed and should not."""
    return [name for name, each in results.items() if each.outcome is Outcome.FAILED and name not in known]


def judge(
    results: Mapping[str, Result], known: Mapping[str, str], again: Mapping[str, Result] | None = None
) -> Verdict:
    """`known`: the reason why a test fails, by its name. `again`: those `unlisted`, run once more."""
    again = again or {}
    wrong = unlisted(results, known)
    unsteady = [name for name in wrong if name in again and again[name].outcome is Outcome.PASSED]
    results = {**results, **{name: again[name] for name in unsteady}}
    seen = {name for name, each in results.items() if each.outcome is not Outcome.SKIPPED}
    passed = {name for name in seen if results[name].outcome is Outcome.PASSED}
    return Verdict(
        results=results,
        new=tuple(sorted(set(wrong) - set(unsteady))),
        unsteady=tuple(sorted(unsteady)),
        healed=tuple(sorted(passed & known.keys())),
        missing=tuple(sorted(known.keys() - seen)),
    )


def read_junit(text: str) -> dict[str, Result]:
    """The tests of a JUnit report, each named `file::test`. A test that failed and whose teardown failed too
    has two entries: the worse one counts."""
    found: dict[str, Result] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        if name not in found or found[name].outcome is not Outcome.FAILED:
            found[name] = _result(case)
    return found


def _result(case: ElementTree.Element) -> Result:
    for tag in ("failure", "error"):
        if (told := case.find(tag)) is not None:
            return Result(Outcome.FAILED, told.get("message", "").partition("\n")[0])
    skipped = case.find("skipped") is not None
    return Result(Outcome.SKIPPED if skipped else Outcome.PASSED)
