"""How the demo ends when it does not come to its end: what it says, and which files it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.local import demo as demo_module


@pytest.mark.parametrize(
    ("error", "says", "stays"),
    [(BrokenPipeError(), "", False), (OSError(28, "no space"), "the demo failed", True)],
)
def test_a_reader_that_went_away_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str, stays: bool
) -> None:
    home = tmp_path / "demo"

    def ends(layout: object) -> None:
        raise error

    monkeypatch.setattr(demo_module, "LocalCluster", ends)
    done = CliRunner().invoke(demo_module.demo, ["--directory", str(home)])
    assert (done.exception, home.exists()) == (error, stays)
    assert done.stderr.startswith(says) and bool(done.stderr) == bool(says)
