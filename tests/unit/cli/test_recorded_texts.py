"""Texts and JSON of answers, as they were recorded: of answers with everything, and with nothing.

`pytest tests/unit/cli/test_recorded_texts.py --rewrite` writes them anew: review the difference like code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.cli.admin import topics
from metaquorum.cli.server_commands import node_json, node_text, status_json, status_text
from metaquorum.cli.text import quorum, settings
from metaquorum.clients.admin.cluster import ClusterBroker
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic
from metaquorum.clients.quorum.nodes import BrokerAnswer, NodeAnswer
from metaquorum.metadata.features import FeatureDescription
from metaquorum.metadata.image.types import Acl, BrokerRegistration, FeatureRange, NodeEndpoint
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.metadata.requests.status import BrokerState, BrokerStatus, ProcessState
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource, Synonym
from metaquorum.metadata.settings.scram import Mechanism, UserCredentials
from metaquorum.rpc.messages.tables import NodeReport
from tests.unit.observability.test_small_parts import BROKER, LOOP, STATUS

RECORDED = Path(__file__).with_name("texts.txt")
NOW_MS = 100_000


def nodes() -> Iterator[object]:
    idle = replace(
        STATUS,
        role="unattached",
        leader_id=None,
        voted_id=None,
        high_watermark=-1,
        is_active=False,
        work=(),
        brokers=(),
    )
    observer = replace(STATUS, role="follower", is_observer=True, is_active=False, brokers=(BROKER, BROKER))
    for status in (STATUS, idle, observer):
        answer = NodeAnswer(address=("::1", 9), report=NodeReport(status=status, loop=LOOP))
        yield from (node_text(answer), node_json(answer))
    silent = NodeAnswer(address=("h", 9), problem="not reachable")
    yield from (node_text(silent), node_json(silent))


def registrations() -> Iterator[object]:
    full = BrokerRegistration(
        broker_id=3,
        epoch=17,
        incarnation_id=bytes(range(16)),
        endpoints=(
            NodeEndpoint("PLAINTEXT", "a", 1, 0),
            NodeEndpoint("X", "b", 2, 3),
            NodeEndpoint("Y", "c", 3, 77),
        ),
        features=(FeatureRange("metadata.version", 1, 19), FeatureRange("kraft.version", 0, 1)),
        rack="r",
        fenced=False,
        in_controlled_shutdown=False,
        directories=(bytes(16), bytes(range(16))),
    )
    bare = replace(full, endpoints=(), features=(), rack=None, fenced=True, directories=())
    seen = ClusterBroker(broker_id=4, host="h", port=9, rack="r", fenced=False)
    shown: tuple[Any, ...] = (full, bare, seen, replace(seen, rack=None, fenced=True))
    for broker in shown:
        yield from (quorum.describe_text(broker), quorum.broker_json(broker), quorum.broker_row(broker))


def statuses() -> Iterator[object]:
    status = BrokerStatus(
        node_id=3,
        incarnation_id=bytes(range(16)),
        state=list(BrokerState)[-1],
        process_state=list(ProcessState)[-1],
        fenced=True,
        broker_epoch=17,
        lease_left_ms=0,
        applied_offset=40,
        high_watermark=43,
        log_end_offset=50,
        catch_up_offset=45,
        leader_id=0,
        quorum_epoch=6,
        failures=2,
        last_problem="no lease",
    )
    bare = replace(
        status, broker_epoch=None, lease_left_ms=None, high_watermark=-1, leader_id=None, last_problem=""
    )
    for each in (status, bare, replace(status, high_watermark=39)):
        answer = BrokerAnswer(address=("h", 9), status=each, cluster_id="c")
        yield from (status_text(answer), status_json(answer))
    silent = BrokerAnswer(address=("h", 9), problem="not reachable")
    yield from (status_text(silent), status_json(silent))


def described_topics() -> Iterator[object]:
    part = DescribedPartition(index=0, replicas=(1, 2), isr=(2,), leader=2, leader_epoch=5)
    more = replace(
        part,
        index=1,
        leader=-1,
        isr=(),
        adding=(3,),
        removing=(1,),
        elr=(1,),
        last_known_elr=(2,),
        offline=(1, 2),
    )
    topic = DescribedTopic(
        name="t", topic_id=bytes(range(16)), partitions=(part, more), configs={"a": "1", "b": "2"}
    )
    for each in (topic, replace(topic, topic_id=None, partitions=(), configs={})):
        yield from (topics.describe_text(each), topics.describe_json(each))
    yield topics.describe_text(
        replace(topic, partitions=(replace(part, adding=(4,)), replace(part, removing=(1,))))
    )


def replica(node_id: int, end: int, **more: Any) -> ReplicaStatus:
    fields: dict[str, Any] = {"last_fetch_ms": 90_000 + end, "last_caught_up_ms": 80_000 + end, "status": ""}
    return ReplicaStatus(
        node_id=node_id, directory_id=bytes([node_id]) * 16, log_end_offset=end, lag=7, **(fields | more)
    )


def quorums() -> Iterator[object]:
    at = (VoterEndpoint("CONTROLLER", "h", 9), VoterEndpoint("OTHER", "::1", 8))
    static = DescribeQuorumResponse(
        cluster_id="c",
        leader_id=2,
        leader_epoch=6,
        high_watermark=900,
        voters=(replica(3, 880), replica(1, 900), replica(2, 905)),
        observers=(replica(9, 700), replica(8, 600, last_fetch_ms=None, last_caught_up_ms=None)),
    )
    voters = tuple(
        replace(one, is_alive=one.node_id != 3, endpoints=at, max_kraft_version=1) for one in static.voters
    )
    dynamic = replace(
        static,
        kraft_version=1,
        voters=voters,
        voters_offset=900,
        observers=(replica(5, 800, is_alive=True, endpoints=at), *static.observers),
        new_voter_lag_max=104,
    )
    alone = replace(static, voters=static.voters[2:], observers=())
    leaderless = replace(static, leader_id=-1)
    for found in (
        static,
        dynamic,
        replace(dynamic, voters_offset=12, new_voter_lag_max=105),
        alone,
        leaderless,
    ):
        yield from (quorum.status_text(found, NOW_MS), quorum.status_json(found, NOW_MS))
        yield from (
            quorum.replication_text(found, NOW_MS),
            quorum.replication_text(found, NOW_MS, human=True),
        )
        yield quorum.replication_json(found, NOW_MS)


def other_settings() -> Iterator[object]:
    for name in ("metadata.version", "kraft.version"):
        feature = FeatureDescription(name=name, min_level=1, max_level=19, finalized_level=7)
        yield settings.feature_line(feature, 5)
    acl = Acl(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:b",
        host="*",
        operation=3,
        permission_type=3,
    )
    other = replace(acl, principal="User:a", permission_type=2, operation=4)
    yield settings.acl_text([acl, replace(acl, resource_name="s"), other, replace(acl, pattern_type=4)])
    yield settings.quota_line((("client-id", "c"), ("user", None)), {"b": 2.0, "a": 1.5})
    yield settings.quota_line((("ip", None),), {})
    entry = ConfigEntry(name="a", value=None, source=ConfigSource(1), sensitive=True)
    synonyms = tuple(Synonym(source=each, name="x", value="v") for each in ConfigSource)
    yield settings.config_line(entry)
    yield settings.config_line(replace(entry, value="1", sensitive=False, synonyms=synonyms, note="later"))
    yield settings.user_line(UserCredentials(user="u", iterations=tuple((each, 4096) for each in Mechanism)))


KINDS: list[Callable[[], Iterator[object]]] = [
    *(nodes, registrations, statuses, described_topics, quorums, other_settings),
]


def shown(answer: object) -> str:
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, indent=1, default=str)


def test_answers_are_shown_as_recorded(request: pytest.FixtureRequest) -> None:
    actual = "".join(
        f"---- {kind.__name__} {number}\n{shown(answer)}\n"
        for kind in KINDS
        for number, answer in enumerate(kind(), start=1)
    )
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual)
    assert actual == RECORDED.read_text(), f"review with: pytest {Path(__file__).name} --rewrite && git diff"
