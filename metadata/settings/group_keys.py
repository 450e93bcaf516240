"""The configuration keys of consumer groups, as of Kafka 4.0, and a cluster's bounds for them.

Owns the keys and their check. Does not know the value in force for a group: `effective` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metaquorum.metadata.settings.keys import ConfigKey, ConfigValueError, Kind

HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"

GROUP_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(HEARTBEAT_INTERVAL, Kind.INT, "5000", 1, synonyms=(f"group.{HEARTBEAT_INTERVAL}",)),
        ConfigKey(SESSION_TIMEOUT, Kind.INT, "45000", 1, synonyms=(f"group.{SESSION_TIMEOUT}",)),
    )
}


class GroupBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, inclusive; names are those of Kafka's keys in snake case."""

    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000


def check_group_values(configs: Mapping[str, str], bounds: GroupBounds) -> None:
    """Checks everything that is set on one group. Raises ConfigValueError."""
    values = {name: int(key.default or 0) for name, key in GROUP_KEYS.items()}
    for name, text in configs.items():
        if name not in GROUP_KEYS:
            raise ConfigValueError(
                f"there is no group configuration {name}: choose from {', '.join(GROUP_KEYS)}"
            )
        values[name] = int(GROUP_KEYS[name].parse(text))  # type: ignore[arg-type]
        short = name.removeprefix("consumer.")
        low, high = (f"group.consumer.{end}.{short}" for end in ("min", "max"))
        least, most = (getattr(bounds, each.replace(".", "_")) for each in (low, high))
        if not least <= values[name] <= most:
            raise ConfigValueError(f"{name} cannot be {text}: write {least} to {most} ({low}, {high})")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise ConfigValueError(
            f"{SESSION_TIMEOUT}={values[SESSION_TIMEOUT]} must be above "
            f"{HEARTBEAT_INTERVAL}={values[HEARTBEAT_INTERVAL]}"
        )
