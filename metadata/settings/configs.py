"""What may be set on each resource, and the values in force with their sources.

Sources and their order are Kafka's: the topic, the broker, the default of all brokers, the broker's file, the
program's default. What is stored but has no effect has a note, so that none is accepted silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

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
    THROTTLES,
    broker_key,
    check_broker_value,
    is_id_memory,
)
from metaquorum.metadata.settings.keys import MAX_LONG, ConfigValueError, Key, Kind, whole_number
from metaquorum.metadata.settings.resource_keys import (
    GROUP_KEYS,
    METRICS_KEYS,
    TOPIC_KEYS,
    GroupBounds,
    check_group_values,
    check_metrics_values,
    check_topic_values,
)

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
        return cast(int, GROUP_KEYS[key].parse(text))
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


def key_of(resource_type: int, name: str) -> Key | None:
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


def _strongest(synonyms: list[Synonym], key: Key | None) -> Synonym:
    if synonyms:
        return synonyms[0]
    default = None if key is None else key.default_text
    return Synonym(source=ConfigSource.DEFAULT_CONFIG, name="", value=default)


def _synonyms(
    image: MetadataImage, names: tuple[str, ...], broker_id: int | None, static: Mapping[str, str]
) -> list[Synonym]:
    """All values of synonymous keys, the strongest source first, then the strongest name.

    As in Kafka, everything before the first use of the strongest name is left out: log.retention.hours has a
    default, but is not a value for log.retention.ms.
    """
    synonyms = []
    for source, values in _sources(image, broker_id, static):
        for name in names:
            if name in values:
                hidden = is_sensitive(BROKER_RESOURCE, name) and name not in STATIC_DEFAULTS
                synonyms.append(Synonym(source=source, name=name, value=None if hidden else values[name]))
    for at, synonym in enumerate(synonyms):
        if synonym.name == names[0]:
            return synonyms[at:]
    return []


def _sources(
    image: MetadataImage, broker_id: int | None, static: Mapping[str, str]
) -> list[tuple[ConfigSource, Mapping[str, str]]]:
    own = NOTHING
    if broker_id is not None:
        own = image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))) or NOTHING
    return [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.configs.get(CLUSTER_DEFAULT) or NOTHING),
        (ConfigSource.STATIC_BROKER_CONFIG, static),
        (ConfigSource.DEFAULT_CONFIG, STATIC_DEFAULTS),
    ]


def describe_broker(
    image: MetadataImage, broker_id: int, *, static: Mapping[str, str] = NOTHING, all_keys: bool = False
) -> tuple[ConfigEntry, ...]:
    """A broker's configuration by name: what was set on it alone, or everything (`all_keys`)."""
    own = image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))) or NOTHING
    shared = image.configs.get(CLUSTER_DEFAULT) or NOTHING
    entries = []
    for name in sorted({*own, *shared, *(BROKER_KEYS.keys() - THROTTLES)} if all_keys else own):
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
    return _plain(image, CLUSTER_DEFAULT, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


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
            (ConfigSource.DEFAULT_CONFIG, key.synonyms, dict.fromkeys(key.synonyms, key.default_text)),
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
    """What was set on a client metrics subscription; as in Kafka, without synonyms."""
    resource = ConfigResource(CLIENT_METRICS_RESOURCE, name)
    entries = _plain(image, resource, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)
    return tuple(replace(entry, synonyms=()) for entry in entries)


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
    notes = [
        note_on(
            resource.resource_type,
            entry.name,
            entry.value,
            in_file=entry.source is ConfigSource.STATIC_BROKER_CONFIG,
        )
        for entry in entries
    ]
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


NO_EFFECT = "this is stored but has no effect yet"
FILE_ONLY = "this is stored but has no effect: set it in the broker's file, and restart the broker"
UNKNOWN = "this is stored, but brokers do not support the key: check the spelling"


def note_on(resource_type: int, name: str, value: str | None, *, in_file: bool = False) -> str | None:
    """What has no effect in a value, as one clause; None if it takes full effect, or matches the behaviour
    anyway. `resource_type` is Kafka's. `in_file`: the value is in force from a broker's file."""
    if value is None:
        return None
    match resource_type:
        case 2 if name in TOPIC_KEYS:
            return _note(TOPIC_KEYS[name], value)
        case 4 if name in BROKER_SYNONYMS:
            key = next(key for key in TOPIC_KEYS.values() if name in key.synonyms)
            return _note(key, value)
        case 4 if (shared := broker_key(name)) is not None:
            if shared.is_live or (in_file and shared.roles) or _is_usual(shared, value):
                return None
            return FILE_ONLY if shared.roles else NO_EFFECT
        case 4 if not is_id_memory(name):
            return UNKNOWN
    return None


def notes_on(resource_type: int, values: Iterable[tuple[str, str | None]]) -> str | None:
    """The same for several keys and values, each named."""
    found = [(name, value, note_on(resource_type, name, value)) for name, value in values]
    return "; ".join(f"{name}={value}: {note}" for name, value, note in found if note) or None


def _note(key: Key, value: str) -> str | None:
    return None if key.roles or _is_usual(key, value) else NO_EFFECT


def _is_usual(key: Key, value: str) -> bool:
    """Whether a value is the default, or none that the key can have."""
    try:
        return key.parse(value) == key.default
    except ConfigValueError:
        return True
