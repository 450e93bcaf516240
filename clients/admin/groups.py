"""Calls about consumer groups and their offsets, each at the group's coordinator; plans of new offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from metaquorum.clients.admin.partition_logs import (
    EARLIEST,
    LATEST,
    TopicPartition,
    grouped,
    leaders_of,
    log_offsets,
)
from metaquorum.clients.kafka.cluster import Coordinator, KafkaClient
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.wire.embedded import assigned_partitions
from metaquorum.wire.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

_GROUP = 0
"""The key type of group coordinators."""
CLASSIC, CONSUMER = "classic", "consumer"
DEAD = "Dead"
_INACTIVE = frozenset({"Empty", DEAD})
_BY_NAME_FETCH, _BY_NAME_COMMIT = 7, 9
"""The last version of OffsetFetch for a single group, and the last of OffsetCommit with topic names."""
_ALL_TOPICS = 2
"""The first version of OffsetFetch that can return all offsets of a group."""


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """A group. `kind`: classic or consumer (KIP-848). Fields that an older cluster does not report are
    empty."""

    group_id: str
    kind: str
    protocol_type: str
    state: str
    coordinator: int


class DescribedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member. `partitions` None: only the group's clients can read the assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    partitions: tuple[TopicPartition, ...] | None


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    kind: str
    protocol_type: str
    state: str
    assignor: str
    members: tuple[DescribedMember, ...]

    @property
    def is_active(self) -> bool:
        """True if the group has members or is about to: only they may change its offsets."""
        return self.state not in _INACTIVE


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    offset: int
    metadata: str


async def list_groups(client: KafkaClient) -> list[GroupListing]:
    """All groups, by name."""
    groups = [
        GroupListing(
            group_id=group.group_id,
            kind=group.group_type.lower(),
            protocol_type=group.protocol_type,
            state=group.group_state,
            coordinator=broker,
        )
        for broker, answer in await client.ask_every_broker(ListGroupsRequest(), "its groups")
        for group in answer.groups
    ]
    return sorted(groups, key=lambda each: each.group_id)


async def describe_group(client: KafkaClient, group_id: str) -> GroupDescription | None:
    """A group with its members; None if it does not exist. Raises ApiError."""
    coordinator = Coordinator(_GROUP, group_id)
    try:
        answer = await client.ask(ConsumerGroupDescribeRequest(group_ids=(group_id,)), target=coordinator)
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    else:
        (group,) = answer.groups
        if group.error_code not in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}:
            client.refuse(group.error_code, group.error_message or f"group {group_id}")
            return _of_consumers(group)
    (group,) = (await client.ask(DescribeGroupsRequest(groups=(group_id,)), target=coordinator)).groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
        return None
    client.refuse(group.error_code, group.error_message or f"group {group_id}")
    return _of_classic(group)


def _of_consumers(group: Any) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        kind=CONSUMER,
        protocol_type="consumer",
        state=group.group_state,
        assignor=group.assignor_name,
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                epoch=member.member_epoch,
                partitions=tuple(
                    (topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in group.members
        ),
    )


def _of_classic(group: Any) -> GroupDescription:
    of_consumers = group.protocol_type in {"", "consumer"}
    return GroupDescription(
        group_id=group.group_id,
        kind=CLASSIC,
        protocol_type=group.protocol_type,
        state=group.group_state,
        assignor=group.protocol_data,
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                epoch=None,
                partitions=_assigned(member.member_assignment) if of_consumers else None,
            )
            for member in group.members
        ),
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...] | None:
    if not data:
        return ()  # no assignment yet, as during a rebalance
    found = assigned_partitions(bytes(data))
    return None if found is None else tuple(found[0])


async def committed_offsets(client: KafkaClient, group_id: str) -> dict[TopicPartition, Committed]:
    """All committed offsets of a group, by topic and partition. Raises ApiError."""
    answer = await client.ask(
        OffsetFetchRequest(group_id=group_id, topics=None),
        target=Coordinator(_GROUP, group_id),
        lowest=_ALL_TOPICS,
        highest=_BY_NAME_FETCH,
    )
    client.refuse(answer.error_code, f"group {group_id}")
    committed = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            client.refuse(partition.error_code, f"group {group_id}, {topic.name}-{partition.partition_index}")
            if partition.committed_offset >= 0:
                committed[topic.name, partition.partition_index] = Committed(
                    offset=partition.committed_offset, metadata=partition.metadata or ""
                )
    return dict(sorted(committed.items()))


async def commit_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ErrorCode]:
    """Commits offsets of a group without members; returns an error code per partition."""
    message = OffsetCommitRequest
    body = message(
        group_id=group_id,
        topics=tuple(
            message.OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    message.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[topic, index], committed_metadata=""
                    )
                    for index in indexes
                ),
            )
            for topic, indexes in grouped(offsets).items()
        ),
    )
    answer = await client.ask(body, target=Coordinator(_GROUP, group_id), highest=_BY_NAME_COMMIT)
    return _codes(answer)


async def delete_group(client: KafkaClient, group_id: str) -> ErrorCode:
    """Deletes a group without members and its offsets; returns the error code."""
    at = Coordinator(_GROUP, group_id)
    (result,) = (await client.ask(DeleteGroupsRequest(groups_names=(group_id,)), target=at)).results
    return ErrorCode.of(result.error_code)


async def delete_offsets(
    client: KafkaClient, group_id: str, places: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Deletes offsets of topics that no member subscribes to; returns an error code per partition."""
    message = OffsetDeleteRequest
    Partition = message.OffsetDeleteRequestPartition
    body = message(
        group_id=group_id,
        topics=tuple(
            message.OffsetDeleteRequestTopic(
                name=topic, partitions=tuple(Partition(partition_index=index) for index in indexes)
            )
            for topic, indexes in grouped(places).items()
        ),
    )
    answer = await client.ask(body, target=Coordinator(_GROUP, group_id))
    client.refuse(answer.error_code, f"group {group_id}")
    return _codes(answer)


