"""The search for a node that answers: whom to ask, how long, when again, and when to give up.

Pure: the caller sends, and gives its clock's time. Every client of people has this one policy; a broker's own
requests go by `broker.channel`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from metaquorum.metadata.settings.keys import whole_number
from metaquorum.metadata.text.addresses import address_text, may_be_host
from metaquorum.network.backoff import Backoff, BackoffPolicy

RETRY = BackoffPolicy(initial_ms=20, max_ms=500)

Address = tuple[str, int]


class ClientError(Exception):
    """No node responded in time. Whether a change was made is unknown."""


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Parses `host:port,host:port`. Raises ClientError."""
    addresses: list[Address] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if " " in " ".join(part.split()):
            raise ClientError(f"{part!r} has a blank in it: write host:port,host:port")
        host, _, port = part.rpartition(":")
        number = whole_number(port, 65535)
        if not host or not number or not may_be_host(host):
            raise ClientError(f"{part!r} is not an address: write host:port,host:port")
        addresses.append((host.strip("[]"), number))
    if not addresses:
        raise ClientError("there is no address: write host:port,host:port")
    return tuple(dict.fromkeys(addresses))


class NodeChoice:
    """The nodes that may be asked, from one call to the next. `listed` returns the bootstrap addresses."""

    def __init__(self, listed: Callable[[], Sequence[Address]]) -> None:
        self._listed = listed
        self._current: Address | None = None

    @property
    def listed(self) -> Sequence[Address]:
        """The bootstrap addresses; a node's own list may be empty for a time."""
        return self._listed()

    @property
    def current(self) -> Address:
        """Whom to ask: where the last answer came from, or a refusal led; before, the first address. Raises
        ClientError if none is known yet."""
        if self._current is None and not self.listed:
            raise ClientError("no address of a controller is known yet")
        return self._current or self.listed[0]

    def prefer(self, address: Address) -> None:
        """Asks this one next: it answered, or a node named it."""
        self._current = address

    def pass_over(self, address: Address) -> None:
        """Asks the address after this one next, unless another has become the current one already."""
        if address == self.current:
            self._current = self._after(address)

    def _after(self, address: Address) -> Address | None:
        """The next address of the bootstrap list; after an address that is not in it, the first. None: the
        list is empty by now."""
        listed = self.listed
        if address not in listed:
            return listed[0] if listed else None
        return listed[(listed.index(address) + 1) % len(listed)]


class Attempts:
    """The attempts of one call, which has `limit_ms` from `now_s` on, less `spent_ms`, which are over; each
    may take `attempt_ms`, so that a node that does not respond leaves time for another. `most`: the attempts
    that are allowed."""

    def __init__(
        self,
        choice: NodeChoice,
        rng: random.Random,
        *,
        now_s: float,
        limit_ms: int,
        attempt_ms: int,
        spent_ms: int = 0,
        most: int | None = None,
    ) -> None:
        self._choice = choice
        self._deadline_s = now_s + (limit_ms - spent_ms) / 1000
        self._limit_ms, self._attempt_ms, self._most = limit_ms, attempt_ms, most
        self._backoff = Backoff(RETRY, rng)
        self._hopeless: set[Address] = set()
        self.count = 0
        self.problem = ""
        """The last reason for another attempt."""
        self.is_cut_short = False
        """Whether the call's limit ends this attempt early: an earlier problem is the better reason."""

    def next_s(self, now_s: float) -> float:
        """Counts an attempt; returns the seconds that it may take, 0 if there must be none."""
        left_s = self._deadline_s - now_s
        if left_s <= 0 or self.count == self._most:
            return 0.0
        self.count += 1
        self.is_cut_short = left_s < self._attempt_ms / 1000
        return min(left_s, self._attempt_ms / 1000)

    def wait_s(self, now_s: float) -> float:
        """The pause before the next attempt, longer after each failure."""
        wait_s = self._backoff.failed(0) / 1000
        return max(0.0, min(wait_s, self._deadline_s - now_s))

    def failed(self, address: Address, why: str, *, lasts: bool = False) -> bool:
        """Notes a problem; `lasts`: no later attempt at this address would differ. Returns whether that is
        so of all bootstrap addresses."""
        self.problem = f"{address_text(*address)}: {why}"
        if lasts:
            self._hopeless.add(address)
        return self._hopeless.issuperset(self._choice.listed)

    def text(self, what: str) -> str:
        """Why the call ends without an answer; `what` has to run."""
        problem = self.problem or "no request was sent"
        if self._most is not None and self.count >= self._most:
            return f"no answer ({problem}); the change may or may not have been made"
        addresses = ", ".join(address_text(*each) for each in self._choice.listed)
        return (
            f"no node at {addresses} answered within {self._limit_ms} ms (last: {problem}); check that the "
            f"{what} runs and that the addresses are right"
        )
