"""kill -9 of controllers while clients write: nothing acknowledged is lost, and the logs stay one log."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, Node, log_end_offset, read_batches
from tests.e2e.load import Load, assert_nothing_lost, assert_one_log

pytestmark = pytest.mark.e2e

WRITERS = 6
ROUNDS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("kill"), controllers=3, brokers=1) as running:
        running.start()
        yield running
        running.assert_no_bugs()


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().getrandbits(32)
    print(f"the moments of this run come from seed {seed}")
    return random.Random(seed)


def test_the_leader(cluster: Cluster, rng: random.Random) -> None:
    earlier = cluster.topics()
    with Load(cluster, writers=WRITERS, rng=rng, prefix="leader") as load:
        for _ in range(ROUNDS):
            load.wait_more(rng.randint(1, 60))
            quorum = cluster.quorum()
            victim = cluster.controller(quorum.leader_id)
            victim.kill()
            cluster.wait_leader(after_epoch=quorum.leader_epoch)
            load.wait_more(20)
            victim.start()
            cluster.wait_caught_up(victim)
        load.stop()
    assert_nothing_lost(cluster, load, earlier)


def test_a_follower(cluster: Cluster, rng: random.Random) -> None:
    earlier = cluster.topics()
    with Load(cluster, writers=WRITERS, rng=rng, prefix="follower") as load:
        for _ in range(ROUNDS):
            load.wait_more(rng.randint(1, 60))
            quorum = cluster.quorum()
            victim = rng.choice([one for one in cluster.controllers if one.node_id != quorum.leader_id])
            victim.kill()
            load.wait_more(20)
            after = cluster.quorum()
            assert (after.leader_id, after.leader_epoch) == (quorum.leader_id, quorum.leader_epoch)
            victim.start()
            cluster.wait_caught_up(victim)
        load.stop()
    assert_nothing_lost(cluster, load, earlier)


def test_all_three_at_once(cluster: Cluster, rng: random.Random) -> None:
    earlier = cluster.topics()
    with Load(cluster, writers=WRITERS, rng=rng, prefix="all") as load:
        for _ in range(ROUNDS):
            load.wait_more(rng.randint(1, 60))
            epoch = cluster.quorum().leader_epoch
            cluster.kill_all(cluster.controllers)
            for node in rng.sample(cluster.controllers, 3):
                node.start()
            cluster.wait_leader(after_epoch=epoch)
            load.wait_more(20)
        load.stop()
    assert_nothing_lost(cluster, load, earlier)


def next_batch(node: Node, offset: int) -> bytes:
    """The batch of a node's log that begins at `offset`."""
    batch = read_batches(node, from_offset=offset)[0]
    assert batch.header.base_offset == offset
    return batch.data


@pytest.mark.parametrize("kind", ["garbage", "zeros", "half a batch"])
def test_a_torn_tail_is_cut_and_fetched_again(cluster: Cluster, rng: random.Random, kind: str) -> None:
    quorum = cluster.quorum()
    leader = cluster.controller(quorum.leader_id)
    victim = rng.choice([one for one in cluster.controllers if one is not leader])
    cluster.wait_caught_up(victim)
    victim.kill()
    cluster.create_topic(f"torn-{kind.replace(' ', '-')}", partitions=8)
    segment = victim.segments()[-1]
    size = segment.stat().st_size
    end_offset = log_end_offset(victim)
    match kind:
        case "garbage":
            tail = rng.randbytes(rng.randint(1, 3000))
        case "zeros":
            tail = bytes(rng.randint(1, 3000))
        case _:
            whole = next_batch(leader, end_offset)
            tail = whole[: rng.randint(1, len(whole) - 1)]
    with segment.open("ab") as file:
        file.write(tail)
    victim.start()
    warning = victim.wait_for_line("torn tail")
    assert f"{segment}: truncated a torn tail of {len(tail)} bytes at byte {size}" in warning
    assert f"(offset {end_offset})" in warning
    cluster.wait_caught_up(victim)
    assert_one_log(cluster)
