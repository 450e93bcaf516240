"""Batches that are small as they are sent and large when they are opened, by a producer that may write."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from metaquorum.storage.batches.batch import plain_header, seal_batch
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.format import Compression, encode_varint
from metaquorum.wire.messages import ProduceRequest
from tests.attacks.attack import attack
from tests.attacks.site import Target
from tests.attacks.speaker import GONE, Speaker

RECORD = b"\x0c\0\0\0\1\1\0"
"""Without key, value and headers, with the offset delta 0."""
VERSION = 9
UNPACKED_MAX = 70 << 20


def _records(count: int) -> bytes:
    return RECORD * count


def _headers(count: int) -> bytes:
    body = b"\0\0\0\1\1" + encode_varint(count) + b"\0\1" * count
    return encode_varint(len(body)) + body


def _bytes(count: int) -> bytes:
    body = b"\0\0\0\1" + encode_varint(count) + bytes(count) + b"\0"
    return encode_varint(len(body)) + body


def _produce(target: Target, batch: bytes, times: int) -> Any:
    part: Any = ProduceRequest.PartitionProduceData
    topic: Any = ProduceRequest.TopicProduceData
    parts = tuple([part(index=index % 2, records=batch) for index in range(times)])
    return ProduceRequest(
        acks=-1, timeout_ms=5_000, topic_data=(topic(name=target.topic, partition_data=parts),)
    )


def _of_codec(codec: Compression) -> None:
    @attack(f"batch-{codec.name.lower()}", port="clients")
    def batch(rng: random.Random, target: Target) -> None:
        """The header promises few records; inside are millions, or millions of headers, or many bytes."""
        kind = rng.randrange(3)
        if kind == 0:
            count = rng.choice((300_000, 500_000, 2_000_000, 9_000_000))
            plain, said = _records(count), rng.choice((1, 2, 1_000, count, 2**31 - 1))
        elif kind == 1:
            plain, said = _headers(rng.choice((100_000, 1_000_000, 30_000_000))), 1
        else:
            plain, said = _bytes(rng.randint(1 << 20, UNPACKED_MAX)), 1
        header = plain_header(0, 0, 0, said)._replace(attributes=int(codec))
        sealed = seal_batch(header, pack(codec, plain))
        times = rng.randint(1, max(1, min(200, (4 << 20) // len(sealed))))
        with suppress(*GONE), Speaker(target, "alice") as speaker:
            count = rng.randint(1, 3)
            for _ in range(count):
                speaker.send(_produce(target, sealed, times), VERSION)
            for _ in range(count):
                speaker.receive()


for _codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
    _of_codec(_codec)
