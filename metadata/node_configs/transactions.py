"""The configuration of transaction coordinators.

Owns the values. Does not know the internal topic, which `coordinators` has, or how long partitions
remember a producer.
"""

from __future__ import annotations

import msgspec


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """In ms, by Kafka's keys: `max_timeout_ms` is `transaction.max.timeout.ms`, `id_expiration_ms`
    `transactional.id.expiration.ms`; the intervals are those at which timed-out transactions are aborted and
    expired ids removed."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    removal_interval_ms: int = 3_600_000
