"""The configuration keys of topics and client metrics (Kafka 3.7) and of groups (4.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from metaquorum.metadata.settings.keys import (
    BROKER,
    MAX_INT,
    MAX_LONG,
    ConfigValueError,
    Key,
    Kind,
    Value,
    whole_number,
)

_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_DAY_MS = 86_400_000
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+){1,3}(-IV[0-9]+)?\Z")


def _int(name: str, default: int, minimum: int, *synonyms: str, is_read: bool = True) -> Key:
    return _key(name, Kind.INT, default, minimum, MAX_INT, synonyms=synonyms, is_read=is_read)


def _long(name: str, default: int, minimum: int | None, *synonyms: str, is_read: bool = True) -> Key:
    unit = "ms" if name.endswith(".ms") else ""
    return _key(name, Kind.LONG, default, minimum, MAX_LONG, synonyms=synonyms, unit=unit, is_read=is_read)


def _flag(name: str, default: bool, *synonyms: str, is_read: bool = True) -> Key:
    return _key(name, Kind.BOOLEAN, default, synonyms=synonyms, is_read=is_read)


def _key(
    name: str,
    kind: Kind,
    default: Value,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    is_read: bool = True,
    **more: Any,
) -> Key:
    """`is_read`: brokers do what the key says; otherwise it is stored and shown, with a note (`effects`)."""
    return Key(name, kind, default, "", minimum, maximum, roles=(BROKER,) if is_read else (), **more)


_KEYS = (
    _int("segment.bytes", 1024**3, 14, "log.segment.bytes"),
    _long("segment.ms", 7 * _DAY_MS, 1, "log.roll.ms", "log.roll.hours"),
    _long("segment.jitter.ms", 0, 0, "log.roll.jitter.ms", "log.roll.jitter.hours", is_read=False),
    _int("segment.index.bytes", 10 * 1024**2, 4, "log.index.size.max.bytes", is_read=False),
    _long("flush.messages", MAX_LONG, 1, "log.flush.interval.messages", is_read=False),
    _long(
        *("flush.ms", MAX_LONG, 0, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"), is_read=False
    ),
    _long("retention.bytes", -1, None, "log.retention.bytes"),
    _long(
        "retention.ms", 7 * _DAY_MS, -1, "log.retention.ms", "log.retention.minutes", "log.retention.hours"
    ),
    _int("max.message.bytes", 1_048_588, 0, "message.max.bytes"),
    _int("index.interval.bytes", 4096, 0, "log.index.interval.bytes", is_read=False),
    _long("delete.retention.ms", _DAY_MS, 0, "log.cleaner.delete.retention.ms"),
    _long("min.compaction.lag.ms", 0, 0, "log.cleaner.min.compaction.lag.ms"),
    _long("max.compaction.lag.ms", MAX_LONG, 1, "log.cleaner.max.compaction.lag.ms"),
    _long("file.delete.delay.ms", 60_000, 0, "log.segment.delete.delay.ms"),
    _key("min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, 0, 1, synonyms=("log.cleaner.min.cleanable.ratio",)),
    _key(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    ),
    _flag("unclean.leader.election.enable", False, "unclean.leader.election.enable"),
    _int("min.insync.replicas", 1, 1, "min.insync.replicas"),
    _key("compression.type", Kind.STRING, "producer", choices=_COMPRESSIONS, synonyms=("compression.type",)),
    _flag("preallocate", False, "log.preallocate", is_read=False),
    _key(
        "message.format.version",
        Kind.STRING,
        "3.0-IV1",
        synonyms=("log.message.format.version",),
        is_read=False,
    ),
    _key(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    ),
    _long("message.timestamp.difference.max.ms", MAX_LONG, 0, "log.message.timestamp.difference.max.ms"),
    _long("message.timestamp.before.max.ms", MAX_LONG, 0, "log.message.timestamp.before.max.ms"),
    _long("message.timestamp.after.max.ms", MAX_LONG, 0, "log.message.timestamp.after.max.ms"),
    _key("leader.replication.throttled.replicas", Kind.LIST, ()),
    _key("follower.replication.throttled.replicas", Kind.LIST, ()),
    _flag("message.downconversion.enable", True, "log.message.downconversion.enable", is_read=False),
    _flag("remote.storage.enable", False, is_read=False),
    _long("local.retention.ms", -2, -2, "log.local.retention.ms", is_read=False),
    _long("local.retention.bytes", -2, -2, "log.local.retention.bytes", is_read=False),
)

TOPIC_KEYS: Mapping[str, Key] = {key.name: key for key in _KEYS}

_COMPACTION_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def check_topic_values(configs: Mapping[str, str]) -> None:
    """Checks every value, and the rules across keys. Raises ConfigValueError, also for unknown keys.

    A throttled replica list is `*`, empty, or `partition:broker` pairs.
    """
    for name, text in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise ConfigValueError(f"there is no topic configuration {name}: check the spelling")
        value = key.parse(text)
        if name in _THROTTLED:
            _check_throttled(name, value)
        elif name == "message.format.version" and not _RELEASE.match(text):
            raise ConfigValueError(f"{name} cannot be {text!r}: write a release such as 3.0-IV1")
    if not configs.keys().isdisjoint(_COMPACTION_LAGS):
        low, high = (_number(configs, name) for name in _COMPACTION_LAGS)
        if low > high:
            raise ConfigValueError(
                f"min.compaction.lag.ms ({low}) is above max.compaction.lag.ms ({high}): lower it"
            )
    remote = configs.get("remote.storage.enable")
    if remote is not None and TOPIC_KEYS["remote.storage.enable"].parse(remote):
        raise ConfigValueError(
            "remote.storage.enable cannot be true: tiered storage is not supported; leave it at false"
        )


def _number(configs: Mapping[str, str], name: str) -> int:
    key = TOPIC_KEYS[name]
    value = key.parse(configs[name]) if configs.get(name) else key.default
    if not isinstance(value, int):
        raise TypeError(f"{name} is not a number in the table of keys")
    return value


def _check_throttled(name: str, value: object) -> None:
    parts = value if isinstance(value, tuple) else ()
    if parts in {(), ("*",)}:
        return
    for part in parts:
        partition, colon, broker = part.partition(":")
        if not colon or None in (whole_number(partition, MAX_INT), whole_number(broker, MAX_INT)):
            raise ConfigValueError(
                f"{name} cannot hold {part!r}: write * for all, or partition:broker,partition:broker"
            )


HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"


def _ms(name: str, default: int) -> Key:
    return Key(name, Kind.INT, default, "", 1, MAX_INT, unit="ms", synonyms=(f"group.{name}",))


GROUP_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        _ms(HEARTBEAT_INTERVAL, 5_000),
        _ms(SESSION_TIMEOUT, 45_000),
    )
}


class GroupBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, inclusive; names are those of Kafka's keys in snake case."""

    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000

    def of(self, name: str) -> tuple[int, int]:
        """The bounds of one of a group's keys."""
        if name == SESSION_TIMEOUT:
            return self.group_consumer_min_session_timeout_ms, self.group_consumer_max_session_timeout_ms
        return self.group_consumer_min_heartbeat_interval_ms, self.group_consumer_max_heartbeat_interval_ms


