"""Sends that begin at once: one question for metadata, and messages in the order of the sends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import Address, ClientError
from metaquorum.runtime.data_client.producer import Producer, ProducerConfig, SendError
from metaquorum.runtime.data_client.producing.turns import Turn, Turns
from tests.unit.runtime.fake_broker import FakeCluster, Faults, run


@pytest.mark.parametrize("topics", [1, 3])
def test_a_thousand_first_sends_ask_for_metadata_together_and_land_in_order(topics: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        for number in range(topics):
            cluster.add_topic(f"t{number}", 1)
        async with Producer(cluster, cluster.bootstrap, rng=random.Random(1)) as producer:
            began = asyncio.get_running_loop().time()
            sends = [producer.send(f"t{at % topics}", b"%d" % at) for at in range(1_000)]
            receipts = await asyncio.gather(*sends)
            assert [await each for each in receipts] == [at // topics for at in range(1_000)]
            assert asyncio.get_running_loop().time() - began < 0.2
        # The first one asks for what is known to be wanted then; the next question names all others.
        assert len(cluster.metadata_asked) <= 2

    run(main())


def test_first_sends_to_an_unknown_topic_fail_together() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        async with Producer(cluster, cluster.bootstrap, rng=random.Random(1)) as producer:
            sends = [producer.send("nope" if at % 2 else "t", b"%d" % at) for at in range(100)]
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            for at, outcome in enumerate(outcomes):
                assert isinstance(outcome, ApiError) == bool(at % 2), outcome
        # Brokers may be behind: the controller's word counts, and it is asked in its turn, once for all.
        assert len(cluster.metadata_asked) == 5

    run(main())


def test_sends_that_nobody_answers_end_together_at_their_time() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        config = ProducerConfig(metadata_timeout_ms=5_000)
        async with Producer(cluster, [("dead", 1)], config, rng=random.Random(1)) as producer:
            began = asyncio.get_running_loop().time()
            outcomes = await asyncio.gather(
                *(producer.send("t", b"%d" % at) for at in range(50)), return_exceptions=True
            )
            assert all(isinstance(each, ClientError) for each in outcomes), outcomes
            assert "no node at dead:1 answered within 5000 ms" in str(outcomes[0])
            assert 5.0 <= asyncio.get_running_loop().time() - began < 5.1
        # One after another, with growing pauses: not once for each of them.
        assert len(cluster.metadata_asked) < 30

    run(main())


@pytest.mark.parametrize(
    ("bootstrap", "active"),
    [
        ([("standby", 1)], ("controller", 0)),
        ([("standby", 1)], None),
        ([("standby", 1)], ("dead", 0)),
        ([("standby", 1)], ("standby", 2)),
        ([("standby", 1)], ("standby", 1)),
        ([("controller", 0)], ("controller", 0)),
        ([("broker", 2)], None),
        ([("dead", 1), ("standby", 1)], None),
        ([("dead", 1), ("broker", 0)], None),
    ],
)
def test_any_address_leads_to_the_brokers(bootstrap: list[Address], active: Address | None) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.active = active
        cluster.add_topic("t", 1)
        async with Producer(cluster, bootstrap, rng=random.Random(1)) as producer:
            assert await (await producer.send("t", b"here")) == 0

    run(main())


def test_a_standby_leads_to_the_one_who_knows_that_a_topic_does_not_exist() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with Producer(cluster, [("standby", 1)], rng=random.Random(1)) as producer:
            with pytest.raises(ApiError, match="there is no topic t; create it") as caught:
                await producer.send("t", b"here")
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [address for address, _ in cluster.metadata_asked] == [("standby", 1), ("controller", 0)]

    run(main())


def test_a_producer_that_is_closed_lets_nobody_wait_on() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        producer = Producer(cluster, [("dead", 1)], rng=random.Random(1))
        async with producer:
            waiting = [asyncio.ensure_future(producer.send("t", b"%d" % at)) for at in range(3)]
            await asyncio.sleep(0.5)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, ClientError | SendError) for each in outcomes), outcomes

    run(main())


@dataclass(frozen=True)
class Sending:
    """So many messages to a partition, begun after a pause, and given up so long after that (None: never)."""

    partition: int
    count: int
    pause_ms: int
    give_up_ms: int | None


SENDINGS = st.lists(
    st.builds(
        Sending,
        partition=st.integers(0, 1),
        count=st.integers(1, 12),
        pause_ms=st.sampled_from([0, 0, 0, 1, 3]),
        give_up_ms=st.sampled_from([None, None, None, 0, 1, 2, 5]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(SENDINGS, st.sampled_from([100, 300, 1 << 20]), st.sampled_from([0.0, 0.5]), st.integers(0, 2**32))
@example([Sending(0, 1, 0, None), Sending(0, 1, 1, None), Sending(0, 1, 0, None)], 100, 0.0, 0)
@example([Sending(0, 12, 0, None), Sending(0, 1, 0, None)], 100, 0.0, 0)
@example([Sending(0, 1, 0, 0), Sending(0, 1, 0, None), Sending(0, 1, 0, None)], 300, 0.5, 1)
def test_messages_of_a_partition_lie_in_the_order_of_the_sends(
    sendings: list[Sending], buffer_bytes: int, lose_metadata: float, seed: int
) -> None:
    """Whatever the sends wait for (metadata, room), and whoever of them is given up meanwhile."""

    async def main() -> None:
        cluster = FakeCluster(seed=seed, faults=Faults(lose_metadata=lose_metadata))
        partitions = cluster.add_topic("t", 2)
        config = ProducerConfig(batch_bytes=120, linger_ms=1, buffer_bytes=buffer_bytes)
        loop = asyncio.get_running_loop()
        async with Producer(cluster, cluster.bootstrap, config, rng=random.Random(seed)) as producer:
            tasks = []
            for number, each in enumerate(sendings):
                await asyncio.sleep(each.pause_ms / 1000)
                values = [b"%04d-%04d" % (number, at) for at in range(each.count)]
                if each.count == 1:
                    work = producer.send("t", values[0], partition=each.partition)
                else:
                    work = producer.send_many("t", values, partition=each.partition)  # type: ignore[assignment]
                task = asyncio.ensure_future(work)
                tasks.append(task)
                if each.give_up_ms is not None:
                    loop.call_later(each.give_up_ms / 1000, task.cancel)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await producer.flush()
        for partition, stored in enumerate(partitions):
            found = cluster.values(stored)
            assert found == sorted(found, key=lambda value: value or b"")
            for number, each in enumerate(sendings):
                mine = [value for value in found if value and value.startswith(b"%04d-" % number)]
                if each.partition == partition and not isinstance(outcomes[number], BaseException):
                    assert len(mine) == each.count
                elif each.partition != partition:
                    assert not mine

    run(main())


@given(st.lists(st.tuples(st.sampled_from(["take", "leave", "give up"]), st.integers(0, 5)), max_size=60))
def test_the_turn_is_always_that_of_the_oldest_place(steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        turns = Turns()
        line: list[tuple[Turn, asyncio.Task[None]]] = []
        for what, which in steps:
            if what == "take":
                place = turns.take()
                line.append((place, asyncio.ensure_future(turns.reach(place))))
            elif line:
                place, reached = line.pop(0 if what == "leave" else which % len(line))
                reached.cancel()
                turns.leave(place)
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(turns) == len(line)
            assert [reached.done() for _, reached in line] == [at == 0 for at in range(len(line))]
        for _, reached in line:
            reached.cancel()

    run(main())
