"""What finalized feature levels require of a broker, and what they allow the controller to write (S2.14)."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.metadata.features import KRAFT_VERSION, METADATA_VERSION
from metaquorum.metadata.image import FeaturesImage
from metaquorum.metadata.records.types import BrokerFeature

LEVEL_NO_OP = 5
"""metadata.version 3.3-IV1: the log may hold NoOp records (KIP-835)."""
LEVEL_ZK_MIGRATION_STATE = 8
"""metadata.version 3.4-IV0: a new cluster's first records state whether it comes from ZooKeeper (KIP-866)."""
LEVEL_TRANSACTIONS = 13
"""metadata.version 3.6-IV1: the first records of a cluster are one metadata transaction (KIP-868)."""

LEVEL_CONTROLLED_SHUTDOWN = 7
"""metadata.version 3.3-IV3: a registration can state that its broker is in controlled shutdown (KIP-841)."""
LEVEL_SCRAM = 11
"""metadata.version 3.5-IV2: SCRAM credentials are in the log (KIP-900)."""
LEVEL_DELEGATION_TOKENS = 14
"""metadata.version 3.6-IV2: delegation tokens are in the log (KIP-900)."""
LEVEL_CONTROLLER_REGISTRATION = 15
"""metadata.version 3.7-IV0: controllers register (KIP-919)."""


def unsupported_feature(
    image: FeaturesImage, features: Iterable[BrokerFeature], *, kraft_version: int = 0
) -> str | None:
    """A line for humans about the first finalized feature that a broker does not support; None if it supports
    all. `kraft_version`: the quorum's; what an image says of it counts for nothing.

    A feature that the broker does not name is one that it does not know. One that is not finalized is at
    level 0.
    """
    ranges = {feature.name: feature for feature in features}
    levels = dict.fromkeys(ranges.keys() - {METADATA_VERSION}, 0) | dict(image.finalized)
    for name, level in sorted({**levels, KRAFT_VERSION: kraft_version}.items()):
        feature = ranges.get(name)
        if feature is None and level > 0:
            return (
                f"the cluster is at {name} level {level}, but this broker does not support {name}: run a "
                f"broker release that supports level {level}"
            )
        if feature is None:
            continue
        if not feature.min_supported_version <= level <= feature.max_supported_version:
            return (
                f"the cluster is at {name} level {level}, but this broker supports "
                f"{feature.min_supported_version} to {feature.max_supported_version}: run a broker "
                f"release that supports level {level}"
            )
    return None
