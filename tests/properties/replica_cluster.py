"""Three replicas of one partition, a controller that elects from the ISR, and everything that can go wrong
between them: late metadata, lost, late and repeated messages, slow disks, processes that die.

The laws are checked on the disks, after every action. `unclean`: any replica may be elected, and acknowledged
records may be lost; the logs must still converge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from metaquorum.broker.replica.partition.values import Reader, ReadPlan, ReplicaRole
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import NO_LEADER, RECOVERED, RECOVERING, PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import ACKS_ALL, FetchedPartition, FetchPartition
from metaquorum.metadata.requests.partitions import AlteredPartition, PartitionAlteration
from metaquorum.storage.batches.format import parse_header
from tests.unit.broker.replica_world import TOPIC, ListDisk, Replica, Ticket, answered, batch, info

BROKERS = (1, 2, 3)
PRODUCER = 7


@dataclass(frozen=True)
class Image:
    """A broker's view of the metadata log at one point."""

    info: PartitionInfo
    epochs: dict[int, int]
    active: frozenset[int]


@dataclass
class ImageView:
    image: Image

    def epoch(self, broker_id: int) -> int | None:
        return self.image.epochs.get(broker_id)

    def may_join_isr(self, broker_id: int) -> bool:
        return broker_id in self.image.active

    def rack(self, broker_id: int) -> str | None:
        return None


@dataclass
class Process:
    replica: Replica
    view: ImageView
    broker_epoch: int
    seen: int
    led: tuple[int, int] | None = None


@dataclass(frozen=True)
class Message:
    what: str
    deliver: Callable[[], None] = field(compare=False)


class Controller:
    """Kafka's rules for fencing, elections and AlterPartition, for one partition."""

    def __init__(self, *, unclean: bool) -> None:
        self.unclean = unclean
        self.next_epoch = 100
        epochs = {broker_id: self._epoch() for broker_id in BROKERS}
        self.images = [Image(info(), epochs, frozenset(BROKERS))]

    def _epoch(self) -> int:
        self.next_epoch += 1
        return self.next_epoch

    @property
    def now(self) -> Image:
        return self.images[-1]

    def _write(self, *, active: frozenset[int], epochs: dict[int, int], isr: tuple[int, ...]) -> None:
        was = self.now.info
        leader = was.leader if was.leader in active and was.leader in isr else NO_LEADER
        recovery = was.leader_recovery_state
        if leader == NO_LEADER:
            leader = next((each for each in was.replicas if each in isr and each in active), NO_LEADER)
        if leader == NO_LEADER and self.unclean and active:
            leader = min(active)
            isr, recovery = (leader,), RECOVERING
        changed = (leader, isr) != (was.leader, was.isr)
        written = replace_info(
            was,
            leader=leader,
            isr=isr,
            leader_epoch=was.leader_epoch + (leader != was.leader),
            partition_epoch=was.partition_epoch + changed,
            leader_recovery_state=recovery,
        )
        self.images.append(Image(written, epochs, active))

    def fence(self, broker_id: int, epochs: dict[int, int] | None = None) -> None:
        now = self.now
        isr = tuple(each for each in now.info.isr if each != broker_id) or now.info.isr
        self._write(active=now.active - {broker_id}, epochs=epochs or now.epochs, isr=isr)

    def register(self, broker_id: int) -> int:
        """A new process: fenced at first, with a new epoch."""
        epoch = self._epoch()
        self.fence(broker_id, {**self.now.epochs, broker_id: epoch})
        return epoch

    def unfence(self, broker_id: int) -> None:
        now = self.now
        self._write(active=now.active | {broker_id}, epochs=now.epochs, isr=now.info.isr)

    def elect(self, broker_id: int) -> None:
        """A preferred leader election, if that is allowed."""
        now = self.now
        if broker_id in now.active and broker_id in now.info.isr and broker_id != now.info.leader:
            written = replace_info(
                now.info,
                leader=broker_id,
                leader_epoch=now.info.leader_epoch + 1,
                partition_epoch=now.info.partition_epoch + 1,
            )
            self.images.append(Image(written, now.epochs, now.active))

    def alter(
        self, sender: int, sender_epoch: int, wanted: PartitionAlteration
    ) -> AlteredPartition | ApiError:
        now = self.now
        if now.epochs[sender] != sender_epoch:
            return ApiError(ErrorCode.STALE_BROKER_EPOCH, "another process")
        refusal = self._refusal(sender, wanted)
        if refusal is not None:
            return AlteredPartition(topic_id=TOPIC, partition=0, error=refusal, message="refused")
        isr = tuple(member.broker_id for member in wanted.isr)
        before = now.info
        if set(isr) != set(before.isr) or before.leader_recovery_state != RECOVERED:
            written = replace_info(
                before,
                isr=isr,
                partition_epoch=before.partition_epoch + 1,
                leader_recovery_state=RECOVERED,
            )
            self.images.append(Image(written, now.epochs, now.active))
        after = self.now.info
        return AlteredPartition(
            topic_id=TOPIC,
            partition=0,
            error=ErrorCode.NONE,
            leader=after.leader,
            leader_epoch=after.leader_epoch,
            partition_epoch=after.partition_epoch,
            isr=after.isr,
            leader_recovery_state=after.leader_recovery_state,
        )

    def _refusal(self, sender: int, wanted: PartitionAlteration) -> ErrorCode | None:
        known = self.now.info
        if wanted.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        assert sender == known.leader
        if wanted.partition_epoch < known.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in wanted.isr:
            epoch = self.now.epochs[member.broker_id]
            if member.broker_id not in self.now.active or member.broker_epoch not in {None, epoch}:
                return ErrorCode.INELIGIBLE_REPLICA
        return None


