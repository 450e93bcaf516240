"""The table `incidents`: brokers that could not serve, lost directories, changes of the quorum's leader.

A controller may move leaderships in batches before the one that fences the broker, so a loss waits for its
incident as long as the rules of causes look back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from metaquorum.metadata.image import BrokerRegistration, PartitionInfo
from metaquorum.metadata.image.chunk import LEADER, IntArray
from metaquorum.metadata.inspect.causes.brokers import SESSION_TIMEOUT_MS, broker_causes, directory_lost
from metaquorum.metadata.inspect.causes.elections import CHANGED_LEADER, election_causes
from metaquorum.metadata.inspect.causes.rule import SPLIT_MS, Scene
from metaquorum.metadata.inspect.changes.change_steps import (
    BatchChanges,
    BrokerStep,
    BrokerStory,
    PartitionStep,
)
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.tables.brokers import BrokerSessions
from metaquorum.pipeline.intervals.tables.settings import Configs
from metaquorum.pipeline.intervals.touched import ManyChanges
from metaquorum.pipeline.tables import (
    BROKER_OUT,
    DIRECTORY_LOST,
    LEADER_CHANGED,
    QUORUM_SILENT,
    RETURNED,
    UNREGISTERED,
)
from metaquorum.storage.batches.places import Places

# The log as rules of cause see it while tables are made: the present batch, and what the log last said of
# brokers.
#
# The rules are those of `metaquorum log why`. Steps of brokers come before those of partitions, as rules ask.


def leads_nothing(broker_id: int) -> bool:
    """For batches after which no broker that stopped leads a partition."""
    return False


class CauseFeed:
    """What `causes.rule.LogSoFar` asks for, batch by batch."""

    def __init__(self, configs: Configs, sessions: BrokerSessions) -> None:
        self.stories: dict[int, BrokerStory] = {}
        self.metadata_version = 0
        self.is_known = True
        self.is_slice = False
        """Whether the batch has so many partitions that it may be part of a split fence."""
        self._configs, self._sessions = configs, sessions
        self._leads: Callable[[int], bool] = leads_nothing
        self.scene = Scene(batch=BatchChanges(base_offset=-1, epoch=-1, time_ms=-1), feed=self)

    def begins(
        self, moment: Moment, metadata_version: int, leads: Callable[[int], bool], *, partitions: int
    ) -> None:
        """The next batch is at `moment`. `leads`: whether a broker leads a partition after it."""
        batch = BatchChanges(base_offset=moment.offset, epoch=-1, time_ms=moment.now_ms, asked=moment.cause)
        self.scene = Scene(batch=batch, feed=self)
        self.metadata_version, self._leads = metadata_version, leads
        self.is_slice = partitions >= SLICE_MIN

    def broker(self, step: BrokerStep) -> None:
        """The batch changed a broker."""
        self.scene.batch.brokers.append(step)
        self.stories.setdefault(step.broker_id, BrokerStory()).take(step, self.scene.batch.time_ms)

    def partition(self, step: PartitionStep) -> None:
        """The batch, which changed brokers, changed a partition."""
        self.scene.batch.partitions.append(step)

    def moved_off(self, broker_id: int) -> None:
        """The batch took a leadership from an active broker, without a reason so far."""
        known = self.brokers.get(broker_id)
        if self.is_slice and known is not None and known.is_active:
            batch = self.scene.batch
            story = self.stories.setdefault(broker_id, BrokerStory())
            story.moved_off = (batch.base_offset, batch.time_ms)

    def lose(self) -> None:
        """The next records are missing."""
        self.stories = {}
        self.scene = Scene(batch=BatchChanges(base_offset=-1, epoch=-1, time_ms=-1), feed=self)

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registered brokers."""
        return self._sessions.registrations

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, otherwise the brokers' default, otherwise None."""
        return self._configs.setting(topic, key)

    def leads(self, broker_id: int) -> bool:
        """Whether a broker leads a partition after the batch."""
        return self._leads(broker_id)

    def ask_before(self, from_ms: int | None = None) -> None:
        """Does nothing: there are no earlier records to read."""


