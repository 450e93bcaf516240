"""What an active controller of Apache Kafka 3.7 writes while its voter leads, and the snapshots it makes.

It begins as Kafka does: what an earlier leader left open is aborted, and an empty log gets its first records
in a transaction (KIP-868). Then it writes topics, settings and no-ops (KIP-835).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from metaquorum.metadata.features import DEFAULT_METADATA_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.snapshot import QuorumRecord, snapshot_batches
from metaquorum.storage.types import LogPosition
from tests.raft.kafka_voter import LEADER, KafkaVoter
from tests.sim.foreign.applied import Applied
from tests.sim.processes import SEGMENT_BYTES

TOPICS = ("kafka-0", "kafka-1", "kafka-2")
TOPIC, UNASSIGNED = 2, bytes(16)
PAUSE_MS = (10, 400)


class KafkaController:
    """`turn` after each step of the voter."""

    def __init__(
        self,
        voter: KafkaVoter,
        rng: random.Random,
        snapshot_every_bytes: int,
        quorum: Callable[[LogPosition], Sequence[QuorumRecord]] = lambda position: (),
    ) -> None:
        """`quorum`: what a snapshot says of the voters."""
        self._voter, self._rng, self._quorum = voter, rng, quorum
        self._snapshot_every_bytes = snapshot_every_bytes
        self._applied: Applied | None = None
        self._next_ms = 0
        self._was_active = False
        self._marks: list[str] = []

    @property
    def image(self) -> MetadataImage:
        return MetadataImage() if self._applied is None else self._applied.state.image

    def tell(self, add: Callable[[str], None]) -> None:
        marks, self._marks = self._marks, []
        for mark in marks:
            add(mark)

    def turn(self, wall_ms: int) -> None:
        if self._applied is None:
            self._applied = Applied(self._voter.disk)
        self._applied.up_to(self._voter.high_watermark)
        self._maybe_snapshot(self._applied)
        voter = self._voter
        is_active = voter.role == LEADER and self._applied.state.end_offset > voter.epoch_start
        if is_active and not self._was_active:
            self._marks.append("Kafka's controller is active")
            self._next_ms = voter.now
        self._was_active = is_active
        if not is_active or voter.now < self._next_ms:
            return
        self._next_ms = voter.now + self._rng.randint(*PAUSE_MS)
        nothing_pends = self._applied.state.end_offset == voter.disk.end
        if not nothing_pends and not self._applied.state.image.features.level("metadata.version"):
            return
        batches: list[list[Any]] = self._first(self._applied) if nothing_pends else []
        if nothing_pends and not batches and self._rng.random() < 0.5:
            batches = [self._change(self._applied.state.image)]
        for records in batches or [[r.NoOpRecord()]]:
            voter.append(
                [encode(each, 0 if type(each) is not r.PartitionRecord else 1) for each in records], wall_ms
            )

    def _first(self, applied: Applied) -> list[list[Any]]:
        """What comes before all else."""
        if applied.state.transaction is not None:
            self._marks.append("Kafka's controller aborted what was left open")
            return [[r.AbortTransactionRecord(reason="another controller is active")]]
        if applied.state.image.features.level("metadata.version"):
            return []
        level = r.FeatureLevelRecord(name="metadata.version", feature_level=DEFAULT_METADATA_VERSION)
        self._marks.append("Kafka's controller wrote the first records")
        migration = r.ZkMigrationStateRecord(zk_migration_state=0)
        return [
            [r.BeginTransactionRecord(name="Bootstrap records"), level, migration, r.EndTransactionRecord()],
        ]

    def _change(self, image: MetadataImage) -> list[Any]:
        name = self._rng.choice(TOPICS)
        known = image.topics.topic_named(name)
        brokers = sorted(node_id for node_id, each in image.brokers.items() if not each.fenced)
        if known is None and brokers:
            topic_id = self._rng.randbytes(16)
            self._marks.append("Kafka's controller created a topic")
            leader = self._rng.choice(brokers)
            return [
                r.TopicRecord(name=name, topic_id=topic_id),
                *(
                    r.PartitionRecord(
                        partition_id=at,
                        topic_id=topic_id,
                        replicas=(leader,),
                        isr=(leader,),
                        leader=leader,
                        leader_epoch=0,
                        partition_epoch=0,
                        directories=(UNASSIGNED,),
                    )
                    for at in range(2)
                ),
            ]
        if known is not None and self._rng.random() < 0.4:
            self._marks.append("Kafka's controller deleted a topic")
            return [r.RemoveTopicRecord(topic_id=known.topic_id)]
        if known is not None:
            value = str(self._rng.randrange(1_000, 100_000))
            return [r.ConfigRecord(resource_type=TOPIC, resource_name=name, name="retention.ms", value=value)]
        return [r.NoOpRecord()]

    def _maybe_snapshot(self, applied: Applied) -> None:
        """Of what is committed, after enough bytes; then the oldest ones go, and what they cover."""
        disk, state = self._voter.disk, applied.state
        newest = max((each.offset for each in disk.snapshots), default=0)
        if state.transaction is not None or not state.image.features.level("metadata.version"):
            return
        since = sum(
            len(data) for base, end, _, data in disk.batches if newest <= base and end <= state.end_offset
        )
        if since < self._snapshot_every_bytes:
            return
        epoch = next(epoch for _, end, epoch, _ in disk.batches if end == state.end_offset)
        position = LogPosition(epoch, state.end_offset)
        data = b"".join(snapshot_batches(state.image, position=position, quorum=self._quorum(position)))
        self._voter.write_snapshot(position, data)
        self._voter.clean(2 * SEGMENT_BYTES + len(data))
        self._marks.append("Kafka's controller wrote a snapshot")
