"""The consumer where brokers lose, refuse, move and cut: each record once and in order, or a clear word."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.data_client.consumer import (
    Consumer,
    ConsumerConfig,
    OutOfRange,
    Start,
    StartKind,
    TruncatedError,
)
from metaquorum.runtime.data_client.producing.batches import BatchBuilder
from metaquorum.storage.batches.batch import BatchHeader, Compression, seal_batch
from metaquorum.storage.errors import BatchError
from tests.unit.runtime.fake_broker import FakeCluster, FakePartition, Faults, Stored, run

EARLIEST = Start(StartKind.EARLIEST)
LATEST = Start(StartKind.LATEST)


def consuming(cluster: FakeCluster, config: ConsumerConfig | None = None) -> Consumer:
    return Consumer(cluster, cluster.bootstrap, config, rng=random.Random(3))


def fill(partition: FakePartition, first: int, count: int, *, per_batch: int = 4) -> None:
    """Messages named by their number, at 1000 ms a number."""
    for base in range(first, first + count, per_batch):
        builder = BatchBuilder(base * 1000, 1 << 20)
        for number in range(base, min(base + per_batch, first + count)):
            builder.append(b"%06d" % number, timestamp_ms=number * 1000)
        assert not isinstance(partition.append(builder.payload().sealed()), tuple)


async def drain(consumer: Consumer, count: int) -> dict[tuple[str, int], list[bytes | None]]:
    """The values of `count` records, by partition; checks that offsets go on without a gap."""
    found: dict[tuple[str, int], list[bytes | None]] = defaultdict(list)
    following: dict[tuple[str, int], int] = {}
    while sum(map(len, found.values())) < count:
        chunk = await consumer.poll(60_000)
        assert chunk is not None
        name = (chunk.topic, chunk.partition)
        offsets = [each.offset for each in chunk.records]
        assert offsets == list(range(following.get(name, offsets[0]), chunk.next_offset))
        following[name] = chunk.next_offset
        found[name] += [each.value for each in chunk.records]
    return found


CHANCE = st.sampled_from([0.0, 0.1, 0.4])


@settings(max_examples=40, deadline=None)
@given(
    st.builds(Faults, lose_request=CHANCE, refuse=CHANCE, move_leader=CHANCE, lose_metadata=CHANCE),
    st.integers(0, 2**32),
    st.integers(1, 4),
)
def test_every_record_comes_once_and_in_order_whoever_leads(faults: Faults, seed: int, count: int) -> None:
    async def main() -> None:
        cluster = FakeCluster(seed=seed, faults=faults)
        partitions = cluster.add_topic("t", count)
        config = ConsumerConfig(partition_max_bytes=400, prefetch_bytes=1_000, metadata_timeout_ms=600_000)
        async with consuming(cluster, config) as consumer:
            for partition in partitions:
                fill(partition, 0, 50)
            await consumer.assign({("t", index): EARLIEST for index in range(count)})
            expected = {("t", index): [b"%06d" % number for number in range(100)] for index in range(count)}
            early = await drain(consumer, 50 * count)
            for partition in partitions:
                fill(partition, 50, 50)
                cluster._grown.set()
            late = await drain(consumer, 50 * count)
            assert {name: early[name] + late[name] for name in expected} == expected
            assert consumer.positions() == dict.fromkeys(expected, 100)

    run(main())


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (EARLIEST, 8),
        (LATEST, 40),
        (Start(StartKind.OFFSET, 21), 21),
        (Start(StartKind.TIME, 17_500), 18),
        (Start(StartKind.TIME, 99_000_000), 40),
    ],
)
def test_reading_begins_where_it_is_said(start: Start, first: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 40)
        partition.start_offset = 8
        partition.batches = partition.batches[2:]
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): start})
            assert await consumer.end_offsets() == {("t", 0): 40}
            fill(partition, 40, 2)
            cluster._grown.set()
            found = await drain(consumer, 42 - first)
        assert found["t", 0] == [b"%06d" % number for number in range(first, 42)]

    run(main())


def test_leaders_are_asked_beside_each_other_and_no_further_than_the_bound() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        partitions = cluster.add_topic("t", 3)
        for partition in partitions:
            fill(partition, 0, 400)
        config = ConsumerConfig(partition_max_bytes=300, prefetch_bytes=2_000)
        async with consuming(cluster, config) as consumer:
            await consumer.assign({("t", index): EARLIEST for index in range(3)})
            await asyncio.sleep(5)
            asked = len(cluster.fetched)
            assert {broker for broker, _ in cluster.fetched} == {0, 1, 2}
            assert 2_000 <= consumer._fetcher._waiting_bytes < 2_000 + 3 * 400
            await asyncio.sleep(5)
            assert len(cluster.fetched) == asked
            found = await drain(consumer, 1_200)
        assert all(values == [b"%06d" % number for number in range(400)] for values in found.values())

    run(main())


def test_a_silent_leader_is_left_when_another_leads() -> None:
    async def main() -> float:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 8)
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            await drain(consumer, 8)
            cluster.silent.add(0)
            await asyncio.sleep(1)
            started = asyncio.get_running_loop().time()
            cluster.move(partition, 1)
            fill(partition, 8, 4)
            found = await drain(consumer, 4)
            assert found["t", 0] == [b"%06d" % number for number in range(8, 12)]
            return asyncio.get_running_loop().time() - started

    assert run(main()) < 3.0


def cut(cluster: FakeCluster, partition: FakePartition, end: int) -> None:
    """An unclean election: the new leader's log ends earlier, and goes on with other messages."""
    partition.truncate(end)
    cluster.move(partition, 1)
    fill(partition, 900, 8)
    cluster._grown.set()


