"""The judge finds each anomaly in a history that has it, and none in one that a serial order explains."""

from __future__ import annotations

import random

import pytest

from tests.histories.list_append import Outcome, Transaction, Values, judge

C, A, U = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def txn(name: str, *appends: tuple[str, int], outcome: Outcome = C, **reads: Values) -> Transaction:
    return Transaction(name=name, outcome=outcome, reads=reads, appends=appends)


def kinds(transactions: list[Transaction], **final: Values) -> list[str]:
    return sorted({each.kind for each in judge(transactions, final)})


GOOD = [
    txn("a", ("x", 1), ("y", 1)),
    txn("b", ("x", 2), x=(1,), y=(1,)),
    txn("c", ("y", 3), outcome=A, x=(1, 2)),
    txn("d", ("x", 4), ("x", 5), ("y", 4), outcome=U, x=(1, 2), y=(1,)),
    txn("e", ("y", 6), outcome=U),
    txn("f", x=(1, 2, 4, 5), y=(1, 4)),
]


def test_a_serial_history_is_sound() -> None:
    assert kinds(GOOD, x=(1, 2, 4, 5), y=(1, 4)) == []
    assert kinds([], x=()) == []


CASES: dict[str, tuple[list[Transaction], dict[str, Values], list[str]]] = {
    "write cycle": (
        [txn("a", ("x", 1), ("y", 1)), txn("b", ("x", 2), ("y", 2))],
        {"x": (1, 2), "y": (2, 1)},
        ["G0"],
    ),
    "write cycle of three": (
        [txn("a", ("x", 1), ("z", 1)), txn("b", ("x", 2), ("y", 2)), txn("c", ("y", 3), ("z", 3))],
        {"x": (1, 2), "y": (2, 3), "z": (3, 1)},
        ["G0"],
    ),
    "aborted read": (
        [txn("a", ("x", 1), outcome=A), txn("b", x=(1,))],
        {"x": ()},
        ["G1a", "incompatible order"],
    ),
    "read of an unknown one that never was": (
        [txn("a", ("x", 1), outcome=U), txn("b", x=(1,))],
        {"x": ()},
        ["G1a", "incompatible order"],
    ),
    "aborted and there": ([txn("a", ("x", 1), outcome=A)], {"x": (1,)}, ["G1a"]),
    "intermediate read": ([txn("a", ("x", 1), ("x", 2)), txn("b", x=(1,))], {"x": (1, 2)}, ["G1b", "G2"]),
    "circular information": (
        [txn("a", ("x", 1), y=(2,)), txn("b", ("y", 2), x=(1,))],
        {"x": (1,), "y": (2,)},
        ["G1c"],
    ),
    "lost update": (
        [txn("a", ("x", 1), x=()), txn("b", ("x", 2), x=())],
        {"x": (1, 2)},
        ["G2"],
    ),
    "write skew": (
        [txn("a", ("x", 1), x=(), y=()), txn("b", ("y", 2), x=(), y=())],
        {"x": (1,), "y": (2,)},
        ["G2"],
    ),
    "half of a transaction read": (
        [txn("a", ("x", 1), ("y", 1)), txn("b", x=(1,), y=())],
        {"x": (1,), "y": (1,)},
        ["G2"],
    ),
    "lost": ([txn("a", ("x", 1), ("y", 1))], {"x": (1,), "y": ()}, ["lost append"]),
    "lost in whole": ([txn("a", ("x", 1))], {"x": ()}, ["lost append"]),
    "torn": ([txn("a", ("x", 1), ("y", 1), outcome=U)], {"x": (1,), "y": ()}, ["torn transaction"]),
    "duplicate": ([txn("a", ("x", 1))], {"x": (1, 1)}, ["duplicate append"]),
    "out of nowhere": ([txn("a", ("x", 1))], {"x": (1, 9)}, ["unknown value"]),
    "read out of nowhere": ([txn("a", x=(9,))], {"x": ()}, ["incompatible order", "unknown value"]),
    "another order than was read": (
        [txn("a", ("x", 1)), txn("b", ("x", 2)), txn("c", x=(2, 1))],
        {"x": (1, 2)},
        ["incompatible order"],
    ),
    "own appends turned": ([txn("a", ("x", 1), ("x", 2))], {"x": (2, 1)}, ["incompatible order"]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_anomaly_is_found(case: str) -> None:
    transactions, final, expected = CASES[case]
    found = kinds(transactions, **final)
    assert set(expected) <= set(found), judge(transactions, final)
    assert {"G0", "G1a", "G1b", "G1c", "G2"}.isdisjoint(set(found) - set(expected))


def test_a_cycle_is_told_with_its_steps() -> None:
    transactions, final, _ = CASES["circular information"]
    assert str(judge(transactions, final)[0]) == "G1c: a -wr-> b -wr-> a"


def test_random_serial_histories_are_sound_and_one_changed_read_is_seen() -> None:
    """What a serial run makes has no anomaly; with a read that lacks the newest value it has one."""
    rng = random.Random(3)
    for _ in range(40):
        lists: dict[str, tuple[int, ...]] = {"x": (), "y": (), "z": ()}
        made = []
        for number in range(12):
            read = {key: lists[key] for key in rng.sample("xyz", 2)}
            appends = [(key, 10 * number + at) for at, key in enumerate(rng.choices("xyz", k=2))]
            for key, value in appends:
                lists[key] += (value,)
            made.append(Transaction(name=f"t{number}", outcome=C, reads=read, appends=appends))
        assert judge(made, lists) == []
        at = max(number for number, each in enumerate(made) if any(each.reads.values()))
        reads = {key: values[:-1] for key, values in made[at].reads.items() if values}
        stale = Transaction(name="stale", outcome=C, reads=reads, appends=made[at].appends)
        after_all = [*made[:at], stale, *made[at + 1 :]]
        assert judge(after_all, lists), (stale, lists)
