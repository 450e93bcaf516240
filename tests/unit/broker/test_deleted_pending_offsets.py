"""Offsets that an open transaction holds: every way to delete them, live and at replay, in every state."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.broker.coordinator.groups.group import DeleteGroup, FetchOffsets
from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.wire.messages import OffsetDeleteRequest, TxnOffsetCommitRequest
from metaquorum.wire.stored import StoredRecord
from tests.unit.broker.group_world import CONFIG, G, Groups

OTHER = "other"


class Coordinator(Groups):
    """Groups with transactions, whose log another broker may read."""

    def __init__(self) -> None:
        self.log: list[tuple[StoredRecord | bool, BatchOrigin]] = []
        super().__init__()

    def _keep(self, record: StoredRecord, origin: BatchOrigin | None = None) -> None:
        super()._keep(record, origin)
        producer = (origin.producer_id, origin.producer_epoch) if origin else (-1, -1)
        self.log.append((record, BatchOrigin(len(self.log), *producer)))

    def end(self, producer_id: int, *, committed: bool) -> None:
        origin = BatchOrigin(len(self.log), producer_id, 0)
        self.log.append((committed, origin))
        self.state.replay_marker(origin, committed=committed)

    def commit_in_transaction(self, producer_id: int, offset: int, topic: str, group_id: str = G) -> None:
        kinds = TxnOffsetCommitRequest
        part = kinds.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        key = self.ask(
            TxnOffsetCommitRequest(
                group_id=group_id,
                producer_id=producer_id,
                producer_epoch=0,
                topics=(kinds.TxnOffsetCommitRequestTopic(name=topic, partitions=(part,)),),
            )
        )
        assert self.answers[key] == (ErrorCode.NONE,)

    def loaded_again(self) -> Coordinator:
        """What another broker finds in the log."""
        found = Coordinator()
        found.state, found.now_ms = GroupState(CONFIG, random.Random(1)), self.now_ms
        for what, origin in self.log:
            if isinstance(what, bool):
                found.state.replay_marker(origin, committed=what)
            else:
                found.state.replay(what, origin)
            found.log.append((what, origin))
        found._take(found.state.loaded(MetadataImage(), found.now))
        return found

    def stable(self, topic: str = "t", group_id: str = G) -> tuple[ErrorCode, int]:  # type: ignore[override]
        """What OffsetFetch with `require_stable` answers."""
        asked = FetchOffsets(group_id=group_id, partitions=((topic, 0),), require_stable=True)
        found = self.answers[self.ask(asked)][0]
        return found.error, found.offset


def held_alone(groups: Coordinator) -> None:
    groups.commit_in_transaction(7, 19, "t")


def committed_before(groups: Coordinator) -> None:
    groups.commit(5)
    groups.commit_in_transaction(7, 19, "t")


def committed_afterwards(groups: Coordinator) -> None:
    groups.commit_in_transaction(7, 19, "t")
    groups.commit(25)


def held_by_two(groups: Coordinator) -> None:
    groups.commit_in_transaction(7, 19, "t")
    groups.commit_in_transaction(8, 20, "t")


def held_twice(groups: Coordinator) -> None:
    groups.commit_in_transaction(7, 18, "t")
    groups.commit_in_transaction(7, 19, "t")


PENDING = (held_alone, committed_before, committed_afterwards, held_by_two, held_twice)


def images(*names: str) -> tuple[MetadataImage, MetadataImage]:
    """Metadata with topics "t" and "kept", and then with new ones of these names."""
    before, after = ImageBuilder(MetadataImage()), ImageBuilder(MetadataImage())
    before.topics.add_topic(b"id 1 of t ......", "t")
    before.topics.add_topic(b"id 1 of kept ...", "kept")
    after.topics.add_topic(b"id 1 of kept ...", "kept")
    for name in names:
        after.topics.add_topic(b"id 2 of t ......", name)
    return before.freeze(), after.freeze()


def delete_topic(groups: Coordinator) -> None:
    before, after = images()
    groups.publish(after, before)


def create_topic_again(groups: Coordinator) -> None:
    before, after = images("t")
    groups.publish(after, before)


def delete_offset(groups: Coordinator) -> None:
    kinds = OffsetDeleteRequest
    topic = kinds.OffsetDeleteRequestTopic(name="t", partitions=(kinds.OffsetDeleteRequestPartition(),))
    key = groups.ask(OffsetDeleteRequest(group_id=G, topics=(topic,)))
    assert groups.answers[key].topics[0].partitions[0].error_code == ErrorCode.NONE


def delete_group(groups: Coordinator) -> None:
    assert groups.answers[groups.ask(DeleteGroup(group_id=G))] is ErrorCode.NONE
    assert G not in groups.state.groups


DELETIONS = (delete_topic, create_topic_again, delete_offset, delete_group)
Step = Callable[[Coordinator], None]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("when", ["live", "loaded before the deletion", "loaded after the deletion"])
@pytest.mark.parametrize("delete", DELETIONS)
@pytest.mark.parametrize("pending", PENDING)
def test_a_deleted_offset_is_not_committed_later(
    pending: Step, delete: Step, when: str, committed: bool
) -> None:
    groups = Coordinator()
    groups.commit_in_transaction(7, 3, "kept", OTHER)
    pending(groups)
    assert groups.stable()[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    if when == "loaded before the deletion":
        groups = groups.loaded_again()
        assert groups.stable()[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    delete(groups)
    if when == "loaded after the deletion":
        groups = groups.loaded_again()
    assert groups.stable() == (ErrorCode.NONE, -1)
    assert groups.stable("kept", OTHER)[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    for producer_id in (7, 8):
        groups.end(producer_id, committed=committed)
    assert groups.stable() == (ErrorCode.NONE, -1)
    assert groups.stable("kept", OTHER) == (ErrorCode.NONE, 3 if committed else -1)
    again = groups.loaded_again()
    assert again.stable() == (ErrorCode.NONE, -1)


@pytest.mark.parametrize("delete", DELETIONS)
def test_what_is_committed_after_a_deletion_counts(delete: Step) -> None:
    groups = Coordinator()
    held_alone(groups)
    delete(groups)
    groups.commit_in_transaction(7, 2, "t")
    assert groups.stable()[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end(7, committed=True)
    assert groups.stable() == (ErrorCode.NONE, 2)
    assert groups.loaded_again().stable() == (ErrorCode.NONE, 2)
