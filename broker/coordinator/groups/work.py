"""The results of one input, collected while it is handled.

Owns their order and what is undone if the log refuses the records. Knows no group and no request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.broker.coordinator.state import BatchOrigin, Decision, Now, Reply
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.stored import StoredRecord


class Work:
    """Records and replies in their order. `refused` is called for each part that must be undone if the log
    does not take the records; it gets new work and the error. `origin`: the transaction they belong to."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.records: list[StoredRecord] = []
        self.drafts: dict[str, Any] = {}
        """States on which decisions continue, by group."""
        self._replies: list[Reply] = []
        self._refused: list[Callable[[Work, ErrorCode], None]] = []
        self.origin = BatchOrigin()

    @property
    def replies(self) -> tuple[Reply, ...]:
        return tuple(self._replies)

    def reply(self, key: object | None, body: Any) -> None:
        """Answers a caller; None: there is none."""
        if key is not None:
            self._replies.append(Reply(key, body))

    def store(self, record: StoredRecord, refused: Callable[[Work, ErrorCode], None] | None = None) -> None:
        self.records.append(record)
        if refused is not None:
            self.if_refused(refused)

    def if_refused(self, refused: Callable[[Work, ErrorCode], None]) -> None:
        self._refused.append(refused)

    def decision(self, *, at_once: bool = False) -> Decision:
        return Decision(
            records=tuple(self.records),
            replies=tuple(self._replies),
            at_once=at_once,
            origin=self.origin,
            if_refused=self._taken_back if self._refused else None,
        )

    def _taken_back(self, error: ErrorCode) -> Decision:
        work = Work(self.now)
        for refused in self._refused:
            refused(work, error)
        return work.decision()
