"""Requests of one connection whose responses arrive later: from a task, or as a value.

Owns passing results to the connection, and that nothing is passed once it has ended. Knows no bytes: the
connection encodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from metaquorum.runtime.kafka.deferred import Deferred
from metaquorum.runtime.kafka.services import EndConnection, Later
from metaquorum.runtime.kafka.throttling import Asked, Timed
from metaquorum.wire.codec import Request


class Asker(Protocol):
    """The connection, as this module sees it."""

    def answer(self, asked: Asked, body: Any, begun_s: float) -> None:
        """Sends a response; the work on it began at `begun_s`."""

    def failed(self, request: Request, error: BaseException | None = None) -> None:
        """There is no response, because of a bug."""

    def end(self, reason: str | None = None) -> None:
        """There is no response: closes the connection."""

    def went_on(self) -> None:
        """Requests that waited for this response may start."""


class RequestsInProgress:
    """See the module."""

    def __init__(self, asker: Asker) -> None:
        self._asker: Asker | None = asker
        self._waiting: set[asyncio.Future[Any] | Deferred[Any]] = set()

    def wait(self, asked: Asked, answer: Any, *, timed: bool) -> None:
        """Passes on what a handler returned, now or when it arrives. `timed`: the processor time of a task is
        counted."""
        if type(answer) is Later:
            deferred = answer.deferred
            if deferred.done():
                self._finish(asked, lambda: answer.finish(deferred.result()))
                return
            self._waiting.add(deferred)
            deferred.then(partial(self._came, asked, deferred, answer.finish))
        elif isinstance(answer, Awaitable):
            future: asyncio.Future[Any] = asyncio.ensure_future(
                Timed(answer, asked.spent) if timed else answer
            )
            self._waiting.add(future)
            future.add_done_callback(partial(self._awaited, asked))
        elif self._asker is not None:
            self._asker.answer(asked, answer, time.perf_counter())

    def cancel(self) -> None:
        """The connection has ended: cancels what it waits for."""
        self._asker = None
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.cancel()

    def _came(self, asked: Asked, deferred: Deferred[Any], finish: Callable[[Any], Any], value: Any) -> None:
        self._waiting.discard(deferred)
        self._finish(asked, lambda: finish(deferred.result()))
        if self._asker is not None:
            self._asker.went_on()

    def _awaited(self, asked: Asked, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if not future.cancelled():
            self._finish(asked, future.result)
            if self._asker is not None:
                self._asker.went_on()

    def _finish(self, asked: Asked, make: Callable[[], Any]) -> None:
        """Passes on the result of `make`. Drops tracebacks of errors, which would keep the connection
        alive."""
        asker = self._asker
        if asker is None:
            return
        begun_s = time.perf_counter()
        try:
            body = make()
        except EndConnection as error:
            asker.end(str(error))
            error.__traceback__ = None
        except Exception as error:
            asker.failed(asked.request, error)
            error.__traceback__ = None
        else:
            asker.answer(asked, body, begun_s)
