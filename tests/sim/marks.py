"""Rare states that a run has reached. A simulator that never gets there proves nothing about them.

Owns the names; a test demands that the seeds of `make test` reach every one of them together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.lifecycle import BrokerState
from controller.raft.effects import ResetLog, TruncateLog
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
    "broker session expired",
    "snapshot fetched and loaded by a controller",
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

    def log_cut(self, effect: TruncateLog | ResetLog) -> None:
        self.add("log truncated" if isinstance(effect, TruncateLog) else "snapshot fetched and installed")

    def broker_moved(self, old: BrokerState, new: BrokerState, reason: str) -> None:
        self.add(f"broker {old.name} -> {new.name}")
        if old.serves and not new.serves and not new.ended:
            self.add("broker fenced itself" if "no heartbeat was answered" in reason else "broker was fenced")
