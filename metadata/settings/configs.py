"""Configurations of resources: what may be set on each, and the values in force with their sources.

Owns the description of a resource's configuration. Sources and their order are Kafka's: the topic, the
broker, the default of all brokers, the broker's file, the program's default. Reads images, and does not
decide on changes: the active controller does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.settings.broker_keys import (
    BROKER_KEYS,
    BROKER_SYNONYMS,
    STATIC_DEFAULTS,
    broker_key,
    check_broker_value,
    is_id_memory,
)
from metaquorum.metadata.settings.effective import NOTHING, topic_setting
from metaquorum.metadata.settings.effects import note_on
from metaquorum.metadata.settings.group_keys import GROUP_KEYS, GroupBounds, check_group_values
from metaquorum.metadata.settings.keys import ConfigKey, ConfigValueError, Kind
from metaquorum.metadata.settings.metrics_keys import METRICS_KEYS, check_metrics_values
from metaquorum.metadata.settings.topic_keys import TOPIC_KEYS, check_topic_values

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

BROKER_DEFAULT = ConfigResource(BROKER_RESOURCE, "")


class ConfigSource(Enum):
    """The source of a value; the names are Kafka's, the numbers those of its protocol."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class Synonym(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was used or could have been. `value` is None if hidden."""

    source: ConfigSource
    name: str
    value: str | None


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a resource with its value in force. `value` is None if hidden or not set.

    `synonyms`: every source that has a value, the one in force first. `note`: what has no effect yet.
    """

    name: str
    value: str | None
    source: ConfigSource
    sensitive: bool
    synonyms: tuple[Synonym, ...] = ()
    note: str | None = None


def key_of(resource_type: int, name: str) -> ConfigKey | None:
    """The key of that name; None if the resource has no such key."""
    match resource_type:
        case 2:
            return TOPIC_KEYS.get(name)
        case 4:
            return broker_key(name)
        case 16:
            return METRICS_KEYS.get(name)
        case 32:
            return GROUP_KEYS.get(name)
        case _:
            return None


def is_sensitive(resource_type: int, name: str) -> bool:
    """Whether a value must not be shown: passwords, and all keys unknown here."""
    if resource_type == BROKER_RESOURCE and is_id_memory(name):
        return False
    key = key_of(resource_type, name)
    return key is None or key.sensitive


def check_values(
    resource: ConfigResource, configs: Mapping[str, str], altered: Iterable[str], bounds: GroupBounds
) -> None:
    """Checks the configuration that the resource would have after a change. Raises ConfigValueError.

    For brokers, only the altered keys are checked, so that an older broker's keys do not block a change.
    """
    match resource.resource_type:
        case 2:
            check_topic_values(configs)
        case 4:
            for name in altered:
                if name in configs:
                    check_broker_value(name, configs[name], per_broker=bool(resource.name))
        case 16:
            check_metrics_values(configs)
        case 32:
            check_group_values(configs, bounds)
        case other:
            raise ConfigValueError(f"resource type {other} has no configuration")


def splits_as_list(resource: ConfigResource, name: str) -> bool:
    """Whether append and subtract apply."""
    key = key_of(resource.resource_type, name)
    return key is not None and key.kind is Kind.LIST


# ---- what is in force ----------------------------------------------------------------------------


def describe_topic(
    image: MetadataImage,
    topic: str,
    *,
    broker_id: int | None = None,
    static: Mapping[str, str] = NOTHING,
    all_keys: bool = False,
) -> tuple[ConfigEntry, ...]:
    """The topic's configuration by name: what was set on it, or everything (`all_keys`).

    `broker_id` and `static` are those of the broker whose view is described.
    """
    own = image.configs.get(ConfigResource(TOPIC_RESOURCE, topic)) or NOTHING
    return _topic_entries(image, topic, own, broker_id, static, all_keys)


def describe_new_topic(
    image: MetadataImage, configs: Mapping[str, str], *, static: Mapping[str, str] = NOTHING
) -> tuple[ConfigEntry, ...]:
    """Every key by name, for a topic created with `configs` that may not be in the image."""
    return _topic_entries(image, "", configs, None, static, True)


def _topic_entries(
    image: MetadataImage,
    topic: str,
    own: Mapping[str, str],
    broker_id: int | None,
    static: Mapping[str, str],
    all_keys: bool,
) -> tuple[ConfigEntry, ...]:
    entries = []
    for name in sorted({*own, *TOPIC_KEYS} if all_keys else own):
        key = TOPIC_KEYS.get(name)
        synonyms = (
            [] if key is None or not key.synonyms else _synonyms(image, key.synonyms, broker_id, static)
        )
        sensitive = key is None or key.sensitive
        if name in own:
            set_here = Synonym(
                source=ConfigSource.DYNAMIC_TOPIC_CONFIG, name=name, value=None if sensitive else own[name]
            )
            synonyms.insert(0, set_here)
        in_force = _strongest(synonyms, key)
        if not synonyms:
            # A weaker name (log.retention.hours) is not shown as a synonym, but is still in force.
            value = topic_setting(image, topic, name, broker_id=broker_id, static=static)
            in_force = in_force if value is None else replace(in_force, value=value)
        entries.append(
            ConfigEntry(
                name=name,
                value=in_force.value,
                source=in_force.source,
                sensitive=sensitive,
                synonyms=tuple(synonyms),
            )
        )
    return tuple(entries)


def _strongest(synonyms: list[Synonym], key: ConfigKey | None) -> Synonym:
    if synonyms:
        return synonyms[0]
    default = None if key is None else key.default
    return Synonym(source=ConfigSource.DEFAULT_CONFIG, name="", value=default)


def _synonyms(
    image: MetadataImage, names: tuple[str, ...], broker_id: int | None, static: Mapping[str, str]
) -> list[Synonym]:
    """All values of synonymous keys, the strongest source first, then the strongest name.

    As in Kafka, everything before the first use of the strongest name is left out: log.retention.hours has a
    default, but is not a value for log.retention.ms.
    """
    found = []
    for source, values in _sources(image, broker_id, static):
        for name in names:
            if name in values:
                hidden = is_sensitive(BROKER_RESOURCE, name) and name not in STATIC_DEFAULTS
                found.append(Synonym(source=source, name=name, value=None if hidden else values[name]))
    for at, synonym in enumerate(found):
        if synonym.name == names[0]:
            return found[at:]
    return []


def _sources(
    image: MetadataImage, broker_id: int | None, static: Mapping[str, str]
) -> list[tuple[ConfigSource, Mapping[str, str]]]:
    own = NOTHING
    if broker_id is not None:
        own = image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))) or NOTHING
    return [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.configs.get(BROKER_DEFAULT) or NOTHING),
        (ConfigSource.STATIC_BROKER_CONFIG, static),
        (ConfigSource.DEFAULT_CONFIG, STATIC_DEFAULTS),
    ]


def describe_broker(
    image: MetadataImage, broker_id: int, *, static: Mapping[str, str] = NOTHING, all_keys: bool = False
) -> tuple[ConfigEntry, ...]:
    """A broker's configuration by name: what was set on it alone, or everything (`all_keys`)."""
    own = image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))) or NOTHING
    shared = image.configs.get(BROKER_DEFAULT) or NOTHING
    entries = []
    for name in sorted({*own, *shared, *BROKER_KEYS} if all_keys else own):
        synonyms = _synonyms(image, BROKER_SYNONYMS.get(name, _names(name)), broker_id, static)
        in_force = _strongest(synonyms, None)
        entries.append(
            ConfigEntry(
                name=name,
                value=in_force.value,
                source=in_force.source,
                sensitive=is_sensitive(BROKER_RESOURCE, name),
                synonyms=tuple(synonyms),
            )
        )
    return tuple(entries)


