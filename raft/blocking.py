"""A driver that carries out a core's effects in the calling thread: writes, syncs and responses, in order.

The order that `metaquorum.raft` demands of every driver, in its simplest form: no event loop and no
thread, so an input returns when its effects are durable and sent. It suits small systems, tests and examples;
a server with many clients overlaps syncs with other work (`node`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random, SystemRandom
from typing import Any, Protocol

from msgspec.structs import replace

from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import (
    AppendLog,
    EffectGate,
    FinishSnapshot,
    HighWatermarkChanged,
    NoteCommitted,
    PersistQuorumState,
    RaftEffect,
    ReadFailed,
    ReadReady,
    ResetLog,
    Respond,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    RoleChanged,
    SendRequest,
    TruncateLog,
    Warn,
    WriteSnapshotChunk,
)
from metaquorum.raft.errors import RaftUsageError
from metaquorum.raft.events import TrimLog
from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.raft.store import ReplicaStore
from metaquorum.raft.stored_voters import with_voters
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.types import LogPosition

_IDLE, _RUNNING, _ENDED = range(3)
READ_BYTES = 1 << 20
"""The most bytes of the log that `on_committed` gets at once (at least one batch)."""


class _Input(Protocol):
    def __call__(self, *, now_ms: int) -> list[RaftEffect]: ...


class BlockingDriver:
    """One replica: a core, its open directory, and the hooks of a subclass. `rng` draws the timeouts,
    `endpoints` are where this node listens, for the voters record (kraft.version 1). `now_ms` (monotonic) and
    `wall_ms` (Unix time) are clocks; by default, those of the process.

    Call `start` once, then the inputs as they happen, and `tick` when `wait_ms` has passed without an input.
    A hook may call inputs: their effects are queued. An exception from an input ends the replica, because
    what was decided and what is on disk may differ (DiskError, RaftInvariantError, CommittedLostError and
    whatever a hook raises): let it stop the process. Further inputs raise RaftUsageError.
    """

    def __init__(
        self,
        store: ReplicaStore,
        voters: tuple[Voter, ...],
        config: RaftConfig,
        *,
        rng: Random | None = None,
        now_ms: Callable[[], int] | None = None,
        wall_ms: Callable[[], int] | None = None,
        applied_offset: int = 0,
        endpoints: tuple[Endpoint, ...] = (),
    ) -> None:
        if applied_offset < store.log.start_offset:
            raise RaftUsageError(
                f"the log of {store.directory} starts at offset {store.log.start_offset}: load the newest "
                "snapshot (latest_snapshot) and give its offset as applied_offset"
            )
        identity = replace(store.raft_identity, endpoints=endpoints)
        self.core = RaftCore(config, identity, voters, store.recovered(), rng or SystemRandom())
        self.store = store
        self.applied_offset = applied_offset
        """Everything below this offset went through `on_committed`, or is in the snapshot that the owner
        started from."""
        self._now_ms = now_ms or (lambda: time.monotonic_ns() // 1_000_000)
        self._wall_ms = wall_ms or (lambda: time.time_ns() // 1_000_000)
        self._gate = EffectGate()
        self._todo: deque[RaftEffect] = deque()
        self._state = _IDLE

    # ---- hooks of a subclass

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        """Send a request to a node. Pass its response to `on_response`; if there will be none, call
        `on_request_failed`. A lost message needs no report: the core retries in time. Where voters are not
        configured, `core.endpoints_of(to)` returns where the node listens."""

    def respond(self, key: int, response: RaftResponse) -> None:
        """Respond to the request that arrived under `key`."""
        raise NotImplementedError

    def on_committed(self, batches: Batches) -> None:
        """Apply these whole batches, in log order, each exactly once. A restart delivers them again."""
        raise NotImplementedError

    def on_role_changed(self, change: RoleChanged) -> None:
        """This node's role, or the leader it knows, changed. Records that it appended as a leader and that
        are not committed may be overwritten from now on."""

    def on_read(self, token: int, *, ready: bool) -> None:
        """The read may be answered from what has been applied. If not `ready`, another node leads: send
        the read to it."""

    def read_snapshot(self, position: LogPosition, path: str) -> Any:
        """The state in the fetched snapshot file `path`, without its control batches; nothing changes yet.
        Raise ValueError if the file is damaged."""
        raise RaftUsageError(f"the leader sent the snapshot {position}: override read_snapshot to take it")

    def load_snapshot(self, state: Any) -> None:
        """Replace the state with what `read_snapshot` returned. Not called if the log has passed the
        snapshot meanwhile."""
        raise NotImplementedError

    def warn(self, message: str) -> None:
        """One line for the operator."""

    # ---- inputs

    def start(self) -> None:
        """Take the role that the directory calls for."""
        self._input(self.core.start)

    def tick(self) -> None:
        """Fire every timer that is due."""
        self._input(self.core.tick)

    def wait_ms(self) -> int | None:
        """How long to wait for an input before the next `tick`, at least 0; None for no limit."""
        deadline_ms = self.core.next_deadline_ms()
        return None if deadline_ms is None else max(0, deadline_ms - self._now_ms())

    def on_request(self, key: int, request: RaftRequest) -> None:
        """A request from a peer. `respond` gets `key`, now or later; it must be unique in this process."""
        self._input(partial(self.core.on_request, key, request))

    def on_response(self, source: int, correlation_id: int, response: RaftResponse) -> None:
        """A response from a peer."""
        self._input(partial(self.core.on_response, source, correlation_id, response))

    def on_request_failed(self, target: int, correlation_id: int, reason: str) -> None:
        """A request could not be sent, or its connection broke."""
        self._input(partial(self.core.on_request_failed, target, correlation_id, reason))

    def append(self, values: Sequence[bytes]) -> int:
        """Leader only: append one batch of records and return its base offset. `on_committed` gets it once
        a majority holds it. Raises RaftUsageError, without effect, if this node does not lead."""
        if not self.core.is_leader:
            raise RaftUsageError(f"only the leader appends; this node is {self.core.role}")
        base_offset = self.core.log_end_offset
        batch = encode_batch(
            base_offset=base_offset,
            leader_epoch=self.core.epoch,
            timestamp_ms=self._wall_ms(),
            values=values,
        )
        self._input(partial(self.core.append, Batches.sealed(batch)))
        return base_offset

    def read(self, token: int) -> None:
        """Request a linearizable read; `on_read` is called, now or later."""
        self._input(partial(self.core.request_read, token))

    def write_snapshot(self, batches: Iterable[bytes]) -> LogPosition:
        """Write the state, with everything below `applied_offset` applied, as a snapshot; then trim the
        log as far as the store's retention allows. Do not call it from a hook: the state may be halfway
        through a batch. If the log names voters, a control batch that names them is put before `batches`."""
        epoch = self.core.epochs.epoch_at(self.applied_offset - 1)
        if self._state != _IDLE or epoch is None:
            raise RaftUsageError("a snapshot is written between inputs, of a state that has applied records")
        position = LogPosition(epoch, self.applied_offset)
        said = self.core.voters_at(position.offset)
        self.store.write_snapshot(position, with_voters(batches, said, timestamp_ms=self._wall_ms()))
        self._input(partial(self.core.on_snapshot_written, position))
        trimmed = self.store.execute(TrimLog(before_offset=position.offset), wall_ms=self._wall_ms())
        if trimmed is not None:
            self._input(partial(self.core.on_log_trimmed, trimmed.log_start_offset))
        return position

    def resign(self) -> None:
        """Resign cleanly; no effect in any role but leader."""
        self._input(self.core.resign)

    # ---- carrying out effects

    def _input(self, handle: _Input) -> None:
        if self._state == _ENDED:
            raise RaftUsageError("this replica ended with an error: restart the process")
        self.core.wall_ms = self._wall_ms()
        nested = self._state == _RUNNING
        self._state = _ENDED
        self._todo += self._gate.push(handle(now_ms=self._now_ms()))
        if not nested:
            self._state = _RUNNING
            try:
                self._run()
            except BaseException:
                self._state = _ENDED
                raise
        self._state = _RUNNING if nested else _IDLE

    def _run(self) -> None:
        """Carries out effects until none is left. Inputs that hooks call meanwhile are queued behind them."""
        todo, unsynced = self._todo, False
        while todo or unsynced:
            if todo:
                effect = todo.popleft()
                unsynced = unsynced or isinstance(effect, AppendLog)
                todo += self._carry_out(effect)
                continue
            # Everything is written: one sync covers all of it.
            ticket, unsynced = self.store.prepare_sync(), False
            ticket.run()
            synced = self.store.sync_completed(ticket)
            todo += self._gate.push(self.core.on_log_synced(synced, now_ms=self._now_ms()))

    def _carry_out(self, effect: RaftEffect) -> list[RaftEffect]:  # noqa: C901
        """Carries out one effect; returns the effects that its completion releases or causes."""
        match effect:
            case PersistQuorumState(token=token):
                self.store.persist_quorum_state(effect)
                ready = self._gate.persisted(token)
                core_effects = self.core.on_quorum_state_persisted(token, now_ms=self._now_ms())
                return [*ready, *self._gate.push(core_effects)]
            case AppendLog() | TruncateLog() | ResetLog() | WriteSnapshotChunk():
                self.store.execute(effect)
            case NoteCommitted():
                self._note_committed(effect)
            case SendRequest():
                self.send(effect.to, effect.correlation_id, effect.request, effect.timeout_ms)
            case Respond():
                self.respond(effect.key, effect.response)
            case RespondWithRecords():
                self.respond(effect.key, self.store.fill_records(effect))
            case RespondWithSnapshotChunk():
                self.respond(effect.key, self.store.fill_snapshot_chunk(effect))
            case FinishSnapshot():
                return self._finish_snapshot(effect)
            case HighWatermarkChanged(high_watermark=end_offset):
                self._apply(end_offset)
            case RoleChanged():
                self.on_role_changed(effect)
            case ReadReady(token=token):
                self.on_read(token, ready=True)
            case ReadFailed(token=token):
                self.on_read(token, ready=False)
            case Warn(message=message):
                self.warn(message)
        return []

    def _note_committed(self, effect: NoteCommitted) -> None:
        self.store.execute(effect)
        if effect.durably:
            position = self.store.prepare_committed()
            self.store.persist_committed(position)
            self.store.committed_persisted(position)

    def _apply(self, end_offset: int) -> None:
        while self.applied_offset < end_offset:
            found = self.store.read_log(self.applied_offset, end_offset, READ_BYTES)
            self.on_committed(found)
            self.applied_offset = found.next_offset

    def _finish_snapshot(self, effect: FinishSnapshot) -> list[RaftEffect]:
        position = effect.snapshot
        try:
            path = self.store.partial_snapshot(position, effect.size_bytes)
            voters, state = self.store.voters_in(path), self.read_snapshot(position, path)
        except (ValueError, BatchError, CorruptLogError) as error:
            self.store.drop_snapshot()
            self.warn(f"the fetched snapshot {position} is damaged: {error}")
            return self._gate.push(self.core.on_snapshot_rejected(position, now_ms=self._now_ms()))
        self.store.finish_snapshot(position)
        effects = self.core.on_snapshot_loaded(position, voters, now_ms=self._now_ms())
        if any(isinstance(one, ResetLog) for one in effects):
            self.load_snapshot(state)
            self.applied_offset = position.offset
        return self._gate.push(effects)
