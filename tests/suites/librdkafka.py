"""The tests in C of librdkafka, in a checkout where they are compiled.

One process for each number of a test: one that hangs or crashes does not take the others with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.suites.judge import Outcome, Result

RUNNER = "tests/test-runner"
_STATES = {"PASSED": Outcome.PASSED, "FAILED": Outcome.FAILED}
NUMBER = 4
"""How many characters of a name the program chooses by."""


def run_librdkafka(
    source: Path, environment: Mapping[str, str], numbers: Iterable[str], reports: Path, limit_s: int
) -> dict[str, Result]:
    """`numbers`: such as `0011`; without any, all tests that need a cluster. A report and the output of each
    stay in `reports`."""
    reports.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    for number in list(numbers) or sorted({name[:NUMBER] for name in _names(source, environment, reports)}):
        results |= _run(source, environment, number, reports, limit_s)
    return results


def _names(source: Path, environment: Mapping[str, str], reports: Path) -> list[str]:
    _start(source, environment, "none", reports, 60)
    return list(read_report((reports / "none.json").read_text(), ""))


def _run(
    source: Path, environment: Mapping[str, str], number: str, reports: Path, limit_s: int
) -> dict[str, Result]:
    report = reports / f"{number}.json"
    report.unlink(missing_ok=True)
    ended = _start(source, environment, number, reports, limit_s)
    if report.is_file():
        return read_report(report.read_text(), number)
    return {number: Result(Outcome.FAILED, ended)}


def _start(source: Path, environment: Mapping[str, str], number: str, reports: Path, limit_s: int) -> str:
    """How it ended, for one that writes no report. Without the tests that have a broker of their own (-L) and
    those that librdkafka itself lists as failing (-K); -Q: their short form."""
    given = {"TESTS": number, "TEST_REPORT": str(reports / f"{number}.json"), **environment}
    with (reports / f"{number}.log").open("w") as log:
        try:
            done = subprocess.run(
                ["./test-runner", "-p1", "-Q", "-K", "-L", "-r"],
                cwd=(source / RUNNER).parent,
                env=os.environ | {"LD_LIBRARY_PATH": "../src:../src-cpp"} | given,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {limit_s} s"
    return f"ended with {done.returncode} and without a report"


def read_report(text: str, number: str) -> dict[str, Result]:
    """The tests whose names begin with the number; the program's own name for itself is not one."""
    tests = json.loads(text)["tests"].values()
    return {
        each["name"]: Result(_STATES.get(each["state"], Outcome.SKIPPED))
        for each in tests
        if each["name"].startswith(number) and each["name"][:NUMBER].isdigit()
    }
