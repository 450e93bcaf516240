"""Notes for settings that are stored and shown but have no effect yet.

Owns which keys of topics take effect. A request that changes or describes a setting without effect gets a
note, so that no such setting is accepted silently. Does not refuse values: `topic_keys` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.metadata.settings.broker_keys import BROKER_SYNONYMS, broker_key, is_id_memory
from metaquorum.metadata.settings.keys import ConfigKey, ConfigValueError
from metaquorum.metadata.settings.topic_keys import TOPIC_KEYS

CARRIED_OUT = frozenset(
    {
        *("segment.bytes", "segment.ms", "retention.bytes", "retention.ms", "file.delete.delay.ms"),
        *("max.message.bytes", "min.insync.replicas", "unclean.leader.election.enable", "cleanup.policy"),
        *("message.timestamp.type", "message.timestamp.difference.max.ms"),
        *("message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "compression.type"),
        *(
            "min.cleanable.dirty.ratio",
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
            "delete.retention.ms",
            "leader.replication.throttled.replicas",
            "follower.replication.throttled.replicas",
        ),
    }
)
NO_EFFECT = "this is stored but has no effect yet"
UNKNOWN = "this is stored, but brokers do not support the key: check the spelling"


def note_on(resource_type: int, name: str, value: str | None) -> str | None:
    """What has no effect in a value, as one clause; None if it takes full effect, or matches the behaviour
    anyway.

    `resource_type` is Kafka's. Of a broker's keys, this covers those that topics fall back to and unknown
    ones.
    """
    if value is None:
        return None
    match resource_type:
        case 2 if name in TOPIC_KEYS:
            return _note(TOPIC_KEYS[name], value)
        case 4 if name in BROKER_SYNONYMS:
            key = next(key for key in TOPIC_KEYS.values() if name in key.synonyms)
            return _note(key, value)
        case 4 if broker_key(name) is None and not is_id_memory(name):
            return UNKNOWN
    return None


def notes_on(resource_type: int, values: Iterable[tuple[str, str | None]]) -> str | None:
    """The same for several keys and values, each named."""
    found = [(name, value, note_on(resource_type, name, value)) for name, value in values]
    return "; ".join(f"{name}={value}: {note}" for name, value, note in found if note) or None


def _note(key: ConfigKey, value: str) -> str | None:
    try:
        wanted, usual = key.parse(value), key.parse(key.default or "")
    except ConfigValueError:
        return None
    if wanted == usual:
        return None
    return None if key.name in CARRIED_OUT else NO_EFFECT
