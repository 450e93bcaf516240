"""What a repair can be asked to do, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.storage.types import LogPosition

SHOWN_CHANGES = 100
"""How many changes are kept one by one; further ones are counted."""

Kind = Literal["dropped", "filled", "adjusted", "cut", "begins", "snapshot"]


class RepairRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `drop`: offsets of records to remove. `drop_failing`: remove all that cannot be applied.
    `past_corruption`: continue past lost bytes. `end_at`: drop this offset and all after it."""

    drop: frozenset[int] = frozenset()
    drop_failing: bool = False
    past_corruption: bool = False
    end_at: int | None = None


class RepairedRange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the old directory and the new one, from `offset` up to `end_offset`."""

    kind: Kind
    offset: int
    end_offset: int
    text: str


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """What a repair does, or did. `changed` counts all changes, and `changes` has the first SHOWN_CHANGES.
    `remaining` are lines about remaining problems, `newer` about records from a newer release. `after` is the
    state at the new log's end."""

    base: LogPosition | None = None
    changes: list[RepairedRange] = field(default_factory=list)
    changed: int = 0
    kept_snapshots: list[LogPosition] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start_offset: int = 0
    end: LogPosition = field(default_factory=lambda: LogPosition(0, 0))
    after: MetadataImage = field(default_factory=MetadataImage)

    def add(self, change: RepairedRange) -> None:
        """Counts a change, and keeps it if there is room."""
        self.changed += 1
        if len(self.changes) < SHOWN_CHANGES:
            self.changes.append(change)

    def remains(self, line: str) -> None:
        """Keeps a line about a remaining problem if there is room."""
        if len(self.remaining) < SHOWN_CHANGES:
            self.remaining.append(line)

    def is_newer(self, line: str) -> None:
        """Keeps a line about a record from a newer release if there is room."""
        if len(self.newer) < SHOWN_CHANGES:
            self.newer.append(line)
