"""Stories: a log written record by record, and everything that the log tools say of it, recorded beside.

A line that starts with `> ` is a command, the lines below it are its recorded output, `# ` is a comment.
`pytest tests/stories --rewrite` writes the output anew: review the difference like code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.story import run_story

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    recorded = path.read_text(encoding="utf-8")
    actual = run_story(recorded, tmp_path)
    if request.config.getoption("--rewrite"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == recorded, f"{path.name} differs; review with: pytest tests/stories --rewrite && git diff"


def test_a_changed_answer_is_noticed(tmp_path: Path) -> None:
    text = "> add level(14)\n> log timeline n\n  an event that never was\n"
    assert run_story(text, tmp_path) != text


def test_an_unknown_command_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no command 'lgo', but log, .*add, .*snapshot"):
        run_story("> lgo timeline n\n", tmp_path)