def test_a_log_that_was_cut_is_said_with_the_offset() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 20)
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            await drain(consumer, 20)
            cut(cluster, partition, 12)
            with pytest.raises(TruncatedError, match=r"t-0 was truncated at offset 12: .* to 20") as said:
                await consumer.poll(60_000)
            assert said.value.end_offset == 12
            assert await consumer.poll(5_000) is None
            consumer.seek("t", 0, 12)
            assert (await drain(consumer, 8))["t", 0][0] == b"000900"

    run(main())


def test_a_consumer_that_is_told_to_goes_on_after_a_cut() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 20)
        async with consuming(cluster, ConsumerConfig(go_on_after_cut=True)) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            await drain(consumer, 20)
            cut(cluster, partition, 12)
            assert (await drain(consumer, 8))["t", 0] == [b"%06d" % number for number in range(900, 908)]

    run(main())


@pytest.mark.parametrize(("policy", "first"), [(OutOfRange.EARLIEST, 8), (OutOfRange.LATEST, 20)])
def test_a_position_outside_the_log_begins_anew_where_it_is_said(policy: OutOfRange, first: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 20)
        partition.start_offset = 8
        partition.batches = partition.batches[2:]
        async with consuming(cluster, ConsumerConfig(out_of_range=policy)) as consumer:
            await consumer.assign({("t", 0): Start(StartKind.OFFSET, 2)})
            assert await consumer.poll(200) is None or policy is OutOfRange.EARLIEST
            consumer.seek("t", 0, 3)
            await asyncio.sleep(1)
            polling = asyncio.create_task(drain(consumer, 24 - first))
            await asyncio.sleep(1)
            fill(partition, 20, 4)
            cluster._grown.set()
            assert (await polling)["t", 0] == [b"%06d" % number for number in range(first, 24)]

    run(main())


def test_a_position_outside_the_log_is_refused_in_words_where_nothing_else_is_said() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 20)
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): Start(StartKind.OFFSET, 77)})
            with pytest.raises(ApiError, match=r"offset 77 is not in the log of t-0.* to 20") as said:
                await consumer.poll(60_000)
            assert said.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(main())


def test_damage_is_fetched_again_and_then_said_and_nothing_of_it_is_given() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 8)
        good = partition.batches[1]
        partition.batches[1] = Stored(good.header, good.data[:-1] + b"\x07")
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            asyncio.get_running_loop().call_later(0.01, partition.batches.__setitem__, 1, good)
            assert (await drain(consumer, 8))["t", 0] == [b"%06d" % number for number in range(8)]
            fill(partition, 8, 4)
            partition.batches[2] = Stored(
                partition.batches[2].header, partition.batches[2].data[:-1] + b"\x07"
            )
            cluster._grown.set()
            with pytest.raises(BatchError, match="t-0: the fetched data is damaged"):
                await consumer.poll(60_000)

    run(main())


def test_other_codecs_are_named_and_control_batches_are_stepped_over() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 4)
        control = BatchHeader(0, 0, -1, 2, 0, 0x20, 0, 10, 20, -1, -1, -1, 1)
        partition.append(seal_batch(control, b"\x10\0\0\0\x08\0\0\0\0\x01\0"))
        fill(partition, 5, 4)
        packed = BatchHeader(0, 0, -1, 2, 0, int(Compression.LZ4), 4, 10, 20, -1, -1, -1, 5)
        partition.append(seal_batch(packed, b"packed"))
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            chunk = await consumer.poll(1_000)
            assert chunk is not None
            assert [each.offset for each in chunk.records] == [0, 1, 2, 3, 5, 6, 7, 8]
            with pytest.raises(BatchError, match=r"offset 9.*lz4"):
                await consumer.poll(1_000)
            assert consumer.positions() == {("t", 0): 9}
            fill(partition, 14, 4)
            cluster._grown.set()
            assert await consumer.poll(1_000) is None
            consumer.seek("t", 0, 14)
            assert (await drain(consumer, 4))["t", 0][0] == b"000014"

    run(main())


def test_a_topic_that_is_deleted_is_said_to_be() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        fill(partition, 0, 8)
        async with consuming(cluster) as consumer:
            await consumer.assign({("t", 0): EARLIEST})
            await drain(consumer, 8)
            del cluster.topics["t"]
            with pytest.raises(ApiError, match="topic t was deleted") as said:
                await consumer.poll(30_000)
            assert said.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(main())


def test_what_does_not_exist_and_who_does_not_answer() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition, _) = cluster.add_topic("t", 2)
        async with consuming(cluster, ConsumerConfig(metadata_timeout_ms=2_000)) as consumer:
            with pytest.raises(ApiError, match="no topic absent"):
                await consumer.assign({("absent", 0): EARLIEST})
            with pytest.raises(ApiError, match="no partition 5: give one from 0 to 1"):
                await consumer.assign({("t", 5): EARLIEST})
            partition.leader = -1
            await asyncio.sleep(40)
            partition.leader_epoch += 1
            consumer._view.want_refresh()
            await asyncio.sleep(1)
            with pytest.raises(ClientError, match=r"t-0 has no leader"):
                await consumer.assign({("t", 0): EARLIEST})

    run(main())
