"""The log of a running Apache Kafka, read over its protocol: by what its nodes were recorded with, and by the
commands, against a node that answers by Kafka's rules."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import Result

from metaquorum.clients.kafka.live_log import LiveSource, LogSpool, copy_log
from metaquorum.clients.kafka.observer import (
    AskNode,
    LocateQuorum,
    LogObserver,
    NothingHeard,
    QuorumNodes,
)
from metaquorum.clients.kafka.quorum import answer_of, quorum_at
from metaquorum.clients.kafka.raft_messages import request_body
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.raft.messages import FetchSnapshotResponse
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.format import hop_headers
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run_log as run
from tests.unit.clients.metadata_leader import MemorySpool
from tests.unit.kafka.kafka_controller import KafkaBroker, KafkaController, on_a_thread

LOG = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"
FETCH, FETCH_SNAPSHOT, DESCRIBE_CLUSTER = 1, 59, 60
SASL = SaslRules(
    mechanisms=("PLAIN",), new_exchange=lambda _: PlainExchange({"alice": "alice-secret"}), max_reauth_ms={}
)


# --- what Kafka's nodes were recorded with


def recorded(shared_data: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(shared_data / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
        yield from map(json.loads, lines)


def error_cases(shared_data: Path, *keys: int) -> dict[str, tuple[codec.Request, Any]]:
    """Requests and answers at controllers, by label."""
    return {
        row["label"]: (
            codec.decode_request(base64.b64decode(row["request"])),
            codec.decode_response(row["api_key"], row["api_version"], base64.b64decode(row["response"])).body,
        )
        for row in recorded(shared_data, "M-error-cases")
        if row["api_key"] in keys and row["to"].startswith("controller") and row["response"]
    }


def test_every_answer_of_kafka_is_understood(shared_data: Path) -> None:
    found = {}
    for label, (asked, body) in error_cases(shared_data, FETCH, FETCH_SNAPSHOT).items():
        answer = answer_of(body, asked.header.version)
        assert not isinstance(answer, NothingHeard), label
        found[label.partition(": ")[2] or label] = (
            answer.error.name,
            answer.epoch,
            answer.leader_id,
            answer.snapshot,
            getattr(answer, "diverging", None),
        )
    newest = LogPosition(15, 906)
    assert found["not the leader"] == ("SNAPSHOT_NOT_FOUND", 0, None, None, None)  # the one of FetchSnapshot
    assert found["wrong cluster id"] == ("INCONSISTENT_CLUSTER_ID", 0, None, None, None)
    assert found["offset 0 below the log start (snapshot id)"] == ("NONE", 17, 3001, newest, None)
    beyond = found["offset beyond the end (diverging epoch)"]
    assert beyond == ("NONE", 17, 3001, None, LogPosition(17, 917))
    former = found["Fetch of the metadata log at the former leader with its old epoch"]
    assert former == ("FENCED_LEADER_EPOCH", 20, 3001, None, None)


def test_a_snapshot_arrives_in_the_chunks_that_kafka_sends(shared_data: Path) -> None:
    cases = error_cases(shared_data, FETCH_SNAPSHOT)
    chunks: list[Any] = [
        answer_of(body, 0) for label, (_, body) in cases.items() if "chunk of at most" in label
    ]
    whole = answer_of(cases["FetchSnapshot: the whole"][1], 0)
    assert isinstance(whole, FetchSnapshotResponse) and len(whole.data) == whole.size_bytes
    assert [(each.position, len(each.data)) for each in chunks] == [(at * 1000, 1000) for at in range(4)]
    assert whole.data.startswith(b"".join(each.data for each in chunks))


def test_a_request_has_the_fields_of_an_observer_of_kafka(shared_data: Path) -> None:
    """A broker's fetch of the log, apart from its id and how long it waits."""
    asked = [
        codec.decode_request(base64.b64decode(row["frame"]))
        for row in recorded(shared_data, "A-cluster-start")
        if row.get("api_key") == FETCH and row["dir"] == ">" and row["client_id"] == "raft-client-2"
    ]
    theirs = asked[1].body
    (partition,) = theirs.topics[0].partitions
    spool = MemorySpool()
    observer = LogObserver([("h", 1)], spool, reader=bytes(16), rng=Random(1), timeout_ms=1)
    steps = observer.run()
    next(steps)
    steps.send((0, None))
    quorum = QuorumNodes(
        controllers={}, is_controller=True, cluster_id=theirs.cluster_id, leader_id=1, epoch=2
    )
    step = steps.send((0, quorum))
    assert isinstance(step, AskNode)
    ours = request_body(step.request, 16)
    assert (ours.cluster_id, ours.session_id, ours.session_epoch) == (theirs.cluster_id, 0, -1)
    assert ours.topics[0].topic_id == theirs.topics[0].topic_id
    (own,) = ours.topics[0].partitions
    for name in (
        "partition",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "current_leader_epoch",
    ):
        assert getattr(own, name) == getattr(partition, name), name
    assert (ours.replica_id, ours.replica_state.replica_id) == (-1, -1)
    assert theirs.replica_state.replica_id == 2


