"""Interaction scripts: commands, and everything that happened, recorded beside them.

A line that starts with `> ` is a command, the lines below it are its recorded output, `# ` is a comment.
`pytest tests/raft --rewrite` writes the output anew. The commands are the methods of `Script`; `telling.py`
says what is shown: every message with its fields, every effect in order, and what changed in each core.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.script import run_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    recorded = path.read_text(encoding="utf-8")
    actual = run_script(recorded)
    if request.config.getoption("--rewrite"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == recorded, f"{path.name} differs; review with: pytest tests/raft --rewrite && git diff"


def test_scripts_are_found() -> None:
    assert len(SCRIPTS) >= 20


def test_a_changed_output_is_noticed() -> None:
    text = "> nodes 1\n  n1 something that never happens\n"
    assert run_script(text) != text
