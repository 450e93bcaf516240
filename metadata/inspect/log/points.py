"""Places in a log as a user names them: an offset, or a time."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache

import msgspec


class Point(msgspec.Struct, frozen=True):
    """A place: everything below `offset`, or up to the first batch later than `time_ms` (Unix ms); with
    both None, the end of the log. With `after`, the first place that shows the effect of the record at
    `offset` (see `places`)."""

    offset: int | None = None
    time_ms: int | None = None
    after: bool = False

    @property
    def is_end(self) -> bool:
        """True for the end of the log, wherever that is."""
        return self.offset is None and self.time_ms is None

    def covers(self, next_offset: int, time_ms: int) -> bool:
        """Whether a batch that ends before `next_offset`, with its newest record at `time_ms`,
        is before this place."""
        if self.offset is not None:
            return next_offset <= self.offset
        return self.time_ms is None or time_ms <= self.time_ms


END = Point()
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "min": 60_000, "s": 1_000, "ms": 1}
_ISO_SPAN = re.compile(r"P(?=.*\d[DHMS]$)((?:\d+D)?)(?:T((?:\d+H)?(?:\d+M)?(?:\d+S)?))?")
_LIKELY_MS = 10**12
"""Numbers from here on are hardly meant as offsets: as Unix ms they are times from 2001 on."""


def parse_point(text: str | None) -> Point:
    """Digits are an offset, digits and `+` the place after that record, `@` and digits Unix ms, `end`
    or None the end of the log, anything else ISO 8601 (UTC if no zone is given). Raises ValueError,
    which lists the forms."""
    if text is None or text == "end":
        return END
    if text.isascii() and text.isdigit():
        return Point(offset=int(text))
    if text.isascii() and text.endswith("+") and text[:-1].isdigit():
        return Point(offset=int(text[:-1]), after=True)
    try:
        return Point(time_ms=parse_time_ms(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a time nor an offset; write 4321, 4321+ (after that record), "
            "2026-11-21T03:07:57Z, 2026-11-21, @ followed by milliseconds since 1970, or end"
        ) from None


def ms_hint(offset: int) -> str:
    """What to write instead of a number that is hardly an offset; empty for one that may be."""
    return f" (a time in milliseconds is written @{offset})" if offset >= _LIKELY_MS else ""


def parse_time_ms(text: str) -> int:
    """Unix ms from `2026-11-21T03:07:57.123Z` (UTC if no zone is given) or from a number of ms.

    Raises ValueError, which gives both forms.
    """
    if text.isascii() and text.lstrip("@").isdigit():
        return int(text.lstrip("@"))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write 2026-11-21T03:07:57Z, 2026-11-21, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(milliseconds=1)


def parse_span_ms(text: str) -> int:
    """Milliseconds from `12h`, `90min`, `1d12h` or ISO 8601 (`P1DT12H`). Raises ValueError,
    which gives the forms."""
    iso = _ISO_SPAN.fullmatch(text)
    plain = text if iso is None else f"{iso[1]}{iso[2] or ''}".lower()
    parts = re.findall(r"(\d+)(ms|min|[dhms])", plain)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != plain:
        raise ValueError(f"{text!r} is not a duration; write 12h, 90min, 45s or 1d12h")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def utc_text(time_ms: int) -> str:
    """A Unix time in ms as ISO 8601 in UTC, to the millisecond; as a number if it is outside the calendar."""
    second = _second_text(time_ms // 1000)
    return f"{time_ms}ms" if second is None else f"{second}.{time_ms % 1000:03d}Z"


@lru_cache(maxsize=256)
def _second_text(second: int) -> str | None:
    """Cached, because a log names the same second again and again. None if it is outside the calendar."""
    try:
        moment = datetime.datetime.fromtimestamp(second, tz=datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}"
