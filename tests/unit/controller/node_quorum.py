"""A quorum of controller nodes in one thread: no network, no disk, no clock but a counter.

Every node keeps its log as a list of batches. Messages are delivered in order, at once; `settle` runs until
nothing is left to deliver, `advance` moves the clock from deadline to deadline. Raft's and the node's laws
are checked after every input.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

from msgspec import structs

from metaquorum.controller.active.outcome import Batch
from metaquorum.controller.events import (
    Answer,
    LogRead,
    LogSynced,
    LogTrimmed,
    QuorumStatePersisted,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
    ReadLog,
    RequestArrived,
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotWritten,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.controller.invariants import check_node
from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage, PartitionInfo
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    NoOpRecord,
    Record,
)
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    CreateTopicsRequest,
    Mutator,
    NewTopic,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicsResponse,
)
from metaquorum.raft import effects as raft
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.storage.batches.batch import Batches, iter_batches, parse_header
from metaquorum.storage.types import LogPosition

CLUSTER = "test-cluster-0000000000"
WALL_AT_0 = 1_700_000_000_000


def directory(node_id: int) -> bytes:
    return bytes(14) + node_id.to_bytes(2, "big")


class Machine:
    """One node, its disk, and its inbox."""

    def __init__(self, quorum: Quorum, node_id: int) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.log: list[tuple[int, int, bytes]] = []  # (base, end, data)
        self.log_start = 0
        self.known = LogPosition(0, 0)
        self.hard_state = raft.PersistQuorumState(
            token=0, epoch=0, leader_id=None, voted_id=None, voted_directory_id=None
        )
        self.snapshots: dict[LogPosition, MetadataImage] = {}
        self.inbox: deque[object] = deque()
        self.warnings: list[str] = []
        self.stopped: Stop | None = None
        self.sync = True
        self.hold_snapshots = False
        self.trim = False
        self.effects: list[object] = []
        self.answers: dict[int, object] = {}
        self.alive = True
        self.boot()

    # ---- life

    def boot(self) -> None:
        q = self.quorum
        self.alive, self.stopped = True, None
        self.inbox.clear()
        epochs: list[tuple[int, int]] = []
        for base, _, data in self.log:
            epoch = parse_header(data).leader_epoch
            if not epochs or epochs[-1][0] != epoch:
                epochs.append((epoch, base))
        end = self.log[-1][1] if self.log else self.log_start
        recovered = RecoveredLog(
            epoch=self.hard_state.epoch,
            leader_id=self.hard_state.leader_id,
            voted_id=self.hard_state.voted_id,
            voted_directory_id=self.hard_state.voted_directory_id,
            epochs=tuple(epochs),
            log_start_offset=self.log_start,
            log_end_offset=end,
            snapshots=tuple(self.snapshots),
            known_committed=self.known,
        )
        rng = Random(f"{q.seed}-{self.node_id}-{q.now_ms}")
        identity = Identity(cluster_id=CLUSTER, node_id=self.node_id, directory_id=directory(self.node_id))
        core = RaftCore(q.raft_config, identity, q.voters, recovered, rng)
        newest = max(self.snapshots, key=lambda position: position.offset, default=None)
        image = MetadataImage() if newest is None else self.snapshots[newest]
        self.node = ControllerNode(replace(q.config, node_id=self.node_id), core, image, rng, q.now_ms)
        self.driven = self.what_is_driven(rng)
        self.execute(self.driven.start(now_ms=q.now_ms, wall_ms=q.wall_ms))

    def what_is_driven(self, rng: Random) -> ControllerNode:
        """The controller itself; others have it as a part."""
        return self.node

    def kill(self) -> None:
        self.alive = False
        self.inbox.clear()

    # ---- inputs

    def step(self) -> bool:
        if not self.alive or not self.inbox:
            return False
        event = self.inbox.popleft()
        self.hear(event)
        return True

    def hear(self, *events: object) -> None:
        """One step with these inputs."""
        now_ms, wall_ms = self.quorum.now_ms, self.quorum.wall_ms
        for event in events:
            self.execute(self.driven.handle(event, now_ms=now_ms, wall_ms=wall_ms))
        self.execute(self.driven.settle(now_ms=now_ms, wall_ms=wall_ms))

    def tick(self, drained: bool = True) -> None:
        if self.alive:
            self.execute(
                self.driven.tick(now_ms=self.quorum.now_ms, wall_ms=self.quorum.wall_ms, drained=drained)
            )

    def write(self, *records: Record) -> None:
        """Writes to the log as the active controller, without a decision."""
        self.node._append(Batch(records=records))
        self.node._append_decided()
        self.execute(self.node._out.take())

    def end_lease(self, broker_id: int) -> None:
        """The broker's lease is over, and its expiry was not looked at yet."""
        session = self.node.sessions.get(broker_id)
        assert session is not None
        self.node.sessions.put(broker_id, session.closed())

    def resume_sync(self) -> None:
        """The disk works again: what was written meanwhile is synced now."""
        self.sync = True
        self.inbox.append(LogSynced(end_offset=self.end_offset))

    # ---- effects

    def execute(self, effects: list[object]) -> None:
        for effect in effects:
            self.effects.append(effect)
            self._execute(effect)
        if self.stopped is None:
            check_node(self.node)

    def _execute(self, effect: object) -> None:
        q, inbox = self.quorum, self.inbox
        match effect:
            case raft.PersistQuorumState():
                self.hard_state = effect
                inbox.append(QuorumStatePersisted(token=effect.token))
            case raft.AppendLog():
                for batch in effect.batches.split():
                    self.log.append((batch.header.base_offset, batch.header.next_offset, batch.data))
                assert self.log[-1][1] == effect.end_offset
                if self.sync:
                    inbox.append(LogSynced(end_offset=effect.end_offset))
            case raft.TruncateLog():
                while self.log and self.log[-1][1] > effect.end_offset:
                    self.log.pop()
            case raft.NoteCommitted():
                self.known = effect.position
            case raft.ResetLog():
                self.log.clear()
                self.log_start = effect.position.offset
            case raft.SendRequest():
                q.send(self, effect)
            case raft.Respond():
                q.respond(self, effect.key, effect.response)
            case raft.RespondWithRecords():
                records = self.read(effect.read_from, effect.read_to, effect.max_bytes)
                q.respond(self, effect.key, structs.replace(effect.response, records=records))
            case raft.RespondWithSnapshotChunk():
                data = repr(effect.snapshot).encode()
                chunk = data[effect.position :]
                q.respond(
                    self, effect.key, structs.replace(effect.response, size_bytes=len(data), data=chunk)
                )
            case raft.WriteSnapshotChunk():
                pass
            case raft.FinishSnapshot(snapshot=position):
                image = next(m.snapshots[position] for m in q.machines.values() if position in m.snapshots)
                self.snapshots[position] = image
                inbox.append(SnapshotLoaded(position=position, image=image))
            case ReadLog():
                data = self.read(effect.from_offset, effect.to_offset, effect.max_bytes)
                inbox.append(LogRead(from_offset=effect.from_offset, batches=Batches.parse(data)))
            case WriteSnapshot():
                if not self.hold_snapshots:
                    self.snapshots[effect.position] = effect.image
                    inbox.append(SnapshotWritten(position=effect.position, size_bytes=1))
            case TrimLog():
                if self.trim:
                    self.log = [batch for batch in self.log if batch[1] > effect.before_offset]
                    self.log_start = max(self.log_start, self.log[0][0] if self.log else effect.before_offset)
                    inbox.append(LogTrimmed(log_start_offset=self.log_start))
            case Answer():
                assert effect.key not in self.answers, "answered twice"
                self.answers[effect.key] = effect.response
            case Stop():
                self.stopped = effect
                self.alive = False
            case raft.Warn(message=message):
                self.warnings.append(message)
            case _:
                raise AssertionError(effect)

    def read(self, start: int, end: int, max_bytes: int) -> bytes:
        out = b""
        for base, batch_end, data in self.log:
            if base >= start and batch_end <= end:
                if out and len(out) + len(data) > max_bytes:
                    break
                out += data
        return out

    @property
    def end_offset(self) -> int:
        return self.log[-1][1] if self.log else self.log_start


