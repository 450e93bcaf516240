"""The answer of `why`: the chain of records that led to an entity's state, and that state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from metaquorum.metadata.inspect.causes.rule import Cause
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.places import Limits
from metaquorum.metadata.records.batch_cause import BatchCause

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
