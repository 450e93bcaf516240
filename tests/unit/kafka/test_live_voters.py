"""`log check --bootstrap` says of each voter what can be learned of it, and what cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.clients.kafka.message_forms import METADATA_TOPIC_ID
from metaquorum.clients.kafka.observer import LiveLog, NothingHeard
from metaquorum.clients.kafka.quorum import VoterEnd, voter_ends, voter_reports
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.wire import messages as wire
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run_log as run
from tests.unit.clients.metadata_leader import ADDRESSES
from tests.unit.kafka.kafka_controller import KafkaController, on_a_thread
from tests.unit.server.nodes import silent_port

LOG = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"


class Follower(KafkaController):
    """A voter that does not lead, in the leader's epoch or in another one."""

    def __init__(self, directory: Path, *, later: int = 0) -> None:
        super().__init__(directory)
        self.later = later

    def _fetch(self, body: wire.FetchRequest) -> wire.FetchResponse:
        types = wire.FetchResponse
        leader = types.LeaderIdAndEpoch(leader_id=1, leader_epoch=self.quorum.epoch + self.later)
        code = RaftError.FENCED_LEADER_EPOCH if self.later else RaftError.NOT_LEADER_OR_FOLLOWER
        partition = types.PartitionData(error_code=code, high_watermark=-1, current_leader=leader)
        return types(
            responses=(types.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=(partition,)),)
        )


@pytest.fixture(name="port")
def fixture_port() -> Iterator[int]:
    with silent_port() as port:
        yield port


def test_each_voter_has_a_line(port: int) -> None:
    leader, follows, other = KafkaController(LOG), Follower(LOG), Follower(LOG, later=3)
    end = leader.quorum.high_watermark
    leader.voters = {1: end, 2: end, 3: end - 7, 4: end - 1, 5: -1}
    with on_a_thread(leader, follows, other):
        leader.named = {2: follows.port, 3: other.port, 4: port}
        where = f"127.0.0.1:{leader.port}"
        found = run("check", "--bootstrap", where, "--timeout", 1)
        told = json.loads(run("check", "--bootstrap", where, "--timeout", 1, "--json").stdout)
    epoch = leader.quorum.epoch
    *_, one, two, three, four, five, how = found.stdout.splitlines()
    assert one == f"  controller 1 at {where} leads epoch {epoch}: its log was read"
    assert two.startswith(
        f"  controller 2 at 127.0.0.1:{follows.port} follows controller 1 in epoch {epoch}; "
    )
    assert two.endswith(f"its log ends at offset {end}, as the leader's; its records were not read")
    assert f"knows controller 1 in epoch {epoch + 3}; " in three and "7 behind;" in three
    assert f"127.0.0.1:{port} does not answer as a voter: " in four and "1 behind;" in four
    assert "controller 5 was not asked" in five and "the leader has not heard where its log ends" in five
    assert "only their files show" in how
    assert [each["inOrder"] for each in told["clusterVoters"]] == [True, True, False, False, False]
    assert [each["recordsCompared"] for each in told["clusterVoters"]] == [True, *[False] * 4]
    assert [each["behind"] for each in told["clusterVoters"]] == [0, 0, 7, 1, None]
    assert found.exit_code == run("check", LOG).exit_code


def test_a_leader_that_does_not_name_the_voters_is_one_line() -> None:
    node = KafkaController(LOG)
    with on_a_thread(node):
        found = run("check", "--bootstrap", f"127.0.0.1:{node.port}", "--json")
    assert "the voters are unknown: " in found.stderr and "INVALID_REQUEST" in found.stderr
    assert "clusterVoters" not in json.loads(found.stdout)