def test_the_log_of_a_recorded_cluster_is_read_from_its_frames(shared_data: Path) -> None:
    """The leader's answers to the fetches of voters and brokers, by the offset that they ask for."""
    frames: dict[tuple[str, int], list[Any]] = {}
    asked: dict[tuple[Any, ...], codec.Request] = {}
    for row in recorded(shared_data, "A-cluster-start"):
        if row.get("api_key") != FETCH or row.get("event") or not row["client_id"].startswith("raft-client"):
            continue
        key = row["link"], row["conn"], row["correlation_id"]
        frame = base64.b64decode(row["frame"])
        if row["dir"] == ">":
            asked[key] = codec.decode_request(frame)
        elif (request := asked.pop(key, None)) is not None:
            body = codec.decode_response(FETCH, row["api_version"], frame).body
            partition = request.body.topics[0].partitions[0]
            frames.setdefault((row["link"], partition.fetch_offset), []).append(body)
    known = {
        base: bytes(body.responses[0].partitions[0].records)[at:]
        for (link, _), bodies in frames.items()
        for body in bodies
        if link == "controller-3000" and body.responses
        for at, base, _, _ in hop_headers(bytes(body.responses[0].partitions[0].records or b""))
    }
    links = {("h", number): f"controller-{number}" for number in (3000, 3001, 3002)}
    spool = MemorySpool()
    observer = LogObserver(
        [("h", 3002)], spool, reader=bytes(16), rng=Random(1), timeout_ms=60_000, follows=True
    )
    steps = observer.run()
    step = next(steps)
    now_ms = 0
    for _ in range(2_000):
        now_ms += 50
        result: Any = None
        if isinstance(step, LocateQuorum):
            result = QuorumNodes(controllers={link[1]: link for link in links}, is_controller=True)
        elif isinstance(step, AskNode):
            bodies = frames.get((links[step.address], step.request.fetch_offset), [])
            if not bodies:
                break  # the recording ends
            result = answer_of(bodies.pop(0) if len(bodies) > 1 else bodies[0], 16)
        step = steps.send((now_ms, result))
    log = observer.log
    assert (log.leader_id, log.address, log.epoch) == (3000, ("h", 3000), 2)
    assert log.end_offset > 20
    kept = spool.segments[0]
    for at, base, following, _ in hop_headers(kept):
        size = min(len(kept) - at, len(known[base]))
        assert kept[at : at + size] == known[base][:size] and following <= log.end_offset


def test_a_controller_names_the_others(shared_data: Path) -> None:
    (case,) = [
        body
        for label, (_, body) in error_cases(shared_data, DESCRIBE_CLUSTER).items()
        if label.endswith("endpoint type 2")
    ]
    steps = quorum_at(("127.0.0.1", 41000), lambda api, version: version <= 1)
    asked = next(steps)
    assert (type(asked), asked.endpoint_type) == (wire.DescribeClusterRequest, 2)
    with pytest.raises(StopIteration) as end:
        steps.send(case)
    found = end.value.value
    assert found.cluster_id == "d2lyZS1jYXB0dXJlLTM3MA" and found.is_controller
    assert {node: found.controllers[node][1] for node in (3000, 3001, 3002)} == {
        3000: 41100,
        3001: 41101,
        3002: 41102,
    }


