"""A voter of Apache Kafka 3.9 at kraft.version 1, as a model: what differs from 3.7 (KIP-853), written from
the KIP and from how its nodes behave. Nothing of our core is in it.

The voters are the newest record of its log, committed or not. It knows replicas by id and directory, votes
for candidates that its log does not name, finds a leader through bootstrap servers while it is no voter, and
needs an address for each leader that it is to follow. As leader it changes the voters one at a time. Where
3.9 itself is weak, the model ends with `KafkaEnds`.

Where it differs from Kafka: it asks for an update of its entry sooner (`UPDATE_MS`, Kafka: 6 s), and asks
again after a fetch was in its way, as from 4.0 on. An answer of a voter that was removed meanwhile is
ignored; 3.9 ends there, which nobody else can prevent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from metaquorum.raft import messages as ms
from metaquorum.raft.effects import PersistQuorumState
from metaquorum.raft.messages import RaftError
from metaquorum.raft.voters import (
    ControlValue,
    Endpoint,
    PreferredCandidate,
    VersionRange,
    VoterChange,
    VoterNode,
    VoterSet,
    changes_of,
    kraft_version_record,
    voters_record,
)
from metaquorum.storage.batches.batch import iter_batches
from tests.raft import kafka_voter
from tests.raft.kafka_voter import (
    BACKOFF_MAX_MS,
    CANDIDATE,
    CHECK_QUORUM_MS,
    ELECTION_TIMEOUT_MS,
    FETCH_TIMEOUT_MS,
    FOLLOWER,
    LEADER,
    PACE_MS,
    REQUEST_TIMEOUT_MS,
    RESIGNED,
    UNATTACHED,
    VOTED,
    KafkaStops,
    KafkaVoter,
)

BEGIN_MS, UPDATE_MS, PATIENCE_MS = FETCH_TIMEOUT_MS // 2, 600, 3_600_000
FORMATTED = -1
"""The offset of the voters that formatting wrote."""
VERSIONS = VersionRange(0, 1)
STALE = (RaftError.FENCED_LEADER_EPOCH, RaftError.NOT_LEADER_OR_FOLLOWER, RaftError.UNKNOWN_LEADER_EPOCH)
LOST_ADDRESS = "started again with a leader whose address it does not hold, and fetched from it"
WAS_EMPTIED = "leads, as others say, with the disk that it had before"


class KafkaEnds(KafkaStops):
    """3.9 ends here whatever the others say. Somebody starts it again, or formats its directory."""


class ApiVersionsRequest(NamedTuple):
    """The leader asks a node that is to become a voter which levels of kraft.version it knows."""


class Progress:
    """What a leader knows of one replica."""

    end: int | None = None
    fetched_ms = caught_up_ms = leader_end = -1

    def note(self, offset: int, leader_end: int, now: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now)
        elif self.leader_end > 0 and offset >= self.leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.leader_end, self.end = leader_end, offset
        self.fetched_ms = max(self.fetched_ms, now)


class Pending:
    """A change that somebody waits for. `offset`: of its record; None: the new voter has not said its
    versions."""

    def __init__(self, key: int, until_ms: int, offset: int | None, added: VoterNode | None) -> None:
        self.key, self.until_ms, self.offset, self.added = key, until_ms, offset, added


class KafkaVoter39(KafkaVoter):
    """`formatted`: the voters in the checkpoint that formatting wrote. `bootstrap`: the ids under which its
    bootstrap servers are asked. `changed`: answers to those who asked for a change, as (key, error)."""

    def __init__(
        self,
        *parts: Any,
        directory_id: bytes,
        endpoints: tuple[Endpoint, ...],
        formatted: VoterSet | None,
        bootstrap: tuple[int, ...],
    ) -> None:
        super().__init__(*parts)
        self.directory_id, self.endpoints = directory_id, endpoints
        self.formatted, self.bootstrap = formatted, bootstrap
        self.sets: list[tuple[int, VoterSet]] = []
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        self.voted_directory_id = b""
        self.progress: dict[tuple[int, bytes], Progress] = {}
        self.pending: Pending | None = None
        self.changed: list[tuple[int, RaftError]] = []
        self.events: list[str] = []
        """What it has done of what is rare."""
        self._heard: tuple[Endpoint, ...] = ()
        self._read_to = 0
        self._begin_at = self._update_at = 0
        self._must_resign = False

    # ---- voters ----------------------------------------------------------------------------------

    @property
    def voter_set(self) -> VoterSet:
        return self.sets[-1][1] if self.sets else VoterSet()

    @property
    def is_voter(self) -> bool:
        return self.voter_set.is_voter(self.node_id, self.directory_id)

    def set_at(self, end: int) -> VoterSet | None:
        """The voters that the log below `end` names."""
        return next((each for offset, each in reversed(self.sets) if offset < end), None)

    def _own_entry(self) -> VoterNode:
        return VoterNode(
            node_id=self.node_id,
            directory_id=self.directory_id,
            endpoints=self.endpoints,
            versions=VERSIONS,
        )

    def _must_update(self) -> bool:
        return self.is_voter and self.voter_set[self.node_id] != self._own_entry()

    def _load_voters(self) -> None:
        """Those of the snapshot at the log's start, and of the log."""
        self.sets = [] if self.formatted is None else [(FORMATTED, self.formatted)]
        self._read_to = self.disk.start
        for position, data in self.disk.snapshots.items():
            if position.offset == self.disk.start:
                for batch in iter_batches(data):
                    self._take_changes(
                        [replace(each, offset=position.offset - 1) for each in _changes(batch)]
                    )
        self._read_voters()

    def _read_voters(self) -> None:
        """Those in what was appended since the last time."""
        fresh = [data for base, _, _, data in self.disk.batches[-64:] if base >= self._read_to]
        if len(fresh) == 64:
            fresh = [data for base, _, _, data in self.disk.batches if base >= self._read_to]
        for data in fresh:
            for batch in iter_batches(data):
                self._take_changes(_changes(batch))
        self._read_to = self.disk.end
        self.voters = tuple(self.voter_set)

    def _take_changes(self, changes: Sequence[VoterChange]) -> None:
        self.sets += [(each.offset, each.voters) for each in changes if each.voters is not None]

    def _cut(self, end: int) -> None:
        super()._cut(end)
        held = [each for each in self.sets if each[0] < end]
        if len(held) < len(self.sets):
            self.events.append("undid a change of voters")
        self.sets, self._read_to = held, min(self._read_to, end)
        self.voters = tuple(self.voter_set)

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._load_voters()
        hard = self.disk.hard
        if hard is not None:
            self.voted_directory_id = hard.voted_directory_id or b""
        super().start()
        if self.is_voter and len(self.voters) == 1 and self.role != CANDIDATE:
            self._candidate()

    def _enter(self, role: str, timeout: int) -> None:
        super()._enter(role, timeout)
        if role == FOLLOWER:
            self._update_at = self.now + UPDATE_MS
            if not self.leader_endpoints:  # at a start
                known = self.voter_set.get(self.leader_id if self.leader_id is not None else -1)
                self.leader_endpoints = () if known is None else known.endpoints
                self.role = FOLLOWER if known is not None else UNATTACHED
        elif role != RESIGNED:
            self.leader_endpoints = ()
        if role in (LEADER, RESIGNED):
            self.leader_endpoints = self.endpoints

    def _write(self) -> None:
        self.disk.hard = PersistQuorumState(
            token=0,
            epoch=self.epoch,
            leader_id=self.leader_id,
            voted_id=self.voted_id,
            voted_directory_id=None if self.voted_id is None else self.voted_directory_id,
            kraft_version=1,
        )

    def _follow(self, epoch: int, leader_id: int) -> None:
        known = self.voter_set.get(leader_id)
        endpoints = self._heard or (() if known is None else known.endpoints)
        if leader_id == self.node_id or not endpoints:
            raise KafkaStops(f"node {self.node_id} cannot follow {leader_id} at {endpoints}")
        if not endpoints[0].host:
            raise KafkaStops(f"node {self.node_id} is to follow {leader_id} at an address without a host")
        self.epoch, self.leader_id, self.voted_id = epoch, leader_id, None
        self.leader_endpoints = endpoints
        self._write()
        self._leave()
        self._enter(FOLLOWER, FETCH_TIMEOUT_MS)

    def _candidate(self) -> None:
        if self.is_voter:
            self.voted_directory_id = self.directory_id
            super()._candidate()
        elif self.role == RESIGNED:
            self.events.append("left as a leader that was removed")
            self._unattached(self.epoch + 1)

    def _maybe_lead(self) -> None:
        was = self.role
        super()._maybe_lead()
        if self.role == LEADER and was != LEADER:
            self._begin_at, self._must_resign = self.now, False
            self._send_all()

    def _first_records(self) -> list[ControlValue]:
        self.progress, self.pending = {}, None
        records = super()._first_records()
        offset, voters = self.sets[-1]
        if offset == FORMATTED or self._must_update():
            self.events.append("wrote its voters with its epoch")
            voters = voters.with_voter(self._own_entry())
            records += [kraft_version_record(1), voters_record(voters)]
        return records

    def _leave(self) -> None:
        super()._leave()
        self._answer_change(RaftError.NOT_LEADER_OR_FOLLOWER)

    def resign(self) -> None:
        """Those who have fetched most stand first."""
        ends = {each: self._end_of_replica(each) for each in self.voters if each != self.node_id}
        order = sorted(ends, key=lambda each: (-ends[each], each))
        self._resigned(tuple(order))

    def _end_of_replica(self, node_id: int) -> int:
        found = self.progress.get((node_id, self.voter_set[node_id].directory_id or b""))
        return -1 if found is None or found.end is None else found.end

    @property
    def may_stop(self) -> bool:
        return super().may_stop or (self.stops_by is not None and not self.is_voter)

    def _heard_from(self, request: ms.FetchRequest | ms.FetchSnapshotRequest) -> None:
        voters = self.voter_set
        if voters.is_voter(request.replica_id, request.replica_directory_id):
            self.fetched.add(request.replica_id)
        needed = len(voters) // 2 + 1 - (self.node_id in voters)
        if len(self.fetched) >= needed:
            self.fetched, self.quorum_until = set(), self.now + CHECK_QUORUM_MS

    # ---- the log ---------------------------------------------------------------------------------

    def _append(self, data: bytes) -> None:
        self.disk.append(data)
        self.disk.synced = self.disk.end
        self._read_voters()
        own = self.progress.setdefault((self.node_id, self.directory_id), Progress())
        own.end = self.disk.end
        self._advance()
        self._wake()

    def _advance(self) -> None:
        durable = sorted(map(self._end_of_replica, self.voters))
        reached = durable[(len(durable) - 1) // 2]
        if reached <= self.epoch_start or reached <= self.high_watermark:
            return
        self.high_watermark = reached
        pending = self.pending
        if pending is not None and pending.offset is not None and pending.offset < reached:
            self.events.append("added a voter" if pending.added is not None else "removed a voter")
            self._answer_change(RaftError.NONE)
            if pending.added is None and not self.is_voter:
                self.events.append("removed itself")
                self._must_resign = True

    def _acknowledge(self, request: ms.FetchRequest) -> None:
        if request.replica_id < 0:
            return
        if request.replica_id == self.node_id:
            raise KafkaStops(f"node {self.node_id} is asked by a replica of its own id")
        key = request.replica_id, request.replica_directory_id
        replica = self.progress.setdefault(key, Progress())
        replica.note(request.fetch_offset, self.disk.end, self.now)
        self._heard_from(request)
        if self.voter_set.is_voter(*key):
            self._advance()

    def _take(self, response: ms.FetchResponse) -> None:
        super()._take(response)
        self._read_voters()

    def _take_chunk(self, response: ms.FetchSnapshotResponse) -> None:
        super()._take_chunk(response)
        if self.snapshot is None:
            self._load_voters()
            self.events.append("fetched a snapshot with its voters")

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        self.now = now
        if self.role == LEADER:
            if len(self.voters) == 1:
                self.quorum_until = now + CHECK_QUORUM_MS
            if self.pending is not None and now >= self.pending.until_ms:
                self._answer_change(RaftError.REQUEST_TIMED_OUT)
            if self._must_resign:
                self.resign()
        super().tick(now)
        self._name_leader()

    def _send_all(self) -> None:
        others = [each for each in self.voters if each != self.node_id]
        match self.role:
            case "leader":
                if self.now >= self._begin_at:
                    for to in others:
                        self._send(to, self._begin(to))
                    self._begin_at = self.now + BEGIN_MS
            case "resigned":
                for to in others:
                    if to not in self.acknowledged:
                        self._send(to, self._end())
            case "follower" if self.is_voter and self.stops_by is None:
                self._follow_as_voter()
            case "follower" | "unattached" | "voted" if not self.is_voter:
                self._look_for_leader()
            case _:
                super()._send_all()

    def _follow_as_voter(self) -> None:
        to = self.leader_id
        assert to is not None
        if self.now >= self._update_at and self._must_update() and to not in self.asked:
            self._update_at = self.now + UPDATE_MS
            self.events.append("asked for an update of its entry")
            self._send(to, self._update())
        else:
            self._send(to, self._fetch() if self.snapshot is None else self._fetch_snapshot())

    def _look_for_leader(self) -> None:
        if self.asked:
            return
        to = self.leader_id
        silent = self.now >= self.deadline or (to is not None and self.now < self.retry_at.get(to, 0))
        if self.role != FOLLOWER or to is None or silent:
            self._send(self.rng.choice(self.bootstrap), self._fetch())
        else:
            self._send(to, self._fetch() if self.snapshot is None else self._fetch_snapshot())

    # ---- what it asks ----------------------------------------------------------------------------

    def endpoints_of(self, to: int) -> tuple[Endpoint, ...]:
        """Where it looks for a node; a bootstrap server has none here."""
        if to == self.leader_id:
            return self.leader_endpoints
        known = self.voter_set.get(to)
        if known is None and self.pending is not None and self.pending.added is not None:
            known = self.pending.added
        return () if known is None else known.endpoints

    def _directory_of(self, node_id: int) -> bytes:
        return self.voter_set[node_id].directory_id or b""

    def _vote(self, to: int) -> ms.VoteRequest:
        return replace(
            super()._vote(to),
            candidate_directory_id=self.directory_id,
            voter_directory_id=self._directory_of(to),
        )

    def _begin(self, to: int) -> ms.BeginQuorumEpochRequest:
        asked = super()._begin(to)
        return replace(asked, voter_directory_id=self._directory_of(to), leader_endpoints=self.endpoints)

    def _end(self) -> ms.EndQuorumEpochRequest:
        named = [each for each in self.successors if each in self.voter_set]
        candidates = tuple(PreferredCandidate(each, self._directory_of(each)) for each in named)
        return replace(super()._end(), preferred_candidates=candidates)  # Kafka's has no endpoints

    def _fetch(self) -> ms.FetchRequest:
        return replace(super()._fetch(), replica_directory_id=self.directory_id)

    def _fetch_snapshot(self) -> ms.FetchSnapshotRequest:
        return replace(super()._fetch_snapshot(), replica_directory_id=self.directory_id)

    def _update(self) -> ms.UpdateVoterRequest:
        return ms.UpdateVoterRequest(cluster_id="", epoch=self.epoch, voter=self._own_entry())

    # ---- what it is asked ------------------------------------------------------------------------

    def on_request(self, source: int, correlation_id: int, request: Any, now: int) -> None:
        self._heard = getattr(request, "leader_endpoints", ())
        if isinstance(request, ms.UpdateVoterRequest):
            self.now = now
            error = self._judge_update(request)
            answer = ms.VoterChangeResponse(error=error, epoch=self.epoch, leader_id=self.leader_id)
            self.answers.append((source, correlation_id, answer))
            self._send_all()
        else:
            super().on_request(source, correlation_id, request, now)
        self._name_leader()

    def _name_leader(self) -> None:
        """Its answers say where the leader is that they name."""
        for at, (source, correlation_id, answer) in enumerate(self.answers):
            if answer.leader_id is not None and answer.leader_id == self.leader_id:
                if not answer.leader_endpoints:
                    named = replace(answer, leader_endpoints=self.leader_endpoints)
                    self.answers[at] = source, correlation_id, named

    def _refusal(self, node_id: int, epoch: int) -> RaftError:
        if epoch < self.epoch:
            return RaftError.FENCED_LEADER_EPOCH
        return RaftError.NONE if node_id >= 0 else RaftError.INVALID_REQUEST

    def _is_meant(self, request: ms.VoteRequest | ms.BeginQuorumEpochRequest) -> bool:
        directory_id = request.voter_directory_id
        return request.voter_id in (-1, self.node_id) and directory_id in (b"", self.directory_id)

    def _on_vote(self, request: ms.VoteRequest) -> ms.VoteResponse:
        error, granted = self._refusal(request.candidate_id, request.epoch), False
        if request.last_position.epoch >= request.epoch:
            error = RaftError.INVALID_REQUEST
        if error is RaftError.NONE and request.epoch > self.epoch:
            self._unattached(request.epoch)
        if error is RaftError.NONE and not self._is_meant(request):
            error = RaftError.INVALID_VOTER_KEY
        candidate = request.candidate_id, request.candidate_directory_id
        if error is RaftError.NONE and self.role == VOTED:
            granted = candidate == (self.voted_id, self.voted_directory_id)
        elif error is RaftError.NONE and self.role == UNATTACHED and self.leader_id is None:
            granted = request.last_position >= self.end
            if granted:
                if not self.voter_set.is_voter(*candidate):
                    self.events.append("voted for a node that its log does not name")
                self.voted_id, self.voted_directory_id = candidate
                self._write()
                self._enter(VOTED, self._drawn(ELECTION_TIMEOUT_MS))
        return ms.VoteResponse(
            error=error, epoch=self.epoch, leader_id=self.leader_id, vote_granted=granted, pre_vote=False
        )

    def _on_begin(self, request: ms.BeginQuorumEpochRequest) -> ms.BeginQuorumEpochResponse:
        answer = super()._on_begin(request)
        if answer.error is RaftError.NONE and not self._is_meant(request):
            answer = replace(answer, error=RaftError.INVALID_VOTER_KEY)
        return answer

    def _patience(self, request: ms.EndQuorumEpochRequest) -> int:
        named = request.preferred_candidates
        own = (each.is_replica(self.node_id, self.directory_id) for each in named)
        place = next((at for at, is_own in enumerate(own) if is_own), len(named))
        return kafka_voter.backoff(place, len(named)) if place < len(named) else BACKOFF_MAX_MS * (place > 0)

    def _not_leading(self, epoch: int) -> RaftError:
        error = super()._not_leading(epoch)
        is_ending = error is RaftError.NONE and self.stops_by is not None
        return RaftError.BROKER_NOT_AVAILABLE if is_ending else error

    # ---- changes of voters -----------------------------------------------------------------------

    def change(self, key: int, request: ms.AddVoterRequest | ms.RemoveVoterRequest, now: int) -> None:
        """A client asks for a change; it is answered in `changed`."""
        self.now = now
        error = self._not_leading(self.epoch)
        if error is RaftError.NONE:
            error = self._not_now()
        added = request.voter if isinstance(request, ms.AddVoterRequest) else None
        if error is RaftError.NONE and added is not None:
            error = RaftError.DUPLICATE_VOTER if added.node_id in self.voter_set else error
        elif error is RaftError.NONE and isinstance(request, ms.RemoveVoterRequest):
            is_known = self.voter_set.is_voter(request.voter_id, request.voter_directory_id)
            if not is_known or len(self.voter_set) == 1:
                error = RaftError.VOTER_NOT_FOUND
        if error is not RaftError.NONE:
            self.changed.append((key, error))
            return
        self.pending = Pending(key, now + REQUEST_TIMEOUT_MS, None, added)
        if added is not None:
            self._send(added.node_id, ApiVersionsRequest())
            return
        assert isinstance(request, ms.RemoveVoterRequest)
        self._change_to(self.voter_set.without(request.voter_id))
        self._name_leader()

    def _not_now(self) -> RaftError:
        is_settled = self.sets and self.sets[-1][0] < self.high_watermark
        if self.pending is not None or self.high_watermark < 0 or not is_settled:
            return RaftError.REQUEST_TIMED_OUT
        return RaftError.NONE

    def _change_to(self, voters: VoterSet) -> None:
        if self.pending is not None:
            self.pending.offset = self.disk.end
        self._append_control([voters_record(voters)])

    def _on_versions(self, source: int, versions: VersionRange) -> None:
        pending = self.pending
        if pending is None or pending.added is None or pending.added.node_id != source:
            return
        key = pending.added.node_id, pending.added.directory_id or b""
        replica = self.progress.get(key)
        if 1 not in versions:
            self._answer_change(RaftError.INVALID_REQUEST)
        elif replica is None or replica.caught_up_ms <= 0 or replica.fetched_ms <= self.now - PATIENCE_MS:
            self._answer_change(RaftError.REQUEST_TIMED_OUT)
        else:
            self._change_to(self.voter_set.with_voter(replace(pending.added, versions=versions)))

    def _judge_update(self, request: ms.UpdateVoterRequest) -> RaftError:
        error, voter = self._not_leading(request.epoch), request.voter
        if error is RaftError.NONE:
            error = self._not_now()
        if error is RaftError.NONE and (1 not in voter.versions or not voter.endpoints):
            error = RaftError.INVALID_REQUEST
        if error is RaftError.NONE:
            if not self.voter_set.is_voter(voter.node_id, voter.directory_id or b""):
                return RaftError.VOTER_NOT_FOUND
            self.events.append("updated a voter")
            self._change_to(self.voter_set.with_voter(voter))
        return error

    def _answer_change(self, error: RaftError) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            self.changed.append((pending.key, error))

    # ---- answers ---------------------------------------------------------------------------------

    def on_response(self, source: int, correlation_id: int, response: Any, now: int) -> None:
        asked = self.asked.get(source)
        self._heard = getattr(response, "leader_endpoints", ())
        if asked is not None and isinstance(asked.request, ms.UpdateVoterRequest):
            # 3.9 looks there only for an address that is missing, and takes it for one.
            is_missing = response.leader_id is not None and not self._heard
            self._heard = (Endpoint("", "", 0),) if is_missing else ()
        super().on_response(source, correlation_id, response, now)
        self._name_leader()

    def _judge(self, source: int, request: Any, response: Any) -> None:
        if isinstance(response, VersionRange):
            if self.role == LEADER:
                self._on_versions(source, response)
            return
        known = response.epoch == self.epoch and self.leader_id is not None
        if isinstance(response, ms.FetchResponse) and known and self.role == UNATTACHED:
            if response.error not in STALE:
                raise KafkaEnds(LOST_ADDRESS)
        if response.error is RaftError.INVALID_VOTER_KEY and response.epoch == self.epoch:
            self.retry_at[source] = self.now + PACE_MS
            if self.leader_id is None and response.leader_id is not None:
                self._follow(response.epoch, response.leader_id)
            return
        super()._judge(source, request, response)

    def failed(self, to: int, correlation_id: int) -> None:
        asked = self.asked.get(to)
        super().failed(to, correlation_id)
        if asked is not None and isinstance(asked.request, ApiVersionsRequest) and self.role == LEADER:
            self._answer_change(RaftError.REQUEST_TIMED_OUT)

    def _learn(self, leader_id: int | None, epoch: int) -> None:
        if epoch == self.epoch and self.role == UNATTACHED and leader_id == self.leader_id:
            if leader_id is not None and self._heard:  # it knew the leader, and not where it is
                self._follow(epoch, leader_id)
            return
        if leader_id == self.node_id and self.end.offset == 0 and epoch > self.epoch:
            raise KafkaEnds(WAS_EMPTIED)
        super()._learn(leader_id, epoch)


def _changes(batch: Any) -> list[VoterChange]:
    return list(changes_of(batch)) if batch.header.is_control else []
