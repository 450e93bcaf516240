"""The links of a chain of `why`, oldest first, while the log is read.

Owns how many are kept, what an open transaction adds before it takes effect, and causes that come late: a
fence that was split over several batches is written after what it caused. Knows no target.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from metaquorum.metadata.inspect.causes.cause_types import SPLIT_MS, Cause
from metaquorum.metadata.inspect.causes.split_fences import LIKE_A_SPLIT_FENCE
from metaquorum.metadata.inspect.changes.changes import BatchChanges
from metaquorum.metadata.inspect.why.explanation import MAX_LINKS, Link
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)


class Links:
    """`has_begun`: whether all links that there are can be among them."""

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
        """The oldest one that is kept."""
        return self._links[0] if self._links else None

    @property
    def dropped(self) -> int:
        """How many were too many to keep."""
        return self._count - len(self._links)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._visible is not None

    def all(self) -> list[Link]:
        """Those that are kept, with what an open transaction adds."""
        return list(self._links)

    def so_far(self) -> tuple[list[Link], bool]:
        """The links as they hold now, and `has_begun` as of then."""
        links, _, has_begun = self._visible or (self._links, self._count, self.has_begun)
        return list(links), has_begun

    def add(self, link: Link) -> None:
        """The next one."""
        self._links.append(link)
        self._count += 1

    def note_slice(self, offset: int) -> None:
        """The record at `offset` may be part of a split fence, whose own record comes later."""
        self._slices.add(offset)

    def clear(self) -> None:
        """The entity is created here: what was before is not its own."""
        self._links.clear()
        self._count, self.has_begun = 0, True

    def batch(self, changes: BatchChanges) -> None:
        """What a batch means for the links before it: transactions and late causes."""
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
        """An open transaction has no effect: the links are as they were before it."""
        if self._visible is not None:
            (self._links, self._count, self.has_begun), self._visible = self._visible, None

    def keep(self) -> None:
        """A snapshot says what is so: no transaction that began before it is open."""
        self._visible = None

    def _explain(self, changes: BatchChanges) -> None:
        """Gives links of just before the cause that a split fence (or shutdown) writes last."""
        gone = {step.broker_id: step for step in changes.brokers if step.was_fenced or step.began_shutdown}
        if not gone:
            return
        for at in range(len(self._links) - 1, -1, -1):
            link = self._links[at]
            if changes.time_ms - link.time_ms > SPLIT_MS:
                return
            if link.offset not in self._slices:
                continue
            told = tuple(
                _split_fence(cause, gone[cause.broker_id].offset)
                if cause.broker_id in gone and cause.rule in LIKE_A_SPLIT_FENCE
                else cause
                for cause in link.causes
            )
            self._links[at] = replace(link, causes=told)


def _split_fence(cause: Cause, offset: int) -> Cause:
    text = f"broker {cause.broker_id} was being fenced; the record is at {offset}"
    return Cause(rule="broker-fenced", text=text, offset=offset, broker_id=cause.broker_id)
