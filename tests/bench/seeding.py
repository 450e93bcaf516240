"""Big quorums without the wait: directories filled through our own storage code, before a process starts.

What such a cluster looks like (brokers with two directories each, 100 partitions per topic, RF 3, random
replicas) and how it gets into a metadata directory: as a snapshot, or as the log that creates it.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from metaquorum.controller.ledger import encode_records_batch
from metaquorum.metadata.columnar.encode import Bulk, NewPartitionRows, NewRows, in_pieces, topic_words
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRecord,
    FeatureLevelRecord,
    Record,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.raft.effects import AppendLog, PersistQuorumState
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.batches.batch import Batches, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.types import LogPosition
from tests.bench.quorum import wait_all_caught_up
from tests.e2e.cluster import Cluster

if TYPE_CHECKING:
    from tests.bench.fleet import FleetProcess

METADATA_VERSION = 19
EPOCH = 1
"""The epoch of everything that is seeded."""

TOPICS_A_BATCH = 40

NO_SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": str(2**40),
    "metadata.log.max.snapshot.interval.ms": "0",
}
"""For controllers: every start finds what was seeded, instead of a snapshot that an earlier one wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`common`: a broker that has a replica of every partition. `leads`: (broker, count), a broker that is
    the first replica of the first `count` partitions."""

    partitions: int
    brokers: int = 300
    directories: int = 2
    common: int | None = None
    leads: tuple[int, int] | None = None
    partitions_a_topic: int = 100
    fenced: bool = False

    @property
    def records(self) -> int:
        return 1 + self.brokers + self.partitions + self.partitions // self.partitions_a_topic


def incarnation(broker_id: int) -> bytes:
    return random.Random(f"incarnation{broker_id}").randbytes(16)


def directories(shape: Shape, broker_id: int) -> tuple[bytes, ...]:
    """The ids of a seeded broker's directories, as it registers them."""
    drawn = (random.Random(f"dir{broker_id}-{at}").randbytes(16) for at in range(shape.directories))
    return tuple(sorted(drawn))


def broker_epoch(broker_id: int) -> int:
    """The epoch at which a seeded broker is registered: the offset of its record."""
    return 1 + broker_id


def broker_record(shape: Shape, broker_id: int) -> BrokerRecord:
    return BrokerRecord(
        broker_id,
        incarnation(broker_id),
        broker_epoch(broker_id),
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0),),
        features=(
            BrokerFeature(
                name="metadata.version", min_supported_version=1, max_supported_version=METADATA_VERSION
            ),
        ),
        fenced=shape.fenced,
        log_dirs=directories(shape, broker_id),
    )


def log_batches(shape: Shape) -> Iterator[tuple[int, bytes]]:
    """(base offset, batch) of a log that begins at 0 and creates the cluster."""
    head: list[Record] = [FeatureLevelRecord("metadata.version", METADATA_VERSION)]
    head += [broker_record(shape, broker_id) for broker_id in range(shape.brokers)]
    yield 0, _batch(head, 0)
    offset = len(head)
    rng = np.random.default_rng(7)
    table = np.stack([topic_words(list(directories(shape, broker_id))) for broker_id in range(shape.brokers)])
    size = shape.partitions_a_topic
    total = shape.partitions // size
    for low in range(0, total, TOPICS_A_BATCH):
        pieces: list[Record | Bulk] = []
        for number in range(low, min(low + TOPICS_A_BATCH, total)):
            uuid = random.Random(number).randbytes(16)
            pieces.append(TopicRecord(f"topic-{number:06d}", uuid))
            replicas = _replicas(shape, rng, number * size, size)
            places = rng.integers(shape.directories, size=replicas.shape)
            pieces.append(
                NewPartitionRows(
                    NewRows(
                        topic=topic_words([uuid])[0],
                        indexes=np.arange(size, dtype=np.int32),
                        replicas=replicas,
                        directories=table[replicas, places],
                    )
                )
            )
        records = in_pieces(pieces)
        yield offset, _batch(records, offset)
        offset += len(records)


