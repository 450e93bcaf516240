"""A value that comes later, for one caller: told to it at once, without a turn of the loop, or awaited.

Owns who is told, once. A future tells its callbacks a turn of the loop later, which each message would have
to pay for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar, cast

T = TypeVar("T")
_NOTHING = object()


class Coming(Generic[T]):
    """`set_result` gives the value. `left` is called when the caller goes away before."""

    __slots__ = ("_is_cancelled", "_left", "_then", "_value")

    def __init__(self, left: Callable[[], object] | None = None) -> None:
        self._left = left
        self._then: Callable[[T], object] | None = None
        self._value: object = _NOTHING
        self._is_cancelled = False

    def done(self) -> bool:
        """Whether the value is there, or no one waits for it any more."""
        return self._is_cancelled or self._value is not _NOTHING

    def cancelled(self) -> bool:
        """Whether no one waits for it any more."""
        return self._is_cancelled

    def result(self) -> T:
        """The value, which is there."""
        return cast("T", self._value)

    def then(self, told: Callable[[T], object]) -> None:
        """`told` is called once, with the value, from within `set_result`: which is not there yet."""
        self._then = told

    def set_result(self, value: T) -> None:
        """Gives the value, once; nothing happens after `cancel`."""
        if self._is_cancelled:
            return
        self._value, then = value, self._then
        if then is not None:
            self._then = None
            then(value)

    def cancel(self) -> None:
        """The caller is gone, and is not told."""
        if not self.done():
            self._is_cancelled, self._then = True, None
            if self._left is not None:
                self._left()

    def __await__(self) -> Generator[object, None, T]:
        if self._value is _NOTHING:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda value: None if future.done() else future.set_result(None))
            try:
                yield from future
            except BaseException:
                self.cancel()
                raise
        return self.result()
