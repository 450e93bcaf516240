"""Histograms, windows, and the counts of requests and syncs.

Owns how a time becomes a bucket. Plain values: knows no metric names and no text format. Call everything
except `FlushStatistics` on the loop's thread only.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS_MS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0),
)
"""Upper bounds of the buckets of all latencies, in ms."""

WINDOW_MS = 30_000
"""The length of a span: averages, maxima and rates cover the current and the last one, as in Kafka."""

ERRORS_MAX = 1_000
"""The most pairs of request and error code that are counted separately; there are far fewer."""


class Histogram:
    """Counts of values by bucket, and their sum. `bounds`: inclusive upper bounds, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_MS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class _Span:
    begun_ms: int
    total: float = 0.0
    count: int = 0
    maximum: float = float("nan")


class Window:
    """Values of the last 30 to 60 s: average, maximum, and sum per second. Times are monotonic ms."""

    __slots__ = ("_now", "_past")

    def __init__(self, now_ms: int) -> None:
        self._past: _Span | None = None
        self._now = _Span(now_ms)

    def note(self, value: float, now_ms: int) -> None:
        self._turn(now_ms)
        span = self._now
        span.total += value
        span.count += 1
        span.maximum = value if span.count == 1 else max(span.maximum, value)

    def average(self, now_ms: int) -> float:
        """NaN when nothing was noted."""
        spans = self._spans(now_ms)
        count = sum(span.count for span in spans)
        return sum(span.total for span in spans) / count if count else float("nan")

    def maximum(self, now_ms: int) -> float:
        """NaN when nothing was noted."""
        return max((span.maximum for span in self._spans(now_ms) if span.count), default=float("nan"))

    def per_second(self, now_ms: int) -> float:
        """The sum of the values per second; the window counts as at least one second long."""
        spans = self._spans(now_ms)
        return sum(span.total for span in spans) / max(1.0, (now_ms - spans[0].begun_ms) / 1000)

    def _spans(self, now_ms: int) -> list[_Span]:
        self._turn(now_ms)
        return [self._now] if self._past is None else [self._past, self._now]

    def _turn(self, now_ms: int) -> None:
        age_ms = now_ms - self._now.begun_ms
        if age_ms < WINDOW_MS:
            return
        if age_ms < 2 * WINDOW_MS:
            self._past, self._now = self._now, _Span(self._now.begun_ms + WINDOW_MS)
        else:
            # No values for longer than a span: the last one was empty, and earlier ones are too old.
            self._past, self._now = _Span(now_ms - WINDOW_MS), _Span(now_ms)


@dataclass(slots=True)
class RequestStatistics:
    """Time from the arrival of requests to their responses, by the request's name in Kafka (Produce,
    FetchConsumer, FetchFollower, BrokerHeartbeat ...), and numbers of responses by error code."""

    times_ms: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    abandoned: dict[str, int] = field(default_factory=dict)
    """Requests whose caller disconnected, or that timed out, before there was a response."""

    def observe(self, request: str, elapsed_ms: float, error: str | None = None) -> None:
        """Counts one response. `error`: the name of its code; None for a success."""
        histogram = self.times_ms.get(request)
        if histogram is None:
            histogram = self.times_ms[request] = Histogram()
        histogram.observe(elapsed_ms)
        if error is not None:
            self.fail(request, error)

    def fail(self, request: str, error: str) -> None:
        """Counts an error in a response."""
        key = (request, error)
        if key in self.errors or len(self.errors) < ERRORS_MAX:
            self.errors[key] = self.errors.get(key, 0) + 1

    def abandon(self, request: str) -> None:
        self.abandoned[request] = self.abandoned.get(request, 0) + 1


@dataclass(slots=True)
class TrafficStatistics:
    """Records that a broker received from producers and sent to others, according to its responses."""

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    """Bytes sent to consumers."""
    replication_bytes_out: int = 0
    failed_produces: int = 0
    failed_fetches: int = 0
    """Number of partitions in requests whose response had an error."""


@dataclass(slots=True)
class FlushStatistics:
    """Durations of syncs to disk, by log directory; `metadata` is the metadata log. Thread-safe."""

    times_ms: dict[str, Histogram] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, directory: str, elapsed_ms: float) -> None:
        """Counts one sync of `directory` (a path)."""
        with self._mutex:
            histogram = self.times_ms.get(directory)
            if histogram is None:
                histogram = self.times_ms[directory] = Histogram()
            histogram.observe(elapsed_ms)

    def disk_call(self, directory: str, operation: str, seconds: float) -> None:
        """Called after every call to the disk of `directory`; counts syncs only."""
        if operation == "sync":
            self.observe(directory, seconds * 1000)
