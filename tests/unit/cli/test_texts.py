"""The quorum, topics and brokers as text: the bytes that Kafka's own tools printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.cli.admin.topics import describe_json, describe_text
from metaquorum.cli.server_commands import brokers_by_state, metrics
from metaquorum.cli.text.quorum import (
    broker_json,
    broker_row,
    replication_json,
    replication_text,
    status_json,
    status_text,
)
from metaquorum.cli.text.quorum import describe_text as broker_text
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic
from metaquorum.metadata.image.types import (
    BrokerRegistration,
    FeatureRange,
    NodeEndpoint,
)
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.metadata.requests.status import BrokerControlState
from metaquorum.storage.uuids import uuid_from_text
from tests.unit.observability.test_small_parts import BROKER, STATUS

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "kafka-3.7-tools"
CLUSTER = "ycvx3IyUTJ2ANvCy7N_YyA"


def replica(node_id: int, end: int, fetched: int | None, caught_up: int | None, status: str) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node_id,
        directory_id=bytes(16),
        log_end_offset=end,
        lag=0,
        last_fetch_ms=fetched,
        last_caught_up_ms=caught_up,
        status=status,
    )


@pytest.fixture
def quorum() -> DescribeQuorumResponse:
    """What Kafka's table shows, as the controller would have answered it."""
    rows = [line.split() for line in (GOLDEN / "quorum-replication.txt").read_text().splitlines()[1:8]]
    replicas = [replica(int(row[0]), int(row[1]), int(row[3]), int(row[4]), row[5]) for row in rows]
    return DescribeQuorumResponse(
        cluster_id=CLUSTER,
        leader_id=3000,
        leader_epoch=6,
        high_watermark=3938,
        voters=tuple(one for one in replicas if one.status != "Observer"),
        observers=tuple(one for one in replicas if one.status == "Observer"),
    )


def test_status_is_what_kafka_prints(quorum: DescribeQuorumResponse) -> None:
    assert status_text(quorum, 0) + "\n" == (GOLDEN / "quorum-status.txt").read_text()


def test_replication_is_what_kafka_prints(quorum: DescribeQuorumResponse) -> None:
    printed = (GOLDEN / "quorum-replication.txt").read_text().splitlines()[:8]
    assert replication_text(quorum, 0).splitlines() == printed


def test_a_follower_that_is_behind(quorum: DescribeQuorumResponse) -> None:
    slow = replica(3002, 3900, 1795231000000, 1795231000000, "Follower")
    found = replace(quorum, voters=(*quorum.voters[:2], slow))
    summary = status_json(found, 0)
    assert (summary["maxFollowerLag"], summary["maxFollowerLagTimeMs"]) == (44, 5102)
    never = replace(slow, last_caught_up_ms=None, last_fetch_ms=None)
    found = replace(found, voters=(*quorum.voters[:2], never))
    assert status_json(found, 0)["maxFollowerLagTimeMs"] == -1
    row = replication_json(found, 0)[2]
    assert (row["lag"], row["lastFetchTimestamp"], row["lastCaughtUpTimestamp"]) == (44, -1, -1)


def names_and_values(quorum: DescribeQuorumResponse) -> dict[str, str]:
    rows = (line.split(":", 1) for line in status_text(quorum, 0).splitlines())
    return {name: value.strip() for name, value in rows}


def test_what_a_broker_does_not_tell_of_dynamic_voters_is_left_out(quorum: DescribeQuorumResponse) -> None:
    """DescribeQuorum of Kafka's protocol has neither who is alive nor which change is under way."""
    told = replace(quorum, kraft_version=1)
    assert list(names_and_values(told))[-2:] == ["CurrentObservers", "KRaftVersion"]
    (first, *_) = status_json(told, 0)["replicas"]
    assert (first["alive"], first["minKRaftVersion"], first["maxKRaftVersion"]) == (None, None, None)
    assert replication_text(told, 0).splitlines()[1].split()[-2:] == ["-", "-"]


