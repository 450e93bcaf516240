"""Names and levels of metadata.version, as Apache Kafka's MetadataVersion numbers them (K26)."""

from __future__ import annotations

METADATA_VERSION_LEVELS: dict[str, int] = {
    "3.0-IV1": 1,
    "3.1-IV0": 2,
    "3.2-IV0": 3,
    "3.3-IV0": 4,
    "3.3-IV1": 5,
    "3.3-IV2": 6,
    "3.3-IV3": 7,
    "3.4-IV0": 8,
    "3.5-IV0": 9,
    "3.5-IV1": 10,
    "3.5-IV2": 11,
    "3.6-IV0": 12,
    "3.6-IV1": 13,
    "3.6-IV2": 14,
    "3.7-IV0": 15,
    "3.7-IV1": 16,
    "3.7-IV2": 17,
    "3.7-IV3": 18,
    "3.7-IV4": 19,
    "3.8-IV0": 20,
    "3.9-IV0": 21,
}
DEFAULT_RELEASE = "3.7-IV4"
LOWEST_LEVEL = 4
"""A cluster can be bootstrapped from 3.3-IV0 on: before it, no record said the level."""


def level_of_release(name: str) -> int:
    """The level of a release: its exact name (3.7-IV4), or its number (3.7) for the last level of it.

    Raises ValueError, listing what can be written.
    """
    exact = METADATA_VERSION_LEVELS.get(name)
    within = [level for known, level in METADATA_VERSION_LEVELS.items() if known.startswith(name + "-")]
    level = exact if exact is not None else max(within, default=None)
    if level is None or level < LOWEST_LEVEL:
        known = ", ".join(known for known, level in METADATA_VERSION_LEVELS.items() if level >= LOWEST_LEVEL)
        raise ValueError(f"{name!r} is no release that a cluster can be formatted at; known are {known}")
    return level
