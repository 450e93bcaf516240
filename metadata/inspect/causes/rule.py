"""What a rule of cause is: one object with its name, condition, text and everything that depends on it.

A controller records its decision but not the reason, so every cause is derived from records. If other
histories leave the same records, the cause says so and names what would confirm each. The log has no
heartbeats, requests of operators or lag of followers, except what a batch says of its own cause (ADR 15):
that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStory, Place
from metaquorum.metadata.inspect.log.points import utc_text

DETAIL, INFO, WARNING, CRITICAL = "detail", "info", "warning", "critical"
SEVERITIES = (DETAIL, INFO, WARNING, CRITICAL)
"""From routine detail to what stops clients."""

SHUTDOWN_LEVEL = 7
"""metadata.version 3.3-IV3: from this level on the log records that a broker is in
controlled shutdown (KIP-841)."""

SPLIT_MS = 1_000
"""The batches of one split fence or shutdown of a broker are at most this far apart."""

LEADER, ISR, REPLICAS, DIRECTORIES, ELIGIBLE, EPOCH, RECOVERY = (1 << bit for bit in range(7))
"""Fields of a partition, as bits: what a rule compares, and what it explains."""
FIELDS = {
    LEADER: "leader",
    ISR: "isr",
    REPLICAS: "replicas",
    DIRECTORIES: "directories",
    ELIGIBLE: "eligible leaders",
    EPOCH: "leader epoch",
    RECOVERY: "recovery",
}


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One derived cause: what a rule says about one change."""

    rule: str
    text: str
    offset: int | None = None
    """Of the record that is the cause, if it is a different record."""
    broker_id: int | None = None
    """The broker that the cause is about."""
    certain: bool = True
    """If not, another history leaves the same records, and the text gives both readings."""
    fact: str = ""
    doubt: str = ""
    """The text in two parts, without what would confirm each reading."""


class Alternative(NamedTuple):
    """A history that leaves the same records, and what would confirm it."""

    what: str
    proof: str


class Reason(NamedTuple):
    """What a rule found. With `readings`, the log does not show which of them is true."""

    text: str
    offset: int | None = None
    broker_id: int | None = None
    readings: tuple[Alternative, ...] = ()
    is_certain: bool = True


C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRule(Generic[C]):
    """One rule about changes of one kind."""

    name: str
    when: str
    """The condition, for people."""
    precedence: int
    """Of the rules that fit a change, the lowest comes first and names the event."""
    find: Callable[[C], Reason | None]
    severity: str = INFO
    """Of the event that it explains, unless the event is worse by itself."""
    needs: int = 0
    """Fields of a partition of which one must differ."""
    explains: int = 0
    """Fields of a partition whose change it explains."""
    word: str = ""
    """In a summary; empty: its name."""
    readings: tuple[Alternative, ...] = ()
    """The histories between which it may not be able to decide."""
    may_be_fence: bool = False
    """A split fence looks like this before the broker's own record arrives."""

    def cause(self, change: C) -> Cause | None:
        """What it says about a change; None if it does not apply."""
        reason = self.find(change)
        if reason is None:
            return None
        text = reason.text
        if reason.readings:
            text += "; " * bool(text) + cannot_decide(reason.readings)
        return Cause(
            rule=self.name,
            text=text,
            offset=reason.offset,
            broker_id=reason.broker_id,
            certain=reason.is_certain and not reason.readings,
            fact=reason.text,
            doubt=undecided(what for what, _ in reason.readings) if reason.readings else "",
        )


