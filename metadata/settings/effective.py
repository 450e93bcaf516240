"""The value of a topic's setting that is in force: the topic's own, else the cluster's default for brokers.

Owns the order of the sources, and under which names a broker's configuration holds the default (Kafka's
`log.retention.hours` for `retention.ms`). Validates nothing: what stands in the log stands. Kafka's
own default is the caller's business (`TOPIC_KEYS`).
"""

from __future__ import annotations

from metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage

from .topic_keys import TOPIC_KEYS

CLUSTER_DEFAULT = ConfigResource(BROKER_RESOURCE, "")

_MS_PER_UNIT = {"minutes": 60_000, "hours": 3_600_000}


def topic_setting(image: MetadataImage, topic_name: str, key: str) -> str | None:
    """The text in force for a topic, in the key's own unit; None: nobody set it."""
    own = (image.configs.get(ConfigResource(TOPIC_RESOURCE, topic_name)) or {}).get(key)
    if own is not None:
        return own
    defaults = image.configs.get(CLUSTER_DEFAULT)
    if not defaults:
        return None
    known = TOPIC_KEYS.get(key)
    for name in (key,) if known is None else (key, *known.synonyms):
        value = defaults.get(name)
        if value is not None:
            return _in_ms(name, value)
    return None


def _in_ms(name: str, text: str) -> str:
    """`text` as it is, or the ms of a duration that the broker's key counts in a longer unit."""
    factor = _MS_PER_UNIT.get(name.rpartition(".")[2])
    digits = text.strip()
    if factor is None or not digits.isascii() or not digits.removeprefix("-").isdigit():
        return text
    value = int(digits)
    return str(value * factor if value > 0 else value)
