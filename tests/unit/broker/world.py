"""A broker node, a real Raft leader of one voter, and a scripted controller behind it; no disk, no network.

Time is an int, messages arrive at once (or not at all while `linked` is False).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from msgspec.structs import replace

from metaquorum.broker.channel import ChannelResponse, ControllerChannel
from metaquorum.broker.events import (
    Effect,
    Event,
    LogRead,
    LogSynced,
    LogTrimmed,
    PublishImage,
    QuorumStatePersisted,
    RaftRequestFailed,
    RaftResponseArrived,
    ReadLog,
    SendToController,
    SnapshotLoaded,
    SnapshotWritten,
    StateChanged,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION, write_version
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    Record,
    UnfenceBrokerRecord,
)
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft import effects as raft
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.storage.batches.batch import Batches, encode_batch, hop_headers, iter_batches
from metaquorum.storage.types import LogPosition
from tests.controllers import channel, reported, unanswered
from tests.images import replay_all

CLUSTER = "cluster-a"
LEADER, BROKER = 1, 4
INCARNATION = b"i" * 16
SESSION_MS = 9_000
ENDPOINT = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=40000, security_protocol=0)
CONFIG = BrokerConfig(node_id=BROKER, cluster_id=CLUSTER, endpoints=(ENDPOINT,), directories=(b"d" * 16,))


class MemoryLog:
    """Whole batches in order."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else self.start

    def append(self, data: bytes) -> None:
        hops = [*hop_headers(data), (len(data), 0, 0, 0)]
        for (position, base, after, _), (until, _, _, _) in pairwise(hops):
            assert base == self.end
            self.batches.append((base, after, data[position:until]))

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch[1] <= end]

    def reset(self, start: int) -> None:
        self.batches, self.start = [], start

    def trim(self, before: int) -> None:
        self.batches = [batch for batch in self.batches if batch[0] >= before]
        self.start = before

    def read(self, from_offset: int, to_offset: int, max_bytes: int) -> bytes:
        found = b""
        for base, after, data in self.batches:
            if (
                base >= from_offset
                and after <= to_offset
                and (not found or len(found) + len(data) <= max_bytes)
            ):
                found += data
            elif found:
                break
        return found


def batch_of(records: Sequence[Record], base_offset: int, epoch: int) -> bytes:
    values = [encode(record, write_version(record, DEFAULT_METADATA_VERSION)) for record in records]
    return encode_batch(base_offset=base_offset, leader_epoch=epoch, timestamp_ms=1_000, values=values)


