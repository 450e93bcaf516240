"""The answer of `why`: the chain of records that made an entity so, and how it is at the end.

Owns what a link is and which one counts as the last. Knows no log and no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from metaquorum.metadata.inspect.causes.cause_types import Cause
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.places import Limits
from metaquorum.metadata.records.batch_cause import BatchCause

MAX_LINKS = 100_000
"""Links that are kept; older ones are counted."""
SNAPSHOT = "SNAPSHOT"
"""In place of a record type: the entity is there from the start on, a snapshot says so."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the chain. `changes` are (field, before, after) as plain data; times are Unix ms;
    `stamp_ms`, its batch's stamp where that is not the time it was (see `clock`); `asked`: who or what caused
    its batch, where the log says so."""

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
    """Whether an entity is there. None where records alone cannot tell: what they took away may have been one
    of several."""
    kind = entity.partition("/")[0]
    if now is None and kind in ("controller", "quorum"):
        return None  # one that leads need not have registered, and records of an election may be lost
    if now is not None or is_known or entity.count("/") != 1:
        return now is not None
    return None if kind in ("config", "quota") else False


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], field_name: str | None
) -> tuple[tuple[str, Any, Any], ...]:
    """What differs between two states of an entity; of one field, if it is named."""
    return tuple(
        (name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and field_name in (None, name)
    )


@dataclass(slots=True, kw_only=True)
class Explanation:
    """The chain, oldest first, and how the target is at its end. `exists` is False for an entity that was
    deleted or never was, None where records alone cannot tell; `value` is the field's, or all fields'.
    `dropped` links were too many to keep; `unknown` records of the log are from the future; `limits` has what
    the chain does not cover. `read_from`: the log was read from there on, and may have earlier links."""

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
        """The newest link that changed something; the newest where none did. A snapshot says what was before
        the log's records: it changes nothing where there are some, unless lost records did."""
        told = [link for link in self.links if link.type_name != SNAPSHOT or link.changes] or self.links
        return next(filter(is_change, reversed(told)), told[-1] if told else None)