class Incidents:
    """Rows of `incidents`, for times with a known state."""

    def __init__(self, feed: CauseFeed) -> None:
        self._feed = feed
        self._directories: dict[int, list[int]] = {}
        """The numbers of lost directories by broker."""
        self._open: dict[tuple[int, int], OpenIncident] = {}
        """By broker and number: 0 for the broker itself, otherwise the offset at
        which directories were lost."""
        self._without: dict[PartitionKey, tuple[tuple[int, int], int]] = {}
        """Partitions without a leader because of an open incident, and since when."""
        self._off_ms: int | None = None
        """Since when no broker has run, after a clean shutdown of the last one."""
        self._waiting: deque[Loss] = deque()
        self._leader: tuple[int, int] | None = None
        self._closed: list[Row] = []

    # -- brokers ---------------------------------------------------------------------------------------

    def broker(self, step: BrokerStep, moment: Moment) -> None:
        """A batch changed a broker. `batch_ends` follows."""
        broker_id, before, now = step.broker_id, step.before, step.after
        was_active, is_active = before is not None and before.is_active, now is not None and now.is_active
        if step.is_registration or now is None:
            for number in list(self._directories.get(broker_id, ())):
                self._end((broker_id, number), moment, None)
        key = (broker_id, 0)
        restarted = step.is_registration and before is not None and now is not None
        if was_active and (not is_active or restarted):
            self._begin(key, BROKER_OUT, moment)
        if key in self._open and (is_active or now is None):
            self._end(key, moment, UNREGISTERED if now is None else RETURNED)
        if step.lost_directories and now is not None:
            self._begin((broker_id, moment.offset), DIRECTORY_LOST, moment, sorted(step.lost_directories))

    def _begin(
        self, key: tuple[int, int], what: str, moment: Moment, directories: Sequence[bytes] = ()
    ) -> None:
        incident = OpenIncident(
            what, key[0], None, moment.offset, moment.time_ms, True, list(directories), moment.actor
        )
        self._open[key] = incident
        if directories:
            self._directories.setdefault(key[0], []).append(key[1])
        self._forget_late(moment.now_ms)
        rest: deque[Loss] = deque()
        for loss in self._waiting:
            if loss.broker_id == key[0] and is_by(loss, incident):
                self._count(key, loss)
            else:
                rest.append(loss)
        self._waiting = rest

    def _end(self, key: tuple[int, int], moment: Moment, by: str | None, *, to_known: bool = True) -> None:
        incident = self._open.pop(key)
        if key[1]:
            self._directories[key[0]].remove(key[1])
        if incident.cause is None and incident.from_known:
            incident.cause = self._cause(incident)
        self._closed.append(self._row(key, incident, moment, by, to_known=to_known))
        for partition in [at for at, (owner, _) in self._without.items() if owner == key]:
            del self._without[partition]

    def _cause(self, incident: OpenIncident) -> str | None:
        """The rule that explains the incident, once the whole batch is known."""
        scene = self._feed.scene
        step = next(iter(scene.batch.steps_of(incident.broker_id)), None)
        if step is None:
            return None
        if incident.what == DIRECTORY_LOST:
            return directory_lost.name
        return broker_causes(step, scene)[0].rule

    def batch_ends(self) -> None:
        """All changes of a batch to brokers and partitions were passed on."""
        if not self._feed.scene.batch.brokers:
            return
        for incident in self._open.values():
            if incident.cause is None and incident.from_known:
                incident.cause = self._cause(incident)

    # -- partitions ------------------------------------------------------------------------------------

    def partition(self, key: PartitionKey, before: PartitionInfo, now: PartitionInfo, moment: Moment) -> None:
        """A partition changed. Changes of brokers in the same batch were passed on before."""
        if self._feed.scene.batch.brokers:
            step = PartitionStep(
                offset=moment.offset, record=None, topic="", index=key[1], before=before, after=now
            )
            self._feed.partition(step)
        led = before.leader != now.leader
        if led and key in self._without:
            self._found_leader(key, moment.now_ms)
        if before.isr == now.isr and not led:
            return
        old, isr, replicas = before.leader if led else -1, now.isr, now.replicas
        for broker_id in before.isr if old in before.isr or old < 0 else (old, *before.isr):
            if (broker_id == old or broker_id not in isr) and broker_id in replicas:
                led, directory = broker_id == before.leader != now.leader, before.directory_of(broker_id)
                loss = Loss(moment.now_ms, broker_id, key, led, led and now.leader < 0, directory)
                self._lost(loss, moment, stays_leader=broker_id in isr and now.leader >= 0)

    def changed_together(self, losses: ManyLosses, low: int, high: int) -> None:
        """As `partition` for the changes from number `low` to below `high`. Losses that open incidents
        explain are counted by broker."""
        changes = losses.changes
        if self._feed.scene.batch.brokers:
            _, firsts = np.unique(
                changes.before[LEADER, low:high], return_index=True
            )  # all that rules ask for
            for number in (firsts + low).tolist():
                before, now, offset = (
                    changes.infos_before[number],
                    changes.infos[number],
                    changes.moment(number).offset,
                )
                step = PartitionStep(
                    offset=offset, record=None, topic="", index=now.index, before=before, after=now
                )
                self._feed.partition(step)
        lost = losses.of(low, high)
        is_counted = np.zeros(len(lost.numbers), dtype=bool)
        for broker_id in np.unique(lost.who).tolist():
            incident = self._open.get((broker_id, 0))
            if incident is not None:
                mine = (lost.who == broker_id) & lost.may_be_counted
                is_counted |= mine
                incident.partitions += int(mine.sum())
                incident.leaders += int((mine & lost.led).sum())
        losses_by_change = losses.objects(lost.numbers[~is_counted], lost.who[~is_counted])
        led = losses.led_at(low, high) if self._without else ()
        for number in sorted({*led, *losses_by_change}):
            key, moment = changes.key(number), changes.moment(number)
            if changes.led[number] and key in self._without:
                self._found_leader(key, moment.now_ms)
            for loss, stays_leader in losses_by_change.get(number, ()):
                self._lost(loss, moment, stays_leader=stays_leader)

    def _lost(self, loss: Loss, moment: Moment, *, stays_leader: bool) -> None:
        """`stays_leader`: the broker could have continued to lead."""
        broker_id = loss.broker_id
        if loss.led and not stays_leader:
            self._feed.moved_off(broker_id)
        for number in (0, *self._directories.get(broker_id, ())):
            incident = self._open.get((broker_id, number))
            if incident is not None and is_by(loss, incident):
                self._count((broker_id, number), loss)
                return
        self._forget_late(moment.now_ms)
        if not stays_leader:
            self._waiting.append(loss)

    def _count(self, key: tuple[int, int], loss: Loss) -> None:
        incident = self._open[key]
        incident.partitions += 1
        incident.leaders += loss.led
        if loss.leaderless:
            incident.leaderless += 1
            self._without[loss.key] = (key, self._observed(loss.now_ms))

    def _found_leader(self, key: PartitionKey, now_ms: int) -> None:
        owner, since_ms = self._without.pop(key)
        incident = self._open[owner]
        incident.leaderless_ms = max(incident.leaderless_ms or 0, self._observed(now_ms) - since_ms)

    def removed(self, key: PartitionKey, now_ms: int) -> None:
        """The partition's topic was deleted."""
        if key in self._without:
            self._found_leader(key, now_ms)

    # -- time that does not count ----------------------------------------------------------------------

    def goes_off(self, now_ms: int) -> None:
        """The last broker shut down cleanly: until `returns`, no client misses a leader."""
        self._off_ms = now_ms if self._off_ms is None else self._off_ms

    def returns(self, now_ms: int) -> None:
        """A broker runs again."""
        off_ms, self._off_ms = self._off_ms, None
        if off_ms is not None:
            self.unobserved(now_ms - off_ms)

    def unobserved(self, gap_ms: int) -> None:
        """The log does not show whether partitions had leaders in the last `gap_ms`."""
        if self._off_ms is None:
            self._without = {
                key: (owner, since_ms + gap_ms) for key, (owner, since_ms) in self._without.items()
            }

    def _observed(self, now_ms: int) -> int:
        return now_ms if self._off_ms is None else min(now_ms, self._off_ms)

    def _forget_late(self, now_ms: int) -> None:
        while self._waiting and now_ms - self._waiting[0].now_ms > SPLIT_MS:
            self._waiting.popleft()

    # -- the quorum ------------------------------------------------------------------------------------

    def elected(
        self, record: LeaderChangeMessage, epoch: int, moment: Moment, last: Moment, metadata_version: int
    ) -> None:
        """The quorum elected a leader. `last`: the batch before."""
        before, self._leader = self._leader, (record.leader_id, epoch)
        if before is None or before[0] == record.leader_id:
            return
        silence_ms = moment.now_ms - last.now_ms if last.now_ms >= 0 else None
        causes = election_causes(record, epoch, *before, silence_ms, metadata_version)
        rule = next((cause.rule for cause in causes if cause.rule in CHANGED_LEADER), None)
        who = f"controller/{before[0]}"
        place = (last.offset, last.time_ms, moment.offset, moment.time_ms, True, True, None)
        self._closed.append((LEADER_CHANGED, who, rule, None, 0, 0, 0, None, *place))

    def silent(self, last: Moment, moment: Moment) -> None:
        """Nothing was written between the batch `last` and the one at `moment`,
        although an idle quorum writes."""
        place = (last.offset, last.time_ms, moment.offset, moment.time_ms, True, True, None)
        self._closed.append((QUORUM_SILENT, "quorum", None, None, 0, 0, 0, None, *place))

    # -- what is known ---------------------------------------------------------------------------------

    def learn(self, brokers: Mapping[int, BrokerRegistration], moment: Moment) -> None:
        """Takes the brokers of a snapshot. Those that are out went out before it, for an unknown reason."""
        for broker_id, at in sorted(brokers.items()):
            if not at.is_active:
                self._open[broker_id, 0] = OpenIncident(
                    BROKER_OUT, broker_id, None, moment.offset, moment.time_ms, False
                )

    def lose(self, moment: Moment) -> None:
        """Ends all incidents at `moment`, with an unknown end: the records after it are missing."""
        for key in list(self._open):
            self._end(key, moment, None, to_known=False)
        self._waiting.clear()
        self._off_ms = None
        self._leader = None

    def take(self) -> list[Row]:
        """Incidents that ended since the last call."""
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, now_ms: int) -> list[Row]:
        """Open incidents. `now_ms`: the time of the last batch."""
        end = Moment(-1, None, now_ms)
        return [self._row(key, at, end, None) for key, at in self._open.items()]

    def _row(
        self,
        key: tuple[int, int],
        incident: OpenIncident,
        end: Moment,
        by: str | None,
        *,
        to_known: bool = True,
    ) -> Row:
        now_ms = self._observed(end.now_ms)
        still = [now_ms - since for owner, since in self._without.values() if owner == key]
        longest = max(
            [*still, *([] if incident.leaderless_ms is None else [incident.leaderless_ms])], default=None
        )
        to = (None, None) if end.offset < 0 else (end.offset, end.time_ms)
        return (
            *(
                incident.what,
                f"broker/{incident.broker_id}",
                incident.cause,
                by,
                incident.partitions,
                incident.leaders,
                incident.leaderless,
            ),
            *(
                longest,
                incident.from_offset,
                incident.from_ms,
                *to,
                incident.from_known,
                to_known,
                incident.actor,
            ),
        )

    def learn_election(self, leader: tuple[int, int]) -> None:
        """(leader, epoch) of the quorum at the snapshot."""
        self._leader = leader

    def context(self, now_ms: int) -> Any:
        """What later rows depend on, except the starts and counts of open rows. The rules ask for the state
        of a broker within the last session timeout, and for leaderships that it lost just before."""
        opened = [
            (key, at.what, at.directories, at.from_known and at.cause is None)
            for key, at in self._open.items()
        ]
        waiting = [loss for loss in self._waiting if now_ms - loss.now_ms <= SPLIT_MS]
        stories = [
            (who, recent(at.alive, now_ms, SESSION_TIMEOUT_MS), recent(at.moved_off, now_ms, SPLIT_MS))
            for who, at in self._feed.stories.items()
        ]
        last_stories = sorted(at for at in stories if at[1] or at[2])
        without = sorted((key, *owner) for key, owner in self._without.items())
        return [sorted(opened), without, waiting, last_stories, self._leader]

    def counted(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """Partitions, leaders and leaderless partitions so far, of open incidents."""
        return {key: (at.partitions, at.leaders, at.leaderless) for key, at in self._open.items()}

    def adopt(
        self, left: Incidents, below: int, counted: Mapping[tuple[int, int], tuple[int, int, int]]
    ) -> None:
        """Open incidents that began below an offset get their starts from `left`. `counted`: what
        was counted here until then."""
        for key, incident in self._open.items():
            if incident.from_offset >= below:
                continue
            was, seen = left._open[key], counted[key]
            incident.cause, incident.from_known = was.cause, was.from_known
            incident.from_offset, incident.from_ms = was.from_offset, was.from_ms
            incident.partitions += was.partitions - seen[0]
            incident.leaders += was.leaders - seen[1]
            incident.leaderless += was.leaderless - seen[2]
            longest = [ms for ms in (was.leaderless_ms, incident.leaderless_ms) if ms is not None]
            incident.leaderless_ms = max(longest, default=None)
        for who, story in left._feed.stories.items():
            self._feed.stories.setdefault(who, story)

    def save(self) -> Any:
        stories = [(broker_id, places_of(story)) for broker_id, story in self._feed.stories.items()]
        without = [(key, *owner) for key, owner in self._without.items()]
        return [list(self._open.items()), without, list(self._waiting), stories, self._leader, self._off_ms]

    def load(self, saved: Any) -> None:
        opened, without, waiting, stories, leader, self._off_ms = saved
        self._open = {tuple(key): msgspec.convert(at, OpenIncident, strict=False) for key, at in opened}
        for broker_id, number in self._open:
            if number:
                self._directories.setdefault(broker_id, []).append(number)
        self._without = {tuple(key): (tuple(owner), since_ms) for key, owner, since_ms in without}
        self._waiting = deque(Loss(now_ms, who, tuple(key), *rest) for now_ms, who, key, *rest in waiting)
        self._feed.stories = {who: story_of(places) for who, places in stories}
        self._leader = None if leader is None else tuple(leader)


PartitionKey = tuple[bytes, int]


class OpenIncident(msgspec.Struct, array_like=True):
    """An incident that is not over. `directories`: the lost ones; empty if the whole broker is out."""

    what: str
    broker_id: int
    cause: str | None
    from_offset: int
    from_ms: int | None
    from_known: bool
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

    numbers: Places
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
        start, end = np.searchsorted(self._of_isr.numbers, (low, high)).tolist()
        numbers, who, was_leader, may_be_counted = self._of_isr
        here = slice(start, end)
        some = SomeLosses(numbers[here], who[here], was_leader[here], may_be_counted[here])
        own = _between(self._own, low, high)
        if not len(own):
            return some
        leaders, none = self.changes.before[LEADER, own], np.zeros(len(own), dtype=bool)
        more = (own, leaders, ~none, none)
        numbers, who, was_leader, may_be_counted = map(np.concatenate, zip(more, some, strict=True))
        return SomeLosses(numbers, who, was_leader, may_be_counted)

    def led_at(self, low: int, high: int) -> list[int]:
        """Those of these changes that changed the leader."""
        found: list[int] = _between(self._led, low, high).tolist()
        return found

    def objects(self, numbers: Places, who: IntArray) -> dict[int, list[tuple[Loss, bool]]]:
        """The losses of brokers, by change, and whether the broker could have continued to lead."""
        changes = self.changes
        leader = changes.after[LEADER, numbers]
        led = changes.led[numbers] & (changes.before[LEADER, numbers] == who)
        stays_leader = (changes.isr[:, numbers] == who).any(axis=0) & (leader >= 0)
        columns = (column.tolist() for column in (numbers, who, led, led & (leader < 0), stays_leader))
        by_change: dict[int, list[tuple[Loss, bool]]] = {}
        for number, broker_id, was_leader, leaderless, stays, directory in zip(
            *columns, changes.directories_of(numbers, who), strict=True
        ):
            now_ms, key = changes.moment(number).now_ms, changes.key(number)
            loss = Loss(now_ms, broker_id, key, was_leader, leaderless, directory)
            by_change.setdefault(number, []).append((loss, stays))
        return by_change


def is_by(loss: Loss, incident: OpenIncident) -> bool:
    """Whether the incident explains the loss."""
    return incident.what == BROKER_OUT or loss.directory in incident.directories


def recent(moment: tuple[int, int] | None, now_ms: int, within_ms: int) -> tuple[int, int] | None:
    """The place, if a rule may still ask for it."""
    return moment if moment is not None and now_ms - moment[1] <= within_ms else None


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
