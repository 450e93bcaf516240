"""A voter of Apache Kafka 3.7, as a model: written from its protocol (KIP-595, KIP-630), what its nodes were
recorded to say, and how it behaves at restarts. Nothing of our core is in it.

It asks for no pre-votes and says no high watermark, waits as long as Kafka waits, asks each node one thing at
a time, resigns without a majority's fetches (KAFKA-15489), truncates by epoch and end offset, and has written
what it says: appends and votes are durable within a step. Where Kafka's process would end with an error, so
does the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from metaquorum.raft import messages as ms
from metaquorum.raft.effects import PersistQuorumState
from metaquorum.raft.messages import RaftError
from metaquorum.raft.voters import (
    ControlValue,
    PreferredCandidate,
    encode_control_batch,
    leader_change_record,
)
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.types import LogPosition

FETCH_TIMEOUT_MS, ELECTION_TIMEOUT_MS, BACKOFF_MAX_MS = 2_000, 1_000, 1_000
REQUEST_TIMEOUT_MS, RETRY_MS, MAX_WAIT_MS = 2_000, 20, 500
CHECK_QUORUM_MS, BACKOFF_BASE_MS, SHUTDOWN_MS = 3_000, 100, 5_000
PACE_MS = 1
"""After most refusals it asks again at once: this is what that takes."""
UNATTACHED, VOTED, CANDIDATE, LEADER, FOLLOWER, RESIGNED = (
    *("unattached", "voted", "candidate"),
    *("leader", "follower", "resigned"),
)


def backoff(place: int, count: int) -> int:
    """How long the one at a place of a list of `count` waits for those before it."""
    return min(BACKOFF_MAX_MS >> (count - 1) << (place - 1), BACKOFF_MAX_MS) if place else 0


class KafkaStops(AssertionError):
    """Kafka's process would end here with an exception: what the others said must never lead to this."""


@dataclass(slots=True)
class Parked:
    """A fetch that the leader holds. `stored`: what it is answered with if nothing comes."""

    source: int
    correlation_id: int
    request: ms.FetchRequest
    until_ms: int
    stored: ms.FetchResponse


@dataclass(slots=True)
class Asked:
    """The request to a node that has no answer yet."""

    correlation_id: int
    request: Any
    sent_ms: int