def test_the_controllers_that_are_given_are_asked_where_the_leader_does_not_say_who_votes(port: int) -> None:
    leader, follows, other = KafkaController(LOG), Follower(LOG), Follower(LOG, later=3)
    for each in (leader, follows, other):
        each.describes = False
    with on_a_thread(leader, follows, other):
        given = [f"127.0.0.1:{each}" for each in (leader.port, follows.port, other.port, port)]
        twice = f"localhost:{leader.port}"
        where = ",".join((*given, twice))
        found = run("check", "--bootstrap", where, "--timeout", 1)
        told = json.loads(run("check", "--bootstrap", where, "--timeout", 1, "--json").stdout)
        alone = run("check", "--bootstrap", given[0], "--timeout", 1)
    epoch = leader.quorum.epoch
    *_, one, two, three, four, how = found.stdout.splitlines()
    assert one == f"  controller 1 at {given[0]} leads epoch {epoch}: its log was read"
    assert two.startswith(f"  the controller at {given[1]} follows controller 1 in epoch {epoch}; ")
    assert "allow its principal Describe on the cluster" in two
    assert f"knows controller 1 in epoch {epoch + 3}; " in three
    assert f"at {given[3]} does not answer as a voter: " in four
    assert "only their files show" in how
    voters = told["clusterVoters"]
    assert [each["nodeId"] for each in voters] == [1, None, None, None]
    assert [each["inOrder"] for each in voters] == [True, True, False, False]
    assert [each["behind"] for each in voters] == [0, None, None, None]
    assert "the voters are unknown: " in alone.stderr and "Describe on the cluster" in alone.stderr


def log() -> LiveLog:
    where = ADDRESSES[1]
    return LiveLog(
        cluster_id="c", leader_id=1, epoch=7, address=where, start_offset=0, end_offset=10, last_epoch=7
    )


def said(error: RaftError, epoch: int, leader_id: int | None) -> FetchResponse:
    return FetchResponse(error=error, epoch=epoch, leader_id=leader_id)


@pytest.mark.parametrize(
    ("answer", "in_order", "text"),
    [
        (said(RaftError.NOT_LEADER_OR_FOLLOWER, 7, 1), True, "follows controller 1"),
        (said(RaftError.NOT_LEADER_OR_FOLLOWER, 7, None), False, "knows no leader"),
        (said(RaftError.NONE, 8, 2), False, "leads epoch 8"),
        (said(RaftError.INCONSISTENT_CLUSTER_ID, 0, None), False, "answers INCONSISTENT_CLUSTER_ID"),
        (NothingHeard(text="refused"), False, "does not answer as a voter: refused"),
        (None, False, "was not asked"),
    ],
)
def test_what_a_voter_says_is_told(
    answer: FetchResponse | NothingHeard | None, in_order: bool, text: str
) -> None:
    answers = {} if answer is None else {2: answer}
    leads, other = voter_reports(log(), [VoterEnd(2, 9), VoterEnd(1, 10)], ADDRESSES, answers)
    assert leads.was_read and leads.line == "controller 1 at 127.0.0.1:9001 leads epoch 7: its log was read"
    assert (other.was_read, other.is_in_order, other.behind) == (False, in_order, 1)
    assert other.text.startswith(text)


def test_a_voter_is_silent_since_the_leader_last_heard_from_it() -> None:
    ends = [VoterEnd(1, 10), VoterEnd(2, 9, 1_700_000_000_000), VoterEnd(3, 10, 1_700_000_000_001)]
    answers = {2: NothingHeard(text="refused"), 3: said(RaftError.NOT_LEADER_OR_FOLLOWER, 7, 1)}
    reports = voter_reports(log(), ends, ADDRESSES, answers)
    assert [each.silent_since_ms for each in reports] == [None, 1_700_000_000_000, None]


@pytest.mark.parametrize(("end", "behind"), [(9, 1), (10, 0), (11, 0), (-1, None)])
def test_how_far_a_voter_is_behind_the_leader(end: int, behind: int | None) -> None:
    _, other = voter_reports(log(), [VoterEnd(1, 10), VoterEnd(2, end)], ADDRESSES, {})
    assert other.behind == behind


def test_each_voters_end_and_last_fetch_are_its_own() -> None:
    types = wire.DescribeQuorumResponse
    voters = (
        types.ReplicaState(replica_id=1, log_end_offset=90, last_fetch_timestamp=-1),
        types.ReplicaState(replica_id=2, log_end_offset=80, last_fetch_timestamp=1_700_000_000_000),
    )
    partition = types.PartitionData(leader_id=1, leader_epoch=3, current_voters=voters)
    answer = types(topics=(types.TopicData(topic_name="__cluster_metadata", partitions=(partition,)),))
    assert voter_ends(answer) == [VoterEnd(1, 90, None), VoterEnd(2, 80, 1_700_000_000_000)]


def test_an_answer_without_the_quorum_is_none() -> None:
    refused = voter_ends(wire.DescribeQuorumResponse())
    assert isinstance(refused, NothingHeard) and refused.text.endswith("it names no partition")
