"""A value that arrives later, for one caller: passed on at once, without a turn of the loop, or awaited.

A future calls its callbacks a turn of the loop later, and a task starts one turn later: a cost for every
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
_NOTHING = object()


class Deferred(Generic[T]):
    """`set_result` supplies the value, `set_exception` the reason why there is none. `left` is called if the
    caller cancels before that."""

    __slots__ = ("_error", "_is_cancelled", "_left", "_then", "_value")

    def __init__(self, left: Callable[[], object] | None = None) -> None:
        self._left = left
        self._then: Callable[[Any], object] | None = None
        self._value: object = _NOTHING
        self._error: BaseException | None = None
        self._is_cancelled = False

    def done(self) -> bool:
        """True if the value has arrived or the caller has cancelled."""
        return self._is_cancelled or self._value is not _NOTHING

    def cancelled(self) -> bool:
        """True if the caller has cancelled."""
        return self._is_cancelled

    def result(self) -> T:
        """The value, once it has arrived. Raises the exception passed to `set_exception`."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback refers to this frame
        return self._value  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        """The exception passed to `set_exception`, or None."""
        return self._error

    def then(self, callback: Callable[[T], object]) -> None:
        """Registers `callback`, to be called once, within `set_result`, with the value; with None after
        `set_exception`, whose exception `result` raises. Call it before the value arrives."""
        self._then = callback

    def set_result(self, value: T) -> None:
        """Supplies the value, once; does nothing after `cancel`."""
        if self._is_cancelled:
            return
        self._value, then = value, self._then
        if then is not None:
            self._then = None
            then(value)

    def set_exception(self, error: BaseException) -> None:
        """Supplies an exception instead of a value; does nothing after `cancel`."""
        if not self._is_cancelled:
            self._error = error
            self.set_result(cast("T", None))

    def cancel(self) -> None:
        """The caller no longer waits, and is not called."""
        if not self.done():
            self._is_cancelled, self._then = True, None
            if self._left is not None:
                self._left()

    def __await__(self) -> Generator[object, None, T]:
        if self._value is _NOTHING:
            try:
                if _Stepping.now:
                    yield self
                else:
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self.then(lambda value: None if future.done() else future.set_result(None))
                    yield from future
            except BaseException:
                self.cancel()
                raise
        return self.result()


class _Stepping:
    """`now` is True while a step of a `Driven` runs, which handles a yielded `Deferred`."""

    now = False


class Driven(Deferred[T]):
    """The result of a coroutine, which runs within the constructor until it first waits, and continues within
    the call that supplies what it waits for: another `Deferred`, or a future. It has no task: code that needs
    one, such as asyncio.timeout, must run in a task of its own, which the coroutine may await."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._step()

    def cancel(self) -> None:
        """The caller no longer waits: the coroutine ends like a cancelled task."""
        waits_for = self._waits_for
        if self.done() or waits_for is None:
            return
        super().cancel()
        if isinstance(waits_for, Deferred):
            self._step(error=asyncio.CancelledError())
        else:
            waits_for.cancel()

    def _step(self, _value: object = None, *, error: BaseException | None = None) -> None:
        before, _Stepping.now = _Stepping.now, True
        self._waits_for, failure = None, None
        value: Any = None
        try:
            waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as done:
            waits_for, value = None, done.value
        except (Exception, asyncio.CancelledError) as raised:
            # The traceback excludes this frame, which would be part of a cycle.
            raised.__traceback__ = raised.__traceback__ and raised.__traceback__.tb_next
            waits_for, failure = None, raised
        finally:
            _Stepping.now = before
        if waits_for is not None:
            self._wait(waits_for)
        elif failure is not None:
            try:
                self.set_exception(failure)
            finally:
                # Since Python 3.12 the frames of the coroutine, which the traceback holds, hold this one.
                del error, failure
        else:
            self.set_result(value)

    def _wait(self, waits_for: Any) -> None:
        self._waits_for = waits_for
        if isinstance(waits_for, Deferred):
            waits_for.then(self._step)
        else:
            waits_for._asyncio_future_blocking = False  # as a task does with a yielded future
            waits_for.add_done_callback(self._step)


async def pause() -> None:
    """Others have their turn of the loop; in a `Driven` as in a task."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not turn.done():
            turn.set_result(None)

    loop.call_soon(end)
    await turn


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """The results of the coroutines, which all start at once."""
    begun = [Driven(coroutine) for coroutine in coroutines]
    try:
        return [await driven for driven in begun]
    except BaseException:
        for driven in begun:
            driven.cancel()
        raise
