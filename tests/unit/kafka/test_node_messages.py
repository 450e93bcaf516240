"""What a broker asks controllers for itself, in Kafka's protocol: both halves of the forms, against what
Apache Kafka's brokers were recorded with, and what only our own nodes say to each other."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

from metaquorum.broker.channel import ChannelRequest
from metaquorum.clients.kafka.node_messages import FORMS, MARK, answer_of, offset_of, offset_tags
from metaquorum.listeners.forwarded.api import Call
from metaquorum.listeners.forwarded.table import ANSWERED
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests import partitions as parts
from metaquorum.metadata.requests import settings
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.principal import ForwardedPrincipal, decode_principal, encode_principal
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.test_admin_captures import paired

RECORDINGS = (
    *("A-cluster-start", "B-controller-failover", "C-broker-lifecycle", "D-snapshot-fetch"),
    *("E-admin-tools", "G-librdkafka", "J-producing-for-logs", "L-sasl"),
)
UNTOLD_MS = 9_000
FORM_OF = {form.api: form for form in FORMS.values()}
ENVELOPE = API_BY_NAME["Envelope"].key
KEYS = {API_BY_NAME[name].key: name for name in FORM_OF} | {ENVELOPE: "Envelope"}
TOPIC, OTHER, DIRECTORY = b"t" * 16, b"o" * 16, b"d" * 16


def exchanges(folder: Path, name: str) -> Iterator[tuple[str, int, Any, Any]]:
    """The exchanges of Kafka's brokers with controllers: API, version, and both bodies."""
    for asked, row in paired(folder, name, KEYS, "controller"):
        key, version = asked["api_key"], asked["api_version"]
        request = codec.decode_request(base64.b64decode(asked["frame"])).body
        yield KEYS[key], version, request, decoded(key, version, row["frame"])


def decoded(key: int, version: int, frame: str) -> Any:
    return codec.decode_response(key, version, base64.b64decode(frame)).body


async def handled(body: Any, version: int, answer: Any) -> tuple[Any, Any]:
    """What the controller's half makes of a request, and of the core's answer to it."""
    seen = []

    async def ask(request: Any) -> Any:
        seen.append(request)
        return answer

    name = type(body).__name__.removesuffix("Request")
    call = Call(version=version, ask=ask, wall_ms=0, image=MetadataImage())
    response = await ANSWERED[name].handle(body, call)
    return seen[0], response


def through(key: int, version: int, body: Any) -> Any:
    """A request's body as it arrives."""
    return codec.decode_request(
        b"".join(codec.encode_request(codec.RequestHeader(key, version, 1), body))
    ).body


def plain(body: Any) -> Any:
    return structs.replace(body, unknown_tags=())


@pytest.mark.shared_data
async def test_what_kafkas_brokers_ask_and_get_is_what_ours_would(shared_data: Path) -> None:
    """Our request for the core's value is the recorded one, byte by byte but for our tags; and the recorded
    answer gives the value from which our controller makes that answer."""
    seen: Counter[str] = Counter()
    for name in RECORDINGS:
        for api, version, request, response in exchanges(shared_data, name):
            seen[api] += 1
            if api == "Envelope":
                sender = decode_principal(request.request_principal)
                assert sender is not None
                assert encode_principal(sender) == bytes(request.request_principal)
                continue
            form, key = FORM_OF[api], API_BY_NAME[api].key
            assert form.lowest <= version <= form.highest
            value = answer_of(form, response, UNTOLD_MS)
            asked, answered = await handled(request, version, value)
            ours = through(key, version, form.body(asked, version))
            header = codec.RequestHeader(key, version, 1)
            assert codec.encode_request(header, plain(ours)) == codec.encode_request(header, request), api
            assert answered == response, api
            if not response.error_code and hasattr(value, "session_timeout_ms"):
                assert value.session_timeout_ms == UNTOLD_MS
            seen[f"{api} refused"] += isinstance(value, ApiError)
    few = {name: seen[name] for name in FORM_OF if seen[name] < 4}
    assert not few and seen["Envelope"] > 100
    assert seen["BrokerHeartbeat refused"]


