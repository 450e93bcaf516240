"""What an operator does about partitions whose last in-sync replica lost its disk: accepts the loss.

Any other partition without a leader after healing is a fault of the cluster, and must be detected as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.metadata.image import MIGRATING, NO_LEADER, UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.image.directories import damaged_in
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.requests.partitions import ElectLeadersRequest, ElectLeadersResponse
from tests.sim.committed import CommittedLog
from tests.sim.engine import Engine
from tests.sim.marks import Marks

LOOK_MS = 500


def waits_for_a_lost_disk(image: MetadataImage, partition: PartitionInfo) -> bool:
    """There is no leader, and every broker that is waited for runs without the directory that held the
    replica."""
    waited_for = {*partition.isr, *partition.elr} or set(partition.last_known_elr)
    return partition.leader == NO_LEADER and all(_lost(image, partition, each) for each in waited_for)


def _lost(image: MetadataImage, partition: PartitionInfo, broker_id: int) -> bool:
    directory = partition.directory_of(broker_id)
    return (
        directory not in {None, UNASSIGNED, MIGRATING}
        and image.brokers.is_active(broker_id)
        and not _is_damaged(image, broker_id, directory)
        and not directory_online(image.brokers, broker_id, directory)
    )


def _is_damaged(image: MetadataImage, broker_id: int, place: bytes | None) -> bool:
    """The replica can be restored."""
    registration = image.brokers.get(broker_id)
    return registration is not None and place in {damaged_in(each) for each in registration.directories}


def accept_losses(
    engine: Engine,
    log: CommittedLog,
    ask: Callable[[Any, Callable[[Any], None]], None],
    marks: Marks,
) -> None:
    """From now on, repeatedly: an unclean election of every such partition."""

    def note(response: Any) -> None:
        if isinstance(response, ElectLeadersResponse):
            for each in response.results:
                marks.add(f"loss of a disk accepted: {each.error.name}")

    def look() -> None:
        newest = log.image
        lost = []
        for row in newest.topics.rows_without_leader().tolist():
            partition = newest.topics.at(row)
            info = newest.topics.topic(partition.topic_id)
            if info is not None and waits_for_a_lost_disk(newest, partition):
                lost.append((info.name, partition.index))
        if lost:
            engine.trace("admin", f"accepts the loss of {lost}")
            log.unclean_asked.update(lost)
            ask(ElectLeadersRequest(unclean=True, partitions=tuple(lost)), note)
        engine.after(LOOK_MS, look)

    engine.after(LOOK_MS, look)
