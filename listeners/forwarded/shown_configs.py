"""Configuration entries as DescribeConfigs returns them (types, read-only keys, documentation), and as
CreateTopics does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from metaquorum.config.keys import KEYS
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from metaquorum.metadata.settings.broker_keys import broker_key
from metaquorum.metadata.settings.configs import (
    CLUSTER_DEFAULT,
    ConfigEntry,
    ConfigSource,
    describe_new_topic,
    key_of,
)
from metaquorum.metadata.settings.keys import Kind
from metaquorum.wire.messages import (
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from metaquorum.wire.primitives import Repeated

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

_TYPES = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 2,
    Kind.INT: 3,
    Kind.SHORT: 4,
    Kind.LONG: 5,
    Kind.DOUBLE: 6,
    Kind.LIST: 7,
    Kind.CLASS: 8,
    Kind.PASSWORD: 9,
}
_UNKNOWN_TYPE = 0


class ShownConfigs(msgspec.Struct, frozen=True):
    """Builds the results of one response. Fields that the version does not have keep their defaults."""

    version: int
    synonyms: bool
    documentation: bool

    def __call__(
        self,
        asked: DescribeConfigsRequest.DescribeConfigsResource,
        shown: Iterable[ConfigEntry] | ApiError,
    ) -> DescribeConfigsResponse.DescribeConfigsResult:
        """The result of one resource. `shown`: its entries, of which the last one with a name applies, or its
        refusal."""
        result = DescribeConfigsResponse.DescribeConfigsResult
        kind, name = asked.resource_type, asked.resource_name
        if isinstance(shown, ApiError):
            return result(
                error_code=shown.code, error_message=shown.message, resource_type=kind, resource_name=name
            )
        entries = {each.name: each for each in shown}
        wanted = frozenset(asked.configuration_keys or ())
        configs = (
            self._entry(kind, entry) for key, entry in sorted(entries.items()) if not wanted or key in wanted
        )
        return result(error_message="", resource_type=kind, resource_name=name, configs=tuple(configs))

    def _entry(
        self, resource_type: int, entry: ConfigEntry
    ) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
        is_broker = resource_type == BROKER_RESOURCE
        return DescribeConfigsResponse.DescribeConfigsResourceResult(
            name=entry.name,
            value=_trimmed(entry.value),
            read_only=is_broker and broker_key(entry.name) is None,
            is_default=self.version == 0 and entry.source is ConfigSource.DEFAULT_CONFIG,
            config_source=entry.source.value,
            is_sensitive=entry.sensitive,
            synonyms=tuple(
                DescribeConfigsResponse.DescribeConfigsSynonym(
                    name=each.name, value=_trimmed(each.value), source=each.source.value
                )
                for each in (entry.synonyms if self.synonyms else ())
            ),
            config_type=_type(resource_type, entry.name),
            documentation=(entry.note or _words(resource_type, entry.name) if self.documentation else None),
        )


def _trimmed(value: str | None) -> str | None:
    """As Kafka shows a value that was set with blanks around it."""
    return None if value is None else value.strip()


def _type(resource_type: int, name: str) -> int:
    known = key_of(resource_type, name)
    if known is not None:
        return _TYPES[known.kind]
    key = KEYS.get(name) if resource_type == BROKER_RESOURCE else None
    return _UNKNOWN_TYPE if key is None else _TYPES[key.kind]


def _words(resource_type: int, name: str) -> str | None:
    """The text of a key in docs/configuration.md; for a topic's or group's key, that of the broker's key
    behind it."""
    names: tuple[str, ...] = (name,)
    if resource_type in (TOPIC_RESOURCE, GROUP_RESOURCE):
        key = key_of(resource_type, name)
        names = () if key is None else key.synonyms
    return next((KEYS[each].text for each in names if each in KEYS), None)


class NewTopics:
    """The configurations that answers about created topics list. `static`: the keys in this node's file. The
    last list is kept: few topics are created with settings of their own."""

    def __init__(self, static: Mapping[str, str]) -> None:
        self._static = static
        self._settings: Any = None
        self._configs = Repeated()

    def configs(self, image: MetadataImage, own: tuple[tuple[str, str], ...]) -> Repeated:
        """Every key of a topic created with `own`."""
        settings = own, image.configs.get(CLUSTER_DEFAULT)
        if settings != self._settings:
            entries = describe_new_topic(image, dict(own), static=self._static)
            self._configs = Repeated(
                CreateTopicsResponse.CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    config_source=entry.source.value,
                    is_sensitive=entry.sensitive,
                )
                for entry in entries
            )
            self._settings = settings
        return self._configs
