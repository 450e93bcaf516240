"""Recorded requests about groups: what Kafka 3.7 answered, we answer, field by field.

Ids of members are each broker's own: theirs are replaced by ours in later requests and in what is compared.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.state import Ask, BatchOrigin, Now
from metaquorum.broker.server.kafka.groups import (
    GroupCoordinators,
    GroupHandlers,
    OffsetHandlers,
    partition_of,
)
from metaquorum.listeners.services import Client
from metaquorum.metadata.image import ImageBuilder, MetadataImage, PartitionInfo
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.requests.data import CoordinatorRequest, CoordinatorResponse
from metaquorum.storage.batches.batch import RecordBatch, parse_control_key, parse_header
from metaquorum.wire import codec
from metaquorum.wire.stored import decode_stored
from tests.unit.broker.group_world import Groups
from tests.unit.wire.captures import Frame, frames
from tests.unit.wire.test_stored import records_of

pytestmark = pytest.mark.shared_data
TOPIC = "__consumer_offsets"
PARTITIONS = 2
HANDLERS = {
    8: "offset_commit",
    9: "offset_fetch",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    42: "delete_groups",
    47: "offset_delete",
}
LIST_GROUPS = 16
MOMENTARY = {"throttle_time_ms", "unknown_tags"}
NOT_OURS = ("not the coordinator", "while a transaction is open")
"""Cases about another broker, and about a transaction."""


class Broker:
    """The handlers in front of one partition's groups. Where an answer takes time, time passes."""

    def __init__(self, topics: set[tuple[str, int]]) -> None:
        builder = ImageBuilder(MetadataImage())
        for number, name in enumerate(sorted({TOPIC, *(name for name, _ in topics)})):
            topic_id = bytes([number + 1]) * 16
            builder.topics.add_topic(topic_id, name)
            last = 0 if name == TOPIC else max(index for known, index in topics if known == name)
            for index in range(last + 1):
                info = PartitionInfo(
                    topic_id=topic_id,
                    index=index,
                    replicas=(0,),
                    isr=(0,),
                    leader=0,
                    leader_epoch=0,
                    partition_epoch=0,
                    leader_recovery_state=0,
                    directories=(bytes(16),),
                )
                entry = builder.topics.by_id.get(topic_id)
                assert entry is not None
                builder.topics.put_partition(entry, info)
        image = builder.freeze()
        self.groups = Groups(GroupConfig())
        coordinators = GroupCoordinators(self, lambda: image, 0, TOPIC)  # type: ignore[arg-type]
        self.members = GroupHandlers(coordinators)
        self.offsets = OffsetHandlers(coordinators, lambda: image)

    async def begin(self, request: CoordinatorRequest) -> CoordinatorResponse:
        groups = self.groups
        groups.next_key += 1
        key = groups.next_key
        groups._take(groups.state.decide(Ask(key, request), groups.now))
        for _ in range(100):
            if key in groups.answers:
                break
            groups.wait(100)
        return CoordinatorResponse(body=groups.answers[key])

    def answer(self, request: codec.Request) -> Any:
        name = HANDLERS[request.header.api_key]
        handler = getattr(self.offsets if name.startswith("offset") else self.members, name)
        return asyncio.run(handler(request, Client(listener="KAFKA", address="127.0.0.1")))


