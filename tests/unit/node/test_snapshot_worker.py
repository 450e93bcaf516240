"""What the worker of snapshots does about an error that nobody thought of: the process ends, and says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.node.snapshots import SnapshotWorker
from metaquorum.storage.errors import StorageError

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
