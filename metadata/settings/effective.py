"""The value of a setting that is in force: the topic's or group's own, else the brokers' configuration.

Owns the order of the sources, and the names by which a broker's configuration holds the default (Kafka's
`log.retention.hours` for `retention.ms`). Does not validate: values in the log are taken as they are. Kafka's
own default is left to the caller (`TOPIC_KEYS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from metaquorum.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, ConfigResource
from metaquorum.metadata.settings.group_keys import GROUP_KEYS
from metaquorum.metadata.settings.keys import MAX_LONG, ConfigValueError, whole_number
from metaquorum.metadata.settings.topic_keys import TOPIC_KEYS

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

CLUSTER_DEFAULT = ConfigResource(BROKER_RESOURCE, "")

_MS_PER_UNIT = {"minutes": 60_000, "hours": 3_600_000}


NOTHING: Mapping[str, str] = MappingProxyType({})


def topic_setting(
    image: MetadataImage,
    topic_name: str,
    key: str,
    *,
    broker_id: int | None = None,
    static: Mapping[str, str] = NOTHING,
) -> str | None:
    """The text in force for a topic, in the key's own unit; None if not set.

    `broker_id`: this broker's own dynamic configuration counts too, before that of all brokers. `static`:
    settings from the node's file, by their broker names; they count last.
    """
    own = (image.configs.get(ConfigResource(TOPIC_RESOURCE, topic_name)) or NOTHING).get(key)
    if own is not None:
        return own
    if broker_id is not None:
        value = _of_broker(image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))), key)
        if value is not None:
            return value
    value = _of_broker(image.configs.get(CLUSTER_DEFAULT), key)
    return value if value is not None else _of_broker(static, key)


def group_setting(image: MetadataImage, group_id: str, key: str) -> int | None:
    """The value set on a group; None if there is none or it cannot be read."""
    text = (image.configs.get(ConfigResource(GROUP_RESOURCE, group_id)) or NOTHING).get(key)
    if text is None:
        return None
    try:
        return int(GROUP_KEYS[key].parse(text))  # type: ignore[arg-type]
    except ConfigValueError:
        return None


def _of_broker(configs: Mapping[str, str] | None, key: str) -> str | None:
    """A broker configuration's value for a topic's key; the strongest name wins."""
    if not configs:
        return None
    known = TOPIC_KEYS.get(key)
    for name in (key,) if known is None else (key, *known.synonyms):
        value = configs.get(name)
        if value is not None:
            return _in_ms(name, value)
    return None


def _in_ms(name: str, text: str) -> str:
    """`text` unchanged, or converted to ms if the broker's key has a longer unit."""
    factor = _MS_PER_UNIT.get(name.rpartition(".")[2])
    digits = text.strip()
    value = whole_number(digits.removeprefix("-"), MAX_LONG)
    if factor is None or value is None:
        return text
    return str(-value if digits.startswith("-") else value * factor)
