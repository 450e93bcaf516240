"""How `make suites` judges: a new failure is seen, and a listed one that passes now is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.__main__ import Absent, checked_out, lines_of, read_known
from tests.suites.catalogue import KNOWN, SUITES, WITHOUT_SUITE
from tests.suites.judge import Outcome, Result, judge, read_junit, unlisted
from tests.suites.librdkafka import NUMBER, RUNNER, run_librdkafka

PASSED, FAILED, SKIPPED = Result(Outcome.PASSED), Result(Outcome.FAILED, "why"), Result(Outcome.SKIPPED)
REPORT = """<testsuites><testsuite>
<testcase classname="test.integration.test_admin" name="test_acls"/>
<testcase classname="test.integration.test_admin" name="test_groups[gzip]">
  <failure message="AssertionError: 1 == 2&#10;more">trace</failure></testcase>
<testcase classname="test.integration.test_admin" name="test_topics">
  <error message="no broker">trace</error></testcase>
<testcase classname="test.integration.test_admin" name="test_old"><skipped message="old"/></testcase>
<testcase classname="test.integration.test_admin" name="test_end"/>
<testcase classname="test.integration.test_admin" name="test_end"><error message="teardown"/></testcase>
<testcase classname="test.integration.test_admin" name="test_start"><failure message="first"/></testcase>
<testcase classname="test.integration.test_admin" name="test_start"/>
</testsuite></testsuites>"""


def test_a_report_is_read_with_failures_errors_and_skipped_tests() -> None:
    assert read_junit(REPORT) == {
        "test_admin::test_acls": PASSED,
        "test_admin::test_groups[gzip]": Result(Outcome.FAILED, "AssertionError: 1 == 2"),
        "test_admin::test_topics": Result(Outcome.FAILED, "no broker"),
        "test_admin::test_old": SKIPPED,
        "test_admin::test_end": Result(Outcome.FAILED, "teardown"),
        "test_admin::test_start": Result(Outcome.FAILED, "first"),
    }


def test_a_failure_that_is_not_listed_is_new_and_one_that_is_listed_is_not() -> None:
    verdict = judge({"a": PASSED, "b": FAILED, "c": FAILED}, {"c": "as Kafka"})
    assert (verdict.new, verdict.healed, verdict.missing, verdict.good) == (("b",), (), (), False)
    assert verdict.summary() == "1 passed, 1 failed as listed, 1 failed and not listed"
    assert judge({"a": PASSED, "c": FAILED}, {"c": "as Kafka"}).good


def test_a_listed_test_that_passes_or_does_not_run_is_said_and_is_no_failure() -> None:
    known = {"a": "as Kafka", "b": "as Kafka", "gone": "as Kafka"}
    verdict = judge({"a": PASSED, "b": SKIPPED}, known)
    assert (verdict.healed, verdict.missing, verdict.good) == (("a",), ("b", "gone"), True)
    lines = "\n".join(lines_of(SUITES["kafka-python"], verdict))
    assert "passes now: a: take it out of known.toml" in lines
    assert "listed, but skipped: b" in lines
    assert "listed, but there is no such test: gone" in lines


def test_a_test_that_fails_counts_only_if_it_fails_again_and_is_said_otherwise() -> None:
    first = {"a": PASSED, "b": FAILED, "c": FAILED, "d": FAILED, "e": FAILED}
    assert unlisted(first, {"e": "as Kafka"}) == ["b", "c", "d"]
    verdict = judge(first, {"e": "as Kafka"}, {"b": PASSED, "c": FAILED})
    assert (verdict.unsteady, verdict.new) == (("b",), ("c", "d"))
    lines = lines_of(SUITES["kafka-python"], verdict)
    assert "  NEW FAILURE c: why" in lines
    assert "  failed, and passed when it ran again: b" in lines


def test_a_suite_of_which_nothing_passes_has_shown_nothing() -> None:
    for results in ({}, {"a": SKIPPED}, {"a": FAILED}):
        verdict = judge(results, {"a": "as Kafka"})
        assert not verdict.good
        assert "no test passed" in "\n".join(lines_of(SUITES["kafka-python"], verdict))


def test_each_listed_failure_is_of_a_suite_that_there_is_and_has_a_reason() -> None:
    known = read_known(KNOWN)
    assert known.keys() <= SUITES.keys()
    assert not SUITES.keys() & WITHOUT_SUITE.keys()
    for name, tests in known.items():
        assert all(len(reason.split()) > 3 for reason in tests.values())
        if SUITES[name].checkout:
            assert all(test[:NUMBER].isdigit() for test in tests)
            continue
        modules = tuple(address.partition("::")[0] for address in SUITES[name].addresses(list(tests)))
        assert all(module in SUITES[name].tests for module in modules)


PROGRAM = """#!/bin/sh
case $TESTS in 0003) exit 9;; 0004) exec sleep 60;; esac
state() { case $TESTS in $1) echo "$2";; *) echo SKIPPED;; esac; }
cat > "$TEST_REPORT" <<END
{"tests": {"<MAIN>": {"name": "<MAIN>", "state": "PASSED"},
"1": {"name": "0001_good", "state": "$(state 0001 PASSED)"},
"2": {"name": "0001_local", "state": "SKIPPED"},
"3": {"name": "0002_bad", "state": "$(state 0002 FAILED)"},
"4": {"name": "0003_crash", "state": "$(state 0003 PASSED)"},
"5": {"name": "0004_hangs", "state": "$(state 0004 PASSED)"}}}
END
"""


def test_tests_in_c_run_one_by_one_and_one_that_crashes_or_hangs_has_failed(tmp_path: Path) -> None:
    program = tmp_path / RUNNER
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    assert checked_out(SUITES["librdkafka"], tmp_path) == tmp_path
    results = run_librdkafka(tmp_path, {}, (), tmp_path / "first", 2)
    assert {name: each.outcome for name, each in results.items()} == {
        "0001_good": Outcome.PASSED,
        "0001_local": Outcome.SKIPPED,
        "0002_bad": Outcome.FAILED,
        "0003": Outcome.FAILED,
        "0004": Outcome.FAILED,
    }
    assert results["0003"].reason == "ended with 9 and without a report"
    assert results["0004"].reason == "not done after 2 s"
    names = SUITES["librdkafka"].addresses(["0002_bad"])
    assert list(run_librdkafka(tmp_path, {}, names, tmp_path / "again", 2)) == ["0002_bad"]


def test_a_suite_in_c_says_which_checkout_it_needs(tmp_path: Path) -> None:
    for checkout in (None, tmp_path):
        with pytest.raises(Absent, match="make -C tests test-runner"):
            checked_out(SUITES["librdkafka"], checkout)
