"""The internal topics that have coordinators, and of what kind.

Owns that list: the only place where groups and transactions meet. Does not run them: `coordinators` does.
"""

from __future__ import annotations

import random

from metaquorum.broker.coordinator.coordinators import CoordinatorKind
from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.transactions.state import TransactionState
from metaquorum.metadata.access.authorizer import Authorizer
from metaquorum.metadata.node_configs.coordinators import CoordinatorConfig


def coordinator_kinds(
    config: CoordinatorConfig, rng: random.Random, authorizer: Authorizer | None = None
) -> dict[str, CoordinatorKind]:
    """The kinds of coordinators, by the name of their topic."""
    return {
        config.offsets_topic.name: CoordinatorKind(
            lambda _: GroupState(config.groups, rng, authorizer),
            commit_timeout_ms=config.offsets_commit_timeout_ms,
        ),
        config.transactions_topic.name: CoordinatorKind(
            lambda partition: TransactionState(partition, config.transactions),
            commit_timeout_ms=config.offsets_commit_timeout_ms,
        ),
    }
