"""Reads the log of a running quorum as a reader that no voter counts (KIP-595, KIP-630): which node is asked
what, and what is kept of its answers.

A state machine without sockets or clocks: `LogObserver.run` yields what to do next and is sent the time and
the result. Only committed records reach the spool. Kafka's leader also hands out records above its high
watermark: these wait in memory, and are dropped if the log that grows is another one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from metaquorum.clients.search import Address, ClientError
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.backoff import Backoff, BackoffPolicy
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
)
from metaquorum.storage.batches.format import hop_headers, is_cut_off, walk_batches
from metaquorum.storage.files.snapshots import SnapshotChunk
from metaquorum.storage.types import LogPosition

READER_ID = -1
"""The replica id of a consumer, which is not a replica: leaders remember nothing about it."""
FETCH_BYTES = 4 * 1024 * 1024
"""The most bytes of one response; a single larger batch arrives whole, and Kafka sends up to 8 MiB."""
UNCOMMITTED_MAX_BYTES = 16 * 1024 * 1024
"""The most bytes of records above the high watermark that wait in memory."""
WAIT_MS = 500
"""How long a leader may hold a fetch until there are records."""
UNCOMMITTED_WAIT_MS = 20
"""The same while records wait to be committed: before 4.1 (KIP-1166), Kafka's leader answers a held fetch
early for new records only, not for a higher high watermark."""
PAUSE_MS = 100
"""The pause after an answer without records that was not held."""
SNAPSHOT_TRIES_MAX = 20
"""How often the beginning is tried again while snapshots vanish or the leader changes."""
EPOCHS_TRIED_MAX = 16
"""The most epochs that are tried for the snapshot at the log's start: no answer names it."""
RATE_MIN_BYTES = 64 * 1024
"""The least that is requested at once with a rate."""

_RETRY = BackoffPolicy(initial_ms=50, max_ms=2_000)
_ELSEWHERE = frozenset(
    {
        RaftError.NOT_LEADER_OR_FOLLOWER,
        RaftError.REQUEST_TIMED_OUT,
        RaftError.BROKER_NOT_AVAILABLE,
        RaftError.FENCED_LEADER_EPOCH,
        RaftError.UNKNOWN_LEADER_EPOCH,
    }
)
"""The node asked does not lead in that epoch."""


class LiveLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied: committed records from `start_offset` up to `end_offset`.

    `snapshot` is the newest snapshot that was copied too; None if the leader has the log from its beginning.
    `cluster_id` is None if no node names it (Apache Kafka before 3.7).
    """

    cluster_id: str | None
    leader_id: int
    epoch: int
    address: Address
    start_offset: int
    end_offset: int
    snapshot: LogPosition | None = None
    last_epoch: int = 0
    """The leader epoch of the last record that was copied."""


class QuorumNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of its quorum. `controllers`: their addresses, as far as it names them.
    `is_controller`: it answers fetches of the metadata log, or names the leader. `hint`: what a person can do
    if it names no controller."""

    controllers: Mapping[int, Address]
    is_controller: bool
    cluster_id: str | None = None
    leader_id: int | None = None
    epoch: int = 0
    hint: str = ""


class NothingHeard(msgspec.Struct, frozen=True, kw_only=True):
    """There is no answer. `lasts`: another attempt at this node fails, too. `is_refusal`: the cluster does
    not let this reader in. `is_silent` False: the node answers, but does not lead."""

    text: str
    lasts: bool = False
    is_refusal: bool = False
    is_silent: bool = True


class LocateQuorum(msgspec.Struct, frozen=True):
    """AskNode a node for its quorum; the result is a QuorumNodes or NothingHeard."""

    address: Address


class AskNode(msgspec.Struct, frozen=True):
    """Send a request; the result is the response to it, or NothingHeard."""

    address: Address
    request: FetchRequest | FetchSnapshotRequest


