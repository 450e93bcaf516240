"""Rare states that a run has reached. A simulator that never gets there proves nothing about them.

Owns the names; a test demands that the seeds of `make test` reach every one of them together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from metadata.errors import ApiError, ErrorCode

REQUIRED = (
    "log truncated",
    "snapshot fetched and installed",
    "resigned with writes pending",
    "broker fenced itself",
    "stale broker epoch refused",
    "duplicate broker refused",
    "leader paused past the session timeout",
    "unsynced data lost",
    "controlled shutdown finished",
    "broker fenced by its controller",
    "linearizable read answered",
    "leadership transferred",
)


class Marks:
    """Counts of marks in one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, mark: str) -> None:
        self.counts[mark] += 1

    def answered(self, response: Any) -> None:
        if not isinstance(response, ApiError):
            return
        match response.code:
            case ErrorCode.STALE_BROKER_EPOCH:
                self.add("stale broker epoch refused")
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self.add("duplicate broker refused")
            case _:
                self.add(f"answered {response.code.name}")

    def broker_moved(self, old: Any, new: Any, reason: str) -> None:
        self.add(f"broker {old.name} -> {new.name}")
