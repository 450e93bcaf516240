"""Exit codes: which of several reasons counts, and from which severity on."""

from __future__ import annotations

import itertools
from typing import Any

import click
import pytest

from metaquorum.cli import errors
from metaquorum.cli.errors import as_failure, log_exit_code
from metaquorum.cli.log.check import _exit_code
from metaquorum.cli.pipeline.audit import NEVER, _fails
from metaquorum.errors import ConfigError, StartError
from metaquorum.metadata.errors import ApiError, ErrorCode, InspectError, RecordDecodeError
from metaquorum.metadata.inspect.checks.check import Finding, LogReport
from metaquorum.metadata.inspect.log.coverage import Uncovered
from metaquorum.metadata.inspect.nodes.matching import QuorumReport
from metaquorum.metadata.invariants import ERROR, WARNING
from metaquorum.pipeline.audit.findings import SEVERITIES, AuditFinding
from metaquorum.storage.errors import StorageError


def test_every_code_is_another_one() -> None:
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert len({*codes.values(), 0}) == len(codes) + 1
    assert codes == {
        "EXIT_FAILED": 1,
        "EXIT_USAGE": 2,
        "EXIT_UNKNOWN_RECORDS": 3,
        "EXIT_NOT_COVERED": 4,
        "EXIT_DIFFERENT": 10,
        "EXIT_VIOLATIONS": 11,
        "EXIT_NEVER_FALSE": 12,
        "EXIT_REMAINS": 13,
        "EXIT_CRITICAL": 14,
        "EXIT_WARNING": 15,
        "EXIT_INTERRUPTED": 130,
        "EXIT_PIPE": 141,
    }


@pytest.mark.parametrize(
    ("damaged", "verdict", "uncovered", "unknown"),
    list(itertools.product([False, True], [0, 10], *[[False, True]] * 2)),
)
def test_the_first_reason_is_the_exit_code(
    damaged: bool, verdict: int, uncovered: bool, unknown: bool
) -> None:
    reasons = [(damaged, 1), (bool(verdict), verdict), (uncovered, 4), (unknown, 3), (True, 0)]
    expected = next(code for holds, code in reasons if holds)
    found = log_exit_code(damaged=damaged, uncovered=uncovered, unknown=unknown, verdict=verdict)
    assert found == expected


NOBODY: Any = None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("severity", [None, WARNING, ERROR])
@pytest.mark.parametrize(("problem", "uncovered", "unknown"), list(itertools.product(*[[False, True]] * 3)))
def test_a_check_fails_of_errors_and_strictly_of_warnings(
    strict: bool, severity: str | None, problem: bool, uncovered: bool, unknown: bool
) -> None:
    broken = LogReport(log=NOBODY, problems=["damage"] * problem, unknown=int(unknown))
    if uncovered:
        broken.coverage.add(Uncovered(path="p", from_offset=3, to_offset=5, reason="missing", text="gone"))
    if severity is not None:
        finding = Finding(rule="r", severity=severity, offset=1, epoch=1, time_ms=0, where="w", text="t")
        broken.findings.append(finding)
    report = QuorumReport(logs=[LogReport(log=NOBODY), broken])
    fails = severity == ERROR or (strict and severity == WARNING)
    reasons = [(fails, 11), (problem, 1), (uncovered, 4), (unknown, 3), (True, 0)]
    assert _exit_code(report, strict) == next(code for holds, code in reasons if holds)


def test_a_check_of_logs_that_cannot_be_compared_fails() -> None:
    report = QuorumReport(logs=[LogReport(log=NOBODY)], not_compared="two clusters")
    assert _exit_code(report, strict=False) == 1


@pytest.mark.parametrize(
    ("kinds", "fails_on"),
    [
        ((), set()),
        (("info",), {"info"}),
        (("warning",), {"info", "warning"}),
        (("error",), {"info", "warning", "error"}),
        (("info", "error"), {"info", "warning", "error"}),
        (("info", "warning", "info"), {"info", "warning"}),
    ],
)
def test_an_audit_fails_from_a_severity_on(kinds: tuple[str, ...], fails_on: set[str]) -> None:
    found = [
        AuditFinding(
            severity=kind,
            kind="k",
            cluster="c",
            subject="s",
            time_ms=0,
            end_ms=None,
            offset=None,
            count=1,
            seconds=None,
            text="t",
        )
        for kind in kinds
    ]
    assert {limit for limit in (*SEVERITIES, NEVER) if _fails(found, limit)} == fails_on


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ApiError(ErrorCode.INVALID_REQUEST, "of\nan answer"), "INVALID_REQUEST: of an answer"),
        *[
            (kind("of\n  two lines"), "of two lines")
            for kind in (ConfigError, StartError, StorageError, RecordDecodeError, InspectError)
        ],
        (
            FileNotFoundError(2, "No such file or directory", "p"),
            "p: no such file or directory; check the path",
        ),
        (PermissionError(13, "Denied", "p"), "p: denied; check the owner and the permissions"),
        (IsADirectoryError(21, "Is a directory", "p"), "p: is a directory; give a file"),
        (NotADirectoryError(20, "Not a directory", "p"), "p: not a directory; give a directory"),
        (FileExistsError(17, "File exists", "p"), "p: file exists; choose another path"),
        (
            OSError(28, "No space left on device"),
            "no space left on device; free some, or write to another disk",
        ),
    ],
)
def test_what_a_user_can_cause_is_one_line_and_code_1(error: Exception, text: str) -> None:
    failure = as_failure(error)
    assert isinstance(failure, click.ClickException)
    assert (failure.exit_code, failure.message) == (1, text)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x"), AssertionError("x")])
def test_a_bug_is_no_failure_of_the_user(error: Exception) -> None:
    assert as_failure(error) is None