def test_each_request_of_a_broker_has_a_form() -> None:
    assert set(FORMS) == set(get_args(ChannelRequest))


REGISTRATION = core.RegisterBrokerRequest(
    broker_id=7,
    cluster_id="c",
    incarnation_id=b"i" * 16,
    endpoints=(BrokerEndpoint("SASL_SSL", "h", 65_535, 3),),
    features=(BrokerFeature("group.version", 0, 1), BrokerFeature("metadata.version", 1, 25)),
    rack="r",
    directories=(DIRECTORY, OTHER),
    previous_broker_epoch=5,
)
HEARTBEAT = core.BrokerHeartbeatRequest(
    broker_id=7,
    broker_epoch=3,
    applied_offset=100,
    want_fence=True,
    want_shutdown=True,
    offline_directories=(DIRECTORY,),
    min_insync_replicas=2,
)
ALTERATIONS = parts.AlterPartitionRequest(
    broker_id=7,
    broker_epoch=3,
    partitions=tuple(
        parts.PartitionAlteration(
            topic_id=topic_id,
            partition=partition,
            leader_epoch=4,
            partition_epoch=5,
            isr=(parts.IsrMember(broker_id=7, broker_epoch=3), parts.IsrMember(broker_id=8)),
            leader_recovery_state=1,
        )
        for topic_id, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER, 0))
    ),
)
ASSIGNMENTS = parts.AssignReplicasToDirsRequest(
    broker_id=7,
    broker_epoch=3,
    assignments=tuple(
        parts.ReplicaAssignment(directory_id=directory, topic_id=topic_id, partition=partition)
        for directory, topic_id, partition in (
            (DIRECTORY, TOPIC, 0),
            (DIRECTORY, OTHER, 1),
            (OTHER, TOPIC, 1),
        )
    ),
)
PRODUCER_IDS = settings.AllocateProducerIdsRequest(broker_id=7, broker_epoch=3)
ANSWERS: list[tuple[Any, Any]] = [
    (REGISTRATION, core.RegisterBrokerResponse(broker_epoch=12, session_timeout_ms=1_234)),
    (
        HEARTBEAT,
        core.BrokerHeartbeatResponse(
            is_caught_up=True,
            is_fenced=False,
            should_shut_down=True,
            in_controlled_shutdown=False,
            session_timeout_ms=1_234,
        ),
    ),
    (
        ALTERATIONS,
        parts.AlterPartitionResponse(
            results=(
                parts.AlteredPartition(
                    topic_id=TOPIC,
                    partition=0,
                    error=ErrorCode.NONE,
                    leader=0,
                    leader_epoch=4,
                    partition_epoch=6,
                    isr=(0, 8),
                    leader_recovery_state=1,
                ),
                parts.AlteredPartition(topic_id=TOPIC, partition=1, error=ErrorCode.INVALID_UPDATE_VERSION),
                parts.AlteredPartition(topic_id=OTHER, partition=0, error=ErrorCode.NONE, leader_epoch=9),
            )
        ),
    ),
    (
        ASSIGNMENTS,
        parts.AssignReplicasToDirsResponse(
            results=tuple(
                parts.AssignmentResult(
                    directory_id=each.directory_id,
                    topic_id=each.topic_id,
                    partition=each.partition,
                    error=code,
                )
                for each, code in zip(
                    ASSIGNMENTS.assignments,
                    (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE),
                    strict=True,
                )
            )
        ),
    ),
    (PRODUCER_IDS, settings.AllocateProducerIdsResponse(first_id=2_000, count=1_000)),
]


@pytest.mark.parametrize(("request_", "answer"), ANSWERS, ids=lambda value: type(value).__name__)
async def test_between_our_nodes_nothing_is_lost(request_: Any, answer: Any) -> None:
    form = FORMS[type(request_)]
    key = API_BY_NAME[form.api].key
    body = through(key, form.highest, form.body(request_, form.highest))
    asked, response = await handled(body, form.highest, answer)
    assert asked == request_
    frame = b"".join(codec.encode_response(key, form.highest, 1, response))
    received = codec.decode_response(key, form.highest, frame).body
    assert answer_of(form, received, UNTOLD_MS) == answer


