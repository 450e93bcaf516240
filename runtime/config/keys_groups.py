"""The part of the table of keys about consumer groups, transactions and the internal topics.

Owns these rows, and the configuration classes made from them. Does not decide what a single group may set:
`metadata.settings.group_keys` has those keys. Defaults are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from metaquorum.metadata.node_configs.coordinators import CoordinatorConfig, InternalTopic
from metaquorum.metadata.node_configs.groups import GroupConfig, MigrationPolicy
from metaquorum.metadata.node_configs.transactions import TransactionConfig
from metaquorum.metadata.settings.group_keys import GROUP_KEYS, GroupBounds
from metaquorum.runtime.config.key import BROKER, MAX_INT, Key, bytes_key, ms_key
from metaquorum.runtime.errors import ConfigError

_GROUPS = GroupConfig()
_BOUNDS = GroupBounds()
_TRANSACTIONS = TransactionConfig()
_SEGMENT_BYTES = 100 * 1024 * 1024
_ms = partial(ms_key, roles=(BROKER,))
_count = partial(Key, minimum=1, roles=(BROKER,))


def _topic_rows(prefix: str, name: str) -> tuple[Key, ...]:
    return (
        _count(f"{prefix}.num.partitions", "int", 50, f"Number of partitions of `{name}`."),
        _count(
            f"{prefix}.replication.factor",
            "int",
            3,
            f"Replication factor of `{name}`. With fewer brokers there is no coordinator.",
            maximum=32767,
        ),
        bytes_key(
            f"{prefix}.segment.bytes",
            _SEGMENT_BYTES,
            f"Maximum size of a segment of `{name}`.",
            minimum=1,
            roles=(BROKER,),
        ),
    )


COORDINATORS = (
    *_topic_rows("offsets.topic", "__consumer_offsets"),
    _ms(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a commit waits until every replica in sync has it.",
    ),
    _count(
        "offsets.retention.minutes",
        "int",
        10_080,
        "How long offsets of a group without members, or of topics that it has left, are kept.",
        unit="minutes",
    ),
    _ms(
        "offsets.retention.check.interval.ms",
        _GROUPS.offsets_retention_check_interval_ms,
        "Interval between removals of expired offsets and empty groups.",
    ),
    bytes_key(
        "offset.metadata.max.bytes",
        _GROUPS.offset_metadata_max_bytes,
        "Maximum size of the text committed with an offset.",
        minimum=0,
        roles=(BROKER,),
    ),
    _ms(
        "group.initial.rebalance.delay.ms",
        _GROUPS.group_initial_rebalance_delay_ms,
        "How long an empty group waits for members before its first rebalance.",
        minimum=0,
    ),
    _ms(
        "group.min.session.timeout.ms",
        _GROUPS.group_min_session_timeout_ms,
        "Minimum `session.timeout.ms` of a consumer.",
    ),
    _ms(
        "group.max.session.timeout.ms",
        _GROUPS.group_max_session_timeout_ms,
        "Maximum `session.timeout.ms` of a consumer.",
    ),
    _count("group.max.size", "int", MAX_INT, "Maximum number of members of a group."),
    _count(
        "group.coordinator.max.groups",
        "int",
        _GROUPS.group_coordinator_max_groups,
        "Maximum number of groups per partition of `__consumer_offsets`; more are refused with "
        "GROUP_MAX_SIZE_REACHED.",
        own=True,
    ),
    _ms(
        "group.consumer.session.timeout.ms",
        _GROUPS.group_consumer_session_timeout_ms,
        "Session timeout of a consumer of the new protocol (KIP-848).",
    ),
    _ms(
        "group.consumer.heartbeat.interval.ms",
        _GROUPS.group_consumer_heartbeat_interval_ms,
        "Interval of heartbeats in the new protocol.",
    ),
    _count(
        "group.consumer.max.size", "int", MAX_INT, "Maximum number of members of a group of the new protocol."
    ),
    _ms(
        "group.consumer.regex.refresh.interval.ms",
        _GROUPS.group_consumer_regex_refresh_interval_ms,
        "How often topics that match patterns of the new protocol are looked up though no topic is new: "
        "members' rights may have changed.",
        minimum=10_000,
    ),
    Key(
        "group.consumer.migration.policy",
        "choice",
        _GROUPS.group_consumer_migration_policy.value,
        "Whether a group with members changes its protocol: to the new one when a member of it joins "
        "(`upgrade`), to the classic one when the last such member leaves (`downgrade`), or both.",
        roles=(BROKER,),
        choices=tuple(each.value for each in MigrationPolicy),
    ),
    *_topic_rows("transaction.state.log", "__transaction_state"),
    _count(
        "transaction.state.log.min.isr",
        "int",
        2,
        "`min.insync.replicas` of `__transaction_state`.",
    ),
    _ms(
        "transaction.max.timeout.ms",
        _TRANSACTIONS.max_timeout_ms,
        "Maximum `transaction.timeout.ms` of a producer.",
    ),
    _ms(
        "transactional.id.expiration.ms",
        _TRANSACTIONS.id_expiration_ms,
        "How long an unused transactional id is kept.",
    ),
    _ms(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _TRANSACTIONS.abort_interval_ms,
        "How often transactions past their timeout are aborted.",
    ),
    _ms(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _TRANSACTIONS.removal_interval_ms,
        "Interval between removals of expired transactional ids.",
    ),
)


GROUP_BOUNDS = tuple(
    ms_key(
        f"group.consumer.{end}.{name}.ms",
        getattr(_BOUNDS, f"group_consumer_{end}_{name.replace('.', '_')}_ms"),
        f"{most} of `group.consumer.{name}.ms`, and of `consumer.{name}.ms` of a group.",
    )
    for name in ("session.timeout", "heartbeat.interval")
    for end, most in (("min", "Minimum"), ("max", "Maximum"))
)


def group_bounds(number: Callable[[str], int]) -> GroupBounds:
    """The bounds on what a group may set."""
    return GroupBounds(**{each: number(each.replace("_", ".")) for each in GroupBounds.__struct_fields__})


def check_group_keys(number: Callable[[str], int]) -> None:
    """Raises ConfigError if a broker's own values exceed the bounds on groups."""
    for key in (each for known in GROUP_KEYS.values() for each in known.synonyms):
        short = key.removeprefix("group.consumer.")
        low, high = (f"group.consumer.{end}.{short}" for end in ("min", "max"))
        for less, more in ((low, key), (key, high)):
            if number(less) > number(more):
                raise ConfigError(f"{less}={number(less)} is above {more}={number(more)}: change one of them")


