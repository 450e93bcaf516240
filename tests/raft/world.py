"""A cluster of Raft cores in one thread: memory logs that lose what was not synced, and an open network.

Nothing happens by itself: a test delivers, drops or repeats each message, completes each write, moves the
clock. After every input the invariants are checked, those of one core, of a step, of the cluster, and these
of the durable truth that only a test sees: an answered vote and a voter's fetch offset are on disk, a
committed record is on the disks of a majority, a read sees all that was committed before it was asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from metaquorum.raft import effects as fx
from metaquorum.raft import messages as ms
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import EffectGate
from metaquorum.raft.invariants import (
    ClusterHistory,
    CoreSnapshot,
    check_cluster,
    check_input,
    check_snapshot,
)
from metaquorum.raft.protocol.timers import UNKNOWN, next_due_ms
from metaquorum.raft.stored_voters import changes_at
from metaquorum.raft.voters import (
    CONFIGURED_VOTERS,
    Endpoint,
    VoterNode,
    VotersAt,
    VoterSet,
    majority,
    voter_changes,
)
from metaquorum.storage.batches.batch import Batches, encode_batch, iter_batches
from metaquorum.storage.files.known_committed import NOTHING, Acknowledged
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from tests.raft.telling import (
    ADMIN,
    BOOTSTRAP,
    CLUSTER_ID,
    START_WALL_MS,
    describe_effect,
    describe_exchange,
    describe_message,
    directory,
    name_exchange,
)


def address(host: str) -> tuple[Endpoint, ...]:
    return (Endpoint("CONTROLLER", host, 9093),)


@dataclass(slots=True)
class MemoryDisk:
    """One node's directory. `batches`: (base offset, end offset, epoch, bytes)."""

    start: int = 0
    end: int = 0
    synced: int = 0
    batches: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    snapshots: dict[LogPosition, bytes] = field(default_factory=dict)
    said: dict[LogPosition, VotersAt] = field(default_factory=dict)
    """What each snapshot says of voters; at 0@0 what formatting wrote."""
    partial: tuple[LogPosition, bytes] | None = None
    hard: fx.PersistQuorumState | None = None
    known: LogPosition = NOTHING
    durably_known: LogPosition = NOTHING
    acknowledged: tuple[Acknowledged, ...] = ()
    """What other directories have acknowledged to this node, as it was last made durable."""

    def copy(self) -> MemoryDisk:
        """What a backup of the directory holds."""
        return replace(self, batches=list(self.batches), snapshots=dict(self.snapshots), said=dict(self.said))

    def append(self, data: bytes) -> None:
        for batch in iter_batches(data, expected_offset=self.end):
            header = batch.header
            self.batches.append((header.base_offset, header.next_offset, header.leader_epoch, batch.data))
            self.end = header.next_offset

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch[1] <= end]
        self.end = self.batches[-1][1] if self.batches else self.start
        assert self.end == end, "a cut is at a batch boundary"
        self.synced = min(self.synced, end)

    def reset(self, position: LogPosition) -> None:
        self.batches = []
        self.start = self.end = self.synced = position.offset

    def lose_unsynced(self) -> None:
        self.partial = None
        self.known = self.durably_known
        self.truncate(self.synced)

    def read(self, start: int, end: int, max_bytes: int) -> bytes:
        data = b""
        for base, batch_end, _, batch in self.batches:
            if base >= start and batch_end <= end:
                if data and len(data) + len(batch) > max_bytes:
                    break
                data += batch
        return data

    def recovered(self) -> RecoveredLog:
        table = EpochTable()
        first = min((position for position in self.snapshots if position.offset == self.start), default=None)
        if first is not None:
            table = EpochTable.reset(first)
        for base, _, epoch, _ in self.batches:
            table = table.append(epoch, base)
        hard = self.hard
        newest = max(self.said, key=lambda position: position.offset, default=LogPosition(0, 0))
        changes = changes_at(newest.offset, self.said.get(newest, CONFIGURED_VOTERS))
        for base, _, _, data in self.batches:
            if base >= newest.offset:
                changes += voter_changes(Batches.sealed(data))
        return RecoveredLog(
            epoch=hard.epoch if hard else 0,
            leader_id=hard.leader_id if hard else None,
            voted_id=hard.voted_id if hard else None,
            voted_directory_id=hard.voted_directory_id if hard else None,
            epochs=table.entries,
            log_start_offset=self.start,
            log_end_offset=self.end,
            snapshots=tuple(self.snapshots),
            known_committed=self.known,
            acknowledged=self.acknowledged,
            voter_changes=tuple(changes),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A request (`key` is set by the receiver's side) or a response, on its way."""

    source: int
    target: int
    correlation_id: int
    payload: ms.RaftRequest | ms.RaftResponse
    is_request: bool


@dataclass(slots=True)
class Node:
    node_id: int
    identity: Identity
    disk: MemoryDisk
    core: RaftCore | None = None
    gate: EffectGate = field(default_factory=EffectGate)
    persists: list[fx.PersistQuorumState] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)
    finishing: list[LogPosition] = field(default_factory=list)
    starts: int = 0


class Listener(Protocol):
    """Hears of everything that happens, as it happens."""

    def happened(self, line: str) -> None:
        """A message arrives, or a core wants something that is no message."""

    def asked(self, line: str) -> None:
        """A core wants a message sent, or a write let some go."""

    def changed(self, core: RaftCore) -> None:
        """A core has had an input."""


class World:
    """With a `listener`, every event becomes a line."""

    def __init__(
        self,
        voters: int,
        observers: int = 0,
        *,
        seed: int = 0,
        pinned: bool = True,
        dynamic: bool = False,
        told: bool = True,
        config: RaftConfig | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.config = config or RaftConfig()
        self.listener = listener
        self.seed = seed
        self.now = 0
        self.voters = tuple(
            Voter(node_id=i, host="127.0.0.1", port=9000 + i, directory_id=directory(i) if pinned else None)
            for i in range(1, voters + 1)
        )
        self.dynamic = dynamic
        """The voters are formatted into their directories; what observes knows bootstrap servers only."""
        self.hosts: dict[int, str] = {}
        self.nodes = {i: self._node(i, directory(i)) for i in range(1, voters + observers + 1)}
        if dynamic:
            formatted = VotersAt(1, VoterSet(self.as_voter(i) for i in range(1, voters + 1)))
            for i in range(1, voters + 1):
                self.nodes[i].disk.said[LogPosition(0, 0)] = formatted
            self.voters = ()
        self.told = told and not dynamic
        """Whether what observes is configured with the voters too; else it knows bootstrap servers only."""
        if not self.told:
            self.config = structs.replace(self.config, bootstrap_ids=tuple(BOOTSTRAP - i for i in (1, 2)))
        self.messages: list[Message] = []
        self.outstanding: dict[tuple[int, int], tuple[int, int]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.history = ClusterHistory()
        self.content: dict[int, bytes] = {}
        self.requests: dict[int, tuple[int, int, int]] = {}
        self.abandoned: set[int] = set()
        self.emptied: set[tuple[int, bytes | None]] = set()
        """Directories that are gone: what they acknowledged before counts."""
        self.said: dict[LogPosition, VotersAt] = {}
        self.reads: dict[int, int] = {}
        self.read_results: dict[int, int | None] = {}
        self.acknowledged = 0
        self.marks: set[str] = set()
        self.spoiled = False
        """A directory was replaced by an older copy, or an answer was made up: the laws across nodes cannot
        hold any more."""
        self._last_key = 0

    def _node(self, node_id: int, directory_id: bytes) -> Node:
        host = self.hosts.get(node_id, f"host{node_id}")
        identity = Identity(
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            directory_id=directory_id,
            endpoints=address(host),
        )
        return Node(node_id=node_id, identity=identity, disk=MemoryDisk())

    def _knows_voters(self, node_id: int) -> bool:
        return self.told or any(voter.node_id == node_id for voter in self.voters)

    def as_voter(self, node_id: int) -> VoterNode:
        """What a voters' record says of this node as it is now."""
        return self.nodes[node_id].identity.as_voter

    def at(self, target: int) -> Node:
        """The node that a message for `target` reaches."""
        return self.nodes[target if target > 0 else BOOTSTRAP - target]

    def core(self, node_id: int) -> RaftCore:
        core = self.nodes[node_id].core
        assert core is not None, f"node {node_id} is down"
        return core

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

    # ---- life ------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.starts += 1
        # A start makes durable what it finds.
        node.disk.durably_known, node.disk.synced = node.disk.known, node.disk.end
        rng = random.Random(self.seed * 1000 + node_id * 10 + node.starts)
        node.gate = EffectGate()
        node.core = RaftCore(
            self.config,
            node.identity,
            self.voters if self._knows_voters(node_id) else (),
            node.disk.recovered(),
            rng,
        )
        node.core.wall_ms = START_WALL_MS + self.now
        self._emit(node, node.core.start(now_ms=self.now))
        self._settled(node.core)

    def crash(self, node_id: int) -> None:
        """The power is gone: unsynced records and unpersisted votes are lost, connections break."""
        self.kill(node_id)
        self.nodes[node_id].disk.lose_unsynced()

    def kill(self, node_id: int) -> None:
        """kill -9: what was written stays, synced or not; connections break."""
        node = self.nodes[node_id]
        node.core = None
        node.persists.clear()
        node.syncs.clear()
        node.finishing.clear()
        mine = (node_id, BOOTSTRAP - node_id)
        self.messages = [m for m in self.messages if m.source not in mine and m.target not in mine]
        self.requests = {key: who for key, who in self.requests.items() if who[2] not in mine}
        broken = [(who, cid) for (who, cid), (to, _) in self.outstanding.items() if to in mine]
        self.outstanding = {flight: to for flight, to in self.outstanding.items() if flight[0] != node_id}
        for key, (asker, _, asked) in list(self.requests.items()):
            if asker == node_id and self.at(asked).core is not None:
                self.abandoned.add(key)
                on = self.at(asked).node_id
                self.input(on, lambda core, key=key: core.on_request_abandoned(key, now_ms=self.now))
        for who, cid in broken:
            self.fail(who, cid, "connection reset")

    def rename(self, node_id: int, host: str) -> None:
        """kill -9, and it will listen elsewhere when it starts."""
        self.kill(node_id)
        self.hosts[node_id] = host
        node = self.nodes[node_id]
        node.identity = structs.replace(node.identity, endpoints=address(host))

    def replace_disk(self, node_id: int, directory_id: bytes) -> None:
        """The power is gone, and the disk is an empty one with another directory id when it comes back."""
        self.crash(node_id)
        self.emptied.add((node_id, self.nodes[node_id].identity.directory_id))
        self.nodes[node_id] = self._node(node_id, directory_id)

    def fail(self, who: int, correlation_id: int, reason: str) -> None:
        flight = self.outstanding.pop((who, correlation_id), None)
        if flight is not None and self.nodes[who].core is not None:
            self.input(
                who, lambda core: core.on_request_failed(flight[0], correlation_id, reason, now_ms=self.now)
            )

    # ---- inputs ----------------------------------------------------------------------------------

    def input(self, node_id: int, call: Callable[[RaftCore], list[fx.RaftEffect]]) -> None:
        node = self.nodes[node_id]
        core = self.core(node_id)
        core.wall_ms = START_WALL_MS + self.now
        before = CoreSnapshot.of(core)
        emitted = call(core)
        check_input(before, core)
        self._emit(node, emitted)
        self._settled(core)

    def deliver(self, message: Message) -> None:
        if self.listener is not None:
            self.listener.happened(describe_message(message.source, message.target, message.payload))
        if BOOTSTRAP < message.target <= ADMIN:
            return  # who asked is no node here
        node = self.at(message.target)
        source = message.source if message.source > BOOTSTRAP else self.at(message.source).node_id
        if node.core is None or (source, node.node_id) in self.cuts:
            if self.listener is not None:
                self.listener.asked("  lost")
            if message.is_request and node.core is None:
                self.fail(message.source, message.correlation_id, "connection refused")
            return
        payload = message.payload
        if message.is_request:
            self._last_key += 1
            key = self._last_key
            self.requests[key] = (message.source, message.correlation_id, message.target)
            self.input(node.node_id, lambda core: core.on_request(key, payload, now_ms=self.now))
        else:
            self.outstanding.pop((message.target, message.correlation_id), None)
            self.input(
                message.target,
                lambda core: core.on_response(
                    message.source, message.correlation_id, payload, now_ms=self.now
                ),
            )

    def persist_next(self, node_id: int) -> None:
        node = self.nodes[node_id]
        state = node.persists.pop(0)
        node.disk.hard = state
        released = node.gate.persisted(state.token)
        if self.listener is not None and released:
            gone = " ".join(name_exchange(effect, self.requests) for effect in released)
            self.listener.asked(f"  n{node_id} has written #{state.token}, which lets go {gone}")
        self._execute(node, released)
        self.input(node_id, lambda core: core.on_quorum_state_persisted(state.token, now_ms=self.now))

    def sync_next(self, node_id: int) -> None:
        node = self.nodes[node_id]
        end = node.syncs.pop(0)
        node.disk.synced = max(node.disk.synced, min(end, node.disk.end))
        self.input(node_id, lambda core: core.on_log_synced(end, now_ms=self.now))

    def finish_next(self, node_id: int) -> None:
        node = self.nodes[node_id]
        position = node.finishing.pop(0)
        partial = node.disk.partial
        if partial is None or partial[0] != position:
            self.input(node_id, lambda core: core.on_snapshot_rejected(position, now_ms=self.now))
            return
        assert partial[1].startswith(b"snapshot %d-%d " % (position.offset, position.epoch))
        self.marks.add("snapshot installed")
        node.disk.snapshots[position] = partial[1]
        node.disk.said[position] = self.said[position]
        node.disk.partial = None
        self.input(
            node_id, lambda core: core.on_snapshot_loaded(position, self.said[position], now_ms=self.now)
        )

    def append(self, node_id: int, text: str, *, wake_observers: bool = True) -> None:
        core = self.core(node_id)
        data = encode_batch(
            base_offset=core.log_end_offset,
            leader_epoch=core.epoch,
            timestamp_ms=START_WALL_MS + self.now,
            values=[text.encode()],
        )
        self.input(node_id, lambda core: core.append(Batches.sealed(data), wake_observers, now_ms=self.now))

    def read(self, node_id: int, token: int) -> None:
        self.reads[token] = self.acknowledged
        self.input(node_id, lambda core: core.request_read(token, now_ms=self.now))

    def snapshot(self, node_id: int, chunk: int = 40) -> None:
        """Cut a snapshot at the high watermark."""
        core = self.core(node_id)
        position = LogPosition(core.state.log.epoch_before(core.high_watermark), core.high_watermark)
        check_snapshot(position, self.history)
        said = core.voters_at(position.offset)
        assert self.said.setdefault(position, said) == said, "snapshots of one id say the same of voters"
        self.nodes[node_id].disk.said[position] = said
        text = b"snapshot %d-%d of node %d " % (position.offset, position.epoch, node_id)
        self.nodes[node_id].disk.snapshots[position] = text.ljust(chunk * 2 + 10, b".")
        self.input(node_id, lambda core: core.on_snapshot_written(position, now_ms=self.now))

    def trim(self, node_id: int, offset: int) -> None:
        disk = self.nodes[node_id].disk
        disk.batches = [batch for batch in disk.batches if batch[0] >= offset]
        disk.start = offset
        self.input(node_id, lambda core: core.on_log_trimmed(offset, now_ms=self.now))

    # ---- effects ---------------------------------------------------------------------------------

    def _emit(self, node: Node, effects: list[fx.RaftEffect]) -> None:
        """What a core wants goes through its gate."""
        if self.listener is not None:
            for effect in effects:
                exchange = describe_exchange(effect, self.requests)
                if exchange is None:
                    self.listener.happened(f"  n{node.node_id} {describe_effect(effect)}")
                else:
                    self.listener.asked(f"  n{node.node_id} {exchange}")
        self._execute(node, node.gate.push(effects))

    def _execute(self, node: Node, released: list[fx.RaftEffect]) -> None:
        for effect in released:
            self._execute_one(node, effect)

    def _execute_one(self, node: Node, effect: fx.RaftEffect) -> None:
        disk = node.disk
        match effect:
            case fx.PersistQuorumState():
                node.persists.append(effect)
            case fx.AppendLog(batches=batches, base_offset=base):
                assert base == disk.end
                disk.append(batches.data)
                node.syncs.append(disk.end)
            case fx.TruncateLog(end_offset=end):
                self.marks.add("truncation")
                disk.truncate(end)
                node.syncs = [min(sync, end) for sync in node.syncs]
            case fx.ResetLog(position=position):
                disk.reset(position)
                node.syncs.clear()
            case fx.SendRequest():
                self._check_request(node, effect)
                self.outstanding[node.node_id, effect.correlation_id] = (
                    effect.to,
                    self.now + effect.timeout_ms,
                )
                self._send(node, effect)
            case fx.Respond(key=key, response=response):
                self._check_vote(node, response)
                self._respond(node, key, response)
            case fx.RespondWithRecords(key=key, response=response):
                assert isinstance(response, ms.FetchResponse)
                data = disk.read(effect.read_from, effect.read_to, effect.max_bytes)
                self._respond(node, key, structs.replace(response, records=data))
            case fx.RespondWithSnapshotChunk(key=key, response=response):
                assert isinstance(response, ms.FetchSnapshotResponse)
                whole = disk.snapshots[effect.snapshot]
                chunk = whole[effect.position : effect.position + effect.max_bytes]
                self._respond(node, key, structs.replace(response, size_bytes=len(whole), data=chunk))
            case fx.WriteSnapshotChunk(snapshot=snapshot, position=position, data=data):
                so_far = disk.partial[1] if position and disk.partial else b""
                assert position == len(so_far)
                disk.partial = (snapshot, so_far + data)
            case fx.FinishSnapshot(snapshot=snapshot):
                node.finishing.append(snapshot)
            case fx.HighWatermarkChanged(high_watermark=high_watermark):
                self._check_high_watermark(node, high_watermark)
            case fx.NoteCommitted(position=position, durably=durably):
                self._check_note(node, position)
                disk.known = position
                disk.durably_known = position if durably else disk.durably_known
                disk.acknowledged = effect.acknowledged if durably else disk.acknowledged
            case fx.ReadReady(token=token, offset=offset):
                assert offset >= self.reads[token], "a read sees everything that was committed before it"
                self.read_results[token] = offset
            case fx.ReadFailed(token=token):
                self.read_results[token] = None
            case _:
                pass

    def _respond(self, node: Node, key: int, response: ms.RaftResponse) -> None:
        asked = self.requests.pop(key, None)
        assert asked is not None, "every request is answered at most once"
        if key in self.abandoned:
            return
        self.messages.append(Message(asked[2], asked[0], asked[1], response, False))

    def _send(self, node: Node, effect: fx.SendRequest) -> None:
        request = Message(node.node_id, effect.to, effect.correlation_id, effect.request, True)
        configured = {voter.node_id: voter.endpoints for voter in self.voters}
        if (self.dynamic or not self._knows_voters(node.node_id)) and effect.to > 0:
            assert effect.endpoints, "whoever is asked by id has an address"
        if effect.endpoints in ((), self.at(effect.to).identity.endpoints, configured.get(effect.to)):
            self.messages.append(request)

    def _settled(self, core: RaftCore) -> None:
        self._check()
        if self.listener is not None:
            self.listener.changed(core)

    # ---- the durable truth -----------------------------------------------------------------------

    def _check_request(self, node: Node, effect: fx.SendRequest) -> None:
        request = effect.request
        acknowledges = node.core is not None and node.core.state.acknowledges
        if isinstance(request, ms.FetchRequest) and acknowledges:
            assert request.fetch_offset <= node.disk.synced, "a voter acknowledges what is on its disk"
        if isinstance(request, ms.VoteRequest) and not request.pre_vote:
            hard = node.disk.hard
            assert hard is not None and (hard.epoch, hard.voted_id) == (request.epoch, node.node_id)

    def _check_vote(self, node: Node, response: ms.RaftResponse) -> None:
        if isinstance(response, ms.VoteResponse) and response.vote_granted and not response.pre_vote:
            hard = node.disk.hard
            assert hard is not None and hard.epoch >= response.epoch, (
                "a vote is on disk before it is answered"
            )
            assert hard.epoch > response.epoch or hard.voted_id is not None

    def _check_high_watermark(self, node: Node, high_watermark: int) -> None:
        core = node.core
        assert core is not None
        if not core.is_leader:
            return
        # A record is durable once it is synced or covered by a snapshot that was installed.
        durable = [
            voter.node_id
            for voter in core.voters.nodes
            if (voter.node_id, voter.directory_id) in self.emptied
            or (
                self.nodes[voter.node_id].disk.synced >= high_watermark
                and voter.is_replica(voter.node_id, self.nodes[voter.node_id].identity.directory_id)
            )
        ]
        assert len(durable) >= majority(len(core.voters)), "what is committed is on the disks of a majority"
        self.acknowledged = max(self.acknowledged, high_watermark)

    @staticmethod
    def _check_note(node: Node, position: LogPosition) -> None:
        core = node.core
        assert core is not None and position.offset <= core.high_watermark, "only what is committed is noted"
        assert position.offset <= node.disk.synced, "no note is ahead of what this disk has synced"
        assert position.offset >= node.disk.known.offset, "what is known to be committed never falls"
        assert position.epoch == core.state.log.epoch_before(position.offset)

    def _check(self) -> None:
        if not self.spoiled:
            check_cluster([node.core for node in self.live if node.core], self.history)
        for node in self.live:
            core = node.core
            assert core is not None
            assert core.log_end_offset == node.disk.end and core.log_start_offset == node.disk.start
            assert core.synced_offset <= node.disk.synced
            # What is remembered is what would be found.
            assert core.next_deadline_ms() == next_due_ms(core.state, UNKNOWN)
            assert core.is_observer != core.voters.is_voter(core.node_id, core.state.identity.directory_id)
            for base, end, _, data in node.disk.batches[-8:]:
                if end <= core.high_watermark and not self.spoiled:
                    assert self.content.setdefault(base, data) == data, "one committed log, byte for byte"
