"""What Kafka 3.7's nodes asked its controllers: each recorded request, on the state that it met, gets Kafka's
answer, field by field.

The rules below are the differences, which docs/divergence.md has too.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from msgspec import structs

from metaquorum.config.node import NodeConfig
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.replay import ReplayState, replay, replay_records
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.wire import codec
from metaquorum.wire.messages import CreateTopicsRequest
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka import test_admin_captures as admin
from tests.unit.kafka.golden_cluster import CONTROLLERS, GoldenCluster
from tests.unit.kafka.golden_controller import GoldenController, golden_config
from tests.unit.kafka.test_admin_captures import Difference, Exchange, Rule, at, paired, rows, shown

pytestmark = pytest.mark.shared_data
NAMES = (
    *("BrokerRegistration", "BrokerHeartbeat", "UnregisterBroker", "AlterPartition", "AllocateProducerIds"),
    *("AssignReplicasToDirs", "ControllerRegistration", "Envelope"),
)
KEYS = {API_BY_NAME[name].key: name for name in NAMES}
FETCH, NOT_CONTROLLER, INELIGIBLE_REPLICA = 1, 41, 107
RECORDINGS = (
    *("A-cluster-start", "B-controller-failover", "C-broker-lifecycle", "J-producing-for-logs"),
    *("D-snapshot-fetch", "M-error-cases.background", "E-admin-tools", "E-admin-tools-2", "G-librdkafka"),
    *("H-python-clients", "K-compaction", "L-sasl", "E-acls-authorizer"),
)


def exchanges(folder: Path, name: str) -> Iterator[Exchange]:
    """The exchanges with controllers of a recording."""
    for asked, row in paired(folder, name, KEYS, "controller"):
        yield exchange(f"{name} at {asked['t_ms']}", asked, asked["frame"], row["frame"], asked["t_ms"])


def exchange(label: str, row: dict[str, Any], request: str, response: str, time_ms: int = 0) -> Exchange:
    key, version = row["api_key"], row["api_version"]
    answer = codec.decode_response(key, version, base64.b64decode(response)).body
    return Exchange(label, key, version, -1, base64.b64decode(request), answer, time_ms)


def batches(folder: Path, name: str) -> Iterator[tuple[int, RecordBatch]]:
    """What controllers answered to fetches of the metadata log, with the time; each batch once."""
    end = 0
    for row in rows(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz"):
        if row.get("api_key") != FETCH or row["dir"] != "<" or row.get("event"):
            continue
        if row["link"].startswith("controller"):
            body = codec.decode_response(FETCH, row["api_version"], base64.b64decode(row["frame"])).body
            for topic in body.responses:
                for part in topic.partitions:
                    for batch in iter_batches(bytes(part.records or b"")):
                        if batch.header.base_offset >= end:
                            end = batch.header.next_offset
                            yield row["t_ms"], batch


class WholeCluster(GoldenCluster):
    """Also with what E-acls-authorizer shows of the log after the end of the golden directory. The records
    between are not recorded: each broker registered once more, as later ones show."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "kafka-3.7-wire")
        state = ReplayState(self._images[-1])
        named = [
            record.record
            for _, batch in batches(folder, "E-acls-authorizer")
            for record in decode_batch(batch)
        ]
        again = {
            each.broker_epoch: each.broker_id
            for each in named
            if isinstance(each, records.BrokerRegistrationChangeRecord)
        }
        for _, batch in batches(folder, "E-acls-authorizer"):
            header = batch.header
            while state.end_offset < header.base_offset:
                state = self._between(state, again.get(state.end_offset))
            if header.base_offset == state.end_offset:
                state = replay(state, batch)
                self._ends.append(state.end_offset)
                self._times.append(header.max_timestamp_ms)
                self._images.append(state.image)

    def _between(self, state: ReplayState, broker_id: int | None) -> ReplayState:
        offset, record = state.end_offset, records.NoOpRecord()
        if broker_id is not None:
            known = state.image.brokers[broker_id]
            record = records.BrokerRecord(
                broker_id=broker_id,
                incarnation_id=offset.to_bytes(16),
                broker_epoch=offset,
                end_points=tuple(
                    records.BrokerEndpoint(each.name, each.host, each.port, each.security_protocol)
                    for each in known.endpoints
                ),
                features=tuple(
                    records.BrokerFeature(each.name, each.min_supported_version, each.max_supported_version)
                    for each in known.features
                ),
                rack=known.rack,
                fenced=False,
                in_controlled_shutdown=False,
                log_dirs=tuple(known.directories),
            )
        epoch = state.image.provenance.epoch
        return replay_records(state, base_offset=offset, epoch=epoch, timestamp_ms=0, records=[record])

    def states(self, began_ms: int, asked: Exchange) -> list[MetadataImage]:
        """Those that the controller may have had when it answered, the likeliest first."""
        return self.around(began_ms + asked.time_ms)[::-1]


