"""Feature levels from an operator's view: what is finalized, and which downgrades lose nothing.

Owns which levels changed the metadata. Does not decide on an update, as the active controller does; the
levels that exist are in `features`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.features import MIN_METADATA_VERSION

if TYPE_CHECKING:
    pass

_CHANGES_METADATA = frozenset({1, 3, 5, 6, 7, 8, 11, 13, 14, 15, 17, 22, 23, 24, 25})
"""Levels of metadata.version with a record, or a version of one, that the level before cannot carry (Kafka's
didMetadataChange). Levels above 22 are included because we write Partition v2 from 23 on, and nothing is
guaranteed for 24 and 25."""


class FeatureDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A feature: the levels that this program supports, and the finalized one (0 if none)."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


def loses_metadata(level: int, lower: int) -> bool:
    """Whether a downgrade from `level` to `lower` could lose what was written at the higher level."""
    return any(step in _CHANGES_METADATA for step in range(max(lower, MIN_METADATA_VERSION) + 1, level + 1))
