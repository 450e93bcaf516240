"""The links of a `why` chain, oldest first, while the log is being read.

How many are kept, what an open transaction adds before it takes effect, and causes that arrive late: the
record of a split fence follows the changes it caused.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from metaquorum.metadata.inspect.causes.rule import SPLIT_MS, Cause
from metaquorum.metadata.inspect.causes.split_fences import late_rule
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStep
from metaquorum.metadata.inspect.why.explanation import MAX_LINKS, Link
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)


class Links:
    """`has_begun`: whether the links can include all that exist."""

    def __init__(self, *, has_begun: bool) -> None:
        self.has_begun = has_begun
        self._links: deque[Link] = deque(maxlen=MAX_LINKS)
        self._count = 0
        self._visible: tuple[deque[Link], int, bool] | None = None
        self._slices: set[int] = set()

    def __len__(self) -> int:
        return len(self._links)

    @property
    def first(self) -> Link | None:
        """The oldest link kept."""
        return self._links[0] if self._links else None

    @property
    def dropped(self) -> int:
        """How many links exceeded the limit."""
        return self._count - len(self._links)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._visible is not None

    def all(self) -> list[Link]:
        """The links kept, with what an open transaction adds."""
        return list(self._links)

    def so_far(self) -> tuple[list[Link], bool]:
        """The links as they are now, and `has_begun` at this point."""
        links, _, has_begun = self._visible or (self._links, self._count, self.has_begun)
        return list(links), has_begun

    def add(self, link: Link) -> None:
        """Appends a link."""
        self._links.append(link)
        self._count += 1

    def note_slice(self, offset: int) -> None:
        """The record at `offset` may be part of a split fence, whose own record follows later."""
        self._slices.add(offset)

    def clear(self) -> None:
        """The entity is created here: earlier links belong to another one."""
        self._links.clear()
        self._count, self.has_begun = 0, True

    def batch(self, changes: BatchChanges) -> None:
        """Applies what a batch means for earlier links: transactions and late causes."""
        for _, record in changes.records:
            match record:
                case BeginTransactionRecord():
                    self._visible = (self._links.copy(), self._count, self.has_begun)
                case AbortTransactionRecord():
                    self.take_back()
                case EndTransactionRecord():
                    self._visible = None
        self._explain(changes)

    def take_back(self) -> None:
        """Drops the links of an open transaction, which has no effect."""
        if self._visible is not None:
            (self._links, self._count, self.has_begun), self._visible = self._visible, None

    def keep(self) -> None:
        """Keeps the links of an open transaction: a snapshot shows the state, so no earlier
        transaction is open."""
        self._visible = None

    def _explain(self, changes: BatchChanges) -> None:
        """Gives recent links the cause that the last record of a split fence (or shutdown) reveals."""
        gone = {step.broker_id: step for step in changes.brokers if late_rule(step) is not None}
        if not gone:
            return
        for number in range(len(self._links) - 1, -1, -1):
            link = self._links[number]
            if changes.time_ms - link.time_ms > SPLIT_MS:
                return
            if link.offset not in self._slices:
                continue
            causes = tuple(
                _split_fence(cause, gone[cause.broker_id])
                if cause.broker_id in gone and cause.rule in MAY_BE_FENCE
                else cause
                for cause in link.causes
            )
            self._links[number] = replace(link, causes=causes)


def _split_fence(cause: Cause, step: BrokerStep) -> Cause:
    what = "being fenced" if step.was_fenced else "shutting down"
    text = f"broker {cause.broker_id} was {what}; the record is at {step.offset}"
    rule = late_rule(step) or cause.rule
    return Cause(rule=rule, text=text, offset=step.offset, broker_id=cause.broker_id)
