"""A sample of the ways: what log tools say of nodes that go away. `make ways` goes through all of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.ways.judge import judge
from tests.ways.ways import WAYS, go, way

SAMPLE = (8, 10 + 1, 12, 13)
"""A transfer; a broker that is cut off, one that stops, one that is back at once, all without causes."""


@pytest.mark.parametrize("number", SAMPLE)
def test_every_cause_is_right_or_named_as_undecidable(number: int, tmp_path: Path) -> None:
    chosen = way(number)
    deeds, home = go(chosen, tmp_path)
    assert judge(deeds, home) == [], chosen.text


def test_a_wrong_cause_is_noticed(tmp_path: Path) -> None:
    deeds, home = go(way(21), tmp_path)
    (stopped,) = deeds
    assert judge(deeds, home) == []
    killed = msgspec.structs.replace(stopped, broker="silent")
    assert any("why: " in line for line in judge([killed], home))


def test_the_ways_are_of_every_kind() -> None:
    kinds = {(deed, one.causes) for one in map(way, range(1, WAYS + 1)) for deed in one.deeds}
    assert {what for (_, what), _ in kinds} == {
        "kill",
        "power",
        "isolate",
        "stop",
        "bounce",
        "transfer",
        "pause",
    }
    assert all((deed, not causes) in kinds for deed, causes in kinds)