def with_names(value: Any, names: dict[str, str]) -> Any:
    """A message with other names of members."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        return tuple(with_names(each, names) for each in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: with_names(getattr(value, name), names) for name in value.__struct_fields__}
        return type(value)(**fields)
    return value


def learn(theirs: Any, ours: Any, names: dict[str, str]) -> None:
    """Which of our members is which of theirs."""
    if isinstance(theirs, tuple):
        for one, other in zip(theirs, ours, strict=False):
            learn(one, other, names)
    elif isinstance(theirs, msgspec.Struct):
        if getattr(theirs, "member_id", "") and getattr(ours, "member_id", ""):
            names.setdefault(theirs.member_id, ours.member_id)
        for name in theirs.__struct_fields__:
            learn(getattr(theirs, name), getattr(ours, name), names)


def plain(value: Any) -> Any:
    """What can be compared: without what depends on the moment."""
    if isinstance(value, msgspec.Struct):
        return {
            name: plain(getattr(value, name)) for name in value.__struct_fields__ if name not in MOMENTARY
        }
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def pairs_of(folder: Path, scenario: str) -> list[tuple[Frame, Frame]]:
    found = [each for each in frames(folder / "kafka-3.7-wire", scenario) if each.api_key in HANDLERS]
    return [
        (one, other)
        for one, other in pairwise(found)
        if one.is_request and not other.is_request and one.where == other.where
    ]


def known_partitions(pairs: list[tuple[Frame, Frame]]) -> set[tuple[str, int]]:
    """Those to which Kafka took a commit."""
    return {
        (topic.name, part.partition_index)
        for _, answer in pairs
        if answer.api_key == 8
        for topic in codec.decode_response(8, answer.version, answer.data).body.topics
        for part in topic.partitions
        if part.error_code not in (3, 35)
    }


@pytest.mark.parametrize("scenario", ["M-error-cases", "N-all-versions"])
def test_what_kafka_answered_is_answered(shared_data: Path, scenario: str) -> None:
    pairs = pairs_of(shared_data, scenario)
    broker = Broker(known_partitions(pairs))
    names: dict[str, str] = {}
    compared: Counter[str] = Counter()
    for asked, answered in pairs:
        if any(words in asked.label for words in NOT_OURS):
            continue
        request = codec.decode_request(asked.data)
        theirs = codec.decode_response(answered.api_key, answered.version, answered.data).body
        ours = broker.answer(msgspec.structs.replace(request, body=with_names(request.body, names)))
        chunks = codec.encode_response(answered.api_key, answered.version, 1, ours)
        ours = codec.decode_response(answered.api_key, answered.version, b"".join(chunks)).body
        learn(theirs, ours, names)
        if asked.api_key == LIST_GROUPS:
            # Which groups there are depends on what was asked of which broker.
            theirs, ours = (msgspec.structs.replace(each, groups=each.groups[:0]) for each in (theirs, ours))
        assert plain(with_names(theirs, names)) == plain(ours), asked.label
        compared[HANDLERS[asked.api_key]] += 1
    assert compared.total() > 30, compared


def replayed(path: Path) -> GroupState:
    """The state machine after a segment that Kafka wrote."""
    state = GroupState(GroupConfig(), random.Random(1))
    data, position = path.read_bytes(), 0
    while position < len(data):
        header = parse_header(data, position)
        batch = RecordBatch(header, data[position : position + header.size_bytes])
        position += header.size_bytes
        producer_id = header.producer_id if header.is_transactional else -1
        for record in batch.records():
            origin = BatchOrigin(record.offset, producer_id, header.producer_epoch)
            if header.is_control:
                state.replay_marker(origin, committed=parse_control_key(record.key)[1] == 1)
                continue
            stored = decode_stored(TOPIC, record.key or b"", record.value)
            assert stored is not None
            state.replay(stored, origin)
    state.loaded(MetadataImage(), Now(0, 0))
    return state


def test_the_logs_of_kafka_give_what_its_tool_printed_last_of_every_key(shared_data: Path) -> None:
    said = re.compile(
        r"key: (offset_commit|group_metadata)::group=(.*?)(?:,partition=(.*)-(\d+))? payload: (.*)$"
    )
    checked = 0
    for path in sorted((shared_data / "kafka-3.7-wire" / "logs").glob(f"*/*/{TOPIC}-*/*.log")):
        state = replayed(path)
        last: dict[tuple[str, ...], str] = {}
        for line in path.with_name(f"{path.name}.dump.txt").read_text().splitlines():
            match = said.search(line)
            if match:
                last[tuple(each or "" for each in match.groups()[:4])] = match[5]
        for (kind, group_id, topic, partition), payload in last.items():
            if kind == "offset_commit":
                offset = state.offsets.of(group_id).get((topic, int(partition)))
                expected = (
                    None if payload == "<DELETE>" else int(payload.split(",")[0].removeprefix("offset="))
                )
                assert (None if offset is None else offset.offset) == expected, (group_id, topic)
            elif payload == "<DELETE>":
                assert group_id not in state.groups or not state.groups[group_id].generation
            else:
                group, told = state.groups[group_id], json.loads(payload)
                assert group.generation == told["generationId"]
                assert (group.protocol_type, group.protocol) == (told["protocolType"], told["protocol"])
                assert all(f"{member_id}=[" in told["assignment"] for member_id in group.members)
                assert told["assignment"].count("=[") == len(group.members)
            checked += 1
    assert checked >= 100


def test_groups_live_in_the_partitions_where_kafka_stored_them(shared_data: Path) -> None:
    seen = set()
    for path in sorted((shared_data / "kafka-3.7-wire" / "logs").glob(f"*/*/{TOPIC}-*/*.log")):
        for key, value in records_of(path):
            record = decode_stored(TOPIC, key, value)
            assert record is not None
            assert partition_of(record.key.group, PARTITIONS) == int(path.parent.name.rpartition("-")[2])
            seen.add(record.key.group)
    assert len(seen) > 10
    # Java's hash of these is the smallest int, and 0.
    assert partition_of("polygenelubricants", 50) == partition_of("", 50) == 0