def _names(name: str) -> tuple[str, ...]:
    """A key with a listener's prefix falls back to the key without it."""
    key = broker_key(name)
    return (name,) if key is None or key.name == name else (name, key.name)


def describe_broker_default(image: MetadataImage) -> tuple[ConfigEntry, ...]:
    """What was set for all brokers, by name."""
    return _plain(image, BROKER_DEFAULT, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def describe_group(
    image: MetadataImage, name: str, *, static: Mapping[str, str] = NOTHING, all_keys: bool = False
) -> tuple[ConfigEntry, ...]:
    """A group's configuration by name: what was set on it, or everything (`all_keys`)."""
    own = image.configs.get(ConfigResource(GROUP_RESOURCE, name)) or NOTHING
    entries = []
    for key in GROUP_KEYS.values():
        sources = (
            (ConfigSource.DYNAMIC_GROUP_CONFIG, (key.name,), own),
            (ConfigSource.STATIC_BROKER_CONFIG, key.synonyms, static),
            (ConfigSource.DEFAULT_CONFIG, key.synonyms, dict.fromkeys(key.synonyms, key.default)),
        )
        synonyms = tuple(
            Synonym(source=source, name=name, value=values[name])
            for source, names, values in sources
            for name in names
            if name in values
        )
        if all_keys or key.name in own:
            entries.append(
                ConfigEntry(
                    name=key.name,
                    value=synonyms[0].value,
                    source=synonyms[0].source,
                    sensitive=False,
                    synonyms=synonyms,
                )
            )
    return tuple(entries)


def describe_client_metrics(image: MetadataImage, name: str) -> tuple[ConfigEntry, ...]:
    """What was set on a client metrics subscription."""
    resource = ConfigResource(CLIENT_METRICS_RESOURCE, name)
    return _plain(image, resource, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)


def _plain(image: MetadataImage, resource: ConfigResource, source: ConfigSource) -> tuple[ConfigEntry, ...]:
    entries = []
    for name, value in sorted((image.configs.get(resource) or NOTHING).items()):
        sensitive = is_sensitive(resource.resource_type, name)
        shown = None if sensitive else value
        synonym = Synonym(source=source, name=name, value=shown)
        entries.append(
            ConfigEntry(name=name, value=shown, source=source, sensitive=sensitive, synonyms=(synonym,))
        )
    return tuple(entries)


def describe_resource(
    image: MetadataImage,
    resource: ConfigResource,
    *,
    broker_id: int | None = None,
    static: Mapping[str, str] = NOTHING,
    all_keys: bool = False,
) -> tuple[ConfigEntry, ...]:
    """Any resource as the broker `broker_id` with the file `static` sees it, with notes."""
    entries = _entries(image, resource, broker_id, static, all_keys)
    notes = [note_on(resource.resource_type, entry.name, entry.value) for entry in entries]
    return tuple(
        [replace(entry, note=note) if note else entry for entry, note in zip(entries, notes, strict=True)]
    )


def _entries(
    image: MetadataImage,
    resource: ConfigResource,
    broker_id: int | None,
    static: Mapping[str, str],
    all_keys: bool,
) -> tuple[ConfigEntry, ...]:
    match resource.resource_type:
        case 2:
            return describe_topic(image, resource.name, broker_id=broker_id, static=static, all_keys=all_keys)
        case 4 if resource.name:
            own = static if str(broker_id) == resource.name else NOTHING
            return describe_broker(image, int(resource.name), static=own, all_keys=all_keys)
        case 4:
            return describe_broker_default(image)
        case 32:
            return describe_group(image, resource.name, static=static, all_keys=all_keys)
        case _:
            return describe_client_metrics(image, resource.name)