@dataclass(slots=True)
class CauseRules(Generic[C]):
    """The rules about one kind of change, by precedence. Complete once its module is imported."""

    about: str
    of_broker: frozenset[str] = frozenset()
    """Those that look at the batch and one broker only, so that they say the same of each of its
    partitions."""
    rules: list[CauseRule[C]] = field(default_factory=list)
    _parts: list[tuple[bool, list[CauseRule[C]]]] = field(default_factory=list)
    _needing: dict[int, tuple[CauseRule[C], ...]] = field(default_factory=dict)

    def rule(
        self,
        name: str,
        when: str,
        *,
        precedence: int,
        severity: str = INFO,
        needs: int = 0,
        explains: int | None = None,
        word: str = "",
        readings: tuple[Alternative, ...] = (),
        may_be_fence: bool = False,
    ) -> Callable[[Callable[[C], Reason | None]], CauseRule[C]]:
        """Makes a rule of the function that finds it, and adds it."""

        def add(find: Callable[[C], Reason | None]) -> CauseRule[C]:
            made = CauseRule(
                name=name,
                when=when,
                precedence=precedence,
                find=find,
                severity=severity,
                needs=needs,
                explains=needs if explains is None else explains,
                word=word,
                readings=readings,
                may_be_fence=may_be_fence,
            )
            self.rules.append(made)
            self.rules.sort(key=lambda one: one.precedence)
            parts = groupby(self.rules, lambda rule: rule.name in self.of_broker)
            self._parts = [(of_broker, list(part)) for of_broker, part in parts]
            return made

        return add

    def first(self, change: C) -> Cause | None:
        """The cause by the first rule that fits."""
        return _first(self.rules, change)

    def first_about(self, broker: int, change: C, kept: dict[tuple[int, int], Cause | None]) -> Cause | None:
        """The same for a change of a broker's replica. `kept` has what rules of brokers say in one batch:
        thousands of partitions may ask."""
        for number, (of_broker, rules) in enumerate(self._parts):
            if not of_broker:
                cause = _first(rules, change)
            elif (number, broker) in kept:
                cause = kept[number, broker]
            else:
                cause = kept[number, broker] = _first(rules, change)
            if cause is not None:
                return cause
        return None

    def all(self, change: C, differing: int = 0) -> Iterator[Cause]:
        """The causes by every rule that fits; `differing` are the fields that changed."""
        rules = self._needing.get(differing)
        if rules is None:
            rules = tuple(rule for rule in self.rules if not rule.needs or rule.needs & differing)
            self._needing[differing] = rules
        for rule in rules:
            cause = rule.cause(change)
            if cause is not None:
                yield cause


def _first(rules: list[CauseRule[C]], change: C) -> Cause | None:
    for rule in rules:
        cause = rule.cause(change)
        if cause is not None:
            return cause
    return None


class LogSoFar(Protocol):
    """What the log said up to and including a batch: ChangeFeed, or another reader of the whole log."""

    @property
    def stories(self) -> Mapping[int, BrokerStory]:
        """What the log last said about each broker."""

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registered brokers."""

    @property
    def is_known(self) -> bool:
        """Whether the state is known, rather than only what records say on their own."""

    @property
    def metadata_version(self) -> int:
        """The metadata.version in force."""

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, else the brokers' default, else None."""

    def leads(self, broker_id: int) -> bool:
        """Whether a broker leads a partition after the batch."""

    def ask_before(self, from_ms: int | None = None) -> None:
        """Called by a rule that may lack something from before the first batch; it matters
        only from `from_ms` on."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may look at besides the step: the batch, and the reader that has just applied it."""

    batch: BatchChanges
    feed: LogSoFar
    fences: dict[int, tuple[Cause, str]] = msgspec.field(default_factory=dict)
    """By offset, why the batch fenced brokers, and the same briefly: thousands of partitions may ask."""
    losses: dict[tuple[int, int], Cause | None] = msgspec.field(default_factory=dict)
    """What rules of brokers say of replicas that lost something (see `CauseRules.first_about`)."""

    @property
    def asked_rule(self) -> str | None:
        """Why the controller wrote the batch, according to the batch."""
        return None if self.batch.asked is None else self.batch.asked.rule

    @property
    def request(self) -> str | None:
        """The request that caused the batch, according to the batch."""
        return None if self.batch.asked is None else self.batch.asked.request

    def story(self, broker_id: int) -> BrokerStory:
        """What the log last said about a broker."""
        return self.feed.stories.get(broker_id) or BrokerStory()

    def since(self, moment: Place | None) -> str:
        if moment is None:
            self.feed.ask_before()
            return ""
        return f"{moment[0]} ({utc_text(moment[1])})"

    def is_just_before(self, moment: Place | None, within_ms: int = SPLIT_MS) -> bool:
        """Whether a place is at most `within_ms` before this batch, by the clock. False if the
        clock ran backwards."""
        if moment is None:
            self.feed.ask_before(self.batch.time_ms - within_ms)
            return False
        return 0 <= self.batch.time_ms - moment[1] <= within_ms

    @property
    def metadata_version(self) -> int:
        """The metadata.version in force: it decides what a controller records."""
        return self.feed.metadata_version


def cannot_decide(readings: Iterable[Alternative]) -> str:
    """The sentence for records that fit several histories: each reading with what would confirm it."""
    return undecided(f"{what} (to confirm: {proof})" for what, proof in readings)


def undecided(histories: Iterable[str]) -> str:
    """The same without what would confirm each."""
    return "the log does not show which: " + ", or ".join(histories)


def ids(listed: Iterable[int]) -> str:
    """`[1,2,3]`."""
    return "[" + ",".join(map(str, listed)) + "]"
