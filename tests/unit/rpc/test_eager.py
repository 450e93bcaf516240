"""Coroutines that begin at once."""

from __future__ import annotations

import asyncio
import gc

import pytest

from metaquorum.rpc import stream_transport


async def test_it_begins_at_once_and_a_task_ends_it() -> None:
    loop, news = asyncio.get_running_loop(), []
    first, second = loop.create_future(), loop.create_future()

    async def work() -> None:
        news.append("begun")
        news.append(await first)
        try:
            await second
        except ValueError as error:
            news.append(str(error))

    task = stream_transport.start(work(), loop)
    assert news == ["begun"] and task is not None
    first.set_result("first")  # before the task has looked
    await asyncio.sleep(0)
    second.set_exception(ValueError("second"))
    await task
    assert news == ["begun", "first", "second"]


async def test_what_never_waits_needs_no_task() -> None:
    news = []

    async def work() -> None:
        news.append("done")

    assert stream_transport.start(work(), asyncio.get_running_loop()) is None and news == ["done"]


async def test_what_is_raised_before_the_first_wait_is_the_callers() -> None:
    async def work() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        stream_transport.start(work(), asyncio.get_running_loop())


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "later"])
async def test_it_can_be_cancelled(*, begun: bool) -> None:
    loop, news = asyncio.get_running_loop(), []

    async def work() -> None:
        try:
            await loop.create_future()
        finally:
            news.append("cleared")

    task = stream_transport.start(work(), loop)
    assert task is not None
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and news == ["cleared"]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_what_fails_after_its_caller_has_gone_reaches_no_log(turns: int) -> None:
    """Of a task that is cancelled before it runs, nothing waits for the call that it had begun."""
    loop, reported = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    call = loop.create_future()

    async def work() -> None:
        await call

    task = stream_transport.start(work(), loop)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not call.done():
        call.set_exception(ConnectionError("the peer has gone"))
    await asyncio.sleep(0)
    del task
    call = None
    gc.collect()
    assert reported == []
