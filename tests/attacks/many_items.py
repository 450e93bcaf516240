"""Requests that name many things, or claim to: by clients without any right, and by one that may do all."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from metaquorum.wire.codec import RequestHeader, encode_request
from metaquorum.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from metaquorum.wire.table import API_BY_NAME, APIS, request_type
from tests.attacks.attack import attack
from tests.attacks.site import Target
from tests.attacks.sockets import for_a_while
from tests.attacks.speaker import GONE, Speaker

NOBODY = ("bob", "certificate", "open")
COUNTS = (20_000, 50_000, 100_000, 200_000, 250_000)
TOPIC_RESOURCE = 2


def _names(rng: random.Random, count: int) -> tuple[str, ...]:
    """As many names: empty, or each another."""
    return rng.choice((("",) * count, tuple([f"g{number}" for number in range(count)])))


def _in_turn(
    rng: random.Random, target: Target, who: str, requests: Callable[[], tuple[Any, int]], most: int = 6
) -> None:
    """Sends some requests on one connection at once, and reads what comes."""
    with suppress(*GONE), Speaker(target, who) as speaker:
        count = rng.randint(1, most)
        for _ in range(count):
            speaker.send(*requests())
        for _ in range(count):
            speaker.receive()


def _of_names(api: str, ask: Callable[[tuple[str, ...]], tuple[Any, int]]) -> None:
    @attack(f"names-{api}", port="clients")
    def names(rng: random.Random, target: Target) -> None:
        """Many names in one request, by a client without rights."""
        who = rng.choice(NOBODY)
        _in_turn(rng, target, who, lambda: ask(_names(rng, rng.choice(COUNTS))))


_of_names("describe-groups", lambda names: (DescribeGroupsRequest(groups=names), 5))
_of_names("find-coordinator", lambda names: (FindCoordinatorRequest(coordinator_keys=names), 4))
_of_names("delete-groups", lambda names: (DeleteGroupsRequest(groups_names=names), 2))


@attack("configs", port="clients")
def configs(rng: random.Random, target: Target) -> None:
    """One topic's settings thousands of times, as one that may read them, and as one that may not."""
    resource: Any = DescribeConfigsRequest.DescribeConfigsResource
    who = rng.choice(("alice", *NOBODY))

    def ask() -> tuple[Any, int]:
        count = rng.choice((5_000, 20_000, 100_000))
        same = rng.random() < 0.5
        resources = tuple(
            [
                resource(resource_type=TOPIC_RESOURCE, resource_name=target.topic if same else f"t{number}")
                for number in range(count)
            ]
        )
        return DescribeConfigsRequest(resources=resources, include_synonyms=True), 4

    _in_turn(rng, target, who, ask, 3)