@dataclass(slots=True)
class KafkaVoter:
    """One process. `disk` survives it. Requests to send are in `sends`, answers in `answers`, as (to,
    correlation id, message); the world takes them after each input."""

    node_id: int
    voters: tuple[int, ...]
    disk: Any
    rng: random.Random
    now: int
    sends: list[tuple[int, int, Any]] = field(default_factory=list)
    answers: list[tuple[int, int, Any]] = field(default_factory=list)
    role: str = UNATTACHED
    epoch: int = 0
    leader_id: int | None = None
    voted_id: int | None = None
    high_watermark: int = -1
    deadline: int = 0
    backoff_until: int | None = None
    retries: int = 0
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    ends: dict[int, int | None] = field(default_factory=dict)
    epoch_start: int = 0
    parked: list[Parked] = field(default_factory=list)
    asked: dict[int, Asked] = field(default_factory=dict)
    retry_at: dict[int, int] = field(default_factory=dict)
    snapshot: LogPosition | None = None
    successors: tuple[int, ...] = ()
    fetched: set[int] = field(default_factory=set)
    quorum_until: int = 0
    stops_by: int | None = None
    """It is to shut down, at the latest by then."""
    connection: dict[int, int] = field(default_factory=dict)
    last_id: int = 0

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        hard = self.disk.hard
        if hard is not None:
            self.epoch, self.leader_id, self.voted_id = hard.epoch, hard.leader_id, hard.voted_id
        self.high_watermark, self.disk.partial = -1, None
        if self.epoch < self.end.epoch:
            self.epoch, self.leader_id, self.voted_id = self.end.epoch, None, None
            self._write()
        if self.leader_id == self.node_id:
            self._resigned(())
        elif self.leader_id is not None:
            self._enter(FOLLOWER, FETCH_TIMEOUT_MS)
        elif self.voted_id == self.node_id:
            self.retries = 1
            self._candidacy()
        else:
            self._enter(UNATTACHED if self.voted_id is None else VOTED, self._drawn(ELECTION_TIMEOUT_MS))

    def _drawn(self, base: int) -> int:
        return base + self.rng.randrange(base)

    def _enter(self, role: str, timeout: int) -> None:
        self.role, self.deadline = role, self.now + timeout
        self.snapshot, self.backoff_until = None, None
        self.disk.partial = None
        self.asked.clear()
        self.retry_at.clear()

    def _write(self) -> None:
        self.disk.hard = PersistQuorumState(
            token=0,
            epoch=self.epoch,
            leader_id=self.leader_id,
            voted_id=self.voted_id,
            voted_directory_id=None,
            kraft_version=0,
        )

    def _unattached(self, epoch: int) -> None:
        left = max(0, self.deadline - self.now)
        keeps = self.role in (UNATTACHED, VOTED, CANDIDATE)
        self.epoch, self.leader_id, self.voted_id = epoch, None, None
        self._write()
        self._enter(UNATTACHED, left if keeps else self._drawn(ELECTION_TIMEOUT_MS))

    def _follow(self, epoch: int, leader_id: int) -> None:
        if leader_id == self.node_id or leader_id not in self.voters:
            raise KafkaStops(f"node {self.node_id} cannot follow {leader_id}")
        self.epoch, self.leader_id, self.voted_id = epoch, leader_id, None
        self._write()
        self._leave()
        self._enter(FOLLOWER, FETCH_TIMEOUT_MS)

    def _candidate(self) -> None:
        self.epoch, self.leader_id, self.voted_id = self.epoch + 1, None, self.node_id
        self._write()
        self.retries = self.retries + 1 if self.role == CANDIDATE else 1
        self._candidacy()

    def _candidacy(self) -> None:
        self._enter(CANDIDATE, self._drawn(ELECTION_TIMEOUT_MS))
        self.granted, self.rejected = {self.node_id}, set()
        self._maybe_lead()

    def _maybe_lead(self) -> None:
        if self.role != CANDIDATE or 2 * len(self.granted) <= len(self.voters):
            return
        self._enter(LEADER, 0)
        # It knows none until a record of its epoch is committed.
        self.leader_id, self.high_watermark = self.node_id, -1
        self.fetched, self.quorum_until = set(), self.now + CHECK_QUORUM_MS
        self._write()
        self.epoch_start = self.end.offset
        self.ends = dict.fromkeys(self.voters)
        self.acknowledged = {self.node_id}
        self._append_control(self._first_records())

    def _first_records(self) -> list[ControlValue]:
        """What begins its epoch."""
        return [
            leader_change_record(leader_id=self.node_id, voter_ids=self.voters, granting_ids=self.granted)
        ]

    def _append_control(self, records: list[ControlValue]) -> None:
        self._append(
            encode_control_batch(records, base_offset=self.disk.end, epoch=self.epoch, timestamp_ms=0)
        )

    def _leave(self) -> None:
        """Whoever waits at a leader learns that it leads no more."""
        parked, self.parked = self.parked, []
        for each in parked:
            refusal = ms.FetchResponse(
                error=RaftError.NOT_LEADER_OR_FOLLOWER, epoch=self.epoch, leader_id=self.leader_id
            )
            self.answers.append((each.source, each.correlation_id, refusal))

    def _resigned(self, successors: tuple[int, ...]) -> None:
        self._leave()
        self._enter(RESIGNED, self._drawn(ELECTION_TIMEOUT_MS))
        self.successors, self.acknowledged = successors, set()

    def resign(self) -> None:
        """Those who have fetched most stand first."""
        others = [each for each in self.voters if each != self.node_id]
        ends = {each: self.ends[each] for each in others}
        known = [each for each in others if ends[each] is not None]
        known.sort(key=lambda each: (-(ends[each] or 0), each))
        self._resigned((*known, *(each for each in others if ends[each] is None)))

    def shut_down(self) -> None:
        """In good order: a leader resigns first."""
        self.stops_by = self.now + SHUTDOWN_MS
        if self.role == LEADER:
            self.resign()

    @property
    def may_stop(self) -> bool:
        """Nothing is left to do before its process ends."""
        follows = self.leader_id not in (None, self.node_id)
        return self.stops_by is not None and (follows or self.now >= self.stops_by)

    def _heard_from(self, request: ms.FetchRequest | ms.FetchSnapshotRequest) -> None:
        if request.replica_id in self.voters:
            self.fetched.add(request.replica_id)
            if len(self.fetched) >= len(self.voters) // 2:
                self.fetched, self.quorum_until = set(), self.now + CHECK_QUORUM_MS

    # ---- the log ---------------------------------------------------------------------------------

    @property
    def end(self) -> LogPosition:
        return LogPosition(self._epochs()[-1][0], self.disk.end) if self._epochs() else LogPosition(0, 0)

    def _epochs(self) -> list[tuple[int, int]]:
        """(epoch, end) of each epoch in the log, the snapshot's first."""
        found = [(each.epoch, each.offset) for each in self.disk.snapshots if each.offset == self.disk.start]
        for _, end, epoch, _ in self.disk.batches:
            if found and found[-1][0] == epoch:
                found[-1] = epoch, end
            else:
                found.append((epoch, end))
        return found

    def _end_of(self, epoch: int) -> LogPosition:
        """Where the latest epoch up to this one ends."""
        known = [each for each in self._epochs() if each[0] <= epoch]
        return LogPosition(*known[-1]) if known else LogPosition(epoch, self.disk.start)

    def _append(self, data: bytes) -> None:
        self.disk.append(data)
        self.disk.synced = self.disk.end
        if self.role == LEADER:
            self.ends[self.node_id] = self.disk.end
            self._advance()
            self._wake()

    def _cut(self, end: int) -> None:
        self.disk.truncate(end)

    def append(self, values: list[bytes], timestamp_ms: int = 0) -> None:
        """What a client of the leader writes, as one batch."""
        self._append(
            encode_batch(
                base_offset=self.disk.end,
                leader_epoch=self.epoch,
                timestamp_ms=timestamp_ms,
                values=values,
            )
        )

    def _advance(self) -> None:
        durable = sorted(-1 if end is None else end for end in self.ends.values())
        reached = durable[(len(durable) - 1) // 2]
        if reached > self.epoch_start and reached > self.high_watermark:
            self.high_watermark = reached

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        self.now = now
        for to, asked in list(self.asked.items()):
            if now >= asked.sent_ms + REQUEST_TIMEOUT_MS:
                self.failed(to, asked.correlation_id)
        for each in [each for each in self.parked if each.until_ms <= now]:
            self.parked.remove(each)
            self.answers.append((each.source, each.correlation_id, each.stored))
        match self.role:
            case "leader" if now >= self.quorum_until:
                self.resign()
            case _ if self.stops_by is not None:
                pass
            case "candidate" if self.backoff_until is not None and now >= self.backoff_until:
                self._candidate()
            case "candidate" if self.backoff_until is None and now >= self.deadline:
                self.backoff_until = now + self._backoff()
            case "follower" | "unattached" | "voted" | "resigned" if now >= self.deadline:
                self._candidate()
        self._send_all()

    def _backoff(self) -> int:
        return min(BACKOFF_BASE_MS * self.rng.randrange(2 << min(20, self.retries - 1)), BACKOFF_MAX_MS)

    def _send_all(self) -> None:
        others = [each for each in self.voters if each != self.node_id]
        match self.role:
            case "candidate" if self.backoff_until is None:
                for to in set(others) - self.granted - self.rejected:
                    self._send(to, self._vote(to))
            case "leader":
                for to in set(others) - self.acknowledged:
                    self._send(to, self._begin(to))
            case "resigned":
                for to in set(others) - self.acknowledged:
                    self._send(to, self._end())
            case "follower" if self.stops_by is None:
                assert self.leader_id is not None
                self._send(self.leader_id, self._fetch() if self.snapshot is None else self._fetch_snapshot())

    def _send(self, to: int, request: Any) -> None:
        if to in self.asked or self.now < self.retry_at.get(to, 0):
            return
        self.last_id += 1
        self.asked[to] = Asked(self.last_id, request, self.now)
        self.sends.append((to, self.last_id, request))

    def failed(self, to: int, correlation_id: int) -> None:
        """No answer: the connection is closed, and another one is tried a little later."""
        self.connection[to] = self.connection.get(to, 0) + 1
        asked = self.asked.get(to)
        if asked is not None and asked.correlation_id == correlation_id:
            del self.asked[to]
            self.retry_at[to] = self.now + RETRY_MS

    # ---- what it asks ----------------------------------------------------------------------------

    def _vote(self, to: int) -> ms.VoteRequest:
        return ms.VoteRequest(
            cluster_id="",
            epoch=self.epoch,
            candidate_id=self.node_id,
            candidate_directory_id=b"",
            voter_id=to,
            voter_directory_id=b"",
            last_position=self.end,
            pre_vote=False,
        )

    def _begin(self, to: int) -> ms.BeginQuorumEpochRequest:
        return ms.BeginQuorumEpochRequest(
            cluster_id="", epoch=self.epoch, leader_id=self.node_id, voter_id=to, voter_directory_id=b""
        )

    def _end(self) -> ms.EndQuorumEpochRequest:
        return ms.EndQuorumEpochRequest(
            cluster_id="",
            epoch=self.epoch,
            leader_id=self.node_id,
            preferred_candidates=tuple(PreferredCandidate(each, b"") for each in self.successors),
        )

    def _fetch(self) -> ms.FetchRequest:
        return ms.FetchRequest(
            cluster_id="",
            replica_id=self.node_id,
            replica_directory_id=b"",
            epoch=self.epoch,
            fetch_offset=self.disk.end,
            last_fetched_epoch=self.end.epoch,
            high_watermark=ms.UNSTATED,
            max_wait_ms=MAX_WAIT_MS,
            max_bytes=8 << 20,
        )

    def _fetch_snapshot(self) -> ms.FetchSnapshotRequest:
        assert self.snapshot is not None
        partial = self.disk.partial
        return ms.FetchSnapshotRequest(
            cluster_id="",
            replica_id=self.node_id,
            replica_directory_id=b"",
            epoch=self.epoch,
            snapshot=self.snapshot,
            position=len(partial[1]) if partial is not None and partial[0] == self.snapshot else 0,
            max_bytes=2**31 - 1,
        )

    # ---- what it is asked ------------------------------------------------------------------------

    def on_request(self, source: int, correlation_id: int, request: Any, now: int) -> None:
        self.now = now
        match request:
            case ms.VoteRequest():
                found: Any = self._on_vote(request)
            case ms.BeginQuorumEpochRequest():
                found = self._on_begin(request)
            case ms.EndQuorumEpochRequest():
                found = self._on_end(request)
            case ms.FetchRequest():
                found = self._on_fetch(source, correlation_id, request)
            case ms.FetchSnapshotRequest():
                found = self._on_fetch_snapshot(request)
            case _:
                raise AssertionError(f"Kafka 3.7 has no {type(request).__name__}")
        if found is not None:
            self.answers.append((source, correlation_id, found))
        self._send_all()

    def _refusal(self, node_id: int, epoch: int) -> RaftError:
        if epoch < self.epoch:
            return RaftError.FENCED_LEADER_EPOCH
        return RaftError.NONE if node_id in self.voters else RaftError.INCONSISTENT_VOTER_SET

    def _on_vote(self, request: ms.VoteRequest) -> ms.VoteResponse:
        error, granted, candidate = self._refusal(request.candidate_id, request.epoch), False, request
        if request.last_position.epoch >= request.epoch:
            error = RaftError.INVALID_REQUEST
        if error is RaftError.NONE:
            if candidate.epoch > self.epoch:
                self._unattached(candidate.epoch)
            if self.role == UNATTACHED and candidate.last_position >= self.end:
                granted, self.voted_id = True, candidate.candidate_id
                self._write()
                self._enter(VOTED, self._drawn(ELECTION_TIMEOUT_MS))
            elif self.role == VOTED:
                granted = self.voted_id == candidate.candidate_id
        return ms.VoteResponse(
            error=error, epoch=self.epoch, leader_id=self.leader_id, vote_granted=granted, pre_vote=False
        )

    def _on_begin(self, request: ms.BeginQuorumEpochRequest) -> ms.BeginQuorumEpochResponse:
        error = self._refusal(request.leader_id, request.epoch)
        if error is RaftError.NONE:
            self._learn(request.leader_id, request.epoch)
        return ms.BeginQuorumEpochResponse(error=error, epoch=self.epoch, leader_id=self.leader_id)

    def _on_end(self, request: ms.EndQuorumEpochRequest) -> ms.EndQuorumEpochResponse:
        error = self._refusal(request.leader_id, request.epoch)
        if error is RaftError.NONE:
            self._learn(request.leader_id, request.epoch)
            if self.role == FOLLOWER and self.leader_id == request.leader_id:
                self.deadline = self.now + self._patience(request)
        return ms.EndQuorumEpochResponse(error=error, epoch=self.epoch, leader_id=self.leader_id)

    def _patience(self, request: ms.EndQuorumEpochRequest) -> int:
        """How long it waits for those that shall stand before it."""
        named = [each.node_id for each in request.preferred_candidates]
        place = named.index(self.node_id) if self.node_id in named else 0
        return backoff(place, len(named))

    def _not_leading(self, epoch: int) -> RaftError:
        if epoch < self.epoch:
            return RaftError.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return RaftError.UNKNOWN_LEADER_EPOCH
        return RaftError.NONE if self.role == LEADER else RaftError.NOT_LEADER_OR_FOLLOWER

    def _on_fetch(self, source: int, correlation_id: int, request: ms.FetchRequest) -> Any:
        error = self._not_leading(request.epoch)
        if error is not RaftError.NONE:
            return ms.FetchResponse(error=error, epoch=self.epoch, leader_id=self.leader_id)
        found = self._fetched(request)
        is_news = found.records or found.diverging is not None or found.snapshot is not None
        if is_news or request.max_wait_ms == 0:
            return found
        until = self.now + request.max_wait_ms
        self.parked.append(Parked(source, correlation_id, request, until, found))
        return None

    def _fetched(self, request: ms.FetchRequest) -> ms.FetchResponse:
        offset, epoch = request.fetch_offset, request.last_fetched_epoch
        snapshots = sorted(self.disk.snapshots, key=lambda each: each.offset)
        diverging, snapshot, records = None, None, b""
        first = snapshots[0] if snapshots else None
        if offset == 0 and snapshots:
            snapshot = snapshots[-1]
        elif self.disk.start == 0 and offset == 0:
            records = self.disk.read(0, self.disk.end, 8 << 20)
        elif first is not None and (
            offset < self.disk.start
            or (offset == self.disk.start and epoch != first.epoch)
            or epoch < first.epoch
        ):
            snapshot = snapshots[-1]
        else:
            ends = self._end_of(epoch)
            if ends.epoch != epoch or ends.offset < offset:
                diverging = ends
            else:
                records = self.disk.read(offset, self.disk.end, 8 << 20)
        if diverging is None and snapshot is None:
            self._acknowledge(request)
        return ms.FetchResponse(
            error=RaftError.NONE,
            epoch=self.epoch,
            leader_id=self.node_id,
            high_watermark=self.high_watermark,
            log_start_offset=self.disk.start,
            diverging=diverging,
            snapshot=snapshot,
            records=records,
        )

    def _acknowledge(self, request: ms.FetchRequest) -> None:
        """The log of whoever fetches agrees with this one up to there."""
        if request.replica_id not in self.ends:
            return
        before = self.ends[request.replica_id]
        self.ends[request.replica_id] = request.fetch_offset
        self.acknowledged.add(request.replica_id)
        self._heard_from(request)
        if before is None or request.fetch_offset > before:
            self._advance()

    def _on_fetch_snapshot(self, request: ms.FetchSnapshotRequest) -> ms.FetchSnapshotResponse:
        error, data = self._not_leading(request.epoch), b""
        whole = self.disk.snapshots.get(request.snapshot)
        if error is RaftError.NONE and whole is None:
            error = RaftError.SNAPSHOT_NOT_FOUND
        elif error is RaftError.NONE and not 0 <= request.position < len(whole or b""):
            error = RaftError.POSITION_OUT_OF_RANGE
        if error is RaftError.NONE and whole is not None:
            data = whole[request.position : request.position + request.max_bytes]
            self._heard_from(request)
        return ms.FetchSnapshotResponse(
            error=error,
            epoch=self.epoch,
            leader_id=self.leader_id,
            snapshot=request.snapshot,
            size_bytes=len(whole or b""),
            position=request.position,
            data=data,
        )

    def _wake(self) -> None:
        """Records wake fetches that wait; a higher high watermark does not."""
        for each in list(self.parked):
            if each.request.fetch_offset < self.disk.end:
                self.parked.remove(each)
                error = self._not_leading(each.request.epoch)
                found = self._fetched(each.request)
                if error is not RaftError.NONE:  # it was parked in an earlier epoch that this node led
                    found = ms.FetchResponse(error=error, epoch=self.epoch, leader_id=self.leader_id)
                self.answers.append((each.source, each.correlation_id, found))

    # ---- answers ---------------------------------------------------------------------------------

    def on_response(self, source: int, correlation_id: int, response: Any, now: int) -> None:
        self.now = now
        asked = self.asked.get(source)
        if asked is None or asked.correlation_id != correlation_id:
            return
        del self.asked[source]
        self._judge(source, asked.request, response)
        self._send_all()

    def _judge(self, source: int, request: Any, response: Any) -> None:
        error = response.error
        if response.epoch < self.epoch or error is RaftError.UNKNOWN_LEADER_EPOCH:
            self.retry_at[source] = self.now + PACE_MS
            return
        stale = error in (RaftError.FENCED_LEADER_EPOCH, RaftError.NOT_LEADER_OR_FOLLOWER)
        if response.epoch > self.epoch or stale:
            self._learn(response.leader_id, response.epoch)
            self.retry_at[source] = self.now + PACE_MS
            return
        if response.leader_id is not None and self.leader_id is None:
            self._follow(response.epoch, response.leader_id)
            if error is not RaftError.NONE:
                return
        if error is RaftError.INVALID_REQUEST:
            raise KafkaStops(f"node {source} answered {type(request).__name__} with INVALID_REQUEST")
        if isinstance(response, ms.FetchSnapshotResponse):
            if error is RaftError.SNAPSHOT_NOT_FOUND or response.snapshot is None:
                self.snapshot, self.disk.partial = None, None
                self.deadline = self.now + FETCH_TIMEOUT_MS
                return
        elif error is not RaftError.NONE:
            self.retry_at[source] = self.now + RETRY_MS
            return
        match response:
            case ms.VoteResponse() if self.role == CANDIDATE:
                (self.granted if response.vote_granted else self.rejected).add(source)
                lost = 2 * len(self.rejected) >= len(self.voters)
                if lost and self.backoff_until is None:
                    self.backoff_until = self.now + self._backoff()
                self._maybe_lead()
            case ms.BeginQuorumEpochResponse() if self.role == LEADER:
                self.acknowledged.add(source)
            case ms.EndQuorumEpochResponse() if self.role == RESIGNED:
                self.acknowledged.add(source)
            case ms.FetchResponse() if self.role == FOLLOWER:
                self._take(response)
                self.deadline = self.now + FETCH_TIMEOUT_MS
            case ms.FetchSnapshotResponse() if self.role == FOLLOWER and self.snapshot is not None:
                self._take_chunk(response)
                self.deadline = self.now + FETCH_TIMEOUT_MS

    def _learn(self, leader_id: int | None, epoch: int) -> None:
        own = leader_id == self.node_id
        same = epoch == self.epoch and None not in (leader_id, self.leader_id)
        if (own and self.role != LEADER) or (not own and same and leader_id != self.leader_id):
            raise KafkaStops(
                f"node {self.node_id} knows leader {self.leader_id} of epoch {self.epoch}, and was told"
                f" {leader_id} of {epoch}"
            )
        if epoch > self.epoch:
            if leader_id is None:
                self._unattached(epoch)
            else:
                self._follow(epoch, leader_id)
        elif leader_id is not None and self.leader_id is None:
            self._follow(epoch, leader_id)

    def _take(self, response: ms.FetchResponse) -> None:
        if response.diverging is not None:
            if response.diverging.offset < self.high_watermark:
                raise KafkaStops("the leader requested a truncation below the high watermark")
            ours = self._end_of(response.diverging.epoch)
            cut = ours.offset
            if ours.epoch == response.diverging.epoch:
                cut = min(cut, response.diverging.offset)
            if cut < self.high_watermark:
                raise KafkaStops("a truncation below the high watermark")
            self._cut(cut)
            return
        if response.snapshot is not None:
            self.disk.partial = None
            if response.snapshot not in self.disk.snapshots:
                self.snapshot = response.snapshot
            return
        for batch in iter_batches(response.records):
            if batch.header.base_offset != self.disk.end:
                raise KafkaStops("records that do not continue the log")
            self.disk.append(batch.data)
        self.disk.synced = self.disk.end
        reached = min(response.high_watermark, self.disk.end)
        if -1 < reached < self.high_watermark:
            raise KafkaStops("the high watermark fell")
        self.high_watermark = max(self.high_watermark, reached)

    def _take_chunk(self, response: ms.FetchSnapshotResponse) -> None:
        assert self.snapshot is not None
        partial = self.disk.partial
        so_far = partial[1] if partial is not None and partial[0] == self.snapshot else b""
        if response.snapshot != self.snapshot or response.position != len(so_far):
            raise KafkaStops("a chunk of another snapshot or place")
        self.disk.partial = self.snapshot, so_far + response.data
        if len(so_far) + len(response.data) < response.size_bytes:
            return
        whole, self.disk.partial = self.disk.partial[1], None
        if self.snapshot <= LogPosition(self.end.epoch if self.disk.batches else 0, self.disk.end):
            raise KafkaStops(f"the snapshot {self.snapshot} does not pass the log, which ends at {self.end}")
        self.disk.snapshots.clear()
        self.disk.snapshots[self.snapshot] = whole
        self.disk.reset(self.snapshot)
        if self.snapshot.offset < self.high_watermark:
            raise KafkaStops("the high watermark fell")
        self.high_watermark = self.snapshot.offset
        self.snapshot = None

    # ---- snapshots of its own --------------------------------------------------------------------

    def write_snapshot(self, position: LogPosition, data: bytes) -> None:
        """What its controller has written of what is committed."""
        if position.offset > self.high_watermark:
            raise KafkaStops("a snapshot of what is not committed")
        self.disk.snapshots[position] = data

    def clean(self, retained_bytes: int) -> None:
        """Deletes the oldest snapshots but the newest one, and what they cover, until the rest is small
        enough."""
        disk = self.disk

        def size() -> int:
            held = sum(len(data) for _, _, _, data in disk.batches)
            return held + sum(map(len, disk.snapshots.values()))

        while len(disk.snapshots) > 1 and size() > retained_bytes:
            oldest, following = sorted(disk.snapshots, key=lambda each: each.offset)[:2]
            del disk.snapshots[oldest]
            disk.batches = [each for each in disk.batches if each[0] >= following.offset]
            disk.start = following.offset
