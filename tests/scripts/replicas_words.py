"""What the words of the replicas' scripts mean: places, partitions, batches, positions and answers."""

from __future__ import annotations

from typing import Any

from metaquorum.broker.replica.disk_work import FoundDirectory, FoundReplica
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition, PartitionKey
from metaquorum.metadata.requests.partitions import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignmentResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.storage.types import LogPosition
from tests.scripts.player import show
from tests.unit.broker.manager_world import key_of
from tests.unit.broker.replica_world import ListDisk, batch

PLACES = {"unassigned": UNASSIGNED, "lost": LOST, "migrating": MIGRATING}


def place_of(word: str) -> bytes:
    return PLACES.get(word) or word.encode() * 16


def key(word: str) -> PartitionKey:
    name, _, index = word.rpartition("-")
    return key_of(name, int(index))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def batches(text: str, base: int = 0) -> bytes:
    """`2x3@1+1x5@2`: two batches of three and one of five bytes in leader epochs 1 and 2; `p7s4` behind the
    epoch: of producer 7, from sequence 4 on."""
    data = b""
    for each in text.split("+"):
        count, _, rest = each.partition("x")
        size, _, epoch = rest.partition("@")
        epoch, _, producer = epoch.partition("p")
        producer, _, sequence = producer.partition("s")
        values = [b"v" * int(size or 1)] * int(count)
        data += batch(
            *values,
            base_offset=base,
            leader_epoch=int(epoch or -1),
            producer=int(producer or -1),
            sequence=int(sequence or -1),
        )
        base += len(values)
    return data


def position(word: str, max_bytes: int) -> FetchPartition:
    """`x-0@5/1/0`: from offset 5 on, in leader epoch 1, the last record being of epoch 0."""
    where, _, rest = word.partition("@")
    offset, *epochs = rest.split("/")
    known, last = [*(int(each) for each in epochs), -1, -1][:2]
    return FetchPartition(
        key=key(where),
        fetch_offset=int(offset),
        max_bytes=max_bytes,
        current_leader_epoch=known,
        last_fetched_epoch=last,
    )


def fetched(word: str) -> FetchedPartition:
    """`x-0,hw:5,start:0,epoch:1,records:2x1@1,base:3,diverging:1/2,error:NAME`"""
    where, *pairs = word.split(",")
    fields = dict(pair.split(":", 1) for pair in pairs)
    diverging = fields.get("diverging")
    return FetchedPartition(
        key=key(where),
        error=ErrorCode[fields.get("error", "NONE")],
        high_watermark=int(fields.get("hw", "-1")),
        log_start_offset=int(fields.get("start", "-1")),
        leader_epoch=int(fields.get("epoch", "-1")),
        diverging=None if diverging is None else LogPosition(*map(int, diverging.split("/"))),
        records=batches(fields["records"], int(fields.get("base", "0"))) if "records" in fields else b"",
    )


def setting(word: str) -> Any:
    return word == "yes" if word in ("yes", "no") else int(word)


def found_directory(
    name: str, options: dict[str, str], disks: dict[tuple[bytes, PartitionKey], ListDisk]
) -> FoundDirectory:
    value = options[name]
    found: list[FoundReplica] = []
    for each in [] if value in ("", "!", "?") else value.split(","):
        word, _, log = each.partition(":")
        disk = disks[place_of(name), key(word)] = ListDisk()
        if log:
            disk.append(batches(log))
        disk.synced = len(disk.batches)
        opened = disk.opened(int(options.get("hw", "0")))
        found.append(FoundReplica(key=key(word), topic=word.rpartition("-")[0], incarnation=1, log=opened))
    return FoundDirectory(
        path=f"/data/{name}",
        directory_id=None if value == "?" else place_of(name),
        problem="EIO" if value == "!" else None,
        replicas=tuple(found),
        total_bytes=int(options.get(f"total.{name}", "-1")),
        usable_bytes=int(options.get(f"usable.{name}", "-1")),
    )


# ---- what a controller answers -------------------------------------------------------------------


def accepted(request: Any, left_out: tuple[str, ...], options: dict[str, str], *, confused: bool) -> Any:
    """The answer to a question; `confused`: one of the next kind."""
    kinds = (AlterPartitionRequest, AssignReplicasToDirsRequest, AllocateProducerIdsRequest)
    kind = next(at for at, each in enumerate(kinds) if isinstance(request, each))
    return (_altered, _assigned, _allocated)[(kind + confused) % 3](request, left_out, options)


def _altered(request: Any, left_out: tuple[str, ...], options: dict[str, str]) -> AlterPartitionResponse:
    results = []
    for each in getattr(request, "partitions", ()):
        if show((each.topic_id, each.partition)) in left_out:
            continue
        results.append(
            AlteredPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                error=ErrorCode[options.get("each", "NONE")],
                leader=int(options.get("leader", request.broker_id)),
                leader_epoch=int(options.get("leader_epoch", each.leader_epoch)),
                partition_epoch=int(options.get("epoch", each.partition_epoch + 1)),
                isr=numbers(options["isr"]) if "isr" in options else tuple(m.broker_id for m in each.isr),
                leader_recovery_state=int(options.get("recovery", "0")),
            )
        )
    return AlterPartitionResponse(results=tuple(results))


def _assigned(
    request: Any, left_out: tuple[str, ...], options: dict[str, str]
) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(
        results=tuple(
            AssignmentResult(
                directory_id=each.directory_id,
                topic_id=each.topic_id,
                partition=each.partition,
                error=ErrorCode[options.get("each", "NONE")],
            )
            for each in getattr(request, "assignments", ())
            if show((each.topic_id, each.partition)) not in left_out
        )
    )


def _allocated(
    request: Any, left_out: tuple[str, ...], options: dict[str, str]
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        first_id=int(options.get("first", "1000")), count=int(options.get("count", "2"))
    )
