"""The answer of `why`: the chain of records that led to an entity's state, and that state."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.causes.rule import SPLIT_MS, Cause
from metaquorum.metadata.inspect.causes.split_fences import late_rule
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStep
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.coverage import Limits
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)

MAX_LINKS = 100_000
"""How many links are kept; older ones are only counted."""
SNAPSHOT = "SNAPSHOT"
"""Used instead of a record type: a snapshot shows the entity from the start."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the chain. `changes` are (field, before, after) as plain data. Times are Unix ms;
    `stamp_ms` is the batch's timestamp if it differs from the actual time (see `clock`). `asked` is what
    caused the batch, if the log says so."""

    offset: int
    epoch: int
    time_ms: int
    type_name: str
    changes: tuple[tuple[str, Any, Any], ...]
    causes: tuple[Cause, ...]
    stamp_ms: int | None = None
    asked: BatchCause | None = None


def is_change(link: Link) -> bool:
    """Whether its record changed anything."""
    return link.causes[0].rule != "changed-nothing"


def exists(entity: str, now: object, *, is_known: bool) -> bool | None:
    """Whether an entity exists. None if records alone do not show it: what they removed may have
    been one of several."""
    kind = entity.partition("/")[0]
    if now is None and kind in ("controller", "quorum"):
        return None  # a leader need not have registered, and election records may be lost
    if now is not None or is_known or entity.count("/") != 1:
        return now is not None
    return None if kind in ("config", "quota") else False


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], field_name: str | None
) -> tuple[tuple[str, Any, Any], ...]:
    """The differences between two states of an entity, limited to one field if it is named."""
    return tuple(
        (name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and field_name in (None, name)
    )


@dataclass(slots=True, kw_only=True)
class Explanation:
    """The chain, oldest first, and the target's state at its end.

    `exists` is False for an entity that was deleted or never existed, None if records alone do not show it.
    `value` is that of the field, or of all fields. `dropped` links exceeded the limit. `unknown` records of
    the log are from a newer version. `limits` has what the chain does not cover. `read_from`: the log was
    read from this offset on and may have earlier links."""

    target: EntityTarget
    end_offset: int
    exists: bool | None
    value: Any
    links: list[Link] = field(default_factory=list)
    dropped: int = 0
    unknown: int = 0
    read_from: int | None = None
    limits: Limits = field(default_factory=Limits, compare=False)

    @property
    def last(self) -> Link | None:
        """The newest link that changed something, or the newest if none did. A snapshot shows the state
        before the log's records: it counts only without other links, or if lost records changed something."""
        links = [link for link in self.links if link.type_name != SNAPSHOT or link.changes] or self.links
        return next(filter(is_change, reversed(links)), links[-1] if links else None)


# The links of a `why` chain, oldest first, while the log is being read.
#
# How many are kept, what an open transaction adds before it takes effect, and causes that arrive late: the
# record of a split fence follows the changes it caused.


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
