"""The state on which the active controller decides: the newest image, and the soft state of this leadership.

Decisions read it and must not change it, except for what is cached and can be computed again. It changes in
one place, `take_up`, when the records of an `Outcome` have been appended. Never logged, gone with leadership.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from random import Random
from typing import Protocol

import msgspec
from msgspec.structs import replace

from metaquorum.controller.active.outcome import (
    Batch,
    FailDirectories,
    MoveLeaders,
    Outcome,
    RemoveBroker,
    Resumed,
    Scans,
    Step,
    Work,
    WorkKey,
    batch_of,
    is_new_work,
    key_of,
    next_slice,
)
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState, Sessions
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.partitions.partition_change import MayLead, Rules
from metaquorum.controller.partitions.placement import Candidates, UsableBroker
from metaquorum.controller.partitions.rules import UNCLEAN_LEADER_ELECTION_ENABLE, rules_of
from metaquorum.controller.partitions.topics import Mutations
from metaquorum.controller.result import ControllerAnswer, Slice
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.image import BrokersImage, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
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
        recreated = self.sessions.recreated
        return rules_of(self.image, self.may_lead(), failing, self._topic_defaults, recreated)

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
        for replica, directory_id in outcome.recreated:
            if directory_id is None:
                sessions.recreated.pop(replica, None)
            else:
                sessions.recreated[replica] = directory_id

    def _take_up_work(self, work: Work, outcome: Outcome) -> None:
        sessions, key = self.sessions, key_of(work)
        if outcome.cause is not None and is_new_work(self.work.get(key), work):
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


# What the active controller knows about the use of broker ids: when each was requested, and how long it
# was absent.
#
# All of it is lost with leadership, and every wait then starts over: a newcomer then waits longer, and no
# id is given away early.

CLAIM_MS = 30_000
"""How long an allocated id is kept for its broker to register."""

ASKED_MAX = 1_000
"""Requests whose first arrival is remembered; the oldest are forgotten and wait again."""


class BrokerIdPresence:
    """Times are monotonic ms. Nothing before `now_ms` is known."""

    def __init__(self, sessions: Sessions, image: MetadataImage, now_ms: int) -> None:
        self._sessions = sessions
        self._began_ms = now_ms
        self._asked: dict[bytes, int] = {}
        self._seen_brokers: BrokersImage | None = None
        self._present: frozenset[int] = frozenset()
        self._away_since: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._seen_entries: Mapping[str, str] | None = None
        self._claims: dict[int, tuple[str, int]] = {}
        self.look(image, now_ms)

    def look(self, image: MetadataImage, now_ms: int) -> None:
        """Notes which brokers came and went. O(brokers), and only if brokers or their configuration changed
        since the last look."""
        if image.brokers is not self._seen_brokers:
            self._seen_brokers = image.brokers
            present = frozenset(broker_id for broker_id, known in image.brokers.items() if not known.fenced)
            for broker_id in self._present - present:
                self._away_since[broker_id] = self._ended[broker_id] = now_ms
            self._present = present
        entries = ids.remembered(image)
        if entries is not self._seen_entries:
            self._seen_entries = entries
            before, self._claims = self._claims, {}
            for broker_id, value in ids.claimed_values(entries).items():
                known_value, since_ms = before.get(broker_id, ("", now_ms))
                self._claims[broker_id] = (value, since_ms if known_value == value else now_ms)
                self._away_since[broker_id] = max(
                    self._away_since.get(broker_id, 0), self._claims[broker_id][1]
                )

    def note_asked(self, request_id: bytes, arrived_ms: int) -> None:
        """Remembers when a request first arrived."""
        self._asked.setdefault(request_id, arrived_ms)
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def at(
        self, image: MetadataImage, voters: frozenset[int], request_id: bytes, arrived_ms: int
    ) -> PresenceAtRequest:
        """The presence when a request arrived."""
        asked_ms = self._asked.get(request_id, arrived_ms)
        return PresenceAtRequest(self, image.brokers, voters, arrived_ms, asked_ms)

    def lapsed_claims(self, now_ms: int) -> list[int]:
        """Ids that were allocated, but whose broker did not register in time."""
        return [broker_id for broker_id in self._claims if self.claim_ms(broker_id, now_ms) == 0]

    # ---- facts about an id

    def lease_ms(self, brokers: BrokersImage, broker_id: int, now_ms: int) -> int:
        """A broker that was fenced when this leadership began and has sent nothing yet may also be alive: it
        has one session timeout to send a heartbeat."""
        sessions = self._sessions
        if brokers.get(broker_id) is None:
            return 0
        if sessions.get(broker_id) is None and broker_id not in sessions.fencing:
            return max(0, self._began_ms + sessions.session_timeout_ms - now_ms)
        return sessions.remaining_ms(broker_id, now_ms)

    def heard_ms(self, broker_id: int) -> int | None:
        """When the id's holder last sent a request in this leadership."""
        session = self._sessions.get(broker_id)
        return session.contact_ms if session is not None and session.was_heard else None

    def ended_ms(self, broker_id: int) -> int | None:
        """When the id's broker was last fenced or unregistered in this leadership. None if it runs."""
        return None if broker_id in self._present else self._ended.get(broker_id)

    def claim_ms(self, broker_id: int, now_ms: int) -> int:
        claim = self._claims.get(broker_id)
        return 0 if claim is None else max(0, claim[1] + CLAIM_MS - now_ms)

    def absent_ms(self, broker_id: int, now_ms: int) -> int:
        if broker_id in self._present:
            return 0
        since_ms = max(self._began_ms, self._away_since.get(broker_id, 0), self.heard_ms(broker_id) or 0)
        return max(0, now_ms - since_ms)


class PresenceAtRequest(msgspec.Struct, frozen=True):
    """`broker_ids.Presence` for one request."""

    _seen: BrokerIdPresence
    _brokers: BrokersImage
    voters: frozenset[int]
    _arrived_ms: int
    _asked_ms: int

    def lease_ms(self, broker_id: int) -> int:
        return self._seen.lease_ms(self._brokers, broker_id, self._arrived_ms)

    def heard_since_asked(self, broker_id: int) -> bool:
        heard_ms = self._seen.heard_ms(broker_id)
        return heard_ms is not None and heard_ms > self._asked_ms

    def ended_since_asked(self, broker_id: int) -> bool:
        ended_ms = self._seen.ended_ms(broker_id)
        return ended_ms is not None and ended_ms > self._asked_ms and not self.heard_since_asked(broker_id)

    def claim_ms(self, broker_id: int) -> int:
        return self._seen.claim_ms(broker_id, self._arrived_ms)

    def absent_ms(self, broker_id: int) -> int:
        return self._seen.absent_ms(broker_id, self._arrived_ms)
