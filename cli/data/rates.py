"""Progress, rates and latencies of commands that move messages."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import click

INTERVAL_S = 1.0
_DIGITS = 3
"""Significant digits of a latency in microseconds."""

progress_option = click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress on standard error. Default: only on a terminal.",
)


class Latencies:
    """A histogram of latencies in seconds."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0

    def note(self, seconds: float, count: int = 1) -> None:
        micros = max(0, round(seconds * 1e6))
        digits = len(str(micros)) - _DIGITS
        self._counts[round(micros, -digits) if digits > 0 else micros] += count
        self._total += count

    def percentile_ms(self, share: float) -> float | None:
        """The percentile in ms by nearest rank; None: no latencies."""
        if not self._total:
            return None
        rank = max(1, -int(-share * self._total // 1))
        seen = 0
        for micros in sorted(self._counts):
            seen += self._counts[micros]
            if seen >= rank:
                return micros / 1000
        raise ArithmeticError("the histogram counts less than it was given")

    def as_json(self) -> dict[str, float | None]:
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {name: self.percentile_ms(share) for name, share in shares.items()}

    def text(self) -> str:
        """`p50 4.1, p95 7, p99 9.9, max 12.3 ms`."""
        known = {name: value for name, value in self.as_json().items() if value is not None}
        return ", ".join(f"{name} {_three_digits(value)}" for name, value in known.items()) + " ms"


class Progress:
    """The progress line. `shown` None: if standard error is a terminal."""

    def __init__(self, shown: bool | None) -> None:
        self._live = sys.stderr.isatty()
        self.shown = self._live if shown is None else shown
        self._last = time.monotonic()
        self._drawn = 0

    def due(self) -> bool:
        """Whether it is time for another line."""
        return self.shown and time.monotonic() - self._last >= INTERVAL_S

    def show(self, text: str) -> None:
        self._last = time.monotonic()
        if self._live:
            click.echo(f"\r{text:<{self._drawn}}", err=True, nl=False)
            self._drawn = len(text)
        else:
            click.echo(text, err=True)

    def clear(self) -> None:
        """Removes the line from the terminal before other output."""
        if self._drawn:
            click.echo("\r" + " " * self._drawn + "\r", err=True, nl=False)
            self._drawn = 0


def rate_text(count: int, size_bytes: int, seconds: float) -> str:
    """`81,300 messages/s, 7.8 MB/s`."""
    seconds = max(seconds, 1e-9)
    return f"{count / seconds:,.0f} messages/s, {_three_digits(size_bytes / seconds / 1e6)} MB/s"


def _three_digits(value: float) -> str:
    """Three significant digits, or a whole number with commas: `4.12`, `1,390`; never an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or not value else "under 0.001"


def rates_json(count: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    return {
        "messages": count,
        "bytes": size_bytes,
        "seconds": round(seconds, 6),
        "messagesPerSecond": round(count / max(seconds, 1e-9), 1),
        "megabytesPerSecond": round(size_bytes / max(seconds, 1e-9) / 1e6, 3),
    }
