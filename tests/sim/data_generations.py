"""What was committed in each partition, and from which leader epoch on some of it may be lost.

A partition whose loss was allowed (an unclean election, or the disk of the last replica in sync was lost)
begins a new generation with a leader epoch. Within a generation, nothing that was committed may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from metaquorum.metadata.image import LOST, MetadataImage
from metaquorum.metadata.requests.data import PartitionKey


@dataclass(slots=True)
class Truth:
    """One generation of a partition: committed batches by base offset, as (next offset, bytes)."""

    key: PartitionKey
    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    end: int = 0


class Generations:
    """Takes the place of `Promises` beside the committed metadata log: it is notified of unclean elections.
    `held`: the directories of a broker that hold a replica, by broker and partition."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self.image = image
        self.held: dict[tuple[int, PartitionKey], set[bytes]] = {}
        self._boundaries: dict[PartitionKey, list[int]] = {}
        self._truths: dict[tuple[PartitionKey, int], Truth] = {}
        self._lost_disks: dict[PartitionKey, set[int]] = {}

    def given_up(self, key: PartitionKey, below_epoch: int) -> None:
        """From leader epoch `below_epoch` on, records that were acknowledged before may be lost."""
        known = self._boundaries.setdefault(key, [])
        if below_epoch not in known:
            known.append(below_epoch)
            known.sort()

    def generation(self, key: PartitionKey, leader_epoch: int) -> int:
        return sum(1 for each in self._boundaries.get(key, ()) if each <= leader_epoch)

    def may_lose(self, key: PartitionKey) -> bool:
        return key in self._boundaries

    def truth(self, key: PartitionKey, generation: int) -> Truth:
        return self._truths.setdefault((key, generation), Truth(key))

    def disk_lost(self, broker_id: int, image: MetadataImage, directory_id: bytes) -> None:
        """A directory of a broker is now empty: its replicas have lost their data."""
        for (holder, key), held in self.held.items():
            if holder == broker_id and directory_id in held:
                held.discard(directory_id)
                self._lost_disks.setdefault(key, set()).add(broker_id)
        self.metadata_moved(image)

    def would_lose(self, broker_id: int, directory_id: bytes) -> bool:
        """Whether the directory holds what no other replica in sync has, according to the metadata log."""
        image = self.image()
        for (holder, key), held in self.held.items():
            partition = image.topics.partition(*key) if holder == broker_id and directory_id in held else None
            if partition is not None:
                have = set(partition.isr or partition.elr) - self._lost_disks.get(key, set())
                if have and have <= {broker_id}:
                    return True
        return False

    def metadata_moved(self, image: MetadataImage) -> None:
        """A replica whose disk was lost has nothing until it has left the ISR and rejoined; if no other
        replica is in sync, acknowledged records are lost with the disk. A replica that was declared lost, or
        moved to another broker, no longer counts: another one may be created (S3.8), even if a dead directory
        has the old one."""
        for (holder, key), held in self.held.items():
            partition = image.topics.partition(*key) if held else None
            if partition is None:
                continue
            if holder not in partition.replicas or partition.directory_of(holder) == LOST:
                held.clear()
        for key, lost in list(self._lost_disks.items()):
            partition = image.topics.partition(*key)
            if partition is None:
                del self._lost_disks[key]
                continue
            lost &= {*partition.isr, *partition.elr}
            if not lost:
                del self._lost_disks[key]
            elif set(partition.isr or partition.elr) <= lost:
                self.given_up(key, partition.leader_epoch + 1)
