"""Records in internal topics that no coordinator could read, by a client that may write there."""

from __future__ import annotations

import random
import struct
import time
from contextlib import suppress
from typing import Any

from metaquorum.broker.server.kafka.groups import TRANSACTION
from metaquorum.clients.admin.partition_logs import ADMIN_CLIENT
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.wire.messages import (
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from tests.attacks.attack import attack
from tests.attacks.site import Target
from tests.attacks.sockets import STRIKE_S, for_a_while
from tests.attacks.speaker import GONE, Speaker

TOPICS = ("__consumer_offsets", "__transaction_state")
GROUP = "apart"
SERVED_S = 20.0
ATTACKED = 0
"""The id of the attacked broker."""


def _text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def _record(rng: random.Random) -> tuple[bytes | None, bytes | None]:
    """A key and a value, one of them wrong: bytes, a version to come, or the end too early."""
    group = f"{GROUP}{rng.randrange(20)}".encode()
    keys = (
        struct.pack(">h", 1) + _text(group) + _text(b"orders") + struct.pack(">i", 0),
        struct.pack(">h", 2) + _text(group),
        struct.pack(">h", 0) + _text(b"txn"),
        struct.pack(">h", rng.choice((-1, 3, 99, 32_767))) + rng.randbytes(9),
        rng.randbytes(rng.randint(0, 20)),
        None,
    )
    values = (
        struct.pack(">h", rng.choice((-1, 30, 32_767))) + rng.randbytes(20),
        b"\0\3" + b"\xff" * rng.randint(0, 20),
        rng.randbytes(rng.randint(0, 60)),
        struct.pack(">hhi", 3, 8, 2**31 - 1) + b"consumer",
    )
    return rng.choice(keys), rng.choice(values)


@attack("internal-topics", port="clients")
def internal_topics(rng: random.Random, target: Target) -> None:
    """Batches with such records to every partition of both topics; a group is served all the time."""
    with Speaker(target, "alice", ADMIN_CLIENT) as alice:
        _is_served(alice)
        alice.ask(FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=("txn",)), 4)
        part: Any = ProduceRequest.PartitionProduceData
        topic: Any = ProduceRequest.TopicProduceData

        def once() -> None:
            records = [_record(rng) for _ in range(rng.choice((1, 3, 1_000)))]
            batch = encode_batch(
                base_offset=0,
                leader_epoch=0,
                timestamp_ms=int(time.time() * 1_000),
                keys=[key for key, _ in records],
                values=[value for _, value in records],
            )
            parts = tuple([part(index=index, records=batch) for index in range(50)])
            body = ProduceRequest(
                acks=-1,
                timeout_ms=1_000,
                topic_data=(topic(name=rng.choice(TOPICS), partition_data=parts),),
            )
            with suppress(*GONE), Speaker(target, "alice", rng.choice((ADMIN_CLIENT, "app"))) as writer:
                writer.ask(body, 9)

        for_a_while(rng, once, STRIKE_S)
        _is_served(alice)


def _group_here(client: Speaker) -> str:
    """A group of the attacked broker. The first request creates the topic."""
    names = tuple([f"{GROUP}{number}" for number in range(20)])
    deadline = time.monotonic() + SERVED_S
    while time.monotonic() < deadline:
        found = client.ask(FindCoordinatorRequest(coordinator_keys=names), 4).coordinators
        here = [each.key for each in found if not each.error_code and each.node_id == ATTACKED]
        if here:
            return str(here[0])
        time.sleep(0.2)
    raise RuntimeError("no group has its coordinator at the attacked broker")


def _is_served(client: Speaker) -> None:
    """Commits for a group, reads that back, and lists all. Raises RuntimeError after SERVED_S."""
    group_id = _group_here(client)
    topic: Any = OffsetCommitRequest.OffsetCommitRequestTopic
    place: Any = OffsetCommitRequest.OffsetCommitRequestPartition
    offset = random.randrange(1_000_000)
    commit = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=(topic(name="orders", partitions=(place(partition_index=0, committed_offset=offset),)),),
    )
    deadline = time.monotonic() + SERVED_S
    while code := client.ask(commit, 8).topics[0].partitions[0].error_code:
        if time.monotonic() > deadline:
            raise RuntimeError(f"error {code} to an offset commit")
        time.sleep(0.2)
    group: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    found = client.ask(OffsetFetchRequest(groups=(group(group_id=group_id, topics=None),)), 8).groups[0]
    if found.error_code or found.topics[0].partitions[0].committed_offset != offset:
        raise RuntimeError(f"a committed offset is lost: {found}")
    listed = client.ask(ListGroupsRequest(), 4)
    if listed.error_code:
        raise RuntimeError(f"error {listed.error_code} to a listing of groups")
