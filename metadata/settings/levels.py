"""Feature levels as an operator sees them: what is finalized, and which downgrades lose nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.features import KNOWN_FEATURES, KRAFT_VERSION, METADATA_VERSION, MIN_METADATA_VERSION

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

_CHANGES_METADATA = frozenset({1, 3, 5, 6, 7, 8, 11, 13, 14, 15, 17, 22, 23, 24, 25})
"""Levels of metadata.version that brought a record, or a version of one, which the level before cannot carry
(Kafka's didMetadataChange); levels above 22 count as such because we write Partition v2 from 23 on, and
nothing is promised of 24 and 25."""


class FeatureDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A feature: the levels that this program supports, and the finalized one (0: none)."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


def describe_features(image: MetadataImage, kraft_version: int) -> tuple[FeatureDescription, ...]:
    """Every feature that is known, and those finalized in the log, by name. `kraft_version` is the level that
    the log's control records say, which are not in the image."""
    known = {each.name: each for each in KNOWN_FEATURES}
    finalized = {METADATA_VERSION: image.features.metadata_version, **image.features.finalized}
    finalized[KRAFT_VERSION] = kraft_version
    return tuple(
        FeatureDescription(
            name=name,
            min_level=known[name].min_level if name in known else 0,
            max_level=known[name].max_level if name in known else 0,
            finalized_level=finalized.get(name, 0),
        )
        for name in sorted({*known, *finalized})
    )


def loses_metadata(level: int, lower: int) -> bool:
    """Whether a downgrade from `level` to `lower` could drop what the higher level wrote."""
    return any(step in _CHANGES_METADATA for step in range(max(lower, MIN_METADATA_VERSION) + 1, level + 1))