def test_what_a_controller_tells_of_dynamic_voters(quorum: DescribeQuorumResponse) -> None:
    voters = tuple(replace(one, is_alive=one.node_id != 3001, max_kraft_version=1) for one in quorum.voters)
    told = replace(quorum, kraft_version=1, voters=voters, voters_offset=quorum.high_watermark)
    shown = names_and_values(told)
    assert (shown["SilentVoters"], shown["VotersOffset"]) == ("[3001]", "3938")
    assert shown["ChangeUnderWay"] == "at offset 3938, not committed"
    settled = names_and_values(replace(told, voters_offset=12))
    assert (settled["VotersOffset"], settled["ChangeUnderWay"]) == ("12", "none")
    (first, *_) = status_json(told, 0)["replicas"]
    assert (first["alive"], first["minKRaftVersion"], first["maxKRaftVersion"]) == (True, 0, 1)


def test_human_readable_times(quorum: DescribeQuorumResponse) -> None:
    text = replication_text(quorum, 1795231005147, human=True)
    assert re.search(r"3001\s+3944\s+0\s+100 ms ago\s+100 ms ago\s+Follower", text)


def test_the_leader_is_always_now(quorum: DescribeQuorumResponse) -> None:
    leader = replace(quorum.voters[0], last_fetch_ms=None, last_caught_up_ms=None)
    row = replication_json(replace(quorum, voters=(leader, *quorum.voters[1:])), 777)[0]
    assert (row["lastFetchTimestamp"], row["lastCaughtUpTimestamp"], row["status"]) == (777, 777, "Leader")


def test_only_the_leader_is_always_now(quorum: DescribeQuorumResponse) -> None:
    """Whatever the ids: others that have not fetched have no times."""
    silent = tuple(replace(one, last_fetch_ms=None, last_caught_up_ms=None) for one in quorum.voters)
    for leader in silent:
        rows = replication_json(replace(quorum, voters=silent, leader_id=leader.node_id), 777)[: len(silent)]
        times = {row["nodeId"]: (row["lastFetchTimestamp"], row["lastCaughtUpTimestamp"]) for row in rows}
        assert times == {
            one.node_id: (777, 777) if one.node_id == leader.node_id else (-1, -1) for one in silent
        }
        assert (rows[0]["nodeId"], rows[0]["status"]) == (leader.node_id, "Leader")


@pytest.mark.parametrize(("lag", "ready"), [(20, "can be added"), (21, "too far behind to be added")])
def test_controllers_that_catch_up(quorum: DescribeQuorumResponse, lag: int, ready: str) -> None:
    leader = replace(quorum.voters[0], is_alive=True)
    end = leader.log_end_offset
    coming = replace(
        replica(3009, end - lag, None, None, "Observer"),
        is_alive=True,
        lag=0,
        endpoints=(VoterEndpoint("CONTROLLER", "h", 9),),
    )
    dead, broker = replace(coming, node_id=3010, is_alive=False), replace(coming, node_id=4, endpoints=())
    found = replace(
        quorum, kraft_version=1, voters=(leader,), observers=(dead, coming, broker), new_voter_lag_max=20
    )
    lines = [line for line in status_text(found, 0).splitlines() if line.startswith("CatchingUp")]
    assert lines == [f"{'CatchingUp:':<24}node 3009, {lag} records behind, {ready}"]
    shown = names_and_values(found)["CurrentObservers"]
    assert shown.index('"id": 4,') < shown.index('"id": 3009,') < shown.index('"id": 3010,')
    assert shown.count('"endpoints": ["CONTROLLER://h:9"]') == 2


def golden_topics() -> list[DescribedTopic]:
    """The topics of Kafka's text."""
    topics: list[DescribedTopic] = []
    for line in (GOLDEN / "topics-describe.txt").read_text().splitlines():
        fields = dict(part.split(": ", 1) for part in line.strip().split("\t"))
        if "TopicId" in fields:
            configs = dict(pair.split("=") for pair in fields["Configs"].split(","))
            topic_id = uuid_from_text(fields["TopicId"])
            topics.append(
                DescribedTopic(name=fields["Topic"], topic_id=topic_id, partitions=(), configs=configs)
            )
            continue
        partition = DescribedPartition(
            index=int(fields["Partition"]),
            replicas=tuple(map(int, fields["Replicas"].split(","))),
            isr=tuple(map(int, fields["Isr"].split(","))),
            leader=int(fields["Leader"]),
            leader_epoch=0,
        )
        topics[-1] = replace(topics[-1], partitions=(*topics[-1].partitions, partition))
    return topics


