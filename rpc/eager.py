"""Coroutines that start at once, like eager tasks of Python 3.12: a message leaves in the step that produced
it."""

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

    def ended(_: asyncio.Task[None]) -> None:
        """A task that is cancelled at once never runs: nothing else waits for the future."""
        coroutine.close()
        if isinstance(waits_for, asyncio.Future):
            waits_for.add_done_callback(_seen)

    task.add_done_callback(ended)
    return task


def _seen(future: asyncio.Future[Any]) -> None:
    """A call that fails after its caller has gone is not an error to report."""
    if not future.cancelled():
        future.exception()


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
