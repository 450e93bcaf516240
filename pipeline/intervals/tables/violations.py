"""The table `violations`: broken invariants, each from the batch that broke the rule to the one that ended
it.

The functions of `log check` judge, for errors and warnings, so both report the same. After a batch, what it
touched is judged; rules about two images are judged at every batch with a record that could break them. The
whole image is judged once more at the end, for what no record can break: the counts of our own indexes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import (
    NO_LEADER,
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigResource,
    MetadataImage,
    PartitionInfo,
)
from metaquorum.metadata.image.topics import TopicsBuilder
from metaquorum.metadata.invariants import (
    ERROR,
    Violation,
    broker_violations,
    check_image,
    check_step,
    config_violations,
    feature_violations,
    row_violations,
    rows_about,
    topic_violations,
)
from metaquorum.pipeline.intervals.moments import Intervals, Moment, Row

MAX_OPEN = 100_000
"""Limit of broken rules at one time. More are not useful and are left out."""
MAX_VIOLATIONS = 1_000
"""Limit of distinguished violations of one step. More are not useful."""
REPLAY_RULE = "replay"


class Violations:
    """Rows of `violations`."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self._events: list[Row] = []
        self.broken: dict[str, set[str]] = {}
        """The broken rules by path, until they hold again."""

    def learn(self, image: MetadataImage, moment: Moment) -> None:
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment, from_known=False)

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment)
        self.broken = {}

    def _start(self, violation: Violation, moment: Moment, *, from_known: bool = True) -> None:
        key = (violation.rule, violation.where)
        if key not in self._rows.open and len(self._rows.open) < MAX_OPEN:
            self._rows.start(key, _value(violation), moment, from_known=from_known)
            self.broken.setdefault(violation.where, set()).add(violation.rule)

    def judge(self, question: Question, image: MetadataImage, moment: Moment) -> None:
        """Judges what a batch touched. `image`: after the batch."""
        question.ask_again(image, self.broken)
        violations = list(question.found(image))
        still = {(one.rule, one.where) for one in violations}
        for path in sorted({*question.paths(image, self.broken)} & self.broken.keys()):
            for rule in sorted(self.broken[path]):
                if (rule, path) not in still:
                    self._rows.end((rule, path), moment)
                    self.broken[path].discard(rule)
            if not self.broken[path]:
                del self.broken[path]
        for violation in violations:
            self._start(violation, moment)

    def refused(self, error: ReplayError, moment: Moment) -> None:
        """The replay refused a record."""
        value = (REPLAY_RULE, ERROR, f"offset/{error.offset}", str(error))
        self._events.append((*value, *_at_once(moment.at(error.offset))))

    def step(self, before: MetadataImage, after: MetadataImage, moment: Moment) -> None:
        """Judges a batch that may have decreased a value that must only grow."""
        for violation in check_step(before, after, limit=MAX_VIOLATIONS):
            self._events.append((*_value(violation), *_at_once(moment)))

    def finish(self, image: MetadataImage, moment: Moment) -> None:
        """The log ends. Violations there that no batch reported belong to the last batch."""
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment)

    def take(self) -> list[Row]:
        events, self._events = self._events, []
        return [*self._rows.take(), *events]

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted(self._rows.open)

    def adopt(self, left: Violations, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any) -> None:
        self._rows.load(saved)
        for rule, where in self._rows.open:
            self.broken.setdefault(where, set()).add(rule)


def _at_once(moment: Moment) -> Row:
    """The interval of a violation that begins and ends with one record."""
    return (moment.offset, moment.time_ms, moment.offset + 1, moment.time_ms, True, True, moment.actor)


def _value(violation: Violation) -> Row:
    return (violation.rule, violation.severity, violation.where, violation.text)


MAX_LISTS = 65_536
"""Number of replica lists to remember as those of active brokers."""


@lru_cache(maxsize=65536)
def _lists_are_sound(replicas: tuple[int, ...], isr: tuple[int, ...], directories: int) -> bool:
    members = set(isr)
    return (
        len(replicas) == len(set(replicas)) == directories
        and 0 < len(members) == len(isr)
        and members.issubset(replicas)
        and min(isr) >= 0
        and min(replicas) >= 0
    )


def is_plainly_sound(partition: PartitionInfo) -> bool:
    """True only if a partition by itself breaks no rule, whatever the state of its
    brokers. False is no statement."""
    return (
        (partition.leader in partition.isr or partition.leader == NO_LEADER)
        and _lists_are_sound(partition.replicas, partition.isr, len(partition.directories))
        and partition.leader_epoch >= 0
        and partition.partition_epoch >= 0
        and (not (partition.adding or partition.removing or partition.elr) or _rare_is_sound(partition))
    )


def _rare_is_sound(partition: PartitionInfo) -> bool:
    moving, replicas = {*partition.adding, *partition.removing}, set(partition.replicas)
    return (
        moving <= replicas
        and len(moving) >= len(set(partition.adding)) + len(set(partition.removing))
        and replicas.issuperset(partition.elr)
        and not set(partition.elr).intersection(partition.isr)
    )