def test_topics_are_what_kafka_prints() -> None:
    whole = golden_topics()[:3]
    text = "\n".join(describe_text(topic) for topic in whole)
    printed = (GOLDEN / "topics-describe.txt").read_text().splitlines()
    assert text.splitlines() == printed[: len(text.splitlines())]
    assert len(text.splitlines()) == 9


def test_offline_replicas_and_reassignment_and_no_leader() -> None:
    topic = golden_topics()[0]
    first = topic.partitions[0]
    changed = replace(first, leader=-1, adding=(3,), removing=(0,), offline=(2,))
    text = describe_text(replace(topic, partitions=(changed,)))
    assert text.splitlines()[1] == (
        "\tTopic: after-resign\tPartition: 0\tLeader: none\tReplicas: 2,0\tIsr: 2,0"
        "\tAdding Replicas: 3\tRemoving Replicas: 0\tOffline: 2"
    )
    found = describe_json(replace(topic, partitions=(changed,)))["partitions"][0]
    assert found["leader"] is None
    assert found["offlineReplicas"] == [2]
    eligible = replace(first, isr=(), elr=(2,), last_known_elr=(0,))
    text = describe_text(replace(topic, partitions=(eligible,)))
    assert text.splitlines()[1].endswith("\tIsr: \tElr: 2\tLastKnownElr: 0")


@pytest.mark.parametrize(
    ("fenced", "leaving", "state"),
    [
        (True, False, "fenced"),
        (True, True, "fenced"),
        (False, False, "running"),
        (False, True, "controlled shutdown"),
    ],
)
def test_a_broker(fenced: bool, leaving: bool, state: str) -> None:
    broker = BrokerRegistration(
        broker_id=3,
        epoch=17,
        incarnation_id=bytes(15) + b"\x07",
        endpoints=(NodeEndpoint("PLAINTEXT", "127.0.0.1", 9092, 0),),
        features=(FeatureRange("metadata.version", 1, 19),),
        rack="a",
        fenced=fenced,
        in_controlled_shutdown=leaving,
        directories=(uuid_from_text(CLUSTER),),
    )
    assert broker_row(broker) == (3, state, 17, "a", "PLAINTEXT://127.0.0.1:9092", 1)
    assert broker_json(broker)["endpoints"] == [
        {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092, "securityProtocol": "PLAINTEXT"}
    ]
    text = broker_text(broker)
    assert f"State:        {state}" in text.splitlines()
    assert "Features:     metadata.version 1..19" in text.splitlines()


# Kafka's names for what a controller says of its role and vote.


@pytest.mark.parametrize(
    ("role", "voted_id", "is_observer", "state", "vote"),
    [
        ("leader", 3000, False, "leader", 3000),
        ("candidate", 3000, False, "candidate", 3000),
        ("prospective", 3001, False, "prospective", -1),
        ("follower", 3001, False, "follower", -1),
        ("follower", None, True, "observer", -1),
        ("unattached", 0, False, "voted", 0),
        ("unattached", None, False, "unattached", -1),
        ("resigned", 3000, False, "unattached", -1),
    ],
)
def test_state_and_vote(role: str, voted_id: int | None, is_observer: bool, state: str, vote: int) -> None:
    found = metrics(replace(STATUS, role=role, voted_id=voted_id, is_observer=is_observer, leader_id=None))
    assert (found["current-state"], found["current-vote"]) == (state, vote)
    assert found["current-leader"] == -1


def test_offsets_of_records_are_inclusive_and_brokers_are_fenced_or_active() -> None:
    brokers = tuple(
        replace(BROKER, broker_id=at, state=state) for at, state in enumerate(BrokerControlState, start=0)
    )
    brokers = tuple(broker for broker in brokers if broker.state is not BrokerControlState.UNREGISTERED)
    status = replace(STATUS, brokers=brokers)
    found = metrics(status)
    assert (found["LastCommittedRecordOffset"], found["LastAppliedRecordOffset"]) == (88, 98)
    assert (found["high-watermark"], found["log-end-offset"]) == (90, 2**50)
    assert (found["FencedBrokerCount"], found["ActiveBrokerCount"]) == (2, 2)
    assert brokers_by_state(status) == {"active": 1, "controlled shutdown": 1, "fenced": 1, "shutdown": 1}
