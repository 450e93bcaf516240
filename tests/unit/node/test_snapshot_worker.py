"""The worker of snapshots: what it does with a fetched one, and about an error that nobody thought of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.node.snapshots import SnapshotWorker
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.raft.effects import FinishSnapshot
from metaquorum.raft.events import SnapshotLoaded, SnapshotRejected
from metaquorum.raft.voters import VotersAt, VoterSet
from metaquorum.storage.errors import DiskError, StorageError
from metaquorum.storage.types import LogPosition

SERVED = SimpleNamespace(key=7)


class Store:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def fill_snapshot_chunk(self, effect: object) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def served(answer: Any, respond: Any = None) -> tuple[list[str], list[Any], int]:
    """The last lines, the answers, and the tasks that are left."""
    lines: list[str] = []
    answers: list[Any] = []
    store: Any = Store(answer)
    unused: Any = None
    effect: Any = SERVED
    worker = SnapshotWorker(
        store,
        unused,
        unused,
        post=answers.append,
        fail=lines.append,
        respond=respond or (lambda key, response: answers.append((key, response))),
        watch=None,
    )
    worker.serve(effect)
    tasks = [*worker._tasks]
    await asyncio.wait(tasks)
    await asyncio.sleep(0)  # what follows a task runs in the next turn of the loop
    left = len(worker._tasks)
    await worker.close()
    return lines, answers, left


async def test_a_chunk_is_served() -> None:
    assert await served("a chunk") == ([], [(7, "a chunk")], 0)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StorageError("the disk is gone"), "stopped: the disk is gone; repair the disk, then start again"),
        (RuntimeError("nobody knows"), "stopped by a bug: RuntimeError: nobody knows"),
    ],
)
async def test_an_error_ends_the_process_with_one_line(error: Exception, line: str) -> None:
    assert await served(error) == ([line], [], 0)


async def test_an_error_after_the_work_is_one_as_well() -> None:
    def respond(key: int, response: object) -> None:
        raise ValueError("no one waits")

    assert await served("a chunk", respond) == (["stopped by a bug: ValueError: no one waits"], [], 0)


FETCHED = FinishSnapshot(snapshot=LogPosition(2, 40), size_bytes=99)
VOTERS = VotersAt(1, VoterSet([]))
IMAGE = MetadataImage()


class Fetch:
    """A store and a codec; `fails`: the step that raises `error`. `steps`: what was called, in order."""

    def __init__(self, fails: str = "", error: Exception | None = None) -> None:
        self._fails, self._error = fails, error
        self.steps: list[str] = []

    def _step(self, name: str, answer: Any = None) -> Any:
        self.steps.append(name)
        if name == self._fails and self._error is not None:
            raise self._error
        return answer

    def partial_snapshot(self, position: LogPosition, size_bytes: int) -> str:
        return str(self._step("find", f"/part-{position}-{size_bytes}"))

    def load(self, path: Path, position: LogPosition) -> MetadataImage:
        assert str(path) == f"/part-{position}-99"
        return self._step("load", IMAGE)  # type: ignore[no-any-return]

    def voters_in(self, path: str) -> VotersAt:
        return self._step("voters", VOTERS)  # type: ignore[no-any-return]

    def finish_snapshot(self, position: LogPosition) -> None:
        self._step("finish")

    def drop_snapshot(self) -> None:
        self._step("drop")


async def finished(fetch: Any) -> tuple[list[Any], list[str], NodeStatistics]:
    """The events, the last lines and the counts."""
    events: list[Any] = []
    lines: list[str] = []
    statistics, unused = NodeStatistics(0), cast(Any, None)
    worker = SnapshotWorker(
        fetch, fetch, unused, post=events.append, fail=lines.append, respond=unused, watch=statistics
    )
    worker.finish(FETCHED)
    await asyncio.wait([*worker._tasks])
    await worker.close()
    return events, lines, statistics


async def test_a_fetched_snapshot_gets_its_name_once_it_has_loaded() -> None:
    """A process that ends before finds no snapshot that nobody has checked."""
    fetch = Fetch()
    events, lines, statistics = await finished(fetch)
    assert fetch.steps == ["find", "load", "voters", "finish"]
    assert events == [SnapshotLoaded(position=FETCHED.snapshot, image=IMAGE, voters=VOTERS)] and not lines
    assert (statistics.snapshots.loads, statistics.snapshots.rejected) == (1, 0)


@pytest.mark.parametrize("step", ["find", "load", "voters"])
@pytest.mark.parametrize(
    "error", [StorageError("torn"), RecordDecodeError("strange"), ReplayError(3, None, "no"), ValueError("x")]
)
async def test_a_fetched_snapshot_that_does_not_load_is_dropped_and_counted(
    step: str, error: Exception
) -> None:
    fetch = Fetch(step, error)
    events, lines, statistics = await finished(fetch)
    assert fetch.steps[-2:] == [step, "drop"] and "finish" not in fetch.steps
    assert events == [SnapshotRejected(position=FETCHED.snapshot, reason=str(error))] and not lines
    assert (statistics.snapshots.loads, statistics.snapshots.rejected) == (0, 1)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DiskError("/d", "sync", "gone"), "disk error in /d during sync: gone"),
        (RuntimeError("odd"), "cannot load snapshot"),
    ],
)
async def test_a_disk_that_fails_under_a_fetched_snapshot_ends_the_process(
    error: Exception, line: str
) -> None:
    events, lines, statistics = await finished(Fetch("finish", error))
    assert not events and len(lines) == 1 and line in lines[0]
    assert (statistics.snapshots.loads, statistics.snapshots.rejected) == (0, 0)
