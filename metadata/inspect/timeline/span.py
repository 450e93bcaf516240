"""An ongoing span of time, and how precisely its beginning is known."""

from __future__ import annotations

from typing import NamedTuple

EXACT, LEAST, MOST, PERHAPS = "", "at least ", "at most ", "perhaps "
"""The words before a duration. The span began at its place; there or earlier; there, or again after lost
records; any of these."""

_LOST = {EXACT: MOST, LEAST: PERHAPS}


class OpenSpan(NamedTuple):
    """Since when something holds, by offset and Unix ms."""

    offset: int
    time_ms: int
    bound: str = EXACT

    def over_lost(self) -> OpenSpan:
        """The same span after lost records, among which it may have ended and begun again."""
        return self._replace(bound=_LOST.get(self.bound, self.bound))

    @property
    def or_before(self) -> str:
        """` or before`, if that is possible."""
        return " or before" if self.bound in (LEAST, PERHAPS) else ""


def bound_of(spans: list[OpenSpan]) -> str:
    """The words before the duration of the oldest of several spans."""
    bounds = {span.bound for span in spans}
    return next((one for one in (PERHAPS, LEAST) if one in bounds), min(spans).bound)
