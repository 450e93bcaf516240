"""Lines of progress on a terminal and elsewhere, and the input that is read and paced."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metaquorum.cli.data import produce, rates
from metaquorum.cli.data.produce import lines, paced
from metaquorum.cli.errors import Failure
from metaquorum.cli.log.input import source
from metaquorum.cli.pipeline import ingest

LIMIT = 10


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the modules that draw."""
    clock = Clock()
    for module in (rates, source, ingest):
        monkeypatch.setattr(module, "time", clock)
    return clock


def on_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("shown", [True, False, None])
def test_when_progress_is_due(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: bool | None
) -> None:
    on_terminal(monkeypatch, terminal)
    progress = rates.Progress(shown)
    wanted = terminal if shown is None else shown
    clock.now += rates.INTERVAL_S - 0.25
    assert not progress.due()
    clock.now += 0.25
    assert progress.due() is wanted
    progress.show("x")
    assert not progress.due()
    clock.now += rates.INTERVAL_S
    assert progress.due() is wanted


def test_a_line_on_a_terminal_covers_the_one_before(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch, True)
    progress = rates.Progress(None)
    progress.clear()
    for text in ("12345", "123", "1234"):
        progress.show(text)
    progress.clear()
    progress.clear()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "\r12345\r123  \r1234\r    \r")


def test_elsewhere_each_is_a_line(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch, False)
    progress = rates.Progress(True)
    progress.show("long")
    progress.show("x")
    progress.clear()
    assert capsys.readouterr() == ("", "long\nx\n")


def test_the_progress_of_an_ingest_on_a_terminal(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch, True)
    progress = ingest.IngestProgress()
    progress.end()
    for what, done in (("reading", 1), ("reading", 1), ("sort", 2)):
        progress.show(what, done, 3)
    progress.say("left out: x")
    progress.show("sort", 2, 3)
    progress.show("sort", 3, 3)
    progress.end()
    progress.end()
    first, second, third = ("reading: 1 of 3 tasks", "sort: 2 of 3 tasks", "sort: 3 of 3 tasks")
    blank = " " * len(second)
    assert capsys.readouterr() == (
        "",
        f"\r{first}\r{second:<{len(first)}}\r{blank}\rmetaquorum: left out: x\n\r{third}\r{blank}\r",
    )


def test_the_progress_of_an_ingest_elsewhere(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch, False)
    progress = ingest.IngestProgress()
    progress.show("read", 1, 3)
    clock.now += ingest.LINE_SECONDS - 1
    progress.show("read", 2, 3)
    clock.now += 1
    progress.show("read", 1, 3)
    progress.show("read", 3, 3)
    clock.now += ingest.LINE_SECONDS
    progress.show("read", 3, 4)
    progress.end()
    assert capsys.readouterr().err == "".join(
        f"metaquorum: read: {text} tasks\n" for text in ("1 of 3", "3 of 3", "3 of 4")
    )


def test_the_progress_of_a_reader(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an interval that sums of the clock meet exactly, which 0.2 does not."""
    mib = 1 << 20
    monkeypatch.setattr(source, "_INTERVAL_S", 0.25)
    progress = source.ReadProgress("log", 8 * mib)
    progress.clear()
    progress(mib)
    clock.now += source._INTERVAL_S
    progress(mib)
    progress(mib)
    clock.now += source._INTERVAL_S
    progress(9 * mib)
    progress.clear()
    progress.clear()
    assert capsys.readouterr() == ("", "\r 25 % of log (2 MiB)\x1b[K\r100 % of log (12 MiB)\x1b[K\r\x1b[K")
    empty = source.ReadProgress("empty", 0)
    clock.now += source._INTERVAL_S
    empty(0)
    assert capsys.readouterr().err == "\r  0 % of empty (0 MiB)\x1b[K"


# ---- input


async def read(given: bytes, path: Path) -> list[bytes]:
    path.write_bytes(given)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [line async for run in lines(descriptor) for line in run]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (b"x" * LIMIT, None),
        (b"x" * LIMIT + b"\na\n" + b"y" * LIMIT + b"\n", None),
        (b"x" * (LIMIT + 1), 1),
        (b"x" * (LIMIT + 1) + b"\na", 1),
        (b"a\nb\n" + b"x" * (LIMIT + 1) + b"\nc\n" + b"y" * 50, 3),
        (b"a\n\n" + b"x" * (LIMIT + 1), 3),
    ],
)
async def test_the_longest_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, piece: int, given: bytes, problem: int | None
) -> None:
    monkeypatch.setattr(produce, "LINE_MAX_BYTES", LIMIT)
    monkeypatch.setattr(produce, "READ_BYTES", piece)
    if problem is None:
        assert await read(given, tmp_path / "input") == given.removesuffix(b"\n").split(b"\n")
    else:
        with pytest.raises(Failure, match=f"line {problem} of the input is longer than {LIMIT} bytes"):
            await read(given, tmp_path / "input")


async def test_lines_come_in_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(produce, "RUN_MAX", 3)
    (tmp_path / "input").write_bytes(b"1\n2\n3\n4\n5\n6\n7\nend")
    with (tmp_path / "input").open("rb") as file:
        found = [run async for run in lines(file.fileno())]
    assert found == [[b"1", b"2", b"3"], [b"4", b"5", b"6"], [b"7"], [b"end"]]


class Paced:
    """A loop's clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


async def given_runs(clock: Paced, *pauses: float) -> AsyncIterator[list[bytes]]:
    """A run of 4 messages after each pause."""
    for pause in pauses:
        clock.now += pause
        yield [b"m"] * 4


@pytest.mark.parametrize(
    ("per_second", "pauses", "slept"),
    [
        # Groups of 2: the first at once, then one each 5 ms.
        (400.0, (0.0, 0.0), [0.005] * 3),
        # What an input that was late by less than a second owes is caught up with.
        (400.0, (0.0, 0.015), [0.005]),
        # A second is the most: three messages at once after the pause.
        (2.0, (0.0, 60.0), [0.5] * 3 + [0.5]),
        (None, (0.0, 60.0), []),
    ],
)
async def test_the_pace(
    monkeypatch: pytest.MonkeyPatch, per_second: float | None, pauses: tuple[float, ...], slept: list[float]
) -> None:
    clock = Paced()
    monkeypatch.setattr(produce, "asyncio", clock)
    monkeypatch.setattr(clock, "get_running_loop", lambda: clock, raising=False)
    sizes = [len(part) async for part in paced(given_runs(clock, *pauses), per_second)]
    size = {400.0: 2, 2.0: 1, None: 4}[per_second]
    assert sizes == [size] * (4 * len(pauses) // size)
    assert clock.slept == slept


async def test_messages_that_nobody_paces_pass_in_runs() -> None:
    async def one() -> AsyncIterator[list[bytes]]:
        yield [b""] * (produce.RUN_MAX + 1)

    assert [len(part) async for part in paced(one(), None)] == [produce.RUN_MAX, 1]
