"""Coroutines that begin at once, as tasks of Python 3.12 can: a message leaves in the step that it came from.

Owns the hand-over from the caller's turn of the loop to a task. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


def start(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Runs `coroutine` until it waits for something, on `loop`'s thread, and leaves the rest to a task. None:
    nothing is left. Raises what it raises before it waits."""
    try:
        waits_for = coroutine.send(None)
    except (StopIteration, asyncio.CancelledError):
        return None  # what it works on was cancelled: there is no task yet that could be
    task = loop.create_task(_rest(coroutine, waits_for))
    task.add_done_callback(lambda _: coroutine.close())  # one that is cancelled at once never runs
    return task


async def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _resumed(coroutine, waits_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """A coroutine that has begun, from what it waits for on."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(value)
    except StopIteration:
        return