def topic_is_plainly_sound(topics: TopicsBuilder, topic_id: bytes) -> bool:
    """The same for a topic's name and the numbers of its partitions."""
    entry = topics.by_id.get(topic_id)
    if entry is None:
        return True
    runs = entry.runs
    return topics.by_name.get(entry.info.name) == topic_id and (
        not runs or (len(runs) == 1 and runs[0][0] == 0)
    )


def registration_is_new(before: BrokerRegistration | None, now: BrokerRegistration | None) -> bool:
    """Whether a broker has new values that could break a rule."""
    if before is None or now is None:
        return True
    return (before.broker_id, before.epoch, before.directories, before.features) != (
        now.broker_id,
        now.epoch,
        now.directories,
        now.features,
    )


class ActiveBrokers:
    """The registered and the active brokers, and so the partitions without warnings."""

    def __init__(self) -> None:
        self.registered: frozenset[int] = frozenset()
        self.active: frozenset[int] = frozenset()
        self._lists: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}

    def set(self, registrations: Mapping[int, BrokerRegistration]) -> None:
        """Updates them after a batch about brokers."""
        known = frozenset(registrations)
        active = frozenset(at for at, registration in registrations.items() if registration.is_active)
        if (known, active) != (self.registered, self.active):
            self.registered, self.active = known, active
            self._lists.clear()

    def carry(self, partition: PartitionInfo) -> bool:
        """True only if every replica is on a registered broker, and the leader and
        the ISR are on active ones."""
        if partition.leader != NO_LEADER and partition.leader not in self.active:
            return False
        key = (partition.replicas, partition.isr)
        fine = self._lists.get(key)
        if fine is None:
            if len(self._lists) >= MAX_LISTS:
                self._lists.clear()
            isr_is_active = len(partition.isr) < 2 or self.active.issuperset(partition.isr)
            fine = self._lists[key] = isr_is_active and self.registered.issuperset(partition.replicas)
        return fine


class Question:
    """What must be checked after one batch."""

    def __init__(self) -> None:
        self.partitions: set[tuple[bytes, int]] = set()
        self.topics: set[bytes] = set()
        self.configs: set[ConfigResource] = set()
        self.brokers = False
        """Whether registrations, or what they must support, changed."""
        self.turned: set[int] = set()
        """Brokers that are no longer active or registered: their partitions must be checked."""
        self.returned = False
        """Whether a broker became active or registered: violations of partitions may have ended."""
        self.gone: set[str] = set()
        """Paths of what was deleted: its violations have ended."""

    def __bool__(self) -> bool:
        asked = (self.partitions, self.topics, self.configs, self.turned, self.gone)
        return self.brokers or self.returned or any(asked)

    def broker(
        self, broker_id: int, before: BrokerRegistration | None, now: BrokerRegistration | None
    ) -> None:
        """Notes a change of a broker's registration."""
        self.brokers = self.brokers or registration_is_new(before, now)
        was_active, is_active = before is not None and before.is_active, now is not None and now.is_active
        if (was_active and not is_active) or (before is not None and now is None):
            self.turned.add(broker_id)
        if (is_active and not was_active) or (now is not None and before is None):
            self.returned = True

    def topic_settings(self, name: str) -> None:
        """Notes a topic whose configuration must be checked."""
        self.configs.add(ConfigResource(TOPIC_RESOURCE, name))

    def ask_again(self, image: MetadataImage, open_paths: Collection[str]) -> None:
        """Adds the known violations of partitions to the checks, if brokers returned."""
        if not self.returned:
            return
        for path in open_paths:
            kind, _, rest = path.partition("/")
            name, _, index = rest.partition("/")
            if kind == "topic" and index and (topic_id := image.topics.by_name.get(name)) is not None:
                self.partitions.add((topic_id, int(index)))

    def paths(self, image: MetadataImage, open_paths: Collection[str]) -> Iterator[str]:
        """Paths for which `found` repeats all violations. Those of other paths have not changed."""
        yield from self.gone
        for resource in self.configs:
            yield f"config/topic/{resource.name}"
        for topic_id, index in self.partitions:
            topic = image.topics.topic(topic_id)
            if topic is not None:
                yield f"topic/{topic.name}/{index}"
        for topic_id in self.topics:
            topic = image.topics.topic(topic_id)
            if topic is not None:
                yield f"topic/{topic.name}"
        if self.brokers:
            yield from (path for path in open_paths if path.startswith("broker/"))

    def found(self, image: MetadataImage) -> Iterator[Violation]:
        """The violations among what must be checked."""
        topics = image.topics
        rows = {row for key in self.partitions if (row := topics.row_of(*key)) >= 0}
        yield from topic_violations(topics, self.topics)
        yield from row_violations(image, rows | rows_about(topics, self.turned))
        if self.brokers:
            yield from broker_violations(image)
            yield from feature_violations(image)
        yield from config_violations(image, self.configs)