def coordinator_config(number: Callable[[str], int], text: Callable[[str], str]) -> CoordinatorConfig:
    """The coordinators' configuration; `number` and `text` return the value of a key."""
    return CoordinatorConfig(
        offsets_topic=_topic(number, "offsets.topic", "__consumer_offsets", compression="producer"),
        transactions_topic=_topic(
            number,
            "transaction.state.log",
            "__transaction_state",
            compression="uncompressed",
            min_isr=number("transaction.state.log.min.isr"),
        ),
        offsets_commit_timeout_ms=number("offsets.commit.timeout.ms"),
        groups=GroupConfig(
            group_initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
            group_min_session_timeout_ms=number("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=number("group.max.session.timeout.ms"),
            group_coordinator_max_groups=number("group.coordinator.max.groups"),
            group_max_size=number("group.max.size"),
            group_consumer_session_timeout_ms=number("group.consumer.session.timeout.ms"),
            group_consumer_heartbeat_interval_ms=number("group.consumer.heartbeat.interval.ms"),
            group_consumer_max_size=number("group.consumer.max.size"),
            group_consumer_regex_refresh_interval_ms=number("group.consumer.regex.refresh.interval.ms"),
            group_consumer_migration_policy=MigrationPolicy(text("group.consumer.migration.policy")),
            offset_metadata_max_bytes=number("offset.metadata.max.bytes"),
            offsets_retention_ms=number("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=number("offsets.retention.check.interval.ms"),
        ),
        transactions=TransactionConfig(
            max_timeout_ms=number("transaction.max.timeout.ms"),
            id_expiration_ms=number("transactional.id.expiration.ms"),
            abort_interval_ms=number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            removal_interval_ms=number("transaction.remove.expired.transaction.cleanup.interval.ms"),
        ),
    )


def _topic(
    number: Callable[[str], int], prefix: str, name: str, *, compression: str, min_isr: int | None = None
) -> InternalTopic:
    configs = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", str(number(f"{prefix}.segment.bytes"))),
        ("compression.type", compression),
    ]
    if min_isr is not None:
        configs += [("min.insync.replicas", str(min_isr)), ("unclean.leader.election.enable", "false")]
    return InternalTopic(
        name=name,
        partitions=number(f"{prefix}.num.partitions"),
        replication_factor=number(f"{prefix}.replication.factor"),
        configs=tuple(configs),
    )
