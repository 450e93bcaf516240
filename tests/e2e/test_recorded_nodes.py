"""Recorded brokers and voters of Kafka 3.7 at running controllers of ours: the same fields and codes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.records import types as records
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import HOST, read_batches
from tests.e2e.golden_frames import ORDER, Difference, Replay, differences, mapped, plain_value
from tests.e2e.golden_leaders import GoldenLeader, GoldenVoter, SnapshotLeader, log_of
from tests.e2e.golden_nodes import (
    FOLLOWER,
    LEADER,
    MAPPED,
    SCRIPTED,
    Exchange,
    NodeReplay,
    exchanges,
    logged,
    opened,
    placements,
)
from tests.e2e.kafka_quorum import KafkaQuorum
from tests.e2e.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]

GOLDEN = "kafka-3.7-wire"
ALL_FOLLOW_MS, DIRECTORY_DIES_MS = 8_600, 101_200
"""In A, from when on the voters had a leader; in C, up to when a directory has died: Kafka's ISRs then have
members in it. Ours have not (docs/divergence.md), and the states differ."""
SESSION_MS, KEEP_S = 9_000, 1
"""Long enough that a broker of the recording keeps its session while another one's ends."""
KEYS = {
    "controller.quorum.fetch.timeout.ms": "20000",
    "broker.session.timeout.ms": str(SESSION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "1",
    "num.partitions": "1",
}
"""The last three are in the files of the recorded controllers, too; with the first, the leader stays."""


@dataclass(frozen=True)
class Rule:
    """A field that may differ, and why."""

    apis: str
    path: str
    reason: str
    when: Callable[[Exchange, Difference], bool] = lambda asked, found: True

    def allows(self, asked: Exchange, found: Difference) -> bool:
        fits = re.fullmatch(self.apis, asked.api) and re.fullmatch(self.path, found.path)
        return fits is not None and self.when(asked, found)


APIS = (
    *("ApiVersions", "Fetch", "ControllerRegistration", "BrokerRegistration", "BrokerHeartbeat"),
    *("AlterPartition", "AllocateProducerIds", "AssignReplicasToDirs", "CreateTopics", "Envelope"),
)
OTHER_LOG = "the two logs have other batches, and end elsewhere"
NEWER = "this release knows later versions and levels"
ONE_EPOCH = "the same incarnation keeps its epoch, so an earlier one of its own has not ended"
RULES: tuple[Rule, ...] = (
    Rule("Fetch", r".*\.records", OTHER_LOG),
    Rule("Fetch", r".*\.high_watermark", OTHER_LOG, lambda asked, found: found.ours >= 0),
    Rule("Fetch", r"\.unknown_tags", "read rounds travel in a tagged field, which Kafka passes over"),
    Rule("ApiVersions", r"\.api_keys", NEWER),
    Rule("ApiVersions", r"\.supported_features.*max_version", NEWER),
    Rule("ApiVersions", r"\.finalized_features_epoch", OTHER_LOG, lambda asked, found: found.ours >= 0),
    Rule(
        "BrokerHeartbeat",
        r"\.error_code",
        ONE_EPOCH,
        lambda asked, found: (found.theirs, found.ours) == (77, 0),
    ),
    Rule(
        "Envelope|CreateTopics",
        r".*\.error_message",
        "texts of refusals are our own",
        lambda asked, found: bool(found.ours) and found.beside.error_code != 0,
    ),
    Rule("Envelope", rf".*{re.escape(ORDER)}", "Kafka's order is that of a hash table"),
    Rule(
        "Envelope|CreateTopics",
        r".*\.config_source",
        "a key that the file sets to its default counts as not set",
        lambda asked, found: (found.theirs, found.ours, found.beside.value) == (4, 5, "1"),
    ),
)


class Judge:
    """What was compared, and which rules that needed."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.needed: set[Rule] = set()
        self.wrong: list[str] = []

    def judge(self, rules: tuple[Rule, ...], asked: Exchange, theirs: Any, ours: Any) -> None:
        self.compared[asked.api] += 1
        for found in differences(theirs, ours):
            fitting = [each for each in rules if each.allows(asked, found)]
            self.needed.update(fitting[:1])
            if not fitting:
                values = f"{found.theirs!r:.150}, here {found.ours!r:.150}"
                self.wrong.append(
                    f"{asked.api} {asked.header.version}, {asked.label}: {found.path}: {values}"
                )


class Comparison(Judge):
    """Of the answers of a running quorum. A broker that lived on in the recording repeats its last heartbeat
    on a slow machine, and while the session of another one ends."""

    def __init__(self, replay: NodeReplay, found: list[Exchange]) -> None:
        super().__init__()
        self.replay = replay
        self._found = found
        self._beats: dict[int, Exchange] = {}
        self._last_beat = {
            (each.body.broker_id, each.body.broker_epoch): at
            for at, each in enumerate(found)
            if each.api == "BrokerHeartbeat"
        }
        self._fenced_at = {
            at: record.broker_id
            for at, record in reversed(list(logged(found)))
            if isinstance(record, records.BrokerRegistrationChangeRecord) and record.fenced == 1
        }
        self._kept = time.monotonic()
        self.mapped: set[str] = set()

    def compare_all(self) -> None:
        for at, asked in enumerate(self._found):
            if time.monotonic() - self._kept > KEEP_S:
                self._keep(at)
            self.compare(asked)
            broker_id = self._fenced_at.get(at)
            if broker_id is not None and not self._beats[broker_id].body.want_shut_down:
                self._wait_fenced(at, broker_id, asked)

    def compare(self, asked: Exchange) -> None:
        ours = self.replay.ask(asked)
        if asked.api == "BrokerHeartbeat":
            self._beats[asked.body.broker_id] = asked
        expected = self.replay.expected(asked)
        self.judge(RULES, asked, expected, opened(asked, ours))
        self._note_mapped(mapped(asked.body, plain_value), self.replay.request(asked))
        self._note_mapped(opened(asked, asked.answer), expected)

    def _note_mapped(self, recorded: Any, here: Any) -> None:
        for found in differences(recorded, here):
            self.mapped.add(re.sub(r"\[.*", "", found.path.rpartition(".")[2]))

    def _wait_fenced(self, at: int, broker_id: int, fetch: Exchange) -> None:
        """Where Kafka's log said that a broker was fenced, ours is to say so too."""

        def fenced() -> bool:
            self._keep(at)
            self.replay.ask(fetch)
            return broker_id in self.replay.fenced

        wait_until(fenced, f"broker {broker_id} to be fenced")

    def _keep(self, at: int) -> None:
        self._kept = time.monotonic()
        for broker_id, beat in self._beats.items():
            if self._last_beat[broker_id, beat.body.broker_epoch] >= at and not beat.body.want_shut_down:
                self.replay.ask(beat)


def test_recorded_brokers_and_a_voter_at_our_quorum(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / GOLDEN
    start = exchanges(folder / "A-cluster-start.jsonl.gz", from_ms=ALL_FOLLOW_MS)
    life = exchanges(folder / "C-broker-lifecycle.jsonl.gz", until_ms=DIRECTORY_DIES_MS)
    found = [each for each in chain(start, life) if each.asker not in {str(LEADER), str(FOLLOWER)}]
    (port,) = free_ports(1)
    with KafkaQuorum(tmp_path, keys=KEYS, controllers=2) as cluster:
        ports = {each.node_id: each.kafka_port for each in cluster.controllers} | {SCRIPTED: port}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        for node in cluster.controllers:
            node.set_properties({"controller.quorum.voters": voters})
        cluster.start()
        quorum = cluster.wait_leader()
        leader = cluster.controller(quorum.leader_id)
        (follower,) = [each for each in cluster.controllers if each is not leader]
        ours = {LEADER: leader.kafka_port, FOLLOWER: follower.kafka_port, SCRIPTED: follower.kafka_port}
        with NodeReplay(
            ours, (quorum.leader_id, quorum.leader_epoch), cluster.cluster_id, placements(found)
        ) as replay:
            comparison = Comparison(replay, found)
            comparison.compare_all()
        cluster.assert_no_bugs()
    assert set(comparison.compared) == set(APIS)
    assert comparison.mapped | {"leader_id"} == set(MAPPED)  # our leader may be 3000, too
    assert not comparison.wrong, "\n".join(comparison.wrong)
    assert comparison.needed == set(RULES)


LED = ((LEADER, 2), (SCRIPTED, 4))
"""The recorded leaders that are followed, with their epochs."""
FOLLOWER_STOPS_MS = 43_000
"""In B, up to when Kafka's 3001 ran."""
PATIENT = {
    "controller.quorum.fetch.timeout.ms": "60000",
    "controller.quorum.election.timeout.ms": "60000",
}
"""Ours does not stand for election."""
VOTERS_RULES = (
    Rule(
        "ApiVersions",
        r"\.finalized_features_epoch",
        "ApiVersions of a controller: features have the offset at which they last changed",
        lambda asked, found: found.ours > found.theirs >= 0,
    ),
    Rule(
        "ApiVersions",
        r"\.finalized_features",
        "ApiVersions of a controller with an empty log: the lowest metadata.version is finalized",
        lambda asked, found: found.ours == () and found.beside.finalized_features_epoch == -1,
    ),
    Rule("ApiVersions", r"\.api_keys", NEWER),
    Rule("ApiVersions", r"\.supported_features.*max_version", NEWER),
    Rule(
        "Fetch|Vote",
        r"\.unknown_tags",
        "what this release says beside goes in tagged fields, which Kafka passes over",
    ),
    Rule(
        "Vote",
        r".*\.vote_granted",
        "Kafka's had voted for itself in this epoch: ours asks for pre-votes first, and had not",
        lambda asked, found: asked.body.topics[0].partitions[0].replica_epoch == 3,
    ),
)


class Voters(Judge):
    """Of the answers of one voter of ours. A leader is there from its BeginQuorumEpoch on, which ends when
    the voter has its log, to the end of its term."""

    def __init__(
        self, stack: ExitStack, ports: dict[int, int], cluster_id: str, leaders: dict[int, GoldenLeader]
    ) -> None:
        super().__init__()
        self._stack, self._ports, self._cluster_id, self._leaders = stack, ports, cluster_id, leaders
        self._channels: dict[str, Replay] = {}
        self._leader: GoldenLeader | None = None

    def compare(self, asked: Exchange) -> None:
        part = asked.body.topics[0].partitions[0] if asked.api.endswith("QuorumEpoch") else None
        if asked.api == "BeginQuorumEpoch":
            self._leader = self._leaders.get(part.leader_epoch)
            if self._leader is not None:
                self._leader.start(self._ports[self._leader.node_id])
        if (
            asked.api == "EndQuorumEpoch"
            and self._leader is not None
            and part.leader_id == self._leader.node_id
        ):
            self._stop()
        body = mapped(asked.body, self._value)
        self.judge(VOTERS_RULES, asked, asked.answer, self._channel(asked).send(FOLLOWER, asked.header, body))
        if asked.api == "BeginQuorumEpoch" and self._leader is not None:
            leader = self._leader
            wait_until(
                lambda: leader.reached == leader.end, f"our follower to have the log of {leader.epoch}"
            )
        if asked.api == "Vote":
            self._stop()

    def _stop(self) -> None:
        if self._leader is not None:
            self._leader.close()
            self._leader = None

    def _channel(self, asked: Exchange) -> Replay:
        found = self._channels.get(asked.client)
        if found is None:
            found = self._channels[asked.client] = self._stack.enter_context(Replay(self._ports))
        return found

    def _value(self, name: str, value: Any) -> Any:
        return self._cluster_id if name == "cluster_id" else plain_value(name, value)


def test_recorded_voters_at_our_follower(tmp_path: Path, shared_data: Path) -> None:
    """What 3000 and 3002 asked 3001 over three elections, and brokers of it meanwhile; between, ours has
    followed the recorded leaders, so its log is Kafka's. No id and no epoch is mapped."""
    folder = shared_data / GOLDEN
    start = list(exchanges(folder / "A-cluster-start.jsonl.gz"))
    failover = list(exchanges(folder / "B-controller-failover.jsonl.gz", until_ms=FOLLOWER_STOPS_MS))
    log = log_of(start + failover)
    leaders = {epoch: GoldenLeader(node_id, epoch, log) for node_id, epoch in LED}
    (first_port, last_port) = free_ports(2)
    with KafkaQuorum(tmp_path, keys=PATIENT, controllers=2) as cluster, ExitStack() as stack:
        node = cluster.controller(FOLLOWER)
        ports = {LEADER: first_port, FOLLOWER: node.kafka_port, SCRIPTED: last_port}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        node.set_properties({"controller.quorum.voters": voters})
        node.start()
        node.wait_for_line("listens on")
        comparison = Voters(stack, ports, cluster.cluster_id, leaders)
        for each in start + failover:
            if each.node_id == FOLLOWER:
                comparison.compare(each)
        assert [bytes(each.data) for each in read_batches(node)] == [
            bytes(each.data) for each in log if each.header.leader_epoch <= LED[1][1]
        ]
        cluster.assert_no_bugs()
    assert not comparison.wrong, "\n".join(comparison.wrong)
    assert comparison.needed == set(VOTERS_RULES)
    assert comparison.compared.keys() == {
        "ApiVersions",
        "Vote",
        "BeginQuorumEpoch",
        "EndQuorumEpoch",
        "Fetch",
    }


SNAPSHOT_LEADER, SNAPSHOT_EPOCH, SNAPSHOT_END = 3001, 6, 537
"""In D: the leader whose snapshot two new nodes fetched, its epoch, and the snapshot's end."""
SNAPSHOT_RULES = (
    Rule("Fetch", r".*\.high_watermark", "our leader has committed nothing in its epoch"),
    Rule("Fetch", r".*\.log_start_offset", "our log begins after the snapshot, Kafka's before it"),
)


def test_a_recorded_snapshot_at_our_voter(tmp_path: Path, shared_data: Path) -> None:
    """Ours fetches it from the recorded leader, byte for byte; then it leads, and is asked for it as that
    leader was."""
    found = list(exchanges(shared_data / GOLDEN / "D-snapshot-fetch.jsonl.gz"))
    asked = [each for each in found if _snapshot_of(each) == SNAPSHOT_END]
    (begin,) = [each for each in found if each.api == "BeginQuorumEpoch" and each.node_id == LEADER]
    redirects = [each for each in asked if each.api == "Fetch"]
    fetches = [each for each in asked if each.api == "FetchSnapshot"]
    assert [each.asker for each in fetches] == ["3002", "3"]
    log = [each for each in log_of(found) if each.header.base_offset >= SNAPSHOT_END]
    theirs = SnapshotLeader(SNAPSHOT_LEADER, SNAPSHOT_EPOCH, log, redirects[0].answer, fetches[0])
    voter = GoldenVoter()
    with KafkaQuorum(tmp_path, keys={}, controllers=1) as cluster, Replay({}) as replay, ExitStack() as stack:
        (node,) = cluster.controllers
        ports = dict(zip((SNAPSHOT_LEADER, SCRIPTED), free_ports(2), strict=True))
        replay.ports = ports = {LEADER: node.kafka_port, **ports}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        node.set_properties({"controller.quorum.voters": voters})
        stack.callback(theirs.close)
        theirs.start(ports[SNAPSHOT_LEADER])
        node.start()
        node.wait_for_line("listens on")

        def ask(exchange: Exchange, epoch: int) -> Any:
            here = {"cluster_id": cluster.cluster_id, "current_leader_epoch": epoch, "max_wait_ms": 0}
            body = mapped(exchange.body, lambda name, value: here.get(name, plain_value(name, value)))
            return replay.send(LEADER, exchange.header, body)

        judge = Judge()
        judge.judge((), begin, begin.answer, ask(begin, SNAPSHOT_EPOCH))
        wait_until(lambda: theirs.reached == theirs.end, "our follower to have the recorded log")
        assert theirs.was_asked_for_snapshot
        (theirs_whole,) = {bytes(_partition(each.answer).unaligned_records) for each in fetches}
        assert [each.read_bytes() for each in node.snapshots()] == [theirs_whole]

        stack.pop_all().close()
        voter.start(ports[SCRIPTED])
        stack.callback(voter.close)
        wait_until(
            lambda: voter.epoch and not _partition(ask(fetches[0], voter.epoch)).error_code,
            "our voter to lead",
        )
        leads = {"leader_id": LEADER, "leader_epoch": voter.epoch}
        for each in (*redirects, *fetches):
            expected = mapped(each.answer, lambda name, value: leads.get(name, plain_value(name, value)))
            judge.judge(SNAPSHOT_RULES, each, expected, ask(each, voter.epoch))
        cluster.assert_no_bugs()
    assert not judge.wrong, "\n".join(judge.wrong)
    assert judge.needed == set(SNAPSHOT_RULES)
    assert judge.compared["FetchSnapshot"] == len(fetches)


def _partition(answer: Any) -> Any:
    (topic,) = getattr(answer, "topics", None) or answer.responses
    return topic.partitions[0]


def _snapshot_of(asked: Exchange) -> int | None:
    """The end of the snapshot that the answer names, of a leader."""
    if asked.api not in ("Fetch", "FetchSnapshot") or asked.answer is None:
        return None
    end: int = _partition(asked.answer).snapshot_id.end_offset
    return end
