"""The checker itself: it must accept what is possible and refuse what is not."""

from __future__ import annotations

import pytest

from tests.sim.linearizability import Operation, broker_id_model, check, topic_name_model


def op(name: str, result: object, called: int, returned: int | None, argument: object = "t") -> Operation:
    return Operation(
        client="c", name=name, argument=argument, result=result, called_ms=called, returned_ms=returned
    )


POSSIBLE = {
    "empty": [],
    "one after another": [op("create", "A", 0, 1), op("describe", "A", 2, 3), op("delete", "ok", 4, 5)],
    "overlap may be reordered": [op("describe", "A", 0, 10), op("create", "A", 1, 9)],
    "two creates, one wins": [op("create", "A", 0, 5), op("create", "exists", 1, 6)],
    "a lost answer took effect late": [
        op("create", None, 0, None),
        op("describe", None, 1, 2),
        op("describe", "X", 10, 11),
    ],
    "a lost answer never took effect": [op("create", None, 0, None), op("create", "B", 5, 6)],
}

IMPOSSIBLE = {
    "stale read": [op("create", "A", 0, 1), op("describe", None, 2, 3)],
    "read of a deleted topic": [
        op("create", "A", 0, 1),
        op("delete", "ok", 2, 3),
        op("describe", "A", 4, 5),
    ],
    "both creates won": [op("create", "A", 0, 5), op("create", "B", 1, 6)],
    "acknowledged and lost": [op("create", "A", 0, 1), op("create", "B", 2, 3)],
    "delete of nothing": [op("delete", "ok", 0, 1)],
    "the id changed": [op("create", "A", 0, 1), op("describe", "B", 2, 3)],
    "a late effect seen, then unseen": [
        op("create", None, 0, None),
        op("describe", "X", 1, 2),
        op("describe", None, 3, 4),
    ],
}


@pytest.mark.parametrize("case", POSSIBLE)
def test_accepts_what_is_possible(case: str) -> None:
    assert check(POSSIBLE[case], topic_name_model, None).linearizable


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_refuses_what_is_not(case: str) -> None:
    verdict = check(IMPOSSIBLE[case], topic_name_model, None)
    assert not verdict.linearizable
    assert len(verdict.longest) < len(IMPOSSIBLE[case])


def register(result: object, called: int, returned: int | None, incarnation: str) -> Operation:
    return op("register", result, called, returned, incarnation)


def test_broker_epochs_grow_with_each_incarnation() -> None:
    history = [register(5, 0, 1, "a"), register(5, 2, 3, "a"), register(9, 4, 5, "b")]
    assert check(history, broker_id_model, None).linearizable


@pytest.mark.parametrize(
    "history",
    [
        [register(5, 0, 1, "a"), register(5, 2, 3, "b")],
        [register(5, 0, 1, "a"), register(4, 2, 3, "b")],
        [register("duplicate", 0, 1, "a")],
        [register(5, 0, 1, "a"), register("duplicate", 2, 3, "a")],
    ],
)
def test_broker_histories_that_cannot_be(history: list[Operation]) -> None:
    assert not check(history, broker_id_model, None).linearizable
