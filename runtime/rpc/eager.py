"""Coroutines that start at once, like eager tasks of Python 3.12: a message leaves in the step that produced
it.

Owns the hand-over from the caller's turn of the loop to a task. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


def start(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Runs `coroutine` until it first waits, on `loop`'s thread, and continues it in a task. Returns the
    task, or None if the coroutine has ended. Raises the exception of the coroutine before it waits."""
    try:
        waits_for = coroutine.send(None)
    except (StopIteration, asyncio.CancelledError):
        return None  # cancelled before there was a task
    task = loop.create_task(_rest(coroutine, waits_for))
    task.add_done_callback(lambda _: coroutine.close())  # a task that is cancelled at once never runs
    return task


async def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _resumed(coroutine, waits_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Continues a coroutine that has started, from the object that it waits for."""
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
