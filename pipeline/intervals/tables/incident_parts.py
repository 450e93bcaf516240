"""What `incidents` keeps: an incident that lasts, a loss that waits for one, what the rules of causes ask.

Owns no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from metaquorum.metadata.image import BrokerRegistration
from metaquorum.metadata.inspect.changes.change_steps import BrokerStory
from metaquorum.pipeline.derived_tables import BROKER_OUT
from metaquorum.pipeline.intervals.tables.settings import Configs

PartitionKey = tuple[bytes, int]


class OpenIncident(msgspec.Struct, array_like=True):
    """One that is not over. `directories` are those that were lost; none where the broker itself is out."""

    what: str
    broker_id: int
    cause: str | None
    from_offset: int
    from_ms: int | None
    known: bool
    directories: list[bytes] = []
    actor: str | None = None
    partitions: int = 0
    leaders: int = 0
    leaderless: int = 0
    leaderless_ms: int | None = None


class Loss(NamedTuple):
    """A broker that lost a leadership or its place in an ISR. `led` and `is_moved_off` are about the former:
    the latter as the rules see a fence that is written in several batches."""

    now_ms: int
    broker_id: int
    key: PartitionKey
    led: bool
    leaderless: bool
    directory: bytes | None


class LogWords:
    """What the rules of causes may ask of the log: it is read on from batch to batch."""

    def __init__(self, configs: Configs, brokers: Mapping[int, BrokerRegistration]) -> None:
        self.stories: dict[int, BrokerStory] = {}
        self.brokers = brokers
        self.metadata_version = 0
        self.is_known = True
        self._configs = configs

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting as the log says it: its own, else the brokers' default, else None."""
        return self._configs.setting(topic, key)

    def ask_before(self, from_ms: int | None = None) -> None:
        """Nothing before the log's beginning can be read."""


def is_by(loss: Loss, incident: OpenIncident) -> bool:
    """Whether the incident explains the loss."""
    return incident.what == BROKER_OUT or loss.directory in incident.directories


def recent(place: tuple[int, int] | None, now_ms: int, within_ms: int) -> tuple[int, int] | None:
    """The place, if a rule may still ask for it."""
    return place if place is not None and now_ms - place[1] <= within_ms else None


_PLACES = (
    *("registered", "unfenced", "fenced", "shutdown"),
    *("unregistered", "directory_lost", "alive", "moved_off"),
)


def places_of(story: BrokerStory) -> list[Any]:
    return [getattr(story, name) for name in _PLACES]


def story_of(places: list[Any]) -> BrokerStory:
    given = [None if at is None else tuple(at) for at in places]
    return BrokerStory(**dict(zip(_PLACES, given, strict=True)))
