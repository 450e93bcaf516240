"""Which Python `make newest` takes: fakes on a PATH of their own, one of them a shim that fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import newest


def fake(folder: Path, name: str, says: str) -> str:
    """A program that prints this; empty: it fails like a shim whose version is switched off."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        f"#!/bin/sh\necho {says}\n" if says else "#!/bin/sh\necho no such command >&2\nexit 127\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture(name="home", autouse=True)
def fixture_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a PATH of two empty folders."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name) for name in ("shims", "bin")))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    monkeypatch.setattr(sys, "version_info", type("Version", (tuple,), {"minor": 11})((3, 11, 7, "final", 0)))
    return tmp_path / "home"


def test_a_shim_that_fails_hides_no_other(tmp_path: Path, home: Path) -> None:
    fake(tmp_path / "shims", "python3.13", "")
    good = fake(tmp_path / "bin", "python3.13", "3 13 0 final")
    assert newest.newest((3, 11)) == ((3, 13, 0), good)
    kept = fake(home / ".pyenv" / "versions" / "3.13.4" / "bin", "python3.13", "3 13 4 final")
    assert newest.newest((3, 11)) == ((3, 13, 4), kept)
    assert newest.newest((3, 13)) is None


@pytest.mark.parametrize("says", ["3 14 0 alpha", "", "Python 3.14", "3 11 9 final"])
def test_what_is_no_newer_release_is_passed_over(tmp_path: Path, says: str) -> None:
    fake(tmp_path / "shims", "python3.14", says)
    good = fake(tmp_path / "bin", "python3.12", "3 12 1 final")
    assert newest.newest((3, 11)) == ((3, 12, 1), good)


def test_pyenv_may_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, said = tmp_path / "named", tmp_path / "said"
    by_variable = fake(named / "versions" / "3.12.1" / "bin", "python3.12", "3 12 1 final")
    monkeypatch.setenv("PYENV_ROOT", str(named))
    assert newest.newest((3, 11)) == ((3, 12, 1), by_variable)
    by_itself = fake(said / "versions" / "3.13.1" / "bin", "python3.13", "3 13 1 final")
    fake(tmp_path / "bin", "pyenv", str(said))
    assert newest.newest((3, 11)) == ((3, 13, 1), by_itself)


def test_where_there_is_none_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert newest.main([]) == 0
    assert capsys.readouterr().out == "There is no newer Python than 3.11 here: nothing more to test.\n"


def test_the_folders_of_tests_exist() -> None:
    """pytest runs nothing at all if one of them is gone."""
    assert [path for path in newest.TESTS if not (newest.REPOSITORY / path).is_dir()] == []