@attack("patterns", port="clients")
def patterns(rng: random.Random, target: Target) -> None:
    """Expressions that are long, or cost much to compile, as a subscription."""

    def pattern() -> str:
        size = rng.choice((2_000, 10_000, 200_000, 950_000))
        piece = rng.choice(("(a|b)", "(x{1,90}){1,9}", r"\pL{50}", "((a?){30})", "[^a]*", "é", "."))
        return (piece * (size // len(piece)))[:size] if rng.random() < 0.7 else piece * rng.randint(1, 24)

    with suppress(*GONE), Speaker(target, "alice") as speaker:

        def once() -> None:
            body = ConsumerGroupHeartbeatRequest(
                group_id=f"patterns-{rng.randrange(5)}",
                member_id=f"m{rng.randrange(50)}",
                rebalance_timeout_ms=5_000,
                subscribed_topic_regex=pattern(),
                topic_partitions=(),
            )
            speaker.ask(body, 1)

        for_a_while(rng, once)


def _topics(rng: random.Random, target: Target, field: str, kind: Any, parts: tuple[Any, ...]) -> Any:
    """These partitions of one topic; or each of a topic of its own, half as many."""
    if rng.random() < 0.5:
        return (kind(**{field: target.topic}, partitions=parts),)
    half = parts[: len(parts) // 2]
    return tuple([kind(**{field: f"t{n}"}, partitions=(part,)) for n, part in enumerate(half)])


def _offset_commit(rng: random.Random, target: Target, count: int) -> tuple[Any, int]:
    topic: Any = OffsetCommitRequest.OffsetCommitRequestTopic
    part: Any = OffsetCommitRequest.OffsetCommitRequestPartition
    text = "m" * rng.choice((0, 10, 100))
    parts = tuple([part(partition_index=number % 2, committed_metadata=text) for number in range(count)])
    return OffsetCommitRequest(
        group_id=f"many-{rng.randrange(3)}",
        generation_id_or_member_epoch=-1,
        topics=_topics(rng, target, "name", topic, parts),
    ), 8


def _offset_fetch(rng: random.Random, target: Target, count: int) -> tuple[Any, int]:
    group: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    topic: Any = OffsetFetchRequest.OffsetFetchRequestTopics
    if rng.random() < 0.5:
        return OffsetFetchRequest(
            groups=tuple([group(group_id=f"g{number}", topics=None) for number in range(count)])
        ), 8
    topics = (topic(name=target.topic, partition_indexes=tuple(range(count))),)
    return OffsetFetchRequest(groups=(group(group_id="many-1", topics=topics),)), 8


def _join_group(rng: random.Random, target: Target, count: int) -> tuple[Any, int]:
    protocol: Any = JoinGroupRequest.JoinGroupRequestProtocol
    metadata = bytes(rng.choice((0, 8)))
    return JoinGroupRequest(
        group_id=f"join-{rng.randrange(3)}",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=1_000,
        protocol_type="consumer",
        protocols=tuple([protocol(name=f"p{number}", metadata=metadata) for number in range(count)]),
    ), 3


def _fetch(rng: random.Random, target: Target, count: int) -> tuple[Any, int]:
    topic: Any = FetchRequest.FetchTopic
    part: Any = FetchRequest.FetchPartition
    parts = tuple([part(partition=number % 3, partition_max_bytes=1_000) for number in range(count)])
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=rng.choice((0, 100, 2_000)),
        min_bytes=rng.choice((0, 1, 10_000_000)),
        max_bytes=10_000_000,
        session_epoch=rng.choice((-1, 0)),
        topics=_topics(rng, target, "topic", topic, parts),
    ), 11


def _list_offsets(rng: random.Random, target: Target, count: int) -> tuple[Any, int]:
    topic: Any = ListOffsetsRequest.ListOffsetsTopic
    part: Any = ListOffsetsRequest.ListOffsetsPartition
    stamp = rng.choice((-1, -2, 5))
    parts = tuple([part(partition_index=number % 3, timestamp=stamp) for number in range(count)])
    return ListOffsetsRequest(replica_id=-1, topics=_topics(rng, target, "name", topic, parts)), 5


def _of_items(api: str, ask: Callable[[random.Random, Target, int], tuple[Any, int]]) -> None:
    @attack(f"items-{api}", port="clients")
    def items(rng: random.Random, target: Target) -> None:
        """Many items in one request, by one that may ask for them, or by one that may not."""
        who = rng.choice(("alice", "alice", *NOBODY))
        _in_turn(rng, target, who, lambda: ask(rng, target, rng.choice(COUNTS)), 4)


_of_items("offset-commit", _offset_commit)
_of_items("offset-fetch", _offset_fetch)
_of_items("join-group", _join_group)
_of_items("fetch", _fetch)
_of_items("list-offsets", _list_offsets)

HUGE = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x00\x00\x00",
    struct.pack(">i", 200_000),
    b"\xc0\x9a\x0c",
)
"""Counts of an array, in both forms: those that nothing can hold, and 200,000."""


LEFT_OUT = {API_BY_NAME[name].key for name in ("SaslHandshake", "SaslAuthenticate", "UnregisterBroker")}
"""The login of the connection, and what takes broker 0 out for one that may: a body of zeros names it."""


@attack("arrays", port="clients")
def arrays(rng: random.Random, target: Target) -> None:
    """Every API in some version: a huge count at some place of the request, and zeros or ones behind it."""
    who = rng.choice(("alice", *NOBODY))

    def frame_of(api_key: int) -> bytes:
        kind = request_type(api_key)
        version = rng.choice(kind.api.versions)
        plain = b"".join(encode_request(RequestHeader(api_key, version, 1, "attacker"), kind.cls()))
        header = 20 + (1 if kind.api.is_flexible(version) else 0)
        at = rng.randint(min(header, len(plain)), len(plain))
        rest = rng.choice((b"", b"\0" * rng.choice((1_000, 1_000_000)), b"\1" * 300_000))
        return plain[:at] + rng.choice(HUGE) + rest

    keys = [key for key in APIS if key not in LEFT_OUT]
    rng.shuffle(keys)
    for key in keys:
        with suppress(*GONE), Speaker(target, who) as speaker:
            speaker.send_frame(frame_of(key))
