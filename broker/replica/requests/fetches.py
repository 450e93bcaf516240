"""Fetch requests on the leader's side: checked, parked, read, answered.

The partition decides what may be read, the session which partitions are looked at. Costs as much as what has
changed, whatever a fetch names. Followers get a batch from memory while it is written here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Container, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.disk_work import PartitionRead, ReadPartition
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionCache,
)
from metaquorum.broker.replica.fetchers import Throttle
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Changes, Reader, ReadPlan
from metaquorum.broker.replica.requests.partitioned import Find, Touched
from metaquorum.broker.replica.requests.tail import Tail
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
)
from metaquorum.raft.effects import Outbox

_MOVES_FOLLOWER = Changes.END | Changes.ROLE
_MOVES_CLIENT = Changes.HIGH_WATERMARK | Changes.ROLE
_MOVES = Changes.END | Changes.HIGH_WATERMARK | Changes.ROLE
AT_ONCE_MAX = 500
"""Partitions of one fetch that are looked at, or answered, without a pause: some milliseconds."""


class Fetches:
    """`touched` is called for each partition that was given a follower's position. `timer`: `tick` is due."""

    def __init__(
        self,
        config: ReplicaConfig,
        find: Find,
        running: Mapping[PartitionKey, Partition],
        touched: Touched,
        tail: Tail,
        next_token: Callable[[], int],
        rng: random.Random,
        out: Outbox[DataEffect],
    ) -> None:
        self._config, self._out, self._tail = config, out, tail
        self.throttle, self.room = Throttle("leader", config), ReadRoom()
        self._find, self._running, self._touched = find, running, touched
        self._next_token = next_token
        self.sessions = SessionCache(config.max_incremental_fetch_session_cache_slots, rng)
        self._watchers: dict[PartitionKey, dict[FetchSession, None]] = {}
        self._by_key: dict[object, Fetch] = {}
        self._by_session: dict[FetchSession, Fetch] = {}
        self._reads: dict[int, ReadUnderWay] = {}
        self.timer: Deadlines[Fetch] = Deadlines()
        self.woken: dict[Fetch, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    # ---- requests ----------------------------------------------------------------------------

    def handle(self, key: object, request: FetchRequest, *, now_ms: int) -> None:
        if len(self._by_key) >= self._config.fetch_purgatory_max_requests and request.replica_id < 0:
            text = f"{len(self._by_key)} fetches are already waiting: try again later"
            self._refuse(key, ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text))
            return
        session = self._session(request, now_ms)
        if isinstance(session, ApiError):
            self._refuse(key, session)
            return
        fetch = Fetch(key, request, session, now_ms, max_bytes=self._config.fetch_max_bytes)
        self._by_key[key] = fetch
        self._by_session[session] = fetch
        self._look(fetch, now_ms)

    def cancel(self, key: object) -> bool:
        """The caller is gone."""
        fetch = self._by_key.get(key)
        if fetch is None:
            return False
        self._drop(fetch)
        return True

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        return self._take(list(self._by_key.values()))

    def refuse_clients(self) -> list[object]:
        """Removes and returns the waiting clients' requests (the broker is fenced, S2.22)."""
        return self._take([fetch for fetch in self._by_key.values() if not fetch.session.is_follower])

    def _take(self, waiting: list[Fetch]) -> list[object]:
        for each in waiting:
            self._drop(each)
        return [each.key for each in waiting]

    # ---- what happens meanwhile --------------------------------------------------------------

    def changed(self, key: PartitionKey, changes: int) -> None:
        """Something moved in a partition; `settle` looks at the fetches that it concerns."""
        if changes & (Changes.ROLE | Changes.STORED):
            self._tail.forget(key)
        watchers = self._watchers.get(key)
        if watchers is None or not changes & _MOVES:
            return
        if changes & Changes.END and (partition := self._running.get(key)) is not None:
            self.report_caught_up(partition)
        for session in watchers:
            moves = _MOVES_FOLLOWER if session.is_follower else _MOVES_CLIENT
            fetch = self._by_session.get(session)
            if session.mark_changed(key) and changes & moves and fetch is not None and not fetch.pending:
                self.woken[fetch] = None

    def report_caught_up(self, partition: Partition) -> None:
        """Passes on when followers that hold all of a partition last fetched, without naming it."""
        key = partition.key
        for session in self._watchers.get(key, ()):
            if session.is_follower and session.is_content(key):
                fetch = self._by_session.get(session)
                if fetch is None or key not in fetch.plans:
                    partition.was_caught_up(session.replica_id, session.used_ms)

    def partition_changed(self, key: PartitionKey) -> None:
        """A replica started, stopped or was replaced: fetches that requested it must be answered."""
        self.changed(key, Changes.ROLE)

    def settle(self, now_ms: int) -> None:
        """Looks again at fetches that were woken."""
        while self.woken:
            fetch = next(iter(self.woken))
            del self.woken[fetch]
            self._continue(fetch, now_ms)

    def tick(self, now_ms: int) -> None:
        for fetch in self.timer.take_due(now_ms):
            self._continue(fetch, now_ms)

    def _continue(self, fetch: Fetch, now_ms: int) -> None:
        if fetch.is_over or fetch.pending:
            return
        if fetch.reply is not None:
            self._answer_more(fetch, fetch.reply)
        else:
            self._look(fetch, now_ms)

    def read(self, event: PartitionRead) -> None:
        read = self._reads.pop(event.token, None)
        if read is None or read.fetch.is_over:
            return
        fetch = read.fetch
        fetch.data[read.key] = event.data
        if event.problem is not None:
            # Reported, or the reader would request the same bytes again and again.
            fetch.answers[read.key] = self._damaged(fetch, read.key, event.problem)
        fetch.pending -= 1
        if fetch.pending == 0:
            self._respond(fetch)

    def directory_failed(self, directory_id: bytes) -> None:
        """Its reads are never reported on: they returned nothing."""
        dead = [token for token, read in self._reads.items() if read.directory_id == directory_id]
        for token in dead:
            self.read(PartitionRead(token=token, data=None))

    # ---- sessions ----------------------------------------------------------------------------

    def _session(self, request: FetchRequest, now_ms: int) -> FetchSession | ApiError:
        if request.session_epoch > FIRST_EPOCH:
            existing = self.sessions.find(request)
            if isinstance(existing, ApiError):
                return existing
            self._interrupt(existing)
            existing.advance()
            existing.used_ms = now_ms
            for key in request.forgotten:
                existing.forget(key)
                self._unwatch(existing, key)
            existing.resume()
            existing.name(request.partitions)
            self._watch(existing, request.partitions)
            return existing
        if request.session_id != NO_SESSION:
            self._close(self.sessions.remove(request.session_id, request.replica_id))
        session = None
        if request.session_epoch == FIRST_EPOCH:
            session, evicted = self.sessions.begin(request, now_ms)
            self._close(evicted)
        elif request.session_epoch != FINAL_EPOCH:
            text = f"{request.session_epoch} is not a valid fetch session epoch: send -1, 0, or the next one"
            return ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, text)
        if session is None:
            session = FetchSession(NO_SESSION, request.replica_id, now_ms)
        session.name(request.partitions)
        self._watch(session, request.partitions)
        return session

    def _close(self, session: FetchSession | None) -> None:
        if session is not None:
            self._interrupt(session)
            for key in session.partitions:
                self._unwatch(session, key)

    def _interrupt(self, session: FetchSession) -> None:
        """The fetcher no longer waits for its last fetch."""
        fetch = self._by_session.get(session)
        if fetch is not None:
            self._drop(fetch)
            text = "another fetch of the same session arrived: read its answer instead"
            self._refuse(fetch.key, ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, text))

    def _refuse(self, key: object, error: ApiError) -> None:
        self._out.append(DataRespond(key=key, response=error))

    def _watch(self, session: FetchSession, parts: tuple[FetchPartition, ...]) -> None:
        for part in parts:
            self._watchers.setdefault(part.key, {})[session] = None

    def _unwatch(self, session: FetchSession, key: PartitionKey) -> None:
        watchers = self._watchers.get(key)
        if watchers is not None:
            watchers.pop(session, None)
            if not watchers:
                del self._watchers[key]

    # ---- one fetch ---------------------------------------------------------------------------

    def _look(self, fetch: Fetch, now_ms: int) -> None:
        """At what is new or has changed; at AT_ONCE_MAX of it, and at the others with the next `tick`."""
        session, fetch.looked_ms, arrived = fetch.session, now_ms, fetch.arrives
        fresh, session.fresh = session.fresh, {}
        is_cut = len(fresh) > AT_ONCE_MAX
        if is_cut:
            keys = iter(fresh)
            fresh = dict.fromkeys(islice(keys, AT_ONCE_MAX))
            session.fresh = dict.fromkeys(keys)
        for key in fresh:
            unnoted = fetch.answers.pop(key, None) is not None or arrived  # it was refused, or is new
            fetch.plans.pop(key, None)
            look = self._ask(fetch, session.partitions[key], now_ms, unnoted)
            if isinstance(look, FetchedPartition):
                fetch.answers[key] = look
            elif look.from_offset >= look.to_offset:
                session.looked(key, look.head)
            elif session.is_follower and self.throttle.topics and self._is_held(session, key, now_ms):
                fetch.held.append(key)
            else:
                fetch.plans[key] = look
        if is_cut:
            self.timer.arm(fetch, now_ms)
            return
        fetch.arrives = False
        while fetch.held:
            session.put_off(fetch.held.pop())
        if not fetch.answers and now_ms < fetch.deadline_ms and not self._enough(fetch):
            self.timer.arm(fetch, fetch.deadline_ms)
            return
        if arrived:
            # `settle` answers, with whatever else arrives until then.
            self.woken[fetch] = None
            return
        self.timer.disarm(fetch)
        if fetch.plans:
            self._begin_reads(fetch)
        if not fetch.pending:
            self._respond(fetch, fetch.plans)

    def _enough(self, fetch: Fetch) -> bool:
        if fetch.min_bytes <= 1:
            return bool(fetch.plans) or fetch.min_bytes <= 0
        return sum(self._estimate(plan) for plan in fetch.plans.values()) >= fetch.min_bytes

    def _ask(
        self, fetch: Fetch, part: FetchPartition, now_ms: int, arrived: bool
    ) -> FetchedPartition | ReadPlan:
        partition = self._running.get(part.key) or self._find(part.key)
        if not isinstance(partition, Partition):
            return partition.as_fetched(part.key)
        if arrived:
            planned = partition.fetch(part, fetch.reader, now_ms=now_ms)
            self._touched(partition)
            fetch.session.fresh.pop(part.key, None)  # what it moved itself is in `found`
        else:
            planned = partition.plan_read(part, fetch.reader)
        if not fetch.session.is_follower or isinstance(planned, FetchedPartition):
            return planned
        is_near = self._tail.holds(planned.key, planned.from_offset)
        return replace(planned, to_offset=partition.end_offset) if is_near else planned

    def _is_held(self, session: FetchSession, key: PartitionKey, now_ms: int) -> bool:
        """The follower waits as if there were nothing to read (KIP-73)."""
        partition = self._running.get(key)
        return partition is not None and self.throttle.holds(partition, session.replica_id, now_ms)

    def _estimate(self, plan: ReadPlan) -> int:
        partition = self._running.get(plan.key)
        return 0 if partition is None else partition.about_bytes(plan)

    def _begin_reads(self, fetch: Fetch) -> None:
        most = self.room.most(fetch)
        room = fetch.max_bytes = min(fetch.max_bytes, most)
        for key, plan in list(fetch.plans.items()):
            partition = self._running.get(key)
            if partition is None:
                continue
            if room <= 0 and (most <= 0 or fetch.pending or fetch.data):
                del fetch.plans[key]
                fetch.session.put_off(key)
                continue
            near = self._tail.read(key, plan.from_offset, plan.to_offset, min(plan.max_bytes, max(room, 1)))
            if near is not None:
                fetch.data[key] = near
                room -= len(near)
                continue
            token = self._next_token()
            self._reads[token] = ReadUnderWay(fetch, key, partition.directory_id)
            fetch.pending += 1
            self._out.append(
                ReadPartition(
                    token=token,
                    directory_id=partition.directory_id,
                    key=key,
                    incarnation=partition.incarnation,
                    from_offset=plan.from_offset,
                    to_offset=plan.to_offset,
                    max_bytes=min(plan.max_bytes, max(room, 1)),
                )
            )
            room -= partition.about_bytes(plan)
        self.room.begins(fetch, fetch.max_bytes - room)

    # ---- the answer --------------------------------------------------------------------------

    def _respond(self, fetch: Fetch, fresh: Container[PartitionKey] = ()) -> None:
        """`fresh`: the findings on these are current."""
        session = fetch.session
        keys = session.partitions if fetch.whole else fetch.answers | fetch.plans | session.late
        fetch.reply = AnswerInParts(list(keys), fresh)
        self._answer_more(fetch, fetch.reply)

    def _answer_more(self, fetch: Fetch, reply: AnswerInParts) -> None:
        """The next AT_ONCE_MAX partitions of the answer; the others with the next `tick`."""
        session = fetch.session
        for key in islice(reply.keys, reply.done, reply.done + AT_ONCE_MAX):
            data = fetch.data.get(key) or b""
            if reply.bytes and reply.bytes + len(data) > fetch.max_bytes:
                data = b""
            part = self._part(fetch, key, data, is_fresh=key in reply.fresh)
            reply.bytes += len(part.records)
            speaks = bool(part.records or part.error or part.diverging or part.is_elsewhere)
            head = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
            if fetch.whole or speaks or session.last_answered.get(key) != head:
                reply.answered.append(part)
            session.answered(key, head, pause=speaks)
            if not speaks and key in fetch.plans:
                reply.without_room.append(key)
        reply.done, reply.fresh = reply.done + AT_ONCE_MAX, ()
        if reply.done < len(reply.keys):
            self.timer.arm(fetch, fetch.looked_ms)
            return
        self._close_fetch(fetch)
        session.go_first(reply.without_room)
        response = FetchResponse(session_id=session.session_id, partitions=tuple(reply.answered))
        self._out.append(DataRespond(key=fetch.key, response=response))

    def _part(self, fetch: Fetch, key: PartitionKey, data: bytes, *, is_fresh: bool) -> FetchedPartition:
        """One partition in its current state; the data counts only if it is still led in that epoch."""
        known = fetch.answers.get(key)
        if known is not None:
            return known
        partition, asked = self._running.get(key) or self._find(key), fetch.session.partitions[key]
        if not isinstance(partition, Partition):
            return partition.as_fetched(key)
        plan = fetch.plans.get(key)
        now = plan if is_fresh and plan is not None else partition.plan_read(asked, fetch.reader)
        if isinstance(now, FetchedPartition):
            return now
        if plan is None or plan.leader_epoch != now.leader_epoch:
            data = b""
        aborted = partition.aborted_in(asked.fetch_offset, data) if fetch.reader.read_committed else None
        if fetch.session.is_follower and self.throttle.topics:
            self.throttle.count(partition, len(data), fetch.looked_ms)
        return now.answer(data, aborted)

    def _damaged(self, fetch: Fetch, key: PartitionKey, problem: str) -> FetchedPartition:
        """If it is still read here: a log that is being cut or removed may look damaged, too."""
        now = self._part(fetch, key, b"", is_fresh=False)
        if now.error is not ErrorCode.NONE:
            return now
        text = f"the requested data is damaged: {problem}; elect another leader, then repair the directory"
        return FetchedPartition(key=key, error=ErrorCode.KAFKA_STORAGE_ERROR, message=text)

    def _close_fetch(self, fetch: Fetch) -> None:
        fetch.is_over = True
        self.room.ended(fetch)
        self._by_key.pop(fetch.key, None)
        self._by_session.pop(fetch.session, None)
        self.woken.pop(fetch, None)
        self.timer.disarm(fetch)
        if fetch.session.session_id == NO_SESSION:
            for key in fetch.session.partitions:
                self._unwatch(fetch.session, key)

    def _drop(self, fetch: Fetch) -> None:
        """Sends no answer: the session's next fetch looks again at what was found."""
        self._close_fetch(fetch)
        session = fetch.session
        found = [*fetch.answers, *fetch.plans, *fetch.held, *(fetch.reply.keys if fetch.reply else ())]
        session.fresh |= {key: None for key in found if key in session.partitions}


