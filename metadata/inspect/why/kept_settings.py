"""What `why` needs besides the state: which settings an entity had, and what records are about.

Removing a topic removes its settings; its record does not say whether there were any.
"""

from __future__ import annotations

from metaquorum.metadata.image import ConfigResource, MetadataImage
from metaquorum.metadata.inspect.changes.record_texts import quota_who
from metaquorum.metadata.inspect.entities.views import Wanted, config_path, entities_below, scram_path
from metaquorum.metadata.inspect.log.entities import is_below
from metaquorum.metadata.records import types as r


class KeptSettings:
    """Feed it the records of settings, and call `take` when a topic is removed."""

    def __init__(self) -> None:
        self._kept: set[tuple[str, str]] = set()

    def learn(self, image: MetadataImage, entity: str) -> None:
        """Takes the settings of a snapshot."""
        found = entities_below(image, Wanted(entity))
        self._kept = {(path, key) for path, fields in found for key in fields}

    def note(self, record: object) -> None:
        """Takes a setting's record; other records have no effect."""
        if isinstance(record, r.ConfigRecord):
            one = (config_path(ConfigResource(record.resource_type, record.resource_name)), record.name)
            (self._kept.discard if record.value is None else self._kept.add)(one)

    def take(self, topic: str | None) -> bool:
        """Removes a topic's settings. Returns whether it had any."""
        gone = {one for one in self._kept if one[0] == f"config/topic/{topic}"}
        self._kept -= gone
        return bool(gone)


def other_names(record: object) -> tuple[str, ...]:
    """Canonical paths of what users and clients have (see `views`), in addition to those of EntityNamer."""
    match record:
        case r.ClientQuotaRecord():
            return (f"quota/{quota_who(record)}",)
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return (scram_path(record.mechanism, record.name),)
    return ()


def concerns(entity: str, record: object, names: tuple[str, ...]) -> bool:
    """Whether a record with these names is a link of `entity`: a topic's removal is also a
    link of its settings."""
    if any(is_below(name, entity) for name in names):
        return True
    if isinstance(record, r.RemoveTopicRecord) and entity.startswith("config/topic/"):
        return f"topic/{entity.split('/')[2]}" in names
    return False
