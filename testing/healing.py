"""What a test does to a cluster: each fault is an event, and heals when its context ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from metaquorum.testing.errors import ClusterTimeoutError
from metaquorum.testing.request_faults import RequestFault


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`wall_ms` is Unix time by the cluster's clock."""

    wall_ms: int
    text: str


class ActiveFault:
    """A fault that is in force. Its context heals it at the end; `heal` does so at once, a second time does
    nothing."""

    def __init__(self, text: str, heal: Callable[[], None]) -> None:
        self.text = text
        self._heal: Callable[[], None] | None = heal
        self._lock = threading.Lock()

    @property
    def is_in_force(self) -> bool:
        return self._heal is not None

    def heal(self) -> None:
        """Ends it, and waits until the cluster has recovered from it."""
        with self._lock:
            heal, self._heal = self._heal, None
        if heal is not None:
            heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()


class ActiveRequestFault(ActiveFault):
    """A fault of requests, which counts those that it met."""

    def __init__(
        self,
        text: str,
        heal: Callable[[], None],
        fault: RequestFault,
        timeout_s: float,
        doing: Callable[[], str],
    ) -> None:
        """`doing`: what the cluster does, for a message."""
        super().__init__(text, heal)
        self._doing = doing
        self._fault = fault
        self._timeout_s = timeout_s

    @property
    def hits(self) -> int:
        """How many requests it has met so far."""
        return self._fault.hits

    def wait(self, hits: int = 1) -> None:
        """Returns once it has met this number of requests. Raises ClusterTimeoutError."""
        with self._fault.changed:
            if not self._fault.changed.wait_for(lambda: self._fault.hits >= hits, self._timeout_s):
                found = self._fault.hits
                raise ClusterTimeoutError(
                    f"waited {self._timeout_s:g} s for {hits} requests, and {found} came: {self.text};"
                    f" {self._doing()}"
                )

    def remove(self) -> None:
        """As `heal`: later requests are answered as ever, and held ones go on."""
        self.heal()