class Quorum:
    machine_type = Machine

    def __init__(
        self,
        size: int = 3,
        seed: int = 1,
        config: ControllerConfig | None = None,
        raft_config: RaftConfig | None = None,
    ) -> None:
        self.seed = seed
        self.now_ms = 1_000
        self.config = config or ControllerConfig(cluster_id=CLUSTER, node_id=0)
        self.raft_config = raft_config or RaftConfig()
        self.voters = tuple(
            Voter(node_id=i, host="h", port=9000 + i, directory_id=directory(i)) for i in range(1, size + 1)
        )
        self.cut: set[tuple[int, int]] = set()
        self._keys = 0
        self._pending: dict[int, tuple[int, int, Machine]] = {}
        self.machines: dict[int, Machine] = {}
        for voter in self.voters:
            self.machines[voter.node_id] = self.machine_type(self, voter.node_id)

    @property
    def wall_ms(self) -> int:
        return WALL_AT_0 + self.now_ms

    # ---- network

    def disconnect(self, node_id: int) -> None:
        for other in self.machines:
            self.cut |= {(node_id, other), (other, node_id)}

    def reconnect(self, node_id: int) -> None:
        self.cut = {pair for pair in self.cut if node_id not in pair}

    def send(self, source: Machine, effect: raft.SendRequest) -> None:
        target = self.machines[effect.to]
        if not target.alive or (source.node_id, target.node_id) in self.cut:
            failed = RaftRequestFailed(
                target=effect.to, correlation_id=effect.correlation_id, reason="unreachable"
            )
            source.inbox.append(failed)
            return
        self._keys += 1
        self._pending[self._keys] = (effect.correlation_id, target.node_id, source)
        target.inbox.append(RaftRequestArrived(key=self._keys, request=effect.request))

    def respond(self, source: Machine, key: int, response: object) -> None:
        correlation_id, target_id, asker = self._pending.pop(key)
        assert target_id == source.node_id
        if asker.alive and (source.node_id, asker.node_id) not in self.cut:
            asker.inbox.append(
                RaftResponseArrived(source=source.node_id, correlation_id=correlation_id, response=response)
            )

    # ---- time

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        for _ in range(200_000):
            stepped = [machine.step() for machine in self.machines.values()]
            if not any(stepped):
                return
        raise AssertionError("the quorum never comes to rest")

    def advance(self, ms: int) -> None:
        """Let `ms` pass, stopping at every deadline."""
        end = self.now_ms + ms
        self.settle()
        for _ in range(200_000):
            dues = [m.driven.next_deadline_ms() for m in self.machines.values() if m.alive]
            due = min((due for due in dues if due is not None), default=end)
            if due >= end:
                break
            self.now_ms = max(self.now_ms, due)
            for machine in self.machines.values():
                if machine.alive and (machine.driven.next_deadline_ms() or end + 1) <= self.now_ms:
                    machine.tick()
            self.settle()
        else:
            raise AssertionError("time does not pass")
        self.now_ms = end
        for machine in self.machines.values():
            machine.tick()
        self.settle()

    # ---- who leads

    @property
    def leader(self) -> Machine:
        return next(m for m in self.machines.values() if m.alive and m.node.active is not None)

    @property
    def followers(self) -> list[Machine]:
        return [m for m in self.machines.values() if m.alive and m is not self.leader]

    def elect(self) -> Machine:
        """Let time pass until somebody is active."""
        for _ in range(2_000):
            if any(m.alive and m.node.active is not None for m in self.machines.values()):
                return self.leader
            self.advance(50)
        raise AssertionError("nobody was elected")

    # ---- clients

    def request(
        self,
        request: object,
        machine: Machine | None = None,
        arrived_ms: int | None = None,
        mutator: Mutator | None = None,
        client_id: str | None = None,
    ) -> int:
        """Put a request into the inbox of the active controller (or of `machine`); its key."""
        machine = machine or self.leader
        self._keys += 1
        at = self.now_ms if arrived_ms is None else arrived_ms
        name = type(request).__name__.removesuffix("Request")
        cause = BatchCause(request=name, principal="User:test", client_id=client_id or f"key-{self._keys}")
        arrived = RequestArrived(key=self._keys, arrived_ms=at, request=request, mutator=mutator, cause=cause)
        machine.inbox.append(arrived)
        return self._keys

    def call(self, request: object, machine: Machine | None = None) -> object:
        """Ask and settle; the answer, None while there is none."""
        machine = machine or self.leader
        key = self.request(request, machine)
        self.settle()
        return machine.answers.get(key)

    def shut_down(self, machine: Machine) -> None:
        machine.inbox.append(ShutdownRequested())

    # ---- brokers

    def register(self, broker_id: int, incarnation: int = 1, **changes: object) -> object:
        return self.call(registration(broker_id, incarnation, **changes))

    def heartbeat(self, broker_id: int, **changes: object) -> object:
        """A heartbeat of a broker that has applied the whole log; with the registered epoch."""
        return self.call(self.heartbeat_request(broker_id, **changes))

    def heartbeat_request(self, broker_id: int, **changes: object) -> BrokerHeartbeatRequest:
        node = self.leader.node
        known = node.ledger.newest.brokers.get(broker_id)
        fields: dict[str, object] = {
            "broker_id": broker_id,
            "broker_epoch": -1 if known is None else known.epoch,
            "applied_offset": node.ledger.committed_offset,
        }
        return BrokerHeartbeatRequest(**{**fields, **changes})

    def start_broker(self, broker_id: int, incarnation: int = 1, **changes: object) -> int:
        """Register and unfence; the broker epoch."""
        registered = self.register(broker_id, incarnation, **changes)
        assert isinstance(registered, RegisterBrokerResponse), registered
        beat = self.heartbeat(broker_id)
        assert isinstance(beat, BrokerHeartbeatResponse) and not beat.is_fenced, beat
        return registered.broker_epoch

    def create(self, name: str, *assignments: tuple[int, ...]) -> bytes:
        """Create a topic with these replica lists; its id."""
        response = self.call(CreateTopicsRequest(topics=(NewTopic(name=name, assignments=assignments),)))
        assert isinstance(response, TopicsResponse), response
        result = response.results[0]
        assert result.error is ErrorCode.NONE and result.topic_id is not None, result
        return result.topic_id

    def beat_for(self, ms: int, *broker_ids: int) -> None:
        """Let `ms` pass while these brokers heartbeat once a second."""
        for _ in range(ms // 1000):
            self.advance(1000)
            for broker_id in broker_ids:
                self.heartbeat(broker_id)

    def records(self, start: int = 0, machine: Machine | None = None) -> list[object]:
        """The data records in a log from `start` on, NoOp records left out."""
        machine = machine or self.leader
        found: list[object] = []
        for base, _, data in machine.log:
            for batch in iter_batches(data):
                if base >= start and not batch.header.is_control:
                    found += [decoded.record for decoded in decode_batch(batch)]
        return [record for record in found if not isinstance(record, NoOpRecord)]

    def batches(self, start: int = 0) -> list[list[object]]:
        """The records of each batch in the leader's log from `start` on, NoOp batches left out."""
        found = []
        for base, _, data in self.leader.log:
            for batch in iter_batches(data):
                if base >= start and not batch.header.is_control:
                    records = [decoded.record for decoded in decode_batch(batch)]
                    if cause_in(records[0]) is not None:
                        del records[0]
                    if not isinstance(records[0], NoOpRecord):
                        found.append(records)
        return found

    def causes(self, start: int = 0) -> list[BatchCause | None]:
        """The cause of each of these batches."""
        found = []
        for base, _, data in self.leader.log:
            for batch in iter_batches(data):
                if base >= start and not batch.header.is_control:
                    first = decode_batch(batch)[0].record
                    if cause_in(first) is not None or not isinstance(first, NoOpRecord):
                        found.append(cause_in(first))
        return found

    def image(self) -> MetadataImage:
        return self.leader.node.ledger.committed.image

    def partition(self, topic_id: bytes, index: int = 0) -> PartitionInfo:
        found = self.image().topics.partition(topic_id, index)
        assert found is not None
        return found


def registration(broker_id: int, incarnation: int = 1, **changes: object) -> RegisterBrokerRequest:
    fields: dict[str, object] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER,
        "incarnation_id": bytes([incarnation]) * 16,
        "endpoints": (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9000 + broker_id, 0),),
        "features": (BrokerFeature("metadata.version", 1, 25),),
        "rack": None,
        "directories": (b"dir" + broker_id.to_bytes(13, "big"),),
    }
    return RegisterBrokerRequest(**{**fields, **changes})


def image_of(*records: object, level: int = 19) -> MetadataImage:
    """The image after these records, at a metadata.version level."""
    first = FeatureLevelRecord(name="metadata.version", feature_level=level)
    return replay_records(
        ReplayState(MetadataImage()), base_offset=0, epoch=1, timestamp_ms=0, records=[first, *records]
    ).image
