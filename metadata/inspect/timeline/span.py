"""A stretch of time that goes on, and how well its beginning is known."""

from __future__ import annotations

from typing import NamedTuple

EXACT, LEAST, MOST, PERHAPS = "", "at least ", "at most ", "perhaps "
"""What is said before a duration: it began at its place; there or before; then, or again behind lost records;
any of these."""

_LOST = {EXACT: MOST, LEAST: PERHAPS}


class OpenSpan(NamedTuple):
    """Since when something is so, by offset and Unix ms."""

    offset: int
    time_ms: int
    bound: str = EXACT

    def over_lost(self) -> OpenSpan:
        """The same behind lost records, among which it may have ended and begun again."""
        return self._replace(bound=_LOST.get(self.bound, self.bound))

    @property
    def or_before(self) -> str:
        """` or before`, where that may be."""
        return " or before" if self.bound in (LEAST, PERHAPS) else ""


def bound_of(spans: list[OpenSpan]) -> str:
    """What is said before the duration of the oldest of several."""
    bounds = {span.bound for span in spans}
    return next((one for one in (PERHAPS, LEAST) if one in bounds), min(spans).bound)