# One fetch request in progress: what it requests, what was found yet, and until when it may wait.


class ReadRoom:
    """What may be read for clients. `left`: what their answers that have not been sent leave of it."""

    def __init__(self) -> None:
        self.left: Callable[[], int] = lambda: sys.maxsize
        self._reading_bytes = 0

    def most(self, fetch: Fetch) -> int:
        """How much may be read for a fetch now. Followers' are not bounded."""
        return sys.maxsize if fetch.session.is_follower else self.left() - self._reading_bytes

    def begins(self, fetch: Fetch, size: int) -> None:
        """About `size` bytes are read for it."""
        fetch.reading_bytes = size
        self._reading_bytes += size

    def ended(self, fetch: Fetch) -> None:
        """It is answered, or given up."""
        self._reading_bytes -= fetch.reading_bytes
        fetch.reading_bytes = 0


class ReadUnderWay(NamedTuple):
    """What a log is read for."""

    fetch: Fetch
    key: PartitionKey
    directory_id: bytes


class AnswerInParts:
    """The answer that a fetch is given in parts: of `keys`, the first `done` are in it. `fresh`: the findings
    on these are current."""

    __slots__ = ("answered", "bytes", "done", "fresh", "keys", "without_room")

    def __init__(self, keys: list[PartitionKey], fresh: Container[PartitionKey]) -> None:
        self.keys, self.fresh = keys, fresh
        self.answered: list[FetchedPartition] = []
        self.without_room: list[PartitionKey] = []
        self.done = self.bytes = 0