class PauseFor(msgspec.Struct, frozen=True):
    """Wait; there is no result."""

    wait_ms: int


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The spool holds more than before, or all that is known to be committed; there is no result."""

    end_offset: int
    target_offset: int

    @property
    def is_complete(self) -> bool:
        return self.end_offset >= self.target_offset


class CopyTrouble(msgspec.Struct, frozen=True):
    """The cluster has not answered for a while, after it did; attempts continue. There is no result."""

    text: str


class CopyResumed(msgspec.Struct, frozen=True):
    """The cluster answers again after CopyTrouble. There is no result."""

    text: str


Step: TypeAlias = LocateQuorum | AskNode | PauseFor | CopyProgress | CopyTrouble | CopyResumed
Reply: TypeAlias = "tuple[int, Any]"
"""The monotonic time in ms, and the result of the step."""
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Reply, T]


class Spool(Protocol):
    """Where the log goes. May raise ClientError or StorageError, which end the run."""

    def begin(self, offset: int) -> None:
        """The next records begin at `offset`, which may be beyond those before."""

    def append(self, records: bytes) -> None:
        """Whole committed batches, which follow those before."""

    def begin_snapshot(self, position: LogPosition) -> None:
        """A snapshot begins; an unfinished one is dropped."""

    def receive(self, chunk: SnapshotChunk) -> None:
        """The next bytes of the snapshot."""

    def drop_snapshot(self) -> None:
        """The rest of the snapshot does not come."""

    def nothing_below(self, position: LogPosition) -> None:
        """There is no metadata before `position`."""


class LogObserver:
    """Reads from the oldest record that the leader has, with the snapshots that belong there, or after
    `copied`. `reader` is a random id; `rate` bounds the bytes per second. A node has `timeout_ms` to answer;
    if none does for as long, the run ends with ClientError, or with `follows`, once it was complete, yields
    CopyTrouble and goes on.

    ClientError, in one line, also if the cluster refuses this reader, another cluster answers, or the
    leader's log is damaged or lacks committed records.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        spool: Spool,
        *,
        reader: bytes,
        rng: random.Random,
        timeout_ms: int,
        copied: LiveLog | None = None,
        rate: int | None = None,
        follows: bool = False,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._spool = spool
        self._reader = reader
        self._timeout_ms = timeout_ms
        self._rate = rate
        self._follows = follows
        self._backoff = Backoff(_RETRY, rng)
        self._now_ms = 0
        self._next_ask_ms = 0
        self._answered_ms: int | None = None
        self._failures = 0
        self._is_lost = False
        self._useless: dict[Address, str] = {}
        self._controllers: dict[int, Address] = {}
        self._direct: dict[Address, None] = {}
        self._address = self._bootstrap[0]
        self._cluster_id = None if copied is None else copied.cluster_id
        self._leader_id: int | None = None
        self._epoch = 0
        self._start_offset = 0 if copied is None else copied.start_offset
        self._end = LogPosition(0, 0) if copied is None else LogPosition(copied.last_epoch, copied.end_offset)
        self._snapshot = None if copied is None else copied.snapshot
        self._has_begun = copied is not None
        self._uncommitted: deque[tuple[LogPosition, bytes]] = deque()
        self._uncommitted_bytes = 0
        self._target: int | None = None

    @property
    def log(self) -> LiveLog:
        """What the spool holds."""
        return LiveLog(
            cluster_id=self._cluster_id,
            leader_id=-1 if self._leader_id is None else self._leader_id,
            epoch=self._epoch,
            address=self._address,
            start_offset=self._start_offset,
            end_offset=self._end.offset,
            snapshot=self._snapshot,
            last_epoch=self._end.epoch,
        )

    def run(self) -> Steps[None]:
        """Never ends by itself; the caller closes it, once the progress is complete, or to stop following."""
        yield from self._do(PauseFor(0))
        self._answered_ms = self._now_ms
        yield from self._locate()
        wait_ms = 0
        snapshots = 0
        while True:
            asked_ms = self._now_ms
            answer = yield from self._fetch(self._next, wait_ms)
            if answer.snapshot is not None:
                snapshots += 1
                if snapshots > SNAPSHOT_TRIES_MAX:
                    raise ClientError(
                        f"{self._who()}: its snapshots could not be read in {SNAPSHOT_TRIES_MAX} attempts;"
                        " try again later"
                    )
                before = self._next
                if not (yield from self._begin(answer.snapshot, answer.log_start_offset)):
                    yield from self._do(PauseFor(self._backoff.failed(self._now_ms)))
                snapshots = snapshots if self._next == before else 0
                continue
            if answer.diverging is not None:
                self._drop_uncommitted(answer.diverging)
                continue
            before, held_ms = self._end, self._now_ms - asked_ms
            if not self._has_begun:
                self._begin_at(0)
            self._take(answer.records)
            self._commit(answer.high_watermark)
            has_grown = self._end != before
            snapshots = 0 if has_grown else snapshots
            is_new = self._target is None and answer.high_watermark >= 0
            if is_new or (has_grown and self._target is not None):
                self._target = max(self._target or answer.high_watermark, self._end.offset)
                yield from self._do(CopyProgress(end_offset=self._end.offset, target_offset=self._target))
            is_early = held_ms < max(1, wait_ms // 2)
            if is_early and not (has_grown or is_new or (answer.records and self._uncommitted)):
                yield from self._do(PauseFor(PAUSE_MS))
            wait_ms = self._wait_ms()

    def _wait_ms(self) -> int:
        """How long the leader may hold the next fetch."""
        if self._target is None or self._end.offset < self._target:
            return 0
        return UNCOMMITTED_WAIT_MS if self._uncommitted else WAIT_MS

    # --- which node

    def _locate(self) -> Steps[None]:
        """Learns from a node of the bootstrap list who the controllers are."""
        tried = 0
        while True:
            usable = [each for each in self._bootstrap if each not in self._useless] or self._bootstrap
            address = usable[tried % len(usable)]
            tried += 1
            located = yield from self._do(LocateQuorum(address))
            if isinstance(located, NothingHeard):
                yield from self._failed(address, located, self._bootstrap)
                continue
            if located.cluster_id is not None:
                self._check_cluster(located.cluster_id)
            self._controllers.update(located.controllers)
            if located.is_controller:
                self._direct[address] = None
            if not self._candidates():
                yield from self._failed(address, NothingHeard(text=located.hint, lasts=True), self._bootstrap)
                continue
            if located.epoch > self._epoch:
                self._epoch, self._leader_id = located.epoch, located.leader_id
            leader = None if self._leader_id is None else self._controllers.get(self._leader_id)
            self._address = leader or (address if located.is_controller else self._candidates()[0])
            return

    def _check_cluster(self, cluster_id: str) -> None:
        if self._cluster_id not in (None, cluster_id):
            raise ClientError(f"cluster {cluster_id} now answers, but the log belongs to {self._cluster_id}")
        self._cluster_id = cluster_id

    def _candidates(self) -> list[Address]:
        """The addresses that may answer a fetch."""
        return list(dict.fromkeys((*self._controllers.values(), *self._direct)))

    def _redirected(self, answer: FetchResponse | FetchSnapshotResponse) -> Steps[None]:
        """The node asked does not lead: the leader that it names is next, else another controller."""
        asked = self._address
        before = asked, self._epoch
        if answer.epoch >= self._epoch:
            self._epoch = answer.epoch
            self._leader_id = self._leader_id if answer.leader_id is None else answer.leader_id
            for each in answer.leader_endpoints[:1]:
                if answer.leader_id is not None:
                    self._controllers[answer.leader_id] = (each.host, each.port)
        named = answer.leader_id if answer.epoch >= self._epoch else None
        leader = None if named is None else self._controllers.get(named)
        if leader is not None:
            self._address = leader
        if (self._address, self._epoch) != before and self._failures < len(self._candidates()):
            self._failures += 1
            return
        text = f"it does not lead ({answer.error.name})"
        is_unknown = named is not None and leader is None
        if is_unknown:
            text = f"controller {named} leads, and no answer names its address: give it, too"
        failure = NothingHeard(text=text, lasts=is_unknown, is_silent=False)
        # Kafka's controllers name their addresses to principals with Alter on the cluster only.
        given = self._bootstrap if is_unknown else ()
        yield from self._failed(asked, failure, list(dict.fromkeys((*self._candidates(), *given))))
        if any(each not in self._useless for each in given):
            yield from self._locate()
        if leader is not None and leader != asked:
            self._address = leader

    def _failed(self, address: Address, failure: NothingHeard, candidates: Sequence[Address]) -> Steps[None]:
        """Notes a failure and waits. The same node has another chance if its connection failed, else the next
        of the candidates is next."""
        text = f"{address_text(*address)}: {failure.text}"
        if failure.is_refusal:
            raise ClientError(text)
        if failure.lasts:
            self._useless[address] = text
        keeps_following = self._follows and self._target is not None
        if all(each in self._useless for each in candidates):
            if not keeps_following:
                raise ClientError(text)
            self._useless.clear()
        self._failures += 1
        silent_ms = self._now_ms - (self._answered_ms or 0)
        if silent_ms >= self._timeout_ms:
            if not keeps_following:
                raise ClientError(self._nobody(text))
            if not self._is_lost:
                self._is_lost = True
                yield from self._do(CopyTrouble(self._nobody(text) + "; still trying"))
        # The last attempt begins within the time that all of them have.
        left_ms = max(0, self._timeout_ms - silent_ms) or self._timeout_ms
        yield from self._do(PauseFor(min(self._backoff.failed(self._now_ms), left_ms)))
        if address in candidates and (self._failures % 2 == 0 or failure.lasts or not failure.is_silent):
            self._address = candidates[(candidates.index(address) + 1) % len(candidates)]

    def _nobody(self, text: str) -> str:
        addresses = ", ".join(address_text(*each) for each in self._bootstrap)
        return (
            f"no node at {addresses} answered within {self._timeout_ms} ms (last: {text}); check that the "
            "cluster runs and that the addresses are right"
        )

    def _who(self) -> str:
        name = "the leader" if self._leader_id is None else f"controller {self._leader_id}"
        return f"{name} at {address_text(*self._address)}"

    # --- requests

    def _do(self, step: Step) -> Steps[Any]:
        self._now_ms, result = yield step
        return result

    def _ask(self, request: Callable[[int], FetchRequest | FetchSnapshotRequest]) -> Steps[Any]:
        """The leader's answer to the request that `request` returns for an epoch, which may be an error that
        is not about leadership."""
        while True:
            if self._next_ask_ms > self._now_ms:
                yield from self._do(PauseFor(self._next_ask_ms - self._now_ms))
            answer = yield from self._do(AskNode(self._address, request(self._epoch)))
            if isinstance(answer, NothingHeard):
                yield from self._failed(self._address, answer, self._candidates())
                if self._failures >= 2 * len(self._candidates()):
                    self._failures = 0
                    yield from self._locate()
            elif answer.error in _ELSEWHERE:
                yield from self._redirected(answer)
            else:
                self._answered_ms, self._failures = self._now_ms, 0
                self._useless.clear()
                self._backoff.succeeded()
                if self._leader_id is None:
                    self._leader_id = answer.leader_id
                if self._is_lost:
                    self._is_lost = False
                    yield from self._do(CopyResumed(f"{self._who()} answers again"))
                return answer

    def _fetch(self, position: LogPosition, wait_ms: int = 0) -> Steps[FetchResponse]:
        """The answer to a reader whose log ends at `position`."""

        def request(epoch: int) -> FetchRequest:
            return FetchRequest(
                cluster_id=self._cluster_id or "",
                replica_id=READER_ID,
                replica_directory_id=self._reader,
                epoch=epoch,
                fetch_offset=position.offset,
                # A node that lags, or that was not asked yet, refuses the fetch by its epoch.
                last_fetched_epoch=min(position.epoch, epoch),
                high_watermark=self._end.offset if self._has_begun else -1,
                max_wait_ms=wait_ms,
                max_bytes=self._max_bytes(),
            )

        answer = yield from self._ask(request)
        if not isinstance(answer, FetchResponse):
            raise ClientError(f"{self._who()} answered a fetch with {type(answer).__name__}")
        if answer.error is RaftError.INCONSISTENT_CLUSTER_ID:
            raise ClientError(f"{self._who()} belongs to another cluster than {self._cluster_id}")
        if answer.error is not RaftError.NONE:
            raise ClientError(f"{self._who()} refused a fetch from {position}: {answer.error.name}")
        self._spent(len(answer.records))
        return answer

    def _max_bytes(self) -> int:
        return FETCH_BYTES if self._rate is None else max(RATE_MIN_BYTES, min(FETCH_BYTES, self._rate))

    def _spent(self, size_bytes: int) -> None:
        if self._rate is not None:
            started_ms = max(self._now_ms, self._next_ask_ms)
            self._next_ask_ms = started_ms + 1000 * size_bytes // self._rate

    # --- the beginning of the log

    def _begin(self, newest: LogPosition, start_offset: int) -> Steps[bool]:
        """The leader refers to its newest snapshot: reads it, and from the oldest record that the leader has
        on, with the snapshot that ends there. False if the snapshot is gone."""
        self._clear_uncommitted()
        if self._has_begun and start_offset <= self._end.offset:
            # Kafka does so, too, if the reader's epoch is below that of its oldest snapshot.
            following = yield from self._records_from(LogPosition(self._epoch, self._end.offset))
            if following is not None:
                self._take(following.records)
                self._commit(following.high_watermark)
                return True
        if self._has_begun and newest.offset < self._end.offset:
            raise self._lacks(newest.offset)
        if not (yield from self._copied(newest)):
            return False
        self._snapshot = newest
        first: FetchResponse | None = None
        if start_offset < newest.offset:
            first = yield from self._oldest(start_offset)
        if first is None:
            self._begin_at(newest.offset, newest.epoch)
            return True
        ((_, base, _, epoch), *_) = hop_headers(first.records)
        if self._has_begun and base < self._end.offset:
            raise self._lacks(base)
        self._begin_at(base, epoch)
        if base == 1:
            # Kafka gives no reader the record at offset 0 once it has a snapshot. It is the first leader's
            # LeaderChange (KIP-595), which holds no metadata.
            self._spool.nothing_below(LogPosition(epoch, 1))
        self._take(first.records)
        self._commit(first.high_watermark)
        return True

    def _oldest(self, start_offset: int) -> Steps[FetchResponse | None]:
        """The leader's oldest records; None if it does not give them. Copies the snapshot at the log's start.

        A reader without a log cannot diverge, so any epoch that the leader knows is right, but at the log's
        start: there Kafka wants the epoch of the snapshot that ends there."""
        oldest = yield from self._records_from(LogPosition(self._epoch, start_offset))
        if oldest is None:
            oldest = yield from self._records_from(LogPosition(self._epoch, start_offset + 1))
        if oldest is None or start_offset == 0:
            return oldest
        last = hop_headers(oldest.records)[0][3]
        for epoch in range(last, max(-1, last - EPOCHS_TRIED_MAX), -1):
            position = LogPosition(epoch, start_offset)
            records = yield from self._records_from(position)
            if records is not None and (yield from self._copied(position)):
                return records
        return oldest

    def _records_from(self, position: LogPosition) -> Steps[FetchResponse | None]:
        answer = yield from self._fetch(position)
        is_other = answer.snapshot is not None or answer.diverging is not None
        return None if is_other or not hop_headers(answer.records) else answer

    def _begin_at(self, offset: int, epoch: int = 0) -> None:
        if not self._has_begun or offset != self._end.offset:
            self._spool.begin(offset)
        if not self._has_begun:
            self._start_offset = offset
        self._has_begun = True
        self._end = LogPosition(epoch, offset)

    def _copied(self, snapshot: LogPosition) -> Steps[bool]:
        """Whether a snapshot was copied. Two nodes may write the same one with its records in another order:
        if the leader changes, it is read from its beginning."""
        reading: tuple[Address, int] | None = None
        position = 0
        while True:

            def request(epoch: int, position: int = position) -> FetchSnapshotRequest:
                return FetchSnapshotRequest(
                    cluster_id=self._cluster_id or "",
                    replica_id=READER_ID,
                    replica_directory_id=self._reader,
                    epoch=epoch,
                    snapshot=snapshot,
                    position=position,
                    max_bytes=self._max_bytes(),
                )

            answer = yield from self._ask(request)
            if reading != (self._address, self._epoch):
                self._spool.begin_snapshot(snapshot)
                reading = self._address, self._epoch
                if position:
                    position = 0
                    continue
            is_it = isinstance(answer, FetchSnapshotResponse) and answer.error is RaftError.NONE
            if not is_it or (answer.snapshot, answer.position) != (snapshot, position) or not answer.data:
                self._spool.drop_snapshot()
                return False
            chunk = SnapshotChunk(
                snapshot_id=snapshot,
                position=position,
                size_bytes=answer.size_bytes,
                data=answer.data,
            )
            self._spool.receive(chunk)
            self._spent(len(answer.data))
            if chunk.is_last:
                return True
            position += len(answer.data)

    # --- records

    @property
    def _next(self) -> LogPosition:
        """Where the log of this reader ends, with the records that are not committed."""
        return self._uncommitted[-1][0] if self._uncommitted else self._end

    def _take(self, records: bytes) -> None:
        """Whole batches that follow those before. Kafka fills its answer to the last byte."""
        if not records:
            return
        start = self._next
        walk = walk_batches(records, expected_offset=start.offset, min_epoch=start.epoch)
        if walk.problem is not None and not (walk.hops and is_cut_off(records, walk.end)):
            raise ClientError(
                f"{self._who()} sent what does not follow offset {start.offset - 1}: {walk.problem}; run"
                " `metaquorum log check` on its files"
            )
        ends = [*(each[0] for each in walk.hops[1:]), walk.end]
        for (position, _, next_offset, epoch), end in zip(walk.hops, ends, strict=True):
            self._uncommitted.append((LogPosition(epoch, next_offset), records[position:end]))
            self._uncommitted_bytes += end - position

    def _commit(self, high_watermark: int) -> None:
        """Hands on what is committed. Too much that is not is requested again later."""
        done: list[bytes] = []
        while self._uncommitted and self._uncommitted[0][0].offset <= high_watermark:
            self._end, data = self._uncommitted.popleft()
            self._uncommitted_bytes -= len(data)
            done.append(data)
        if done:
            self._spool.append(b"".join(done))
        if self._uncommitted_bytes > UNCOMMITTED_MAX_BYTES:
            self._clear_uncommitted()

    def _clear_uncommitted(self) -> None:
        self._uncommitted.clear()
        self._uncommitted_bytes = 0

    def _drop_uncommitted(self, diverging: LogPosition) -> None:
        """The leader's log is another one beyond `diverging`."""
        if not self._uncommitted:
            raise self._lacks(diverging.offset)
        self._clear_uncommitted()

    def _lacks(self, offset: int) -> ClientError:
        return ClientError(
            f"{self._who()} lacks records below offset {self._end.offset}, which were committed (its log "
            f"differs from offset {offset} on): read the log again; see 'Damaged or lost' in"
            " docs/operations.md"
        )
