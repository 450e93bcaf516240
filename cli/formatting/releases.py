"""The releases at which a cluster can be formatted.

Owns the default release and the reading of a release name. Knows no files; the levels are in
`metadata.features`.
"""

from __future__ import annotations

from metaquorum.metadata.features import (
    DEFAULT_METADATA_VERSION,
    LEVEL_DYNAMIC_VOTERS,
    METADATA_VERSION_NAMES,
    MIN_FINALIZED_METADATA_VERSION,
    metadata_version_name,
)

DEFAULT_RELEASE = metadata_version_name(DEFAULT_METADATA_VERSION)
DYNAMIC_RELEASE = metadata_version_name(LEVEL_DYNAMIC_VOTERS)
"""The default release of a cluster with dynamic voters."""


def level_of_release(name: str) -> int:
    """The metadata.version level of a release: its exact name (3.7-IV4), or its number (3.7) for its last
    level.

    The lowest is 3.3-IV0: before it, no record held the level. Raises ValueError, which lists the names.
    """
    known = {
        each: level
        for level, each in METADATA_VERSION_NAMES.items()
        if level >= MIN_FINALIZED_METADATA_VERSION
    }
    within = [level for each, level in known.items() if each == name or each.startswith(name + "-")]
    if not name or not within:
        raise ValueError(f"{name!r} is not a release for a new cluster; choose one of {', '.join(known)}")
    return max(within)