# --- commands


def at(node: Any) -> str:
    return f"127.0.0.1:{node.port}"


COMMANDS: dict[tuple[str, ...], int | None] = {
    ("state", "--json"): 0,
    ("dump", "--json"): 1,
    ("timeline", "--json"): 1,
    ("history", "feature/metadata.version"): 0,
    ("diff", "20", "100", "--json"): 0,
    ("why", "broker/0"): 0,
    ("summary", "--json"): None,
    ("check",): None,
    ("bisect", "--predicate", "offset < 100"): None,
    ("shell", "-c", "cat broker/0"): 0,
}
"""How many of the first lines are about record 0; None: many lines mention where the log begins."""


@pytest.mark.parametrize(("arguments", "about_record_0"), COMMANDS.items())
def test_every_command_reads_a_running_kafka(arguments: tuple[str, ...], about_record_0: int | None) -> None:
    """Its answers are those about the files, but for record 0, which Kafka gives to no reader."""
    node = KafkaController(LOG)
    with on_a_thread(node):
        found = run(*arguments, "--bootstrap", at(node))
    command, *rest = arguments
    expected = run(command, LOG, *rest)
    first, *problems = found.stderr.splitlines()
    assert first.startswith("metaquorum: read offsets 1 to ") and "with the snapshot at offset 176" in first
    assert found.exit_code == expected.exit_code, (problems, expected.stderr)
    if about_record_0 is not None:
        shown, wanted = (_FILE.sub("FILE", each.stdout).splitlines() for each in (found, expected))
        assert shown == wanted[about_record_0:]
    assert {each.replica_id for each in node.fetched} == {-1}


_FILE = re.compile(r"/[^\"\s]*/0{15}\d+\.log")


def test_the_state_of_a_running_kafka_is_that_of_its_files() -> None:
    node = KafkaController(LOG)
    with on_a_thread(node):
        for point in ("50", "120", "200"):
            found = run("state", "--bootstrap", at(node), "--at", point, "--json")
            assert json.loads(found.stdout) == json.loads(run("state", LOG, "--at", point, "--json").stdout)


def test_a_trimmed_log_of_kafka_begins_with_its_oldest_snapshot(tmp_path: Path) -> None:
    node = KafkaController(LOG)
    node.trim()
    with on_a_thread(node):
        source = LiveSource(addresses=[("127.0.0.1", node.port)], timeout_ms=10_000)
        found = asyncio.run(copy_log(source, LogSpool(PosixDisk(), str(tmp_path)), rng=Random(1)))
    assert (found.start_offset, found.snapshot) == (82, LogPosition(1, 176))
    log = open_log(PosixDisk(), str(tmp_path))
    assert log.snapshots() == [LogPosition(1, 82), LogPosition(1, 176)]
    for position in log.snapshots():
        copied = tmp_path / "__cluster_metadata-0" / snapshot_name(position)
        assert copied.read_bytes() == node.content(position)


@pytest.mark.parametrize("names_controllers", [True, False])
def test_brokers_lead_to_their_controllers(names_controllers: bool) -> None:
    node = KafkaController(LOG)
    broker = KafkaBroker(node, names_controllers=names_controllers)
    with on_a_thread(node, broker):
        found = run("state", "--bootstrap", at(broker), "feature/metadata.version")
    assert found.exit_code == 0 and f"from controller 1 at {at(node)}" in found.stderr
    assert ("DescribeConfigs" in broker.asked) is not names_controllers


