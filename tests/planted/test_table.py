"""The table of planted bugs matches the current code, and its page is current."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.planted.bug import Bug, apply, is_simulator, seeds_of
from tests.planted.bugs import BUGS
from tests.planted.document import DOCUMENT, render
from tests.planted.workshop import Verdict, Workshop, verdict_of


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_code_and_changes_what_it_means(bug: Bug) -> None:
    sound = (REPOSITORY / bug.file).read_text()
    planted = apply(bug, sound)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(sound))
    compile(planted, bug.file, "exec")


def test_a_bug_has_no_name_that_its_file_lacks(tmp_path: Path) -> None:
    """A bug that ends in a NameError is caught by everything and tests nothing."""
    for bug in BUGS:
        file = tmp_path / f"{bug.name}.py"
        file.write_text(apply(bug, (REPOSITORY / bug.file).read_text()))
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}")
    if ruff is None:
        pytest.skip("ruff is not installed")
    checked = subprocess.run(
        [ruff, "check", "--isolated", "--select", "F821,F811", "--output-format", "concise", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_one_line_in_a_package_and_somebody_catches_it(bug: Bug) -> None:
    package = bug.file.split("/")[0]
    assert package in os.listdir(REPOSITORY / "metaquorum") or package == "metaquorum", (
        "a package of the product"
    )
    sound = (REPOSITORY / bug.file).read_text()
    assert max(lines_changed(sound.splitlines(), apply(bug, sound).splitlines())) == 1
    assert bug.caught_by
    for command in bug.caught_by:
        if is_simulator(command):
            assert len(seeds_of(command)) > 0
        else:
            assert all((REPOSITORY / path.split("::")[0]).exists() for path in command.split())


def lines_changed(old: list[str], new: list[str]) -> tuple[int, int]:
    """The number of lines of each between the common beginning and the common end."""
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return len(old), len(new)


def test_every_table_is_one_of_those_that_are_run() -> None:
    files = sorted((REPOSITORY / "tests" / "planted").glob("table_*.py"))
    values = [vars(importlib.import_module(f"tests.planted.{each.stem}")) for each in files]
    written = {
        bug.name
        for names in values
        for value in names.values()
        if isinstance(value, tuple)
        for bug in value
        if isinstance(bug, Bug)
    }
    missing = written - {bug.name for bug in BUGS}
    assert written and not missing, f"SECTIONS (tests/planted/bugs.py) lacks the tables of {missing}"


def test_names_are_distinct() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({(bug.file, bug.old, bug.new) for bug in BUGS}) == len(BUGS)


def test_the_page_is_current() -> None:
    assert (REPOSITORY / DOCUMENT).read_text() == render(), "run: python -m tests.planted --document"


def test_an_old_text_that_is_gone_or_stands_twice_is_refused() -> None:
    bug = BUGS[0]
    with pytest.raises(ValueError, match=rf"{bug.name}: the old text stands 0 times"):
        apply(bug, "something else\n")
    with pytest.raises(ValueError, match=r"stands 2 times"):
        apply(bug, bug.old + "\n" + bug.old)


MAJORITY = Bug(
    name="majority-of-all",
    breaks="a majority is more than half",
    source="this test",
    file="raft/voters.py",
    old="return voter_count // 2 + 1",
    new="return voter_count",
    caught_by=("tests/unit/raft/test_config_values.py",),
)


def test_a_copy_imports_itself_and_judges(tmp_path: Path) -> None:
    """One bug from end to end: the copy passes, the planted bug is caught, and the copy is restored."""
    workshop = Workshop(tmp_path, REPOSITORY)
    workshop.check_imports()
    command = MAJORITY.caught_by[0]
    assert workshop.judge(command).verdict is Verdict.PASSED
    with workshop.planted(MAJORITY):
        caught = workshop.judge(command)
    assert caught.verdict is Verdict.CAUGHT
    assert "test_config_values.py::" in caught.detail
    assert (tmp_path / MAJORITY.file).read_text() == (REPOSITORY / MAJORITY.file).read_text()


@pytest.mark.parametrize(
    ("failed", "output", "verdict"),
    [
        (True, "E  assert 1 == 2\nFAILED test_a.py::test_b - assert 1 == 2", Verdict.CAUGHT),
        (True, "E  NameError: name 'x' is not defined\nFAILED test_a.py::test_b - NameError", Verdict.BROKEN),
        (True, "ERROR: file or directory not found: test_a.py", Verdict.BROKEN),
        (False, "FAILED test_a.py::test_b - stopped by a signal", Verdict.BROKEN),
        (True, "", Verdict.BROKEN),
    ],
)
def test_only_a_broken_law_counts_as_caught(failed: bool, output: str, verdict: Verdict) -> None:
    assert verdict_of(failed, output, "FAILED ")[0] is verdict
