"""The producer against brokers that lose, refuse, repeat and move: each message stored once, in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.data_client.producer import Producer, ProducerConfig, Receipt, SendError
from metaquorum.runtime.data_client.producing.batches import Codec
from metaquorum.runtime.data_client.producing.partitioner import partition_of
from metaquorum.storage.batches.batch import BatchHeader, Compression, seal_batch
from tests.unit.runtime.fake_broker import FakeCluster, Faults, run

QUICK = ProducerConfig(batch_bytes=400, linger_ms=2)
CHANCE = st.sampled_from([0.0, 0.05, 0.3])
FAULTS = st.builds(
    Faults,
    lose_request=CHANCE,
    lose_answer=CHANCE,
    arrive_late=CHANCE,
    refuse=CHANCE,
    refuse_after_append=CHANCE,
    move_leader=CHANCE,
    lose_metadata=CHANCE,
    lose_identity=CHANCE,
)


def producing(cluster: FakeCluster, config: ProducerConfig = QUICK) -> Producer:
    return Producer(cluster, cluster.bootstrap, config, rng=random.Random(7))


def check_stored_once_and_in_order(
    cluster: FakeCluster, sent: dict[int, list[tuple[bytes, Receipt]]], topic: str
) -> int:
    """Acknowledged values are at their offsets; nothing is there twice or out of order. How many were so."""
    acknowledged = 0
    for index, messages in sent.items():
        values = cluster.values(cluster.topics[topic][1][index])
        assert len(values) == len(set(values)), f"partition {index} holds a message twice"
        order = {value: place for place, (value, _) in enumerate(messages)}
        places = [order[value] for value in values if value is not None]
        assert places == sorted(places), f"partition {index} is out of order"
        for value, receipt in messages:
            error = receipt._future.exception()
            if error is None:
                assert values[receipt._future.result() + receipt.first] == value
                acknowledged += 1
            elif isinstance(error, SendError) and not error.maybe_stored:
                assert value not in values
    return acknowledged


@settings(max_examples=60, deadline=None)
@given(FAULTS, st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([Codec.NONE, Codec.GZIP]))
@example(Faults(arrive_late=0.3, lose_answer=0.3, move_leader=0.3), 3, 1, Codec.NONE)
def test_whatever_is_lost_or_repeated_every_acknowledged_message_is_stored_once_and_in_order(
    faults: Faults, seed: int, partitions: int, codec: Codec
) -> None:
    async def main() -> None:
        cluster = FakeCluster(seed=seed, faults=faults)
        cluster.add_topic("t", partitions)
        sent: dict[int, list[tuple[bytes, Receipt]]] = {index: [] for index in range(partitions)}
        config = ProducerConfig(batch_bytes=300, linger_ms=2, codec=codec, metadata_timeout_ms=600_000)
        async with producing(cluster, config) as producer:
            for number in range(200):
                index = number % partitions
                value = b"message %06d" % number
                sent[index].append((value, await producer.send("t", value, partition=index)))
                if number % 17 == 0:
                    await asyncio.sleep(0.003)
            await producer.flush()
            assert producer.buffered_bytes == 0
        acknowledged = check_stored_once_and_in_order(cluster, sent, "t")
        # Two minutes are enough for everything here.
        assert acknowledged == 200

    run(main())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([50, 200, 700]))
def test_messages_whose_time_is_up_leave_no_hole_that_stops_the_others(seed: int, delivery_ms: int) -> None:
    async def main() -> None:
        faults = Faults(lose_request=0.2, refuse=0.3, refuse_after_append=0.2, lose_answer=0.2)
        cluster = FakeCluster(seed=seed, faults=faults)
        cluster.add_topic("t", 1)
        config = ProducerConfig(
            batch_bytes=200, linger_ms=1, delivery_timeout_ms=delivery_ms, request_timeout_ms=40
        )
        sent: dict[int, list[tuple[bytes, Receipt]]] = {0: []}
        async with producing(cluster, config) as producer:
            for number in range(150):
                value = b"message %06d" % number
                sent[0].append((value, await producer.send("t", value)))
                await asyncio.sleep(0.002)
            cluster.faults = Faults()
            await producer.flush()
            for number in range(150, 200):
                sent[0].append((b"message %06d" % number, await producer.send("t", b"message %06d" % number)))
                await asyncio.sleep(0.1)
            await producer.flush()
            assert await sent[0][-1][1] >= 0
        check_stored_once_and_in_order(cluster, sent, "t")

    run(main())


def test_acknowledged_messages_that_an_unclean_election_lost_do_not_stop_the_producer() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        async with producing(cluster) as producer:
            for number in range(20):
                await (await producer.send("t", b"before %d" % number))
            partition.truncate(12)
            cluster.move(partition, 1)
            for number in range(20):
                assert await (await producer.send("t", b"after %d" % number)) == 12 + number
        assert cluster.values(partition)[12:] == [b"after %d" % number for number in range(20)]
        assert producer._sender.counters.epochs == 2
        assert producer._sender.counters.refusals["OUT_OF_ORDER_SEQUENCE_NUMBER"] >= 1

    run(main())


def test_many_values_go_in_batches_and_in_order() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        partitions = cluster.add_topic("t", 3)
        values = [b"%05d" % number for number in range(5_000)]
        async with producing(cluster, ProducerConfig(batch_bytes=2_000)) as producer:
            receipts = await producer.send_many("t", values)
            assert sum(each.count for each in receipts) == len(values)
            offsets = [await each for each in receipts]
        at = 0
        for receipt, offset in zip(receipts, offsets, strict=True):
            stored = cluster.values(partitions[receipt.partition])
            assert stored[offset : offset + receipt.count] == values[at : at + receipt.count]
            at += receipt.count
        assert {each.partition for each in receipts} == {0, 1, 2}
        assert len(cluster.produced) < 60

    run(main())


def test_keys_go_where_kafka_puts_them_with_headers_and_time() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        partitions = cluster.add_topic("t", 5)
        async with producing(cluster) as producer:
            for key in (b"21", b"foobar", b"abc"):
                await producer.send("t", b"v-" + key, key=key, headers=[(b"h", None)], timestamp_ms=77)
        from metaquorum.runtime.data_client.consuming.records import FetchedBatch

        for key in (b"21", b"foobar", b"abc"):
            stored = partitions[partition_of(key, 5)].batches
            found = [r for each in stored for r in FetchedBatch(each.header, each.data).records()]
            assert (b"v-" + key, key, ((b"h", None),), 77) in [
                (r.value, r.key, r.headers, r.timestamp_ms) for r in found
            ]

    run(main())


def test_a_full_buffer_makes_the_sender_wait_until_something_is_settled() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        config = ProducerConfig(batch_bytes=500, buffer_bytes=2_000)
        cluster.silent.add(0)
        async with producing(cluster, config) as producer:

            async def feed() -> None:
                for number in range(100):
                    await producer.send("t", b"%0100d" % number)

            feeding = asyncio.create_task(feed())
            await asyncio.sleep(1)
            assert not feeding.done()
            assert 2_000 <= producer.buffered_bytes < 2_200
            cluster.silent.clear()
            await feeding
        assert len(cluster.values(cluster.topics["t"][1][0])) == 100

    run(main())


def test_a_silent_leader_is_not_waited_for_when_another_leads() -> None:
    async def main() -> float:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        async with producing(cluster) as producer:
            await (await producer.send("t", b"one"))
            cluster.silent.add(0)
            receipt = await producer.send("t", b"two")
            started = asyncio.get_running_loop().time()
            asyncio.get_running_loop().call_later(2.0, cluster.move, partition, 1)
            await receipt
            took = asyncio.get_running_loop().time() - started
        assert cluster.dropped == [("broker", 0)]
        assert cluster.values(partition) == [b"one", b"two"]
        return took

    assert run(main()) < 3.0


def test_no_acknowledgement_wanted_none_waited_for_and_nothing_repeated() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        config = ProducerConfig(acks=0, batch_bytes=300, linger_ms=1)
        async with producing(cluster, config) as producer:
            receipts = [await producer.send("t", b"%d" % number) for number in range(100)]
            await producer.flush()
            assert [await each for each in receipts] == [-1] * 100
            cluster.faults = Faults(lose_request=1.0)
            lost = await producer.send("t", b"lost")
            with pytest.raises(SendError) as refused:
                await lost
        assert refused.value.maybe_stored
        assert cluster.values(partition) == [b"%d" % number for number in range(100)]
        assert cluster.next_producer_id == 1000

    run(main())


def test_without_idempotence_the_order_is_kept_though_something_may_be_stored_twice() -> None:
    async def main() -> None:
        cluster = FakeCluster(seed=5, faults=Faults(lose_answer=0.2, refuse=0.2))
        (partition,) = cluster.add_topic("t", 1)
        config = ProducerConfig(acks=1, batch_bytes=200, linger_ms=1, idempotent=False)
        async with producing(cluster, config) as producer:
            for number in range(200):
                await producer.send("t", b"%06d" % number)
        values = [value for value in cluster.values(partition) if value is not None]
        assert list(dict.fromkeys(values)) == [b"%06d" % number for number in range(200)]
        assert len(values) > 200

    run(main())


def test_at_most_five_requests_are_under_way_to_a_broker() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 6)
        async with producing(cluster, ProducerConfig(batch_bytes=100, request_timeout_ms=1_000)) as producer:
            for number in range(6):
                # A leader must know a producer before requests are sent ahead of its answer.
                await (await producer.send("t", b"first %d" % number, partition=number))
            cluster.silent.update(cluster.brokers)
            for number in range(600):
                await producer.send("t", b"%0100d" % number, partition=number % 6)
            await asyncio.sleep(0.5)
            under_way = [len(each) for each in cluster._under_way.values()]
            cluster.silent.clear()
        assert under_way == [5, 5, 5]
        assert sum(len(cluster.values(each)) for each in cluster.topics["t"][1]) == 606

    run(main())


@pytest.mark.parametrize(
    "code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_refusal_for_good_fails_its_batch_alone(code: ErrorCode) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        async with producing(cluster) as producer:
            await (await producer.send("t", b"one"))
            cluster.script = [(code, "lower it")]
            bad = await producer.send("t", b"bad")
            with pytest.raises(SendError, match="lower it") as refused:
                await bad
            assert refused.value.code is code and not refused.value.maybe_stored
            assert await (await producer.send("t", b"two")) == 1
        assert cluster.values(partition) == [b"one", b"two"]

    run(main())


def test_a_topic_or_partition_that_does_not_exist_is_said_at_once() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 2)
        async with producing(cluster) as producer:
            with pytest.raises(ApiError, match="no topic absent; create it"):
                await producer.send("absent", b"x")
            with pytest.raises(ApiError, match="no partition 2: give one from 0 to 1"):
                await producer.send("t", b"x", partition=2)

    run(main())


def test_a_topic_that_is_deleted_fails_its_messages_soon_and_no_others() -> None:
    async def main() -> float:
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        (other,) = cluster.add_topic("u", 1)
        async with producing(cluster) as producer:
            await (await producer.send("t", b"one"))
            del cluster.topics["t"]
            started = asyncio.get_running_loop().time()
            receipt = await producer.send("t", b"two")
            with pytest.raises(SendError, match="topic t was deleted") as refused:
                await receipt
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            took = asyncio.get_running_loop().time() - started
            assert await (await producer.send("u", b"three")) == 0
        assert cluster.values(other) == [b"three"]
        return took

    assert run(main()) < 3.0


def test_a_topic_that_is_made_again_takes_messages_again() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        async with producing(cluster) as producer:
            for number in range(3):
                await (await producer.send("t", b"%d" % number))
            del cluster.topics["t"]
            (partition,) = cluster.add_topic("t", 1)
            cluster.topics["t"] = (b"another id......", [partition])
            assert await (await producer.send("t", b"new")) == 0
        assert cluster.values(partition) == [b"new"]

    run(main())


def test_nobody_there_is_said_with_the_addresses() -> None:
    async def main() -> None:
        cluster = FakeCluster(faults=Faults(lose_metadata=1.0))
        async with producing(cluster, ProducerConfig(metadata_timeout_ms=2_000)) as producer:
            with pytest.raises(ClientError, match=r"controller:0.*2000 ms.*connection refused"):
                await producer.send("t", b"x")

    run(main())


def test_a_partition_without_leader_is_waited_for_until_the_time_is_up_and_named_then() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        partition.leader = -1
        async with producing(cluster, ProducerConfig(delivery_timeout_ms=3_000)) as producer:
            receipt = await producer.send("t", b"x")
            with pytest.raises(SendError, match=r"t-0.*no leader") as refused:
                await receipt
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT and not refused.value.maybe_stored
            again = await producer.send("t", b"y")
            asyncio.get_running_loop().call_later(1, cluster.move, partition, 2)
            assert await again == 0

    run(main())


def test_closing_without_flush_says_that_messages_were_not_acknowledged() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        producer = producing(cluster)
        async with producer:
            receipt = await producer.send("t", b"x")
            await producer.close(flush=False)
        with pytest.raises(SendError, match="closed before"):
            await receipt
        with pytest.raises(SendError, match="create another"):
            await producer.send("t", b"y")

    run(main())


def test_a_batch_made_elsewhere_passes_unopened() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.add_topic("t", 1)
        header = BatchHeader(0, 0, -1, 2, 0, int(Compression.ZSTD), 9, 10, 20, -1, -1, -1, 10)
        async with producing(cluster) as producer:
            await producer.send("t", b"first")
            receipt = await producer.send_batch("t", 0, seal_batch(header, b"zstd bytes"))
            after = await producer.send("t", b"last")
            assert (await receipt, receipt.count, await after) == (1, 10, 11)
        assert partition.batches[1].data.endswith(b"zstd bytes")
        assert partition.batches[1].header.producer_id == 1001

    run(main())


@pytest.mark.parametrize(
    "bad", [{"acks": 2}, {"acks": 0, "idempotent": True}, {"max_in_flight": 6}, {"max_in_flight": 0}]
)
def test_settings_that_contradict_each_other_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"acks|max_in_flight"):
        ProducerConfig(**bad)
