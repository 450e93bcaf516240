"""Two controllers as processes and a model of Kafka 3.7's voter, in one quorum over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from metaquorum.node.local_nodes import free_ports
from metaquorum.raft import messages as ms
from metaquorum.raft.messages import RaftError
from metaquorum.storage.types import LogPosition
from tests.e2e.cluster import HOST, Node, client_loop, log_end_offset, read_batches
from tests.e2e.kafka_peer import KafkaPeer, answers
from tests.e2e.kafka_quorum import KafkaQuorum

PEER = 3002


def test_kafkas_vote_lets_ours_lead_and_its_log_is_theirs(tmp_path: Path) -> None:
    """The vote of Kafka's voter decides after a kill -9 of the leader. In the end, the three logs are the
    same bytes, and Kafka's process was never told what would end it."""
    (port,) = free_ports(1)
    with KafkaQuorum(tmp_path, keys={}, controllers=2) as cluster:
        ports = {each.node_id: each.kafka_port for each in cluster.controllers} | {PEER: port}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        for node in cluster.controllers:
            node.set_properties({"controller.quorum.voters": voters})
        cluster.start()
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        peer = KafkaPeer(PEER, ports, cluster.cluster_id)
        peer.start()
        try:
            cluster.wait(lambda: has_the_log_of(peer, leader), "Kafka's voter to have the log")
            cluster.kill_all([leader])
            (other,) = [each for each in cluster.controllers if each is not leader]
            led = cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
            assert led.leader_id == other.node_id
            leader.start()
            cluster.wait_caught_up(leader)
            cluster.wait(
                lambda: has_the_log_of(peer, leader) and has_the_log_of(peer, other),
                "three logs of one content",
            )
            assert {epoch, led.leader_epoch} <= {each[2] for each in peer.voter.disk.batches}
            assert peer.stopped is None, peer.stopped
            cluster.assert_no_bugs()
        finally:
            peer.close()


def has_the_log_of(peer: KafkaPeer, node: Node) -> bool:
    """Byte for byte."""
    batches = [bytes(each.data) for each in read_batches(node)]
    return batches == [bytes(each[3]) for each in list(peer.voter.disk.batches)]


FAR = 2**31 - 2
"""An epoch that no quorum comes to."""


def vote(cluster_id: str, epoch: int, **rest: Any) -> ms.VoteRequest:
    fields: dict[str, Any] = {"voter_directory_id": b"", "pre_vote": False, **rest}
    return ms.VoteRequest(
        cluster_id=cluster_id,
        epoch=epoch,
        candidate_id=PEER,
        candidate_directory_id=b"",
        voter_id=-1,
        last_position=LogPosition(0, 0),
        **fields,
    )


def begin(cluster_id: str, epoch: int) -> ms.BeginQuorumEpochRequest:
    return ms.BeginQuorumEpochRequest(
        cluster_id=cluster_id, epoch=epoch, leader_id=PEER, voter_id=-1, voter_directory_id=b""
    )


def end(cluster_id: str, epoch: int) -> ms.EndQuorumEpochRequest:
    return ms.EndQuorumEpochRequest(
        cluster_id=cluster_id, epoch=epoch, leader_id=PEER, preferred_candidates=()
    )


def fetch(cluster_id: str, epoch: int, at: LogPosition) -> ms.FetchRequest:
    return ms.FetchRequest(
        cluster_id=cluster_id,
        replica_id=PEER,
        replica_directory_id=b"",
        epoch=epoch,
        fetch_offset=at.offset,
        last_fetched_epoch=at.epoch,
        high_watermark=ms.UNSTATED,
        max_wait_ms=0,
        max_bytes=1 << 20,
    )


def test_a_voter_that_asks_for_what_cannot_be_changes_nothing(tmp_path: Path) -> None:
    """Kafka's codes, the leader and its epoch in each answer, and the quorum goes on."""
    (port,) = free_ports(1)
    with KafkaQuorum(tmp_path, keys={}, controllers=2) as cluster:
        ports = {each.node_id: each.kafka_port for each in cluster.controllers} | {PEER: port}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        for node in cluster.controllers:
            node.set_properties({"controller.quorum.voters": voters})
        cluster.start()
        first = cluster.leader()
        first.kill()
        first.start()
        before = cluster.wait_leader(after_epoch=1)
        leader = cluster.controller(before.leader_id)
        epoch, own = before.leader_epoch, cluster.cluster_id
        follower = next(each for each in cluster.controllers if each is not leader)

        for node in (leader, follower):
            for request in (vote("another", epoch), begin("another", epoch), end("another", epoch)):
                (found,) = answers(node, [request])
                assert found.error is RaftError.INCONSISTENT_CLUSTER_ID, request
            for request in (vote(own, FAR), begin(own, FAR), end(own, FAR)):
                (found,) = answers(node, [request])
                assert found.error is RaftError.INVALID_REQUEST, request
            wrong_directory = vote(own, epoch, voter_directory_id=b"d" * 16, pre_vote=True)
            (found,) = answers(node, [wrong_directory])
            assert found.error is RaftError.INVALID_VOTER_KEY, found
            for request in (vote(own, epoch - 1), begin(own, epoch - 1), end(own, epoch - 1)):
                (found,) = answers(node, [request])
                assert found.error is RaftError.FENCED_LEADER_EPOCH, request
                assert (found.epoch, found.leader_id) == (epoch, leader.node_id)

        (beyond,) = answers(leader, [fetch(own, epoch, LogPosition(epoch, 10**9))])
        assert beyond.error is RaftError.NONE and beyond.diverging is not None and not beyond.records
        assert beyond.diverging.epoch == epoch
        assert before.high_watermark <= beyond.diverging.offset <= log_end_offset(leader)
        (ahead,) = answers(leader, [fetch(own, epoch + 1, LogPosition(epoch, 1))])
        assert ahead.error is RaftError.UNKNOWN_LEADER_EPOCH
        (misled,) = answers(follower, [fetch(own, epoch, LogPosition(epoch, 1))])
        assert misled.error is RaftError.NOT_LEADER_OR_FOLLOWER
        assert (misled.epoch, misled.leader_id) == (epoch, leader.node_id)

        client_loop().call(frames_that_are_none(leader))
        after = cluster.quorum()
        assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch)
        assert len([line for line in leader.lines() if "frame" in line]) == 1
        cluster.assert_no_bugs()


async def frames_that_are_none(node: Node) -> None:
    """One that never ends holds up no one; one of 2 GiB closes its connection."""
    _, unfinished = await asyncio.open_connection(HOST, node.kafka_port)
    unfinished.write((1_000).to_bytes(4, "big") + b"\0\x34\0\0")
    await unfinished.drain()
    for _ in range(5):
        reader, huge = await asyncio.open_connection(HOST, node.kafka_port)
        huge.write((2**31 - 1).to_bytes(4, "big"))
        await huge.drain()
        assert await reader.read() == b""
        huge.close()
    unfinished.close()