STRICTER_ISR = "a replica in an offline directory does not join the ISR"
LEASED = "the id of a fenced broker is free when its lease has ended"
RULES: dict[str, Rule] = {
    "the same incarnation keeps its epoch": lambda asked, where, theirs, ours: (
        asked.api == "BrokerRegistration" and where == ".broker_epoch" and -1 < ours < theirs
    ),
    "a broker without listeners is refused": lambda asked, where, theirs, ours: (
        asked.api == "BrokerRegistration"
        and not codec.decode_request(asked.request).body.listeners
        and ours == (119 if where == ".error_code" else -1)
    ),
    LEASED: lambda asked, where, theirs, ours: (
        asked.api == "BrokerRegistration"
        and ours == (101 if where == ".error_code" else -1)
        and theirs != 101
    ),
    "a security protocol that does not exist is refused, and the controller stays": (
        lambda asked, where, theirs, ours: asked.api.endswith("Registration") and (theirs, ours) in UNREADABLE
    ),
    "a controller that is no voter does not register with static voters": lambda asked, where, theirs, ours: (
        asked.api == "ControllerRegistration"
        and codec.decode_request(asked.request).body.controller_id not in CONTROLLERS
        and (theirs, ours) == (0, 42)
    ),
    "a recovery state that does not exist is refused for its partition, and the controller stays": (
        lambda asked, where, theirs, ours: asked.api == "AlterPartition" and asked.answer.error_code == -1
    ),
    "the controller that stays does not answer that it is no longer active": (
        lambda asked, where, theirs, ours: asked.api == "Envelope" and theirs in (41, None)
    ),
    "tokens are drawn, and have the time of their creation": at(
        "(Create|Renew)DelegationToken", r"\.(hmac|token_id|.*timestamp_ms)"
    ),
    **admin.RULES,
}
UNREADABLE = ((-1, 119), (-1, 42))


def unexplained(asked: Exchange, ours: Any, used: Counter[str]) -> list[Difference]:
    """What no rule explains; what is in an Envelope is compared as the answer that it is."""
    if ours is None:
        return [("", asked.answer, None)]
    if asked.api == "Envelope" and not asked.answer.error_code and not ours.error_code:
        body = codec.decode_request(asked.request).body
        inner = codec.decode_request(bytes(body.request_data)).header
        theirs, found = (
            codec.decode_response(inner.api_key, inner.version, bytes(each.response_data))
            for each in (asked.answer, ours)
        )
        assert theirs.correlation_id == found.correlation_id
        asked = Exchange(asked.label, inner.api_key, inner.version, -1, b"", theirs.body)
        ours = found.body
    left = []
    theirs_plain, ours_plain = msgspec.to_builtins(asked.answer), msgspec.to_builtins(ours)
    if asked.api == "AlterPartition":
        used[STRICTER_ISR] += leave_out_stricter(theirs_plain, ours_plain)
        used += Counter()
    for difference in admin.differences(admin.comparable(theirs_plain), admin.comparable(ours_plain)):
        name = next((name for name, rule in RULES.items() if rule(asked, *difference)), None)
        if name is None:
            left.append(difference)
        else:
            used[name] += 1
    return left


def leave_out_stricter(theirs: Any, ours: Any) -> int:
    """Removes partitions that Kafka lets grow and we do not; returns how many."""
    count = 0
    for one, other in zip(theirs["topics"], ours["topics"], strict=False):
        kept = [
            pair
            for pair in zip(one["partitions"], other["partitions"], strict=True)
            if (pair[0]["error_code"], pair[1]["error_code"]) != (0, INELIGIBLE_REPLICA)
        ]
        count += len(one["partitions"]) - len(kept)
        one["partitions"], other["partitions"] = [pair[0] for pair in kept], [pair[1] for pair in kept]
    return count


