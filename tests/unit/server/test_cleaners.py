"""The threads that compact logs give way to what else the broker does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from metaquorum.broker.server.data import cleaners
from metaquorum.broker.server.data.cleaners import PAUSE_MAX_S, PAUSE_S, CleanerThreads, pause_s


@pytest.mark.parametrize(
    ("waited_s", "ahead_s", "wanted"),
    [
        (0.0, -1.0, PAUSE_S),
        (-0.001, 0.0, PAUSE_S),  # two clocks are read one after the other
        (0.004, -1.0, 0.016),
        (0.5, -1.0, PAUSE_MAX_S),
        (0.5, 0.2, 0.2),
        (0.004, 0.2, 0.2),
        (0.004, 7.0, 1.0),
    ],
)
def test_a_piece_that_waited_is_followed_by_a_longer_pause(
    waited_s: float, ahead_s: float, wanted: float
) -> None:
    assert pause_s(waited_s, ahead_s) == pytest.approx(wanted)


class Clocks:
    """`time` as the thread sees it: it works and waits for as long as it is told."""

    def __init__(self) -> None:
        self.now_s = self.worked_s = 100.0
        self.slept_s: list[float] = []

    def pass_by(self, worked_s: float, waited_s: float) -> None:
        self.worked_s += worked_s
        self.now_s += worked_s + waited_s

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.worked_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.pass_by(0.0, seconds)


def test_what_a_piece_waited_is_neither_what_it_worked_nor_an_earlier_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, done = Clocks(), threading.Event()

    class Pieces:
        def pieces(self) -> Iterator[int]:
            for worked_s, waited_s in ((5.0, 0.002), (0.001, 0.005), (3.0, 0.0)):
                clocks.pass_by(worked_s, waited_s)
                yield 10

    monkeypatch.setattr(cleaners, "time", clocks)
    threads = CleanerThreads(1, 1e9)
    threads.start()
    threads.submit(cast(Any, Pieces()), lambda cleaning, error: done.set())
    assert done.wait(20)
    threads.stop()
    assert clocks.slept_s == pytest.approx([0.008, 0.02, PAUSE_S])
