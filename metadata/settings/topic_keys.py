"""The configuration keys of topics, as of Kafka 3.7 (its LogConfig), with the broker keys behind them.

Owns the keys and the rules across them. Does not know the value in force, which `effective` finds, or whether
a key takes effect, which `effects` notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from metaquorum.metadata.settings.keys import (
    MAX_INT,
    MAX_LONG,
    ConfigKey,
    ConfigValueError,
    Kind,
    whole_number,
)

_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_DAY_MS = 86_400_000
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+){1,3}(-IV[0-9]+)?\Z")


def _int(name: str, default: int, minimum: int, *synonyms: str) -> ConfigKey:
    return ConfigKey(name, Kind.INT, str(default), minimum, MAX_INT, synonyms=synonyms)


def _long(name: str, default: int, minimum: int | None, *synonyms: str) -> ConfigKey:
    return ConfigKey(name, Kind.LONG, str(default), minimum, MAX_LONG, synonyms=synonyms)


def _flag(name: str, default: bool, *synonyms: str) -> ConfigKey:
    return ConfigKey(name, Kind.BOOLEAN, "true" if default else "false", synonyms=synonyms)


_KEYS = (
    _int("segment.bytes", 1024**3, 14, "log.segment.bytes"),
    _long("segment.ms", 7 * _DAY_MS, 1, "log.roll.ms", "log.roll.hours"),
    _long("segment.jitter.ms", 0, 0, "log.roll.jitter.ms", "log.roll.jitter.hours"),
    _int("segment.index.bytes", 10 * 1024**2, 4, "log.index.size.max.bytes"),
    _long("flush.messages", MAX_LONG, 1, "log.flush.interval.messages"),
    _long("flush.ms", MAX_LONG, 0, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    _long("retention.bytes", -1, None, "log.retention.bytes"),
    _long(
        "retention.ms", 7 * _DAY_MS, -1, "log.retention.ms", "log.retention.minutes", "log.retention.hours"
    ),
    _int("max.message.bytes", 1_048_588, 0, "message.max.bytes"),
    _int("index.interval.bytes", 4096, 0, "log.index.interval.bytes"),
    _long("delete.retention.ms", _DAY_MS, 0, "log.cleaner.delete.retention.ms"),
    _long("min.compaction.lag.ms", 0, 0, "log.cleaner.min.compaction.lag.ms"),
    _long("max.compaction.lag.ms", MAX_LONG, 1, "log.cleaner.max.compaction.lag.ms"),
    _long("file.delete.delay.ms", 60_000, 0, "log.segment.delete.delay.ms"),
    ConfigKey(
        "min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", 0, 1, synonyms=("log.cleaner.min.cleanable.ratio",)
    ),
    ConfigKey(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    ),
    _flag("unclean.leader.election.enable", False, "unclean.leader.election.enable"),
    _int("min.insync.replicas", 1, 1, "min.insync.replicas"),
    ConfigKey(
        "compression.type", Kind.STRING, "producer", choices=_COMPRESSIONS, synonyms=("compression.type",)
    ),
    _flag("preallocate", False, "log.preallocate"),
    ConfigKey("message.format.version", Kind.STRING, "3.0-IV1", synonyms=("log.message.format.version",)),
    ConfigKey(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    ),
    _long("message.timestamp.difference.max.ms", MAX_LONG, 0, "log.message.timestamp.difference.max.ms"),
    _long("message.timestamp.before.max.ms", MAX_LONG, 0, "log.message.timestamp.before.max.ms"),
    _long("message.timestamp.after.max.ms", MAX_LONG, 0, "log.message.timestamp.after.max.ms"),
    ConfigKey("leader.replication.throttled.replicas", Kind.LIST, ""),
    ConfigKey("follower.replication.throttled.replicas", Kind.LIST, ""),
    _flag("message.downconversion.enable", True, "log.message.downconversion.enable"),
    _flag("remote.storage.enable", False),
    _long("local.retention.ms", -2, -2, "log.local.retention.ms"),
    _long("local.retention.bytes", -2, -2, "log.local.retention.bytes"),
)

TOPIC_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}

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
    value = key.parse(configs.get(name) or key.default or "0")
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