class Controller:
    """The active controller: a real Raft core, and answers that a test can script."""

    def __init__(self, cluster: str = CLUSTER) -> None:
        self.log = MemoryLog()
        self.raft = RaftCore(
            RaftConfig(),
            Identity(cluster_id=cluster, node_id=LEADER, directory_id=b"v" * 16),
            (Voter(node_id=LEADER, host="127.0.0.1", port=1),),
            RecoveredLog(),
            random.Random(1),
        )
        self.responses: deque[tuple[int, object]] = deque()
        self.refusals: deque[ApiError] = deque()
        self.keys = count()
        self.epoch = -1
        self.incarnation: bytes | None = None
        self.fenced = True
        self.grants_shutdown = True
        self.heartbeats: list[BrokerHeartbeatRequest] = []
        self.registrations = 0
        self.said_to_stop = False
        self.carries_directories = True
        self.told: tuple[bytes, ...] = ()
        self.do(self.raft.start(now_ms=0))
        while not self.raft.is_leader:
            self.do(self.raft.tick(now_ms=self.raft.next_deadline_ms() or 0))

    def do(self, effects: list[raft.RaftEffect]) -> None:
        for effect in effects:
            match effect:
                case raft.PersistQuorumState(token=token):
                    self.do(self.raft.on_quorum_state_persisted(token, now_ms=0))
                case raft.AppendLog(batches=batches, end_offset=end):
                    self.log.append(batches.data)
                    self.do(self.raft.on_log_synced(end, now_ms=0))
                case raft.Respond(key=key, response=response):
                    self.responses.append((key, response))
                case raft.RespondWithRecords(key=key, response=response):
                    data = self.log.read(effect.read_from, effect.read_to, effect.max_bytes)
                    self.responses.append((key, replace(response, records=data)))
                case raft.RespondWithSnapshotChunk(key=key, response=response):
                    self.responses.append((key, replace(response, size_bytes=4, data=b"snap")))
                case _:
                    pass

    def write(self, *records: Record) -> int:
        """One committed batch; returns its base offset."""
        base = self.raft.log_end_offset
        self.do(self.raft.append(Batches.sealed(batch_of(records, base, self.raft.epoch)), now_ms=0))
        assert self.raft.high_watermark == self.raft.log_end_offset
        return base

    def stop_broker(self) -> None:
        """Somebody says in the broker's name that it wants to stop."""
        self.said_to_stop = True
        self.write(BrokerRegistrationChangeRecord(BROKER, self.epoch, in_controlled_shutdown=1))

    def lose_directory(self, directory: bytes) -> None:
        """Somebody says in the broker's name that this directory is offline."""
        self.told = tuple(each for each in self.told if each != directory)
        self.write(BrokerRegistrationChangeRecord(BROKER, self.epoch, log_dirs=self.told))

    def image(self) -> MetadataImage:
        return replay_all(
            ReplayState(), iter_batches(b"".join(data for _, _, data in self.all_batches))
        ).image

    @property
    def all_batches(self) -> list[tuple[int, int, bytes]]:
        return self.log.batches

    def snapshot(self) -> tuple[LogPosition, MetadataImage]:
        """Write a snapshot at the end of the log and drop the log before it."""
        image = self.image()
        position = LogPosition(self.raft.epoch, self.raft.log_end_offset)
        self.do(self.raft.on_snapshot_written(position, now_ms=0))
        self.log.trim(position.offset)
        self.do(self.raft.on_log_trimmed(position.offset, now_ms=0))
        return position, image

    def decide(self, request: object) -> ChannelResponse | ApiError:
        if self.refusals:
            return self.refusals.popleft()
        match request:
            case RegisterBrokerRequest():
                self.registrations += 1
                if request.incarnation_id != self.incarnation:
                    self.incarnation, self.fenced = request.incarnation_id, True
                    self.epoch = self.write(self._registration(request))
                elif (self.carries_directories and self.told != request.directories) or self.said_to_stop:
                    self.said_to_stop = False
                    self.write(self._registration(request, amends=True))
                return RegisterBrokerResponse(broker_epoch=self.epoch, session_timeout_ms=SESSION_MS)
            case BrokerHeartbeatRequest():
                return self._heartbeat(request)
            case _:
                raise AssertionError(request)

    def _registration(self, request: RegisterBrokerRequest, *, amends: bool = False) -> BrokerRecord:
        self.told = request.directories if self.carries_directories else ()
        return BrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=self.epoch if amends else self.raft.log_end_offset,
            end_points=request.endpoints,
            rack=request.rack,
            fenced=not amends or self.fenced,
            log_dirs=self.told,
        )

    def _heartbeat(self, request: BrokerHeartbeatRequest) -> ChannelResponse | ApiError:
        self.heartbeats.append(request)
        if request.broker_epoch != self.epoch:
            return ApiError(ErrorCode.STALE_BROKER_EPOCH, "stale")
        caught_up = request.applied_offset > self.epoch
        down = request.want_shutdown and self.grants_shutdown
        if down and not self.fenced:
            self.write(FenceBrokerRecord(id=BROKER, epoch=self.epoch))
        elif self.fenced and caught_up and not down:
            self.write(UnfenceBrokerRecord(id=BROKER, epoch=self.epoch))
        self.fenced = down or (self.fenced and not caught_up)
        return BrokerHeartbeatResponse(
            is_caught_up=caught_up,
            is_fenced=self.fenced,
            should_shut_down=down,
            in_controlled_shutdown=False,
            session_timeout_ms=SESSION_MS,
        )