def _codes(answer: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        (topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }


Found = Mapping[TopicPartition, int | ErrorCode]


class Aim(Enum):
    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    TIME = "--to-datetime"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    GIVEN = "--from-file"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a reset. `value`: a time in ms, an offset or a shift, depending on `aim`; `given`:
    offsets by partition."""

    aim: Aim
    value: int = 0
    given: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The new offset of a partition. `new` None: there is none, and `note` is the reason; otherwise `note`
    says how the offset was adjusted, if it was."""

    partition: TopicPartition
    committed: int | None
    new: int | None
    note: str = ""


async def partitions_of(
    client: KafkaClient, wanted: Iterable[tuple[str, Sequence[int] | None]]
) -> tuple[list[TopicPartition], list[str]]:
    """Returns the partitions of topics (None: all), and one line per partition or topic that does not
    exist."""
    wanted = list(wanted)
    found = await leaders_of(client, [topic for topic, _ in wanted])
    places, missing = [], []
    for topic, indexes in wanted:
        topic_partitions = found.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(topic_partitions, ErrorCode):
            missing.append(f"{topic_partitions.name}: topic {topic}")
            continue
        for index in sorted(topic_partitions) if indexes is None else indexes:
            if index in topic_partitions:
                places.append((topic, index))
            else:
                count = "1 partition" if len(topic_partitions) == 1 else f"{len(topic_partitions)} partitions"
                missing.append(f"{topic}-{index} does not exist: the topic has {count}")
    return sorted(set(places)), missing


async def plan_reset(
    client: KafkaClient,
    goal: Goal,
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, Committed],
) -> list[Planned]:
    """The planned offset of each partition."""

    async def at(time_ms: int, some: Iterable[TopicPartition] = places) -> Found:
        return await log_offsets(client, dict.fromkeys(some, time_ms))

    before = {place: committed[place].offset for place in places if place in committed}
    match goal.aim:
        case Aim.EARLIEST:
            return _settled(places, before, await at(EARLIEST))
        case Aim.LATEST:
            return _settled(places, before, await at(LATEST))
        case Aim.CURRENT:
            ends = await at(LATEST, [place for place in places if place not in before])
            notes = dict.fromkeys(ends, "nothing was committed: the end of the log")
            return _settled(places, before, {**ends, **before}, notes)
        case Aim.TIME:
            found = await at(goal.value)
            ends = await at(LATEST, [place for place, offset in found.items() if offset == -1])
            notes = dict.fromkeys(ends, "no record is as new: the end of the log")
            return _settled(places, before, {**found, **ends}, notes)
        case Aim.OFFSET | Aim.SHIFT | Aim.GIVEN:
            return _within(places, before, _wanted(goal, before), await at(EARLIEST), await at(LATEST))


def _wanted(goal: Goal, before: Mapping[TopicPartition, int]) -> Callable[[TopicPartition], int | None]:
    if goal.aim is Aim.SHIFT:
        return lambda place: before[place] + goal.value if place in before else None
    return lambda place: goal.value if goal.aim is Aim.OFFSET else goal.given[place]


def _settled(
    places: Iterable[TopicPartition],
    before: Mapping[TopicPartition, int],
    looked_up: Found,
    notes: Mapping[TopicPartition, str] | None = None,
) -> list[Planned]:
    return [_planned(place, before, looked_up[place], (notes or {}).get(place, "")) for place in places]


def _planned(
    partition: TopicPartition, before: Mapping[TopicPartition, int], offset: int | ErrorCode, note: str
) -> Planned:
    if isinstance(offset, ErrorCode):
        return Planned(partition=partition, committed=before.get(partition), new=None, note=offset.name)
    return Planned(partition=partition, committed=before.get(partition), new=offset, note=note)


def _within(
    places: Iterable[TopicPartition],
    before: Mapping[TopicPartition, int],
    wanted: Callable[[TopicPartition], int | None],
    starts: Found,
    ends: Found,
) -> list[Planned]:
    plan = []
    for partition in places:
        offset, start, end = wanted(partition), starts[partition], ends[partition]
        if isinstance(start, ErrorCode) or isinstance(end, ErrorCode):
            plan.append(_planned(partition, before, start if isinstance(start, ErrorCode) else end, ""))
        elif offset is None:
            plan.append(
                Planned(partition=partition, committed=None, new=None, note="nothing was committed to shift")
            )
        elif offset < start:
            plan.append(_planned(partition, before, start, f"{offset} is below the start of the log"))
        elif offset > end:
            plan.append(_planned(partition, before, end, f"{offset} is past the end of the log"))
        else:
            plan.append(_planned(partition, before, offset, ""))
    return plan
