"""The configuration keys of client metrics subscriptions (KIP-714), as of Kafka 3.7.

Owns the keys and their check. Does not match clients with subscriptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from metaquorum.metadata.settings.keys import ConfigKey, ConfigValueError, Kind

METRICS_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey("metrics", Kind.LIST, ""),
        ConfigKey("interval.ms", Kind.INT, "300000", 100, 3_600_000),
        ConfigKey("match", Kind.LIST, ""),
    )
}

_MATCHABLE = frozenset(
    {
        *("client_instance_id", "client_id", "client_software_name", "client_software_version"),
        *("client_source_address", "client_source_port"),
    }
)


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
        raise ConfigValueError(
            f"match cannot hold {part!r}: write attribute=pattern with one of {', '.join(sorted(_MATCHABLE))}"
        )
    try:
        re.compile(pattern.strip())
    except re.error as error:
        raise ConfigValueError(f"match cannot hold {part!r}: the pattern is wrong, {error}") from None
