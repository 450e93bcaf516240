"""What a partition holds, message by message, as its leader has it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from metaquorum.clients.admin.partition_logs import EARLIEST, LATEST, log_offsets
from metaquorum.clients.kafka.cluster import KafkaClient, PartitionLeader
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches, RecordBatch, read_marker
from metaquorum.testing.errors import ClusterError
from metaquorum.wire.messages import FetchRequest

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
"""States of a transaction."""
_FETCH_BYTES = 4 * 1024 * 1024
_LENGTH_BYTES = 12
_PAUSE_S = 0.01
_LAST_BY_NAME = 12
"""The last version of Fetch that names topics."""


class _CutMeanwhile(Exception):
    """Retention was faster than the reader."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a partition. `timestamp_ms`: Unix time, of the producer or the broker, as the topic's
    settings say; `transaction`: "committed", "aborted" or "open"; None without one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    transaction: str | None
    producer_id: int


async def read_partition(client: KafkaClient, topic: str, partition: int) -> tuple[StoredMessage, ...]:
    """All messages up to the high watermark, in order. Raises ClusterError, and what `KafkaClient` raises."""
    while True:
        try:
            return await _read(client, PartitionLeader(topic, partition))
        except _CutMeanwhile:
            await asyncio.sleep(_PAUSE_S)


async def _read(client: KafkaClient, leader: PartitionLeader) -> tuple[StoredMessage, ...]:
    topic, partition = place = leader.topic, leader.partition
    bounds = [(await log_offsets(client, {place: at}))[place] for at in (EARLIEST, LATEST)]
    for bound in bounds:
        if isinstance(bound, ErrorCode):
            raise ClusterError(f"{topic}-{partition} cannot be read: {bound.name}")
    offset, end = bounds
    batches: list[RecordBatch] = []
    while offset < end:
        fetched = await _batches_from(client, leader, offset)
        if not fetched:
            break
        batches += fetched
        offset = fetched[-1].header.next_offset
    return _messages(batches, topic, partition, bounds[0], end)


async def _batches_from(client: KafkaClient, leader: PartitionLeader, offset: int) -> list[RecordBatch]:
    message: Any = FetchRequest
    part = message.FetchPartition(
        partition=leader.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
    )
    body = message(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        topics=(message.FetchTopic(topic=leader.topic, partitions=(part,)),),
    )
    answer = await client.ask(body, target=leader, lowest=4, highest=_LAST_BY_NAME)
    ((fetched,),) = [each.partitions for each in answer.responses]
    if fetched.error_code:
        code = ErrorCode.of(fetched.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise _CutMeanwhile
        place = f"{leader.topic}-{leader.partition}"
        raise ClusterError(f"{place} cannot be read from offset {offset}: {code.name}")
    return list(Batches.sealed(_whole(bytes(fetched.records or b""))).split())


def _whole(data: bytes) -> bytes:
    """Without the last batch of a fetch, if it is cut off."""
    position = 0
    while position + _LENGTH_BYTES <= len(data):
        size = _LENGTH_BYTES + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        position += size
    return data[:position]


def _messages(
    batches: list[RecordBatch], topic: str, partition: int, start: int, end: int
) -> tuple[StoredMessage, ...]:
    states: dict[int, str] = {}
    """Of the transactions that have ended, by the position of their batches."""
    ongoing: dict[int, list[int]] = {}
    for position, batch in enumerate(batches):
        header = batch.header
        marker = read_marker(header, batch.data)
        if marker is not None:
            ended = ongoing.pop(header.producer_id, [])
            states |= dict.fromkeys(ended, COMMITTED if marker.committed else ABORTED)
        elif header.is_transactional and not header.is_control:
            ongoing.setdefault(header.producer_id, []).append(position)
    messages = []
    for position, batch in enumerate(batches):
        header = batch.header
        if header.is_control:
            continue
        state = states.get(position, OPEN) if header.is_transactional else None
        messages += [
            StoredMessage(
                topic=topic,
                partition=partition,
                offset=record.offset,
                timestamp_ms=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=tuple((name.decode(), value) for name, value in record.headers),
                transaction=state,
                producer_id=header.producer_id,
            )
            for record in batch.records()
            if start <= record.offset < end
        ]
    return tuple(messages)


def committed(messages: tuple[StoredMessage, ...]) -> list[StoredMessage]:
    """Those that a consumer with `isolation.level=read_committed` reads."""
    readable: list[StoredMessage] = []
    for message in messages:
        if message.transaction == OPEN:
            break
        if message.transaction != ABORTED:
            readable.append(message)
    return readable
