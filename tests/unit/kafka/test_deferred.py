"""A value that comes later: told at once to who waits, or awaited; nothing to who has left."""

from __future__ import annotations

import asyncio

import pytest

from metaquorum.network.deferred import Deferred, Driven, pause, together


def test_who_waits_is_told_within_the_call_that_gives_the_value() -> None:
    deferred: Deferred[int] = Deferred()
    told: list[int] = []
    deferred.then(told.append)
    assert not deferred.done() and told == []
    deferred.set_result(3)
    assert told == [3] and deferred.done() and deferred.result() == 3
    deferred.cancel()
    assert not deferred.cancelled()


def test_who_has_left_is_not_told_and_says_so_once() -> None:
    left: list[str] = []
    told: list[int] = []
    deferred: Deferred[int] = Deferred(lambda: left.append("left"))
    deferred.then(told.append)
    deferred.cancel()
    deferred.cancel()
    deferred.set_result(3)
    assert (left, told, deferred.cancelled()) == (["left"], [], True)


async def test_in_a_pause_others_have_their_turn() -> None:
    done: list[int] = []

    async def work() -> None:
        for place in range(3):
            done.append(place)
            await pause()

    driven = Driven(work())
    for place in range(1, 4):
        assert done == list(range(place)) and not driven.done()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert driven.done()
    left = Driven(work())
    left.cancel()
    await asyncio.sleep(0)
    assert left.cancelled()


async def test_it_may_be_awaited_before_and_after_the_value_is_there() -> None:
    deferred: Deferred[int] = Deferred()
    task = asyncio.ensure_future(_of(deferred))
    await asyncio.sleep(0)
    deferred.set_result(4)
    assert await task == 4 == await deferred


async def test_a_task_that_is_cancelled_leaves() -> None:
    left: list[str] = []
    deferred: Deferred[int] = Deferred(lambda: left.append("left"))
    task = asyncio.ensure_future(_of(deferred))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert left == ["left"]


async def _of(deferred: Deferred[int]) -> int:
    return await deferred


class _Steps:
    """A coroutine of two waits, and what it has done."""

    def __init__(self) -> None:
        self.first: Deferred[int] = Deferred(lambda: self.did.append("first left"))
        self.did: list[object] = []

    async def run(self, second: asyncio.Future[int] | None = None) -> int:
        try:
            self.did.append("begun")
            found = await self.first
            self.did.append(found)
            return found if second is None else found + await second
        except asyncio.CancelledError:
            self.did.append("cancelled")
            raise


def test_a_coroutine_runs_within_the_call_that_gives_what_it_waits_for() -> None:
    steps = _Steps()
    driven = Driven(steps.run())
    assert steps.did == ["begun"] and not driven.done(), "begun within the call, without a loop"
    told: list[int] = []
    driven.then(told.append)
    steps.first.set_result(5)
    assert (steps.did, told, driven.result()) == (["begun", 5], [5], 5)


async def test_a_coroutine_may_wait_for_futures_and_be_awaited() -> None:
    steps = _Steps()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(_of(Driven(steps.run(future))))
    steps.first.set_result(5)
    await asyncio.sleep(0)
    future.set_result(1)
    assert await task == 6


def test_what_a_coroutine_raises_is_raised_by_its_result() -> None:
    async def fails() -> int:
        raise KeyError("no")

    driven = Driven(fails())
    assert driven.done() and isinstance(driven.error, KeyError)
    with pytest.raises(KeyError):
        driven.result()


async def test_a_coroutine_whose_caller_is_gone_ends_as_a_cancelled_task() -> None:
    steps = _Steps()
    driven = Driven(steps.run())
    driven.cancel()
    assert driven.cancelled() and steps.did == ["begun", "first left", "cancelled"]
    later = _Steps()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    driven = Driven(later.run(future))
    later.first.set_result(5)
    driven.cancel()
    await asyncio.sleep(0)
    assert future.cancelled() and later.did == ["begun", 5, "cancelled"]


async def test_several_are_begun_at_once_and_end_together() -> None:
    ones = [_Steps(), _Steps()]
    driven = Driven(together(*[each.run() for each in ones]))
    assert [each.did for each in ones] == [["begun"], ["begun"]]
    ones[1].first.set_result(2)
    assert not driven.done()
    ones[0].first.set_result(1)
    assert driven.result() == [1, 2]
    ones = [_Steps(), _Steps()]
    driven = Driven(together(*[each.run() for each in ones]))
    ones[0].first.set_exception(ValueError("broken"))
    assert isinstance(driven.error, ValueError) and ones[1].did == ["begun", "first left", "cancelled"]