@dataclass
class World:
    """Everything that the broker did is in `done`, in order."""

    controller: Controller = field(default_factory=Controller)
    config: BrokerConfig = CONFIG
    image: MetadataImage = field(default_factory=MetadataImage)
    snapshots: dict[LogPosition, MetadataImage] = field(default_factory=dict)
    now_ms: int = 100_000
    linked: bool = True
    hold_snapshot_writes: bool = False
    hold_reads: bool = False
    replicas: Callable[[ControllerChannel], ReplicaManager] | None = None

    def __post_init__(self) -> None:
        self.log = MemoryLog()
        self.done: list[Effect] = []
        self.inbox: deque[Event] = deque()
        self.keys: dict[int, int] = {}
        recovered = RecoveredLog()
        if self.image.provenance.offset:
            position = LogPosition(self.image.provenance.epoch, self.image.provenance.offset)
            self.log.reset(position.offset)
            recovered = RecoveredLog(
                epoch=position.epoch,
                log_start_offset=position.offset,
                log_end_offset=position.offset,
                epochs=((position.epoch, position.offset),),
                snapshots=(position,),
            )
        to_controllers = channel(LEADER, seed=3)
        self.node = BrokerNode(
            self.config,
            RaftCore(
                RaftConfig(),
                Identity(cluster_id=CLUSTER, node_id=BROKER, directory_id=b"d" * 16),
                (Voter(node_id=LEADER, host="127.0.0.1", port=1),),
                recovered,
                random.Random(2),
            ),
            self.image,
            channel=to_controllers,
            incarnation_id=INCARNATION,
            now_ms=self.now_ms,
            replicas=None if self.replicas is None else self.replicas(to_controllers),
        )
        self.execute(self.node.start(now_ms=self.now_ms, wall_ms=self.now_ms))
        self.settle()

    # ---- driving -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver everything that is under way at this moment."""
        while self.inbox or self.controller.responses:
            while self.controller.responses:
                key, response = self.controller.responses.popleft()
                if self.linked and key in self.keys:
                    self.inbox.append(
                        RaftResponseArrived(source=LEADER, correlation_id=self.keys[key], response=response)  # type: ignore[arg-type]
                    )
            if self.inbox:
                self.give(self.inbox.popleft())
        self.execute(self.node.tick(now_ms=self.now_ms, wall_ms=self.now_ms))
        self.check_deadline()

    def give(self, event: Event) -> list[Effect]:
        effects = self.node.handle(event, now_ms=self.now_ms, wall_ms=self.now_ms)
        effects += self.node.settle(now_ms=self.now_ms, wall_ms=self.now_ms)
        self.check_deadline()
        self.execute(effects)
        return effects

    def check_deadline(self) -> None:
        """The node remembers when its parts are due: it is what each of them says now."""
        node = self.node
        parts = (node._session, node._metadata, node._replicas)
        due = [part.next_deadline_ms() for part in parts if part is not None]
        expected = min((each for each in due if each is not None), default=None)
        assert node.next_deadline_ms() == (None if node._stopped else expected)

    def run(self, ms: int) -> None:
        """Let `ms` pass, one deadline at a time."""
        until_ms = self.now_ms + ms
        while True:
            self.settle()
            if self.inbox or self.controller.responses:
                continue
            deadlines = [self.node.next_deadline_ms(), self.controller.raft.next_deadline_ms()]
            due_ms = min((deadline for deadline in deadlines if deadline is not None), default=until_ms + 1)
            if due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms + (due_ms <= self.now_ms), due_ms)
            self.controller.do(self.controller.raft.tick(now_ms=self.now_ms))
        self.now_ms = until_ms
        self.settle()

    def execute(self, effects: list[Effect]) -> None:
        assert not any(isinstance(effect, Stop) for effect in effects[:-1]), "nothing comes after a stop"
        for effect in effects:
            self.done.append(effect)
            match effect:
                case raft.PersistQuorumState(token=token):
                    self.inbox.append(QuorumStatePersisted(token=token))
                case raft.AppendLog(batches=batches, end_offset=end):
                    self.log.append(batches.data)
                    self.inbox.append(LogSynced(end_offset=end))
                case raft.TruncateLog(end_offset=end):
                    self.log.truncate(end)
                case raft.ResetLog(position=position):
                    self.log.reset(position.offset)
                case raft.FinishSnapshot(snapshot=position):
                    self.inbox.append(SnapshotLoaded(position=position, image=self.snapshots[position]))
                case ReadLog() if not self.hold_reads:
                    self.inbox.append(self.read(effect))
                case WriteSnapshot(position=position) if not self.hold_snapshot_writes:
                    self.inbox.append(SnapshotWritten(position=position, size_bytes=1))
                case TrimLog(before_offset=before):
                    self.log.trim(before)
                    self.inbox.append(LogTrimmed(log_start_offset=self.log.start))
                case raft.SendRequest():
                    self._ask_raft(effect)
                case SendToController():
                    self._ask_controller(effect)
                case _:
                    pass

    def read(self, effect: ReadLog) -> LogRead:
        data = self.log.read(effect.from_offset, effect.to_offset, effect.max_bytes)
        return LogRead(from_offset=effect.from_offset, batches=Batches.parse(data))

    def _ask_raft(self, effect: raft.SendRequest) -> None:
        if not self.linked:
            self.inbox.append(
                RaftRequestFailed(target=effect.to, correlation_id=effect.correlation_id, reason="no link")
            )
            return
        key = next(self.controller.keys)
        self.keys[key] = effect.correlation_id
        self.controller.do(self.controller.raft.on_request(key, effect.request, now_ms=self.now_ms))

    def _ask_controller(self, effect: SendToController) -> None:
        if not self.linked:
            self.inbox.append(unanswered(effect, "no link"))
            return
        self.inbox.append(reported(effect, self.controller.decide(effect.request)))

    # ---- asking --------------------------------------------------------------------------------

    @property
    def state(self) -> BrokerState:
        return self.node.status(now_ms=self.now_ms).state

    def of(self, kind: type) -> list[Effect]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    @property
    def publications(self) -> list[PublishImage]:
        return [effect for effect in self.done if isinstance(effect, PublishImage)]

    @property
    def path(self) -> list[BrokerState]:
        return [effect.new for effect in self.done if isinstance(effect, StateChanged)]

    @property
    def stop(self) -> Stop:
        (stop,) = [effect for effect in self.done if isinstance(effect, Stop)]
        return stop
