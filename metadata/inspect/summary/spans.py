"""Spans without a leader or under min ISR, and brokers' fenced times, summed up from events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

Place = tuple[int, int]
"""(offset, Unix ms)."""

KEPT = 10_000
"""How many spans are kept, the longest ones; sums include all."""


class PartitionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span that some partitions share, beginning at `begun`; `ended` None means until the
    end of what was read."""

    begun: Place
    ended: Place | None
    first: str
    partitions: int
    span_ms: int
    bound: str = ""
    """Precedes `span_ms` in texts (see `timeline.span`)."""


class OpenSpans:
    """Opens and closes spans by partition path; collects the closed ones."""

    def __init__(self) -> None:
        self.closed: list[PartitionSpan] = []
        self.touched: set[str] = set()
        self.total_ms = 0
        self.open: dict[str, tuple[Place, str]] = {}

    def begin(self, paths: tuple[str, ...], moment: Place, bound: str = "") -> None:
        for path in paths:
            self.open.setdefault(path, (moment, bound))

    def end(
        self, paths: tuple[str, ...], moment: Place, since: Place, bound: str = "", *, ended: bool = True
    ) -> None:
        """Closes the open spans of `paths`; `since` is where the requested range begins."""
        together: dict[tuple[Place, str], list[str]] = {}
        for path in paths:
            opened = self.open.pop(path, None)
            if opened is not None:
                together.setdefault(opened, []).append(path)
        for (begun, own), closed in together.items():
            span_ms = max(0, moment[1] - max(begun[1], since[1]))
            if moment[0] <= since[0]:
                continue  # over before the requested range began
            self.total_ms += span_ms * len(closed)
            self.touched.update(closed)
            self.closed.append(
                PartitionSpan(
                    begun=begun,
                    ended=moment if ended else None,
                    first=closed[0],
                    partitions=len(closed),
                    span_ms=span_ms,
                    bound="" if begun[0] <= since[0] else bound or own,  # what is before does not count
                )
            )
        if len(self.closed) > 2 * KEPT:
            self.closed = self.worst(KEPT)

    def end_below(self, path: str, moment: Place, since: Place) -> None:
        """The same for everything below a path, when a topic is deleted."""
        if self.open:
            below = tuple(one for one in self.open if one.startswith(path + "/"))
            self.end(below, moment, since)

    def worst(self, number: int) -> list[PartitionSpan]:
        """The longest ones; if equal, those with the most partitions."""
        return sorted(self.closed, key=lambda one: (-one.span_ms, -one.partitions, one.begun))[:number]


@dataclass(slots=True)
class BrokerSum:
    """A broker's fences in the requested range. `open` is where the current one began; `bounds` are the words
    before their durations."""

    fences: int = 0
    total_ms: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    longest_ms: int = -1
    longest: Place = (0, 0)
    longest_rule: str | None = None
    open: Place | None = None
    open_rule: str | None = None
    bounds: set[str] = field(default_factory=set)
    _open_bound: str = ""

    def fence(self, moment: Place, rule: str, bound: str = "", *, counts: bool) -> None:
        if counts:
            self.fences += 1
            self.rules[rule] += 1
        if self.open is None:
            self.open, self.open_rule, self._open_bound = moment, rule, bound
        if self.longest_ms < 0:
            self.longest = moment

    def close(self, moment: Place, since: Place, bound: str = "") -> None:
        """Ends the fence: the broker was unfenced or unregistered, or the records end."""
        begun, self.open = self.open, None
        if begun is None or moment[0] <= since[0]:
            return
        self.bounds.add(bound or self._open_bound)
        span_ms = max(0, moment[1] - max(begun[1], since[1]))
        self.total_ms += span_ms
        if span_ms > self.longest_ms:
            self.longest_ms, self.longest, self.longest_rule = span_ms, begun, self.open_rule
