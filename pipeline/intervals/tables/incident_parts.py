"""Values of `incidents`: open incidents, losses, what rules of causes ask, and
losses of many changes in columns.

Owns which change is a loss, and of which broker. Does not start or end incidents and
makes no rows: `incidents` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from metaquorum.metadata.image import BrokerRegistration
from metaquorum.metadata.image.chunk import LEADER, IntArray
from metaquorum.metadata.inspect.changes.change_steps import BrokerStory
from metaquorum.pipeline.derived_tables import BROKER_OUT
from metaquorum.pipeline.intervals.tables.settings import Configs
from metaquorum.pipeline.intervals.together.changes import ManyChanges
from metaquorum.storage.batches.places import Places

PartitionKey = tuple[bytes, int]


class OpenIncident(msgspec.Struct, array_like=True):
    """An incident that is not over. `directories`: the lost ones; empty if the whole broker is out."""

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
    """A broker that lost a leadership (`led`) or its place in an ISR."""

    now_ms: int
    broker_id: int
    key: PartitionKey
    led: bool
    leaderless: bool
    directory: bytes | None


class SomeLosses(NamedTuple):
    """Losses of consecutive changes; first those of leaders that were not in the ISR. `led`: the broker led.
    `may_be_counted`: the partition has a leader, so an incident of the broker only has to count it."""

    at: Places
    who: IntArray
    led: Any
    may_be_counted: Any


class ManyLosses:
    """All losses in these changes."""

    def __init__(self, changes: ManyChanges) -> None:
        self.changes = changes
        led, leader = changes.led, changes.before[LEADER]
        lost = changes.held & (changes.left | ((changes.isr_before == leader) & led))
        at, rows = np.nonzero(lost.T)
        who = changes.isr_before[rows, at]
        is_leader = led[at] & (who == leader[at])
        self._of_isr = SomeLosses(at, who, is_leader, ~(is_leader & (changes.after[LEADER, at] < 0)))
        strangers = led & (leader >= 0) & ~(changes.isr_before == leader).any(axis=0)
        self._own = np.flatnonzero(strangers & (changes.replicas == leader).any(axis=0))
        self._led = np.flatnonzero(led)

    def of(self, low: int, high: int) -> SomeLosses:
        """The losses in changes from `low` to below `high`."""
        start, end = np.searchsorted(self._of_isr.at, (low, high)).tolist()
        at, who, was_leader, may_be_counted = self._of_isr
        here = slice(start, end)
        some = SomeLosses(at[here], who[here], was_leader[here], may_be_counted[here])
        own = _between(self._own, low, high)
        if not len(own):
            return some
        leaders, none = self.changes.before[LEADER, own], np.zeros(len(own), dtype=bool)
        more = (own, leaders, ~none, none)
        at, who, was_leader, may_be_counted = map(np.concatenate, zip(more, some, strict=True))
        return SomeLosses(at, who, was_leader, may_be_counted)

    def led_at(self, low: int, high: int) -> list[int]:
        """Those of these changes that changed the leader."""
        found: list[int] = _between(self._led, low, high).tolist()
        return found

    def objects(self, at: Places, who: IntArray) -> dict[int, list[tuple[Loss, bool]]]:
        """The losses of brokers, by change, and whether the broker could have continued to lead."""
        changes = self.changes
        leader = changes.after[LEADER, at]
        led = changes.led[at] & (changes.before[LEADER, at] == who)
        goes_on = (changes.isr[:, at] == who).any(axis=0) & (leader >= 0)
        columns = (column.tolist() for column in (at, who, led, led & (leader < 0), goes_on))
        found: dict[int, list[tuple[Loss, bool]]] = {}
        for place, broker_id, was_leader, leaderless, stays, directory in zip(
            *columns, changes.directories_of(at, who), strict=True
        ):
            now_ms, key = changes.moment(place).now_ms, changes.key(place)
            loss = Loss(now_ms, broker_id, key, was_leader, leaderless, directory)
            found.setdefault(place, []).append((loss, stays))
        return found


class LogWords:
    """The log as rules of causes see it, read batch by batch."""

    def __init__(self, configs: Configs, brokers: Mapping[int, BrokerRegistration]) -> None:
        self.stories: dict[int, BrokerStory] = {}
        self.brokers = brokers
        self.metadata_version = 0
        self.is_known = True
        self._configs = configs

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, otherwise the brokers' default, otherwise None."""
        return self._configs.setting(topic, key)

    def ask_before(self, from_ms: int | None = None) -> None:
        """Does nothing: there are no earlier records to read."""


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


def _between(places: Places, low: int, high: int) -> Places:
    start, end = np.searchsorted(places, (low, high)).tolist()
    return places[start:end]