@pytest.fixture(name="whole", scope="module")
def fixture_whole(shared_data: Path) -> WholeCluster:
    return WholeCluster(shared_data)


SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS;User:admin",
}
"""As Kafka's nodes had it in E-acls-authorizer."""


def best(
    asked: Exchange,
    states: list[MetadataImage],
    config: NodeConfig,
    static: dict[str, str],
    used: Counter[str],
) -> list[Difference]:
    """What is unlike Kafka's answer on the state that explains it best."""
    active = getattr(asked.answer, "error_code", 0) != NOT_CONTROLLER
    attempts: list[tuple[list[Difference], Counter[str]]] = []
    for image in states:
        for all_applied in (True, False):
            node = GoldenController(config, image, static=static, active=active, all_applied=all_applied)
            rules: Counter[str] = Counter()
            attempts.append((unexplained(asked, node.answer(asked.request), rules), rules))
            if not attempts[-1][0] and not rules:
                return []
    left, rules = min(attempts, key=lambda each: (len(each[0]), each[1].total()))
    used.update(rules)
    return left


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_nodes_get_kafkas_answers(
    whole: WholeCluster, shared_data: Path, tmp_path: Path, name: str
) -> None:
    config = golden_config(tmp_path, **(SECURED if name == "E-acls-authorizer" else {}))
    static = whole.static("controller-3000")
    began_ms = int(
        median(batch.header.max_timestamp_ms - time_ms for time_ms, batch in batches(shared_data, name))
    )
    used: Counter[str] = Counter()
    wrong, count = {}, 0
    for asked in exchanges(shared_data, name):
        count += 1
        left = best(asked, whole.states(began_ms, asked), config, static, used)
        if left:
            wrong[asked.label, asked.api] = left
    assert not wrong, shown(wrong)
    assert count >= 50


def test_every_version_is_answered_alike(whole: WholeCluster, shared_data: Path, tmp_path: Path) -> None:
    """The script's requests one after another, with our epochs and ids in the place of Kafka's."""
    node = GoldenController(golden_config(tmp_path), whole.at(admin.VERSIONS_AT))
    types = CreateTopicsRequest
    placed = types.CreatableReplicaAssignment(partition_index=0, broker_ids=(0, 1, 2))
    topic = types.CreatableTopic(name="ver2", num_partitions=-1, replication_factor=-1, assignments=(placed,))
    header = codec.RequestHeader(admin.CREATE_TOPICS, 7, 1)
    node.answer(b"".join(codec.encode_request(header, types(topics=(topic,)))))
    used: Counter[str] = Counter()
    wrong, seen = {}, set()
    for row in rows(shared_data / "kafka-3.7-wire" / "N-all-versions.jsonl.gz"):
        if row["api_key"] not in KEYS or not row["to"].startswith("controller"):
            continue
        asked = exchange(row["label"], row, row["request"], row["response"])
        ours = node.answer(at_home(asked, node.image))
        if asked.api == "BrokerRegistration" and asked.answer.broker_epoch > -1 < ours.broker_epoch:
            ours = structs.replace(ours, broker_epoch=asked.answer.broker_epoch)
        seen.add((asked.api, asked.version))
        left = unexplained(asked, ours, used)
        if left:
            wrong[asked.label] = left
    assert not wrong, shown(wrong)
    assert set(used) == {LEASED}
    registrations = {("BrokerRegistration", version) for version in range(4)}
    others = {("BrokerHeartbeat", version) for version in range(2)}
    assert seen == registrations | others | {("AlterPartition", version) for version in range(4)}


def at_home(asked: Exchange, image: MetadataImage) -> bytes:
    """The request with our epoch and id, and an epoch before the partition's first."""
    request = codec.decode_request(asked.request)
    body = request.body
    known = image.brokers.get(body.broker_id)
    if hasattr(body, "broker_epoch") and known is not None:
        body = structs.replace(body, broker_epoch=known.epoch)
    if asked.api == "AlterPartition":
        made = image.topics.topic_named("ver2")
        assert made is not None
        topic_id = made.topic_id if asked.version >= 2 else bytes(16)
        topics = tuple(
            structs.replace(
                each,
                topic_id=topic_id,
                partitions=tuple(structs.replace(part, partition_epoch=-1) for part in each.partitions),
            )
            for each in body.topics
        )
        body = structs.replace(body, topics=topics)
    return b"".join(codec.encode_request(request.header, body))