def test_follow_shows_records_as_they_are_committed() -> None:
    node = KafkaController(LOG)
    quorum, end = node.quorum, node.quorum.high_watermark
    record = encode_batch(
        base_offset=end, leader_epoch=quorum.epoch, timestamp_ms=1, values=[encode(NoOpRecord(), 0)]
    )
    told: list[int] = []

    def asked_from(offset: int) -> None:
        while not any(each.fetch_offset == offset for each in list(node.fetched)):
            time.sleep(0.01)

    def grow() -> None:
        asked_from(end)
        quorum.log.append((LogPosition(quorum.epoch, end + 1), end, record))
        asked_from(end + 1)
        told.append(end)
        quorum.commit()

    with on_a_thread(node):
        growth = threading.Thread(target=grow, daemon=True)
        growth.start()
        found = run("dump", "--bootstrap", at(node), "--follow", "--from-offset", end - 1, "--to-offset", end)
        growth.join()
    shown = [int(line.split()[0]) for line in found.stdout.splitlines()]
    assert (shown, told) == ([end - 1, end], [end])


def test_the_whole_log_is_taken_home_as_one_file(tmp_path: Path) -> None:
    node = KafkaController(LOG)
    target = tmp_path / "kafka.mqa"
    with on_a_thread(node):
        made = run("archive", "--bootstrap", at(node), "--to", target)
    assert made.exit_code == 0, made.stderr
    found, expected = (run("state", path, "--json") for path in (target, LOG))
    assert json.loads(found.stdout) == json.loads(expected.stdout)


# --- refusals


def the_line(result: Result) -> str:
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (1, "")
    return line


def test_a_principal_without_cluster_action_is_told_so() -> None:
    node = KafkaController(LOG, allowed=False)
    with on_a_thread(node):
        line = the_line(run("state", "--bootstrap", at(node)))
    assert "ClusterAction" in line and "kafka-acls" in line


def test_a_login_that_was_not_given_is_asked_for() -> None:
    node = KafkaController(LOG, sasl=SASL)
    with on_a_thread(node):
        line = the_line(run("state", "--bootstrap", at(node), "--timeout", "3"))
    assert "may require a login (--command-config" in line


def test_a_login_is_taken_from_the_command_config(tmp_path: Path) -> None:
    node = KafkaController(LOG, sasl=SASL)
    with on_a_thread(node):
        found = run("state", "--bootstrap", at(node), *alices(tmp_path), "feature/metadata.version")
    assert found.exit_code == 0, found.stderr


def test_a_login_is_left_out_where_a_broker_leads_to_a_listener_without_logins(tmp_path: Path) -> None:
    """Not where the user has given the address: there the login is what was wanted."""
    node = KafkaController(LOG)
    broker = KafkaBroker(node, sasl=SASL)
    with on_a_thread(node, broker):
        found = run("state", "--bootstrap", at(broker), *alices(tmp_path), "feature/metadata.version")
        line = the_line(run("state", "--bootstrap", at(node), *alices(tmp_path), "--timeout", "3"))
    assert found.exit_code == 0, found.stderr
    assert "it does not offer PLAIN" in line


def alices(folder: Path) -> tuple[str | Path, ...]:
    """The options with which alice logs in."""
    config = folder / "client.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="alice" password="alice-secret";\n'
    )
    return "--command-config", config


def test_a_broker_that_cannot_name_its_controllers_says_what_to_give() -> None:
    broker = KafkaBroker(KafkaController(LOG), hides=True)
    with on_a_thread(broker):
        line = the_line(run("state", "--bootstrap", at(broker)))
    assert "give the address of a controller" in line


@pytest.mark.parametrize(
    ("names_controllers", "command", "rights"),
    [
        (True, "dump", "Describe and ClusterAction"),
        (False, "state", "DescribeConfigs and ClusterAction"),
        (True, "watch", "Describe and ClusterAction"),
    ],
)
def test_a_broker_that_keeps_its_controllers_from_a_client_says_which_rights_it_needs(
    names_controllers: bool, command: str, rights: str
) -> None:
    broker = KafkaBroker(KafkaController(LOG), names_controllers=names_controllers, refuses=True)
    with on_a_thread(broker):
        receiver = ("--exec", "true") if command == "watch" else ()
        line = the_line(run(command, "--bootstrap", at(broker), *receiver))
    assert f"allow its principal {rights} on the cluster" in line
    assert "or give the address of a controller" in line
