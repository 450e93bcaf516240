"""The state on which the active controller decides: the newest image, and the soft state of this leadership.

Owns this state. Decisions read it and must not change it, except for what is cached and can be computed
again. It changes in one place, `take_up`, when the records of an `Outcome` have been appended. Never logged,
gone with leadership.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from random import Random
from typing import Protocol

from msgspec.structs import replace

from metaquorum.controller.active.broker_id_presence import BrokerIdPresence
from metaquorum.controller.active.causes import begins_anew
from metaquorum.controller.active.outcome import Batch, Outcome, Resumed, Step, batch_of
from metaquorum.controller.active.work import (
    FailDirectories,
    MoveLeaders,
    RemoveBroker,
    Scans,
    Work,
    WorkKey,
    key_of,
    next_slice,
)
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState, Sessions
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.partitions.effective import UNCLEAN_LEADER_ELECTION_ENABLE, rules_of
from metaquorum.controller.partitions.mutations import Mutations
from metaquorum.controller.partitions.partition_change import MayLead, Rules
from metaquorum.controller.partitions.placement import Candidates, UsableBroker
from metaquorum.controller.result import ControllerAnswer, Slice
from metaquorum.metadata.image import BrokersImage, MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import Done
from metaquorum.storage.uuids import random_uuid


class Quorum(Protocol):
    """The current voters, according to Raft."""

    @property
    def voters(self) -> Iterable[int]: ...

    @property
    def kraft_version(self) -> int: ...


class ActiveState:
    """`quorum` is read when it matters; `incarnation_id` is that of this process. `work` is done in slices,
    oldest first, and `work_causes` is what began it; `appended_ms`: when this leadership last wrote;
    `next_ms`: when each step of an interval is due; `presence`: what is known of the use of broker ids;
    `mutations`: what quotas leave to clients."""

    def __init__(
        self,
        config: ControllerConfig,
        ledger: Ledger,
        sessions: Sessions,
        rng: Random,
        *,
        quorum: Quorum,
        incarnation_id: bytes,
        now_ms: int,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.sessions = sessions
        self.rng = rng
        self._quorum = quorum
        self.incarnation_id = incarnation_id
        self.work: dict[WorkKey, Work] = {}
        self.work_causes: dict[WorkKey, BatchCause] = {}
        self.appended_ms = now_ms
        self.next_ms: dict[Step, int] = {}
        self.presence = BrokerIdPresence(sessions, self.image, now_ms)
        self.mutations = Mutations(lambda: self.image, config.controller_quota_span_ms)
        unclean = "true" if config.unclean_leader_election_enable else "false"
        self._topic_defaults = {UNCLEAN_LEADER_ELECTION_ENABLE: unclean}
        self._scans = Scans()
        self._candidates_of: BrokersImage | None = None
        self._candidates = Candidates()

    # ---- read by decisions

    @property
    def image(self) -> MetadataImage:
        """The image for the next decision: everything that was appended, committed or not."""
        return self.ledger.newest

    @property
    def next_offset(self) -> int:
        """The offset that the next record will have."""
        return self.ledger.newest_state.end_offset

    @property
    def voters(self) -> frozenset[int]:
        """The ids of the voters, which can change while this node decides."""
        return frozenset(self._quorum.voters)

    @property
    def kraft_version(self) -> int:
        """From 1 on, voters are records in the log."""
        return self._quorum.kraft_version

    def new_id(self) -> bytes:
        """A unique uuid."""
        return random_uuid(self.rng)

    def may_lead(self) -> MayLead:
        """Unfenced, not shutting down, and not being fenced."""
        is_active = self.image.brokers.is_active
        fencing = self.sessions.fencing
        if not fencing:
            return is_active
        return lambda broker_id: is_active(broker_id) and broker_id not in fencing

    def rules(self, begun: Work | None = None) -> Rules:
        """The rules for changes of partitions on the newest image, with `begun` also in progress."""
        failing = frozenset[bytes]().union(*self.sessions.failing.values())
        if isinstance(begun, FailDirectories):
            failing |= begun.directories
        begun_anew = self.sessions.begun_anew
        return rules_of(self.image, self.may_lead(), failing, self._topic_defaults, begun_anew)

    def candidates(self) -> Candidates:
        """Brokers that may hold new replicas. Brokers change rarely, so the last answer is kept."""
        brokers, fencing = self.image.brokers, self.sessions.fencing
        if fencing:
            return _candidates_on(brokers, fencing)
        if self._candidates_of is not brokers:
            self._candidates_of, self._candidates = brokers, _candidates_on(brokers, fencing)
        return self._candidates

    def new_work(self, work: Work) -> tuple[Work, ...]:
        """Work for later turns; nothing if it is already known."""
        return () if key_of(work) in self.work else (work,)

    def removal(self, broker_id: int, epoch: int) -> RemoveBroker:
        """The removal of a broker that is in progress, or one that begins now: from its first turn on the
        broker counts as fenced and its lease is over."""
        work = self.work.get((RemoveBroker, broker_id))
        return work if isinstance(work, RemoveBroker) else RemoveBroker(broker_id=broker_id, epoch=epoch)

    def next_slice(self, work: Work, now_ms: int, session: BrokerHeartbeatState | None = None) -> Outcome:
        """One slice of `work`. `session`: that of its broker, if this turn also changes it otherwise."""
        image = self.image
        scan = self._scans.of(work, image)
        batch = next_slice(work, image, self.rules(work), self.config.records_per_slice_max, scan=scan)
        if isinstance(work, RemoveBroker):
            return self._removal_slice(work, batch, now_ms, session)
        changed = () if session is None or work.broker_id is None else ((work.broker_id, session),)
        if batch.done:
            return Outcome(batch=batch_of(batch.records), sessions=changed, ended=(key_of(work),))
        return Outcome(batch=batch_of(batch.records), sessions=changed, work=(work,))

    def _removal_slice(
        self, work: RemoveBroker, batch: Slice, now_ms: int, session: BrokerHeartbeatState | None
    ) -> Outcome:
        broker_id = work.broker_id
        written: Batch | None = None
        if batch.records:
            work, wakes = work.after_batch(now_ms, is_last=batch.done)
            written = Batch(records=batch.records, wake_observers=wakes)
        session = self.sessions.get(broker_id) if session is None else session
        changed: tuple[tuple[int, BrokerHeartbeatState | None], ...] = ()
        if session is not None:
            changed = ((broker_id, session.closed()),)
        if not batch.done:
            return Outcome(batch=written, sessions=changed, work=(work,))
        if work.unregister:
            changed = ((broker_id, None),)
        elif session is not None:
            end_offset = self.next_offset + len(batch.records)  # or one more, for the cause
            changed = ((broker_id, replace(session.closed(), unfence_from_offset=end_offset)),)
        return Outcome(
            batch=written,
            sessions=changed,
            ended=(key_of(work), (MoveLeaders, broker_id)),
            answers=tuple([ControllerAnswer(key=key, response=Done()) for key in work.unregister_keys]),
            then=tuple([Resumed(arrived=arrived) for arrived in work.parked]),
        )

    # ---- changed by what was appended

    def take_up(self, outcome: Outcome, now_ms: int) -> None:
        """The outcome's changes of this state take effect: its batch is in the newest image."""
        if outcome.batch is not None:
            self.appended_ms = now_ms
            self.presence.look(self.image, now_ms)
        self._take_up_sessions(outcome)
        if outcome.mutations is not None:
            self.mutations.take(*outcome.mutations, now_ms)
        if outcome.asked is not None:
            self.presence.note_asked(*outcome.asked)
        self.next_ms.update(outcome.next_ms)
        for work in outcome.work:
            self._take_up_work(work, outcome)
        for key in outcome.ended:
            self._end(key)

    def _take_up_sessions(self, outcome: Outcome) -> None:
        sessions = self.sessions
        for broker_id in outcome.expired:
            sessions.expire(broker_id)
        for broker_id, session in outcome.sessions:
            if session is None:
                sessions.forget(broker_id)
            else:
                sessions.put(broker_id, session)
        for place, directory_id in outcome.begun_anew:
            if directory_id is None:
                sessions.begun_anew.pop(place, None)
            else:
                sessions.begun_anew[place] = directory_id

    def _take_up_work(self, work: Work, outcome: Outcome) -> None:
        sessions, key = self.sessions, key_of(work)
        if outcome.cause is not None and begins_anew(self.work.get(key), work):
            self.work_causes[key] = outcome.cause
        self.work[key] = work
        if isinstance(work, RemoveBroker):
            sessions.fencing[work.broker_id] = work.epoch
            sessions.expired_count += work.broker_id in outcome.expired
            self._end((MoveLeaders, work.broker_id))
        elif isinstance(work, FailDirectories):
            sessions.failing[work.broker_id] = work.directories

    def _end(self, key: WorkKey) -> None:
        self.work.pop(key, None)
        self.work_causes.pop(key, None)
        self._scans.forget(key)
        kind, broker_id = key
        if broker_id is None:
            return
        if kind is RemoveBroker:
            self.sessions.fencing.pop(broker_id, None)
        elif kind is FailDirectories:
            self.sessions.failing.pop(broker_id, None)


def _candidates_on(brokers: BrokersImage, fencing: Container[int]) -> Candidates:
    """Registered brokers that are not shutting down (K12)."""
    return Candidates(
        [
            UsableBroker(broker_id, known.rack, known.fenced or broker_id in fencing)
            for broker_id, known in brokers.items()
            if not known.in_controlled_shutdown
        ]
    )