def replace_info(was: PartitionInfo, **changes: object) -> PartitionInfo:
    values = {name: getattr(was, name) for name in was.__struct_fields__}
    return PartitionInfo(**{**values, **changes})


class Cluster:
    """Its methods are the actions of tests; each returns whether it did anything."""

    def __init__(
        self, *, flush: bool = True, unclean: bool = False, min_isr: int = 1, elr: bool = False
    ) -> None:
        self.flush = flush
        self.unclean = unclean
        self.config = ReplicaConfig(
            broker_id=0,
            log_flush_before_ack=flush,
            replica_lag_time_max_ms=1_000,
            controller_request_timeout_ms=50,
            replica_fetch_backoff_ms=20,
        )
        self.settings = TopicSettings(min_insync_replicas=min_isr, holds_back_high_watermark=elr)
        self.controller = Controller(unclean=unclean)
        self.now_ms = 0
        self.disks = {broker_id: ListDisk() for broker_id in BROKERS}
        self.checkpoints = dict.fromkeys(BROKERS, 0)
        self.processes: dict[int, Process] = {}
        self.messages: list[Message] = []
        self.sequence = 0
        self.tickets: list[tuple[int, Ticket]] = []
        self.acknowledged: dict[int, int] = {}  # sequence -> offset
        self.committed: dict[int, bytes] = {}  # base offset -> batch, below some leader's high watermark
        for broker_id in BROKERS:
            self._start(broker_id, self.controller.now.epochs[broker_id], 0)

    def _start(self, broker_id: int, broker_epoch: int, high_watermark: int) -> None:
        view = ImageView(self.controller.now)
        replica = Replica(
            broker_id,
            disk=self.disks[broker_id],
            config=self.config,
            settings=self.settings,
            brokers=view,  # type: ignore[arg-type]
            high_watermark=high_watermark,
        )
        replica.now_ms = self.now_ms
        process = Process(replica, view, broker_epoch, len(self.controller.images) - 1)
        self.processes[broker_id] = process
        self._publish(process)

    def _publish(self, process: Process) -> None:
        known = process.view.image.info
        if known.leader == process.replica.broker_id:
            process.replica.lead(known)
        else:
            process.replica.follow(known)

    # ---- metadata and time -------------------------------------------------------------------

    def read_metadata(self, broker_id: int) -> bool:
        process = self.processes.get(broker_id)
        if process is None or process.seen + 1 >= len(self.controller.images):
            return False
        process.seen += 1
        process.view.image = self.controller.images[process.seen]
        self._publish(process)
        return True

    def pass_time(self, ms: int) -> bool:
        self.now_ms += ms
        for process in self.processes.values():
            process.replica.now_ms = self.now_ms
            process.replica.partition.tick(now_ms=self.now_ms)
        return True

    def fence(self, broker_id: int) -> bool:
        if broker_id not in self.controller.now.active:
            return False
        self.controller.fence(broker_id)
        return True

    def unfence(self, broker_id: int) -> bool:
        process = self.processes.get(broker_id)
        if process is None or broker_id in self.controller.now.active:
            return False
        self.controller.unfence(broker_id)
        return True

    def elect(self, broker_id: int) -> bool:
        before = self.controller.now
        self.controller.elect(broker_id)
        return self.controller.now is not before

    def crash(self, broker_id: int, kept_unsynced: int) -> bool:
        """With flush before ack the machine loses power, otherwise only the process dies."""
        process = self.processes.pop(broker_id, None)
        if process is None:
            return False
        self.checkpoints[broker_id] = process.replica.partition.high_watermark
        disk = self.disks[broker_id]
        disk.lose_power(kept_unsynced if self.flush else len(disk.batches))
        return True

    def restart(self, broker_id: int, forgotten: int, *, empty: bool = False) -> bool:
        """The checkpoint may be older than what the previous process knew. `empty`: on a new disk, if the
        replica may lose its data (it is not in the ISR)."""
        if broker_id in self.processes:
            return False
        known = max(0, self.checkpoints[broker_id] - forgotten)
        epoch = self.controller.register(broker_id)
        if empty and broker_id not in self.controller.now.info.isr:
            self.disks[broker_id], known = ListDisk(), 0
        self._start(broker_id, epoch, known)
        return True

    # ---- disks -------------------------------------------------------------------------------

    def work(self, broker_id: int, count: int) -> bool:
        process = self.processes.get(broker_id)
        if process is None:
            return False
        process.replica.work(count)
        return True

    def sync(self, broker_id: int) -> bool:
        process = self.processes.get(broker_id)
        if process is None:
            return False
        process.replica.sync()
        return True

    # ---- messages ----------------------------------------------------------------------------

    def fetch(self, broker_id: int) -> bool:
        process = self.processes.get(broker_id)
        asked = None if process is None else process.replica.partition.fetch_position()
        if process is None or asked is None:
            return False
        leader = process.replica.partition.leader
        assert leader is not None and leader != broker_id
        self._send("fetch", lambda: self._serve(leader, process, asked))
        return True

    def _send(self, what: str, deliver: Callable[[], None]) -> None:
        self.messages.append(Message(what, deliver))

    def _serve(self, leader: int, follower: Process, asked: FetchPartition) -> None:
        process = self.processes.get(leader)
        if process is None:
            return
        found = process.replica.partition.fetch(
            asked,
            Reader(replica_id=follower.replica.broker_id, replica_epoch=follower.broker_epoch),
            now_ms=self.now_ms,
        )
        part = answered(found, process.replica.disk.read(found)) if isinstance(found, ReadPlan) else found
        self._send("fetched", lambda: self._take(follower, part, asked))

    def _take(self, follower: Process, part: FetchedPartition, asked: FetchPartition) -> None:
        if self.processes.get(follower.replica.broker_id) is follower:
            follower.replica.take_answer(part, asked)

    def propose(self, broker_id: int) -> bool:
        process = self.processes.get(broker_id)
        sent = None if process is None else process.replica.partition.isr_change(now_ms=self.now_ms)
        if process is None or sent is None:
            return False
        self._send("alter", lambda: self._alter(process, sent))
        return True

    def _alter(self, process: Process, sent: PartitionAlteration) -> None:
        result = self.controller.alter(process.replica.broker_id, process.broker_epoch, sent)
        self._send("altered", lambda: self._altered(process, sent, result))

    def _altered(
        self, process: Process, sent: PartitionAlteration, result: AlteredPartition | ApiError
    ) -> None:
        if self.processes.get(process.replica.broker_id) is process:
            replica = process.replica
            replica.partition.isr_answered(sent, result, now_ms=self.now_ms)

    def give_up_proposal(self, broker_id: int) -> bool:
        """No response arrived in time; the request may still be in flight."""
        process = self.processes.get(broker_id)
        pending = None if process is None else process.replica.partition._leading
        if process is None or pending is None or pending.isr._proposal is None:
            return False
        lost = ApiError(ErrorCode.NETWORK_EXCEPTION, "no answer")
        self._altered(process, pending.isr._proposal.sent, lost)
        return True

    def deliver(self, index: int, *, again: bool = False) -> bool:
        """Any message, in any order; a fetch or its response may arrive twice."""
        if not self.messages:
            return False
        index %= len(self.messages)
        message = self.messages[index]
        if not again or message.what.startswith("alter"):
            del self.messages[index]
        message.deliver()
        return True

    def drop(self, index: int) -> bool:
        if not self.messages:
            return False
        del self.messages[index % len(self.messages)]
        return True

    # ---- the producer ------------------------------------------------------------------------

    def produce(self, broker_id: int, *, ahead: int = 0, acks: int = ACKS_ALL) -> bool:
        """The producer's first batch that is not acknowledged, or one `ahead` of it (they are sent without
        waiting), or an old one again. A batch is the same whenever it is sent."""
        process = self.processes.get(broker_id)
        if process is None:
            return False
        # A log that knows nothing of a producer accepts any sequence (KIP-360), so the first batch is sent
        # alone.
        sequence = max(0, self.sequence + ahead) if self.sequence else 0
        ticket = process.replica.send(
            batch(b"%d" % sequence, producer=PRODUCER, sequence=sequence), acks, timeout_ms=500
        )
        if acks == ACKS_ALL:
            self.tickets.append((sequence, ticket))
        return True

    def collect(self) -> None:
        """The producer reads its responses."""
        waiting: list[tuple[int, Ticket]] = []
        for sequence, ticket in self.tickets:
            if not ticket.results:
                waiting.append((sequence, ticket))
            elif ticket.result.error is ErrorCode.NONE:
                known = self.acknowledged.setdefault(sequence, ticket.result.base_offset)
                assert self.unclean or known == ticket.result.base_offset, "one batch, two offsets"
                while self.sequence in self.acknowledged:
                    self.sequence += 1
        self.tickets = waiting

    # ---- the laws ----------------------------------------------------------------------------

    def check(self) -> None:
        self.collect()
        for broker_id, process in self.processes.items():
            self._check_high_watermark(broker_id, process)
        for disk in self.disks.values():
            sequences = [parse_header(each).base_sequence for each in disk.batches]
            assert len(sequences) == len(set(sequences)), f"a batch is stored twice: {sequences}"
        if not self.unclean:
            self._check_acknowledged()
            for process in self.processes.values():
                self._check_matching(process)

    def _check_high_watermark(self, broker_id: int, process: Process) -> None:
        partition = process.replica.partition
        assert partition.start_offset <= partition.high_watermark <= partition.end_offset
        assert partition.synced_end <= partition.written_end <= partition.end_offset
        if partition.role is not ReplicaRole.LEADER:
            process.led = None
            return
        if process.led is not None:
            assert partition.high_watermark >= process.led[1], f"{broker_id}: the high watermark fell"
        process.led = (partition.leader_epoch, partition.high_watermark)

    def _check_matching(self, process: Process) -> None:
        """Below their high watermarks all logs are the same."""
        partition = process.replica.partition
        for each in process.replica.disk.batches:
            header = parse_header(each)
            if header.next_offset > partition.high_watermark:
                break
            if partition.role is ReplicaRole.LEADER:
                assert self.committed.setdefault(header.base_offset, each) == each, "committed twice"
            known = self.committed.get(header.base_offset)
            assert known is None or known == each, f"{header.base_offset} differs below a high watermark"

    def _check_acknowledged(self) -> None:
        """Every replica that may be elected holds, durably, what was acknowledged."""
        for broker_id in self.controller.now.info.isr:
            disk = self.disks[broker_id]
            kept = disk.batches[: disk.synced] if self.flush else disk.batches
            held = {parse_header(each).base_sequence: parse_header(each).base_offset for each in kept}
            for sequence, offset in self.acknowledged.items():
                assert held.get(sequence) == offset, f"{broker_id} of the ISR lacks sequence {sequence}"

    # ---- everything mends --------------------------------------------------------------------

    def heal(self) -> None:
        """All brokers run and can reach each other: the logs become the same, and all replicas are in sync
        again."""
        for broker_id in BROKERS:
            self.restart(broker_id, 0)
            self.unfence(broker_id)
        for _ in range(60):
            self.calm_round()
            if self._is_whole():
                return
        raise AssertionError(self._picture())

    def calm_round(self) -> bool:
        """The running brokers reach each other, and carry out everything that is possible."""
        for broker_id in self.processes:
            while self.read_metadata(broker_id):
                pass
            if not self.propose(broker_id):
                self.give_up_proposal(broker_id)
        leader = self.controller.now.info.leader
        if leader != NO_LEADER:
            self.produce(leader)
        for broker_id, process in self.processes.items():
            process.replica.settle()
            self.fetch(broker_id)
        while self.messages:
            self.deliver(0)
        self.check()
        return self.pass_time(30)

    def _is_whole(self) -> bool:
        now = self.controller.now.info
        logs = [self.disks[broker_id].batches for broker_id in BROKERS]
        same = logs[0] == logs[1] == logs[2]
        caught_up = all(
            process.seen == len(self.controller.images) - 1 for process in self.processes.values()
        )
        return same and caught_up and set(now.isr) == set(BROKERS) and now.leader_recovery_state == RECOVERED

    def _picture(self) -> str:
        lines = [str(self.controller.now)]
        for broker_id, process in self.processes.items():
            partition = process.replica.partition
            lines.append(
                f"{broker_id}: {partition.role.name} in {partition.leader_epoch} to {partition.end_offset}, "
                f"high watermark {partition.high_watermark}, epochs {partition.epochs.entries}"
            )
        return "did not mend: " + "; ".join(lines)