@pytest.mark.parametrize("version", [2, 3])
async def test_an_older_controller_is_not_told_of_features_from_level_0(version: int) -> None:
    """It would take their range for one that does not have the cluster's level (KAFKA-17492)."""
    form = FORMS[core.RegisterBrokerRequest]
    body = form.body(structs.replace(REGISTRATION, previous_broker_epoch=None), version)
    asked, _ = await handled(through(62, version, body), version, ApiError(ErrorCode.NOT_CONTROLLER, "no"))
    assert asked.features == REGISTRATION.features[1:]
    assert asked.directories == REGISTRATION.directories


async def test_a_refusal_says_why_to_our_brokers_and_nothing_more_to_kafkas() -> None:
    form = FORMS[core.RegisterBrokerRequest]
    refusal = ApiError(ErrorCode.INVALID_REGISTRATION, "two endpoints have the name L")
    marked = form.body(REGISTRATION, 4)
    _, response = await handled(marked, 4, refusal)
    assert answer_of(form, response, UNTOLD_MS) == refusal
    _, response = await handled(plain(marked), 4, refusal)
    assert response == wire.BrokerRegistrationResponse(error_code=refusal.code)
    _, response = await handled(marked, 4, ApiError(ErrorCode.INVALID_REGISTRATION, "x" * 10_000))
    assert len(answer_of(form, response, UNTOLD_MS).message) == 500


async def test_kafkas_answers_name_no_session_and_the_broker_counts_by_its_own_file() -> None:
    for request, answer in ANSWERS[:2]:
        form = FORMS[type(request)]
        body = form.body(request, form.highest)
        _, response = await handled(plain(body), form.highest, answer)
        assert not response.unknown_tags
        assert answer_of(form, response, UNTOLD_MS).session_timeout_ms == UNTOLD_MS
        _, response = await handled(body, form.highest, answer)
        assert answer_of(form, response, UNTOLD_MS).session_timeout_ms == 1_234


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "allow this broker's principal ClusterAction"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "it belongs to another cluster"),
        (ErrorCode.STALE_BROKER_EPOCH, "the controller answers STALE_BROKER_EPOCH"),
    ],
)
def test_a_refusal_of_kafkas_controllers_has_a_text(code: ErrorCode, text: str) -> None:
    form = FORMS[core.BrokerHeartbeatRequest]
    found = answer_of(form, wire.BrokerHeartbeatResponse(error_code=code), UNTOLD_MS)
    assert found.code is code and text in found.message


def test_a_tagged_field_of_another_size_is_passed_over() -> None:
    form = FORMS[core.RegisterBrokerRequest]
    body = wire.BrokerRegistrationResponse(broker_epoch=1, unknown_tags=((MARK + 2, b"\0"),))
    assert answer_of(form, body, UNTOLD_MS).session_timeout_ms == UNTOLD_MS


def test_an_envelope_names_the_offset_to_those_who_ask() -> None:
    kafkas = wire.EnvelopeRequest(request_data=b"", client_host_address=b"")
    assert offset_tags(kafkas, 5) == ()
    tags = offset_tags(structs.replace(kafkas, unknown_tags=((MARK, b""),)), 5)
    assert offset_of(wire.EnvelopeResponse(unknown_tags=tags)) == 5
    assert offset_of(wire.EnvelopeResponse()) == 0


@pytest.mark.parametrize("name", ["alice", "", "CN=a,O=b", "ä" * 300])
@pytest.mark.parametrize("by_token", [True, False])
def test_a_principal_travels_in_an_envelope(name: str, by_token: bool) -> None:
    principal = ForwardedPrincipal(f"User:{name}", by_token)
    assert decode_principal(encode_principal(principal)) == principal
