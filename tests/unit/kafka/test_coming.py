"""A value that comes later: told at once to who waits, or awaited; nothing to who has left."""

from __future__ import annotations

import asyncio

from metaquorum.runtime.kafka.coming import Coming


def test_who_waits_is_told_within_the_call_that_gives_the_value() -> None:
    coming: Coming[int] = Coming()
    told: list[int] = []
    coming.then(told.append)
    assert not coming.done() and told == []
    coming.set_result(3)
    assert told == [3] and coming.done() and coming.result() == 3
    coming.cancel()
    assert not coming.cancelled()


def test_who_has_left_is_not_told_and_says_so_once() -> None:
    left: list[str] = []
    told: list[int] = []
    coming: Coming[int] = Coming(lambda: left.append("left"))
    coming.then(told.append)
    coming.cancel()
    coming.cancel()
    coming.set_result(3)
    assert (left, told, coming.cancelled()) == (["left"], [], True)


async def test_it_may_be_awaited_before_and_after_the_value_is_there() -> None:
    coming: Coming[int] = Coming()
    task = asyncio.ensure_future(_of(coming))
    await asyncio.sleep(0)
    coming.set_result(4)
    assert await task == 4 == await coming


async def test_a_task_that_is_cancelled_leaves() -> None:
    left: list[str] = []
    coming: Coming[int] = Coming(lambda: left.append("left"))
    task = asyncio.ensure_future(_of(coming))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert left == ["left"]


async def _of(coming: Coming[int]) -> int:
    return await coming