def check_group_values(configs: Mapping[str, str], bounds: GroupBounds) -> None:
    """Checks everything that is set on one group. Raises ConfigValueError."""
    values: dict[str, int] = {name: cast(int, key.default) for name, key in GROUP_KEYS.items()}
    for name, text in configs.items():
        if name not in GROUP_KEYS:
            raise ConfigValueError(
                f"there is no group configuration {name}: choose from {', '.join(GROUP_KEYS)}"
            )
        values[name] = cast(int, GROUP_KEYS[name].parse(text))
        short = name.removeprefix("consumer.")
        low, high = (f"group.consumer.{end}.{short}" for end in ("min", "max"))
        least, most = bounds.of(name)
        if not least <= values[name] <= most:
            raise ConfigValueError(f"{name} cannot be {text}: write {least} to {most} ({low}, {high})")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise ConfigValueError(
            f"{SESSION_TIMEOUT}={values[SESSION_TIMEOUT]} must be above "
            f"{HEARTBEAT_INTERVAL}={values[HEARTBEAT_INTERVAL]}"
        )


METRICS_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("metrics", Kind.LIST, ()),
        Key("interval.ms", Kind.INT, 300_000, "", 100, 3_600_000, unit="ms"),
        Key("match", Kind.LIST, ()),
    )
}

_MATCHABLE = frozenset(
    {
        *("client_instance_id", "client_id", "client_software_name", "client_software_version"),
        *("client_source_address", "client_source_port"),
    }
)


class MatchError(ConfigValueError):
    """What `match` of client metrics cannot hold; Kafka's code is INVALID_CONFIG here, and INVALID_REQUEST
    for their other keys."""


def check_metrics_values(configs: Mapping[str, str]) -> None:
    """Raises ConfigValueError; `match` holds `attribute=pattern` parts."""
    for name, text in configs.items():
        key = METRICS_KEYS.get(name)
        if key is None:
            raise ConfigValueError(
                f"there is no client metrics configuration {name}: choose from {', '.join(METRICS_KEYS)}"
            )
        value = key.parse(text)
        if name == "match" and isinstance(value, tuple):
            for part in value:
                _check_pattern(part)


def _check_pattern(part: str) -> None:
    attribute, equals, pattern = part.partition("=")
    if not equals or "=" in pattern or attribute.strip() not in _MATCHABLE:
        raise MatchError(
            f"match cannot hold {part!r}: write attribute=pattern with one of {', '.join(sorted(_MATCHABLE))}"
        )
    try:
        re.compile(pattern.strip())
    except re.error as error:
        raise MatchError(f"match cannot hold {part!r}: the pattern is wrong, {error}") from None
