"""Every tool about every story: no answer changes unnoticed.

`tests/stories` has the answers that people read; here are sums of many more, over the same logs and over
generated ones. A sum does not say what differs: compare `python -m tests.sums STORY TOOL` before and
after the change. `pytest tests/sums --rewrite` records the new sums.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sums.survey import Answer, Survey, names, sums, text_of

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("name", names())
def test_answers_about_a_story(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = RECORDED / f"{name}.txt"
    actual = sums(Survey(text_of(name), tmp_path).answers())
    if request.config.getoption("--rewrite"):
        path.write_text(actual, encoding="utf-8")
    recorded = path.read_text(encoding="utf-8")
    differing = sorted(set(actual.splitlines()) ^ set(recorded.splitlines()))
    assert actual == recorded, f"compare: python -m tests.sums {name} TOOL\n" + "\n".join(differing)


def test_a_changed_line_changes_a_sum() -> None:
    one, other = (Answer("n", ("why", "n"), (f"line {number}",)) for number in (1, 2))
    assert sums(iter([one])) != sums(iter([other]))
    assert sums(iter([one, other])) != sums(iter([other, one]))