def _replicas(shape: Shape, rng: np.random.Generator, first: int, size: int) -> npt.NDArray[np.int32]:
    drawn = np.argpartition(rng.random((size, shape.brokers)), 3, axis=1)[:, :3].astype(np.int32)
    drawn = rng.permuted(drawn, axis=1) if shape.brokers == 3 else drawn
    numbers = np.arange(first, first + size)
    if shape.common is not None:
        absent = ~(drawn == shape.common).any(axis=1)
        drawn[absent, (numbers % 3)[absent]] = shape.common
    if shape.leads is not None:
        broker_id, count = shape.leads
        mine = numbers < count
        held = (drawn == broker_id).any(axis=1)
        for row in np.flatnonzero(mine & held).tolist():
            at = int(np.flatnonzero(drawn[row] == broker_id)[0])
            drawn[row, [0, at]] = drawn[row, [at, 0]]
        drawn[mine & ~held, 0] = broker_id
    return drawn


def _batch(records: Any, offset: int) -> bytes:
    return encode_records_batch(
        records, base_offset=offset, epoch=EPOCH, timestamp_ms=1000, metadata_version=METADATA_VERSION
    )


def image_of(shape: Shape) -> MetadataImage:
    """The image that the seeded log leads to."""
    engine = Replayer()
    for _, data in log_batches(shape):
        engine.apply_batch(next(iter_batches(data)))
    return engine.state().image


def fill(store: ReplicaStore, shape: Shape, *, as_snapshot: bool) -> None:
    """Puts the cluster into an empty metadata directory: in a snapshot that an empty log follows, or as the
    whole log."""
    if as_snapshot:
        image = image_of(shape)
        position = LogPosition(EPOCH, image.provenance.offset)
        store.write_snapshot(position, snapshot_batches(image, position=position))
        store.log.reset_to(position)
    else:
        for _, data in log_batches(shape):
            store.execute(AppendLog(batches=Batches.sealed(data)))
        ticket = store.prepare_sync()
        ticket.run()
        store.sync_completed(ticket)
    store.persist_quorum_state(
        PersistQuorumState(token=1, epoch=EPOCH, leader_id=None, voted_id=None, voted_directory_id=None)
    )


@contextmanager
def seeded(
    shape: Shape,
    *,
    real_brokers: int = 0,
    as_snapshot: bool = True,
    properties: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Cluster]:
    """A quorum of three whose directories hold the cluster, and this many real brokers that hold no replica
    (their ids follow the seeded ones) and start from the same image. Nothing runs yet: simulated brokers must
    be started first, because their leases run from the first election on."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=3, properties=properties) as cluster,
    ):
        for at in range(real_brokers):
            cluster.add_broker(shape.brokers + at)
        first, *others = cluster.nodes
        store = ReplicaStore.open(PosixDisk(), str(first.data))
        fill(store, shape, as_snapshot=as_snapshot)
        store.close()
        for other in others:
            shutil.copytree(first.metadata_log, other.metadata_log, dirs_exist_ok=True)
        yield cluster


def start(cluster: Cluster, running: Sequence[FleetProcess] = ()) -> None:
    """Starts the nodes of `seeded`; returns when all have caught up and every broker of the fleets is
    unfenced."""
    for node in cluster.controllers:
        node.start()
    cluster.wait_leader()
    for fleet in running:
        fleet.wait_ready()
    wait_all_caught_up(cluster)
    for node in cluster.brokers:
        node.start()
    cluster.wait_brokers({node.node_id: "running" for node in cluster.brokers})


def resident_mib(pid: int) -> float:
    """Of a process (proc(5), VmRSS)."""
    return _status_mib(pid, "VmRSS:")


def peak_resident_mib(pid: int) -> float:
    """The peak of a process since its start, or since `forget_peak`."""
    return _status_mib(pid, "VmHWM:")


def forget_peak(pid: int) -> None:
    """Resets the peak (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")