class Fetch:
    """One request in progress: parked while `reads` is empty. `arrives`: not all that it names was looked at.
    `plans`: what to read; `answers`: parts that need no read; `held`: parts for which a follower must wait
    (KIP-73). `whole`: every partition of the request is answered."""

    __slots__ = (
        "answers",
        "arrives",
        "data",
        "deadline_ms",
        "held",
        "is_over",
        "key",
        "looked_ms",
        "max_bytes",
        "min_bytes",
        "pending",
        "plans",
        "reader",
        "reading_bytes",
        "reply",
        "session",
        "whole",
    )

    def __init__(
        self,
        key: object,
        request: FetchRequest,
        session: FetchSession,
        now_ms: int,
        *,
        max_bytes: int,
    ) -> None:
        self.key = key
        self.looked_ms = now_ms
        self.session = session
        self.whole = request.session_epoch <= FIRST_EPOCH
        self.reader = Reader(
            replica_id=session.replica_id,
            replica_epoch=request.replica_epoch,
            read_committed=request.read_committed,
            rack=request.rack,
        )
        self.min_bytes = request.min_bytes
        self.max_bytes = min(request.max_bytes, max_bytes)
        self.deadline_ms = now_ms + max(0, request.max_wait_ms)
        self.answers: dict[PartitionKey, FetchedPartition] = {}
        self.plans: dict[PartitionKey, ReadPlan] = {}
        self.data: dict[PartitionKey, bytes | None] = {}
        self.pending = self.reading_bytes = 0
        self.held: list[PartitionKey] = []
        self.is_over, self.arrives = False, True
        self.reply: AnswerInParts | None = None
