"""Committed offsets: who may commit, what a transaction holds back, what is deleted and what expires."""

from __future__ import annotations

import pytest

from metaquorum.broker.coordinator.groups.group import FetchOffsets
from metaquorum.broker.coordinator.shard import RETRY_MS
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire.messages import OffsetCommitKey, OffsetCommitValue, OffsetDeleteRequest
from metaquorum.wire.stored import StoredRecord
from tests.unit.broker.group_world import G, Groups, subscription

DAY_MS = 86_400_000
QUICK = GroupConfig(
    offsets_retention_ms=10_000, offsets_retention_check_interval_ms=1_000, group_min_session_timeout_ms=10
)


def delete(groups: Groups, *topics: str, group_id: str = G) -> list[ErrorCode]:
    kinds = OffsetDeleteRequest
    key = groups.ask(
        OffsetDeleteRequest(
            group_id=group_id,
            topics=tuple(
                kinds.OffsetDeleteRequestTopic(name=topic, partitions=(kinds.OffsetDeleteRequestPartition(),))
                for topic in topics
            ),
        )
    )
    answer = groups.answers[key]
    return [ErrorCode(each.partitions[0].error_code) for each in answer.topics] or [
        ErrorCode(answer.error_code)
    ]


def test_anyone_commits_to_a_group_without_members_and_members_in_their_generation() -> None:
    groups = Groups()
    assert groups.commit(5) is ErrorCode.NONE
    assert groups.committed() == 5
    first, second = groups.stable()
    assert groups.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.commit(6, member_id=first, generation=7) is ErrorCode.ILLEGAL_GENERATION
    assert groups.commit(6, member_id="x", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.commit(6, generation=3, group_id="none") is ErrorCode.ILLEGAL_GENERATION
    assert groups.commit(6, member_id=first, generation=1) is ErrorCode.NONE
    groups.join(second, protocols=(("range", subscription("new")),))
    assert groups.commit(7, member_id=first, generation=1) is ErrorCode.NONE, "before it joins again"
    groups.join(first)
    assert groups.commit(8, member_id=first, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.committed() == 7
    assert groups.again().committed() == 7


def test_nothing_committed_is_offset_minus_1_and_all_are_given_in_order() -> None:
    groups = Groups()
    assert groups.committed() == -1
    for topic in ("z", "a"):
        groups.commit(3, topic=topic, metadata="note")
    found = groups.answers[groups.ask(FetchOffsets(group_id=G, partitions=None))]
    assert [(each.topic, each.offset, each.metadata) for each in found] == [
        ("a", 3, "note"),
        ("z", 3, "note"),
    ]
    assert groups.answers[groups.ask(FetchOffsets(group_id="none", partitions=None))] == ()


def test_metadata_is_bounded_in_characters_and_null_is_empty() -> None:
    groups = Groups(GroupConfig(offset_metadata_max_bytes=4))
    assert groups.commit(1, metadata="abcd") is ErrorCode.NONE
    assert groups.commit(1, metadata="éàüñ") is ErrorCode.NONE
    assert groups.commit(1, metadata="abcde") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert groups.commit(1, metadata="\U0001f600" * 2) is ErrorCode.NONE
    assert groups.commit(1, metadata="a\U0001f600b\U0001f600") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert groups.commit(1, metadata=None) is ErrorCode.NONE


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    groups = Groups()
    groups.commit(1)
    key = OffsetCommitKey(group=G, topic="t", partition=0)
    for producer_id, offset in ((7, 10), (8, 20)):
        value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)
        groups.state.replay(StoredRecord(key, value, 1, 3), BatchOrigin(offset, producer_id, 0))
    assert groups.committed() == 1
    stable = groups.ask(FetchOffsets(group_id=G, partitions=(("t", 0),), require_stable=True))
    assert groups.answers[stable][0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.state.replay_marker(BatchOrigin(30, 7, 0), committed=True)
    assert groups.committed() == 10
    groups.state.replay_marker(BatchOrigin(31, 8, 0), committed=False)
    assert groups.committed() == 10
    stable = groups.ask(FetchOffsets(group_id=G, partitions=(("t", 0),), require_stable=True))
    assert groups.answers[stable][0].offset == 10


def test_a_commit_that_was_made_after_that_of_a_transaction_wins() -> None:
    groups = Groups()
    key = OffsetCommitKey(group="other", topic="t", partition=0)
    value = OffsetCommitValue(offset=9, metadata="", commit_timestamp=0)
    groups.state.replay(StoredRecord(key, value, 1, 3), BatchOrigin(0, 7, 0))
    groups.records.append(StoredRecord(key, value, 1, 3))
    groups.commit(50, group_id="other")
    groups.state.replay_marker(BatchOrigin(5, 7, 0), committed=True)
    assert groups.committed(group_id="other") == 50


def test_offsets_of_topics_that_nobody_consumes_are_deleted() -> None:
    groups = Groups()
    assert delete(groups, "t") == [ErrorCode.GROUP_ID_NOT_FOUND]
    groups.commit(5, topic="t")
    groups.commit(5, topic="old")
    groups.stable(1)
    assert delete(groups, "t", "old", "never") == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert (groups.committed("t"), groups.committed("old")) == (5, -1)
    assert groups.again().committed("old") == -1


def test_offsets_of_a_deleted_topic_go_also_where_the_log_refuses_that_at_first() -> None:
    groups = Groups()
    groups.commit(5, topic="t")
    groups.commit(5, topic="gone")
    before = ImageBuilder(MetadataImage())
    before.topics.add_topic(b"g" * 16, "gone")
    joined = groups.join(protocols=(("range", subscription("t")),))
    groups.wait(99)
    groups.state.image_moved(MetadataImage(), before.freeze(), groups.now)
    groups.wait(1, refuse=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (groups.committed("gone"), groups.answers[joined].error_code) == (5, 0)
    groups.wait(RETRY_MS)
    assert (groups.committed("gone"), groups.committed("t")) == (-1, 5)
    assert groups.again().committed("gone") == -1


@pytest.mark.parametrize("version", [1, 2, 3, 9])
def test_a_subscription_that_ends_before_its_versions_fields_keeps_the_offsets_of_its_topics_alone(
    version: int,
) -> None:
    """As JavaScript's clients send it: version 1, and nothing after the user data."""
    groups = Groups()
    groups.commit(5, topic="old")
    groups.commit(5, topic="t")
    groups.join(protocols=(("range", version.to_bytes(2, "big") + subscription("t")[2:]),))
    groups.wait(200)
    assert delete(groups, "t", "old") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert (groups.committed("t"), groups.committed("old")) == (5, -1)


def test_a_group_that_does_not_say_what_it_consumes_keeps_its_offsets() -> None:
    groups = Groups()
    groups.join(kind="connect", group_id="workers", protocols=(("x", b""),))
    groups.wait(200)
    assert delete(groups, "t", group_id="workers") == [ErrorCode.NON_EMPTY_GROUP]
    groups.join(protocols=(("range", b"not a subscription"),))
    groups.wait(200)
    assert delete(groups, "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_of_a_group_without_members_expire_from_when_it_became_empty() -> None:
    groups = Groups(QUICK)
    (only,) = _stable(groups)
    groups.commit(5, member_id=only, generation=1)
    for _ in range(20):
        groups.wait(900)
        assert groups.heartbeat(only, 1) is ErrorCode.NONE
    assert groups.committed() == 5, "its topic is consumed"
    groups.leave(only)
    groups.wait(9_000)
    assert groups.committed() == 5
    groups.wait(2_000)
    assert groups.committed() == -1
    assert G not in groups.state.groups
    assert groups.again().state.groups == {}


def _stable(groups: Groups) -> list[str]:
    key = groups.join()
    groups.wait(3_000)
    member_id = groups.answers[key].member_id
    groups.sync(member_id, 1, {member_id: b""})
    return [member_id]


def test_offsets_of_a_group_that_only_stores_them_expire_from_their_commit() -> None:
    groups = Groups(QUICK)
    groups.commit(5)
    groups.wait(6_000)
    groups.commit(6, topic="later")
    groups.wait(5_000)
    assert (groups.committed(), groups.committed("later")) == (-1, 6)
    groups.wait(6_000)
    assert groups.state.groups == {}


def test_a_stable_group_loses_the_offsets_of_topics_that_it_left() -> None:
    groups = Groups(QUICK)
    groups.commit(1, topic="left")
    (only,) = _stable(groups)
    groups.commit(2, member_id=only, generation=1)
    for _ in range(15):
        groups.wait(900)
        groups.heartbeat(only, 1)
    assert (groups.committed(), groups.committed("left")) == (2, -1)


def test_a_client_of_old_says_itself_how_long_its_offsets_are_kept() -> None:
    groups = Groups(QUICK)
    groups.commit(5, retention_ms=2 * DAY_MS)
    assert groups.records[-1].value_version == 1
    groups.wait(20_000)
    assert groups.committed() == 5
    assert groups.again().committed() == 5


@pytest.mark.parametrize("comes_back", [False, True])
def test_offsets_go_with_their_topic(comes_back: bool) -> None:
    builder = ImageBuilder(MetadataImage())
    builder.topics.add_topic(b"1" * 16, "t")
    builder.topics.add_topic(b"2" * 16, "kept")
    builder.offset += 1
    previous = builder.freeze()
    entry = builder.topics.by_id.get(b"1" * 16)
    assert entry is not None
    builder.topics.remove_topic(entry)
    if comes_back:
        builder.topics.add_topic(b"3" * 16, "t")
    builder.offset += 1
    groups = Groups()
    groups.commit(5)
    groups.commit(6, topic="kept")
    groups.publish(builder.freeze(), previous)
    assert (groups.committed(), groups.committed("kept")) == (-1, 6)
    assert groups.again().committed() == -1
