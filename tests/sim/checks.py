"""What must hold after every event, and what must hold at the end. Raises SafetyError.

Looks at all processes at once, which no node of the cluster can: the leaders of an epoch, the one committed
log, which process holds a broker id, and which broker serves without a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from metaquorum.controller.invariants import check_node
from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.invariants import ERROR, check_image
from metaquorum.metadata.invariants import check_step as check_image_step
from metaquorum.raft.invariants import ClusterHistory, CoreSnapshot, check_cluster, check_step
from metaquorum.raft.voters import VoterSet
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from tests.images import describe_difference
from tests.sim.errors import SafetyError
from tests.sim.linearizability import Model, Operation, broker_id_model, check, topic_name_model
from tests.sim.processes import BrokerProcess, ControllerProcess

COMMITTED_READ_BYTES = 1 << 20
IMAGES_MAX = 64


class Checks:
    """Remembers what was seen, so that a promise that is taken back is detected."""

    def __init__(self, on_committed: Callable[[RecordBatch], MetadataImage] | None = None) -> None:
        self.history = ClusterHistory()
        self._on_committed = on_committed
        self._committed_to = 0
        self._committed: dict[int, tuple[int, bytes]] = {}
        self._checked_to: dict[tuple[int, int], int] = {}
        self._images: dict[int, MetadataImage] = {}
        self._seen: dict[int, MetadataImage] = {}
        self._durable_ends: dict[tuple[int, bytes], int] = {}
        self._durable_to: dict[str, int] = {}
        self.disks_keep = True
        """False once a disk was replaced: committed records are then not necessarily on a majority."""
        self._epochs: dict[int, tuple[int, bytes]] = {}
        self._holders: dict[int, str] = {}

    def after_event(self, controllers: Iterable[ControllerProcess], brokers: Iterable[BrokerProcess]) -> None:
        """Looks at every process that took a step since the last call."""
        cores = []
        for process in controllers:
            if process.touched:
                process.touched = False
                check_step(process.before, process.core)
                process.before = CoreSnapshot.of(process.core)
                check_node(process.node)
                cores.append(process.core)
                self._check_committed_bytes(process)
                self._check_durable_on_a_majority(process)
                self._check_image(process.node.ledger.committed.image, process)
        if cores:
            check_cluster(cores, self.history)
        for broker in brokers:
            if broker.touched:
                broker.touched = False
                check_step(broker.before, broker.core)
                broker.before = CoreSnapshot.of(broker.core)
                self._check_broker(broker)

    def committed_batches(self) -> dict[int, tuple[int, bytes]]:
        """Everything ever seen below a controller's high watermark: (next offset, bytes) by base offset."""
        return self._committed

    def _check_committed_bytes(self, process: ControllerProcess | BrokerProcess) -> None:
        """One committed log: the same offset has the same bytes, on every node and forever."""
        core = process.core
        key = (process.node_id, process.host.boot)
        start = max(self._checked_to.get(key, 0), core.log_start_offset)
        end = min(core.high_watermark, core.log_end_offset)
        while start < end:
            data = process.store.read_log(start, end, COMMITTED_READ_BYTES).data
            for batch in iter_batches(data):
                header = batch.header
                if header.base_offset < start or header.next_offset > end:
                    raise SafetyError(
                        f"node {process.node_id}: the high watermark {end} or the checked offset {start}"
                        f" lies inside the batch {header.base_offset}..{header.last_offset}"
                    )
                self.saw_committed(process.node_id, header.base_offset, header.next_offset, batch.data)
                start = header.next_offset
                if self._on_committed is not None and header.base_offset == self._committed_to:
                    self._committed_to = start
                    image = self._on_committed(batch)
                    self._remember(image.provenance.offset, image)
        self._checked_to[key] = max(start, self._checked_to.get(key, 0))

    def saw_committed(self, node_id: int, base: int, end: int, data: bytes) -> None:
        """A node holds this batch below its high watermark."""
        seen = self._committed.setdefault(base, (end, bytes(data)))
        if seen != (end, bytes(data)):
            raise SafetyError(
                f"node {node_id} committed another batch at offset {base} than was committed there before"
            )

    def saw_synced(self, node_id: int, directory_id: bytes, end: int) -> None:
        """Everything below `end` survives a power loss of this node."""
        self._durable_ends[node_id, directory_id] = end

    def require_held(self, node_id: int, sets: Sequence[VoterSet], end: int) -> None:
        """A leader calls everything below `end` committed: by one of these sets of voters it is."""
        if not any(self._is_held(voters, end) for voters in sets):
            raise SafetyError(
                f"leader {node_id} calls {end} committed, and no majority of {sets[0]} holds"
                f" that; synced ends: {self._durable_ends}"
            )

    def image_at(self, offset: int) -> MetadataImage | None:
        """The image of the committed log up to there, if a node had it lately."""
        return self._images.get(offset)

    def _check_durable_on_a_majority(self, process: ControllerProcess) -> None:
        """What a leader considers committed is below the synced end of the disks of a majority of voters,
        including voters that are down: nothing else survives a power loss of all nodes. A disk that was
        emptied later counts with what it had."""
        core = process.core
        own = core.state.identity
        self.saw_synced(own.node_id, own.directory_id, process.store.log.synced_offset)
        end = core.high_watermark
        if not core.is_leader or not self.disks_keep or end <= self._durable_to.get(process.host.name, 0):
            return
        self._durable_to[process.host.name] = end
        history = core.state.voter_history
        # A set that is not committed may have been appended after the commit, in the same step.
        was_before = history.newest_offset is not None and history.newest_offset >= end
        sets = (history.newest, history.previous) if was_before else (history.newest,)
        self.require_held(process.node_id, sets, end)

    def _is_held(self, voters: VoterSet, end: int) -> bool:
        holders = [
            voter
            for voter in voters.nodes
            if any(synced >= end and voter.is_replica(*key) for key, synced in self._durable_ends.items())
        ]
        return 2 * len(holders) > len(voters)

    def _check_image(self, image: MetadataImage, process: ControllerProcess) -> None:
        """The same offset has the same image, however a node reached it. Every image of a node is checked
        once; if every batch is checked when it is committed, images equal to the result of that need no
        further check."""
        before = self._seen.get(process.node_id)
        if before is image:
            return
        self._seen[process.node_id] = image
        judged = self._on_committed is not None
        if not judged and before is not None and before.provenance.offset < image.provenance.offset:
            broken = [
                violation for violation in check_image_step(before, image) if violation.severity == ERROR
            ]
            if broken:
                raise SafetyError(f"node {process.node_id}, image at {image.provenance.offset}: {broken[0]}")
        offset = image.provenance.offset
        known = self._images.get(offset)
        if known is None:
            self._remember(offset, image)
            problems = [] if judged else [each for each in check_image(image) if each.severity == ERROR]
            if problems:
                raise SafetyError(f"node {process.node_id}, image at {offset}: {problems[0]}")
        elif known is not image and not images_equal(known, image):
            raise SafetyError(
                f"node {process.node_id} reached another image at offset {offset}:\n"
                + describe_difference(known, image)
            )
        else:
            self._images[offset] = image

    def _remember(self, offset: int, image: MetadataImage) -> None:
        self._images[offset] = image
        if len(self._images) > IMAGES_MAX:
            del self._images[next(iter(self._images))]

    def _check_broker(self, broker: BrokerProcess) -> None:
        """No broker that fences itself serves without a lease; no epoch is assigned twice or is lower than an
        earlier one. A process whose id was taken over meanwhile knows only its old epoch, and serves no
        client."""
        status = broker.node.status(now_ms=broker.host.monotonic_ms())
        leased = status.lease_left_ms is not None and status.lease_left_ms > 0
        if not status.fenced and not leased:
            broker.serves_without_lease()
        holder = self._holders.get(broker.node_id, broker.host.name)
        if status.broker_epoch is None or (status.fenced and holder != broker.host.name):
            return
        self._holders[broker.node_id] = broker.host.name
        epoch, incarnation = self._epochs.get(broker.node_id, (-1, b""))
        if status.broker_epoch < epoch or (
            status.broker_epoch == epoch and incarnation not in (b"", broker.incarnation_id)
        ):
            raise SafetyError(
                f"broker {broker.node_id} holds epoch {status.broker_epoch}, and epoch {epoch} was given out"
            )
        self._epochs[broker.node_id] = (status.broker_epoch, broker.incarnation_id)

    def at_end(
        self,
        controllers: list[ControllerProcess],
        brokers: list[BrokerProcess],
        topics: Mapping[str, list[Operation]],
        registrations: Mapping[int, list[Operation]],
    ) -> None:
        """All nodes have the same image, and the history of each name and each broker id can be
        linearized."""
        images = [process.node.ledger.committed.image for process in controllers]
        for process, image in zip(controllers[1:], images[1:], strict=True):
            if not images_equal(images[0], image, provenance=False):
                raise SafetyError(
                    f"after healing node {process.node_id} has another image:\n"
                    + describe_difference(images[0], image, provenance=False)
                )
        for broker in brokers:
            self._check_committed_bytes(broker)
        for name in sorted(topics):
            _require_linearizable(f"topic {name!r}", topics[name], topic_name_model)
        for broker_id in sorted(registrations):
            history = with_late_copies(registrations[broker_id])
            _require_linearizable(f"broker id {broker_id}", history, broker_id_model)


def with_late_copies(history: Sequence[Operation]) -> list[Operation]:
    """The network duplicates messages: a copy of a refused request may arrive when it can be accepted, once
    its incarnation may have the id. One copy of an incarnation's requests is enough."""
    copies: dict[object, Operation] = {}
    for each in history:
        if each.result == "duplicate":
            copies.setdefault(each.argument, replace(each, result=None, returned_ms=None))
    return [*history, *copies.values()]


def _require_linearizable(key: str, history: list[Operation], model: Model) -> None:
    verdict = check(history, model, None)
    if not verdict.linearizable:
        lines = "\n".join(str(operation) for operation in history)
        raise SafetyError(
            f"the history of {key} is not linearizable; {len(verdict.longest)} of {len(history)} operations"
            f" could be ordered:\n{lines}"
        )
