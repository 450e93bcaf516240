"""What Kafka's nodes ask, as values: each field in every version, the codes, and what is in an Envelope."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.clients.kafka.node_messages import MARK
from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.controller.server.kafka import Envelopes
from metaquorum.listeners.access.guard import Rights
from metaquorum.listeners.forwarded.api import AskedBy, Call
from metaquorum.listeners.forwarded.cluster import add_raft_voter, remove_raft_voter
from metaquorum.listeners.forwarded.table import ANSWERED, FORWARDED
from metaquorum.listeners.rights import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.services import Client
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests import partitions as parts
from metaquorum.metadata.requests import settings
from metaquorum.metadata.requests.common import AddRaftVoterRequest, Done, Mutator, RemoveRaftVoterRequest
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.principal import ForwardedPrincipal, decode_principal
from metaquorum.wire.table import API_BY_NAME
from tests.unit.server.foreign_broker import encode_principal

ASKED_BY_NODES = {
    *("BrokerRegistration", "BrokerHeartbeat", "AlterPartition", "AllocateProducerIds"),
    *("AssignReplicasToDirs", "ControllerRegistration"),
}
TOPIC_ID, DIRECTORY = b"t" * 16, b"d" * 16
OTHER_ID = b"o" * 16


def image_with_topic() -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    builder.topics.add_topic(TOPIC_ID, "orders")
    return builder.freeze()


async def asked(body: Any, version: int, answer: Any) -> tuple[Any, Any]:
    """The core's request, and the response, both through their bytes."""
    name = type(body).__name__.removesuffix("Request")
    key, api = API_BY_NAME[name].key, ANSWERED[name]
    assert api.min_version <= version <= api.max_version
    seen = []

    async def ask(request: Any) -> Any:
        seen.append(request)
        return answer

    frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, 1), body))
    call = Call(version=version, ask=ask, wall_ms=0, image=image_with_topic())
    response = await api.handle(codec.decode_request(frame).body, call)
    chunks = codec.encode_response(key, version, 1, response)
    return seen[0], codec.decode_response(key, version, b"".join(chunks)).body


@pytest.mark.parametrize("version", range(5))
async def test_a_registration_arrives_in_every_version(version: int) -> None:
    types = wire.BrokerRegistrationRequest
    body = types(
        broker_id=7,
        cluster_id="c",
        incarnation_id=b"i" * 16,
        listeners=(types.Listener(name="L", host="h", port=65_535, security_protocol=3),),
        features=(types.Feature(name="f", min_supported_version=1, max_supported_version=9),),
        rack="r",
        log_dirs=(DIRECTORY,) if version >= 2 else (),
        previous_broker_epoch=5 if version >= 3 else -1,
    )
    registered = core.RegisterBrokerResponse(broker_epoch=12, session_timeout_ms=1)
    request, response = await asked(body, version, registered)
    assert (request.broker_id, request.cluster_id, request.rack) == (7, "c", "r")
    assert request.incarnation_id == b"i" * 16
    (endpoint,), (feature,) = request.endpoints, request.features
    assert (endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol) == ("L", "h", 65_535, 3)
    assert (feature.name, feature.min_supported_version, feature.max_supported_version) == ("f", 1, 9)
    assert request.directories == ((DIRECTORY,) if version >= 2 else ())
    assert request.previous_broker_epoch == (5 if version >= 3 else None)
    assert (response.error_code, response.broker_epoch) == (0, 12)
    refused = ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "no")
    _, response = await asked(body, version, refused)
    assert (response.error_code, response.broker_epoch) == (101, -1)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("wants", ["want_fence", "want_shut_down"])
async def test_a_heartbeat_names_the_last_record_applied(version: int, wants: str) -> None:
    offline = (DIRECTORY,) if version else ()
    fields: dict[str, Any] = {wants: True, "offline_log_dirs": offline}
    body = wire.BrokerHeartbeatRequest(broker_id=7, broker_epoch=3, current_metadata_offset=-1, **fields)
    answer = core.BrokerHeartbeatResponse(
        is_caught_up=True,
        is_fenced=False,
        should_shut_down=True,
        in_controlled_shutdown=False,
        session_timeout_ms=1,
    )
    request, response = await asked(body, version, answer)
    assert request == core.BrokerHeartbeatRequest(
        broker_id=7,
        broker_epoch=3,
        applied_offset=0,
        want_fence=wants == "want_fence",
        want_shutdown=wants == "want_shut_down",
        offline_directories=offline,
    )
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (True, False, True)


@pytest.mark.parametrize("version", range(4))
async def test_an_isr_arrives_in_every_version(version: int) -> None:
    """Topics by name below 2, with the codes that those versions have; members with epochs from 3 on."""
    types = wire.AlterPartitionRequest

    def wanted(index: int) -> Any:
        members = tuple(types.BrokerState(broker_id=each, broker_epoch=each - 2) for each in (1, 2))
        isr = {"new_isr_with_epochs": members} if version >= 3 else {"new_isr": (1, 2)}
        recovery = {"leader_recovery_state": 1} if version else {}
        fields: dict[str, Any] = {**isr, **recovery}
        return types.PartitionData(partition_index=index, leader_epoch=4, partition_epoch=5, **fields)

    def topic(name: str, topic_id: bytes, *indexes: int) -> Any:
        said: dict[str, Any] = {"topic_id": topic_id} if version >= 2 else {"topic_name": name}
        return types.TopicData(partitions=tuple(map(wanted, indexes)), **said)

    topics = (topic("gone", OTHER_ID, 9), topic("orders", TOPIC_ID, 0, 1))
    body = types(broker_id=1, broker_epoch=3, topics=topics)
    codes = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NEW_LEADER_ELECTED]
    if version >= 2:
        codes.insert(0, ErrorCode.UNKNOWN_TOPIC_ID)
    results = tuple(parts.AlteredPartition(topic_id=TOPIC_ID, partition=9, error=code) for code in codes)
    request, response = await asked(body, version, parts.AlterPartitionResponse(results=results))
    assert (request.broker_id, request.broker_epoch) == (1, 3)
    asked_for = request.partitions[-1]
    assert (asked_for.topic_id, asked_for.partition) == (TOPIC_ID, 1)
    assert (asked_for.leader_epoch, asked_for.partition_epoch) == (4, 5)
    assert asked_for.leader_recovery_state == (1 if version else 0)
    epochs = [each.broker_epoch for each in asked_for.isr]
    assert epochs == ([None, 0] if version >= 3 else [None, None])
    found = [part.error_code for each in response.topics for part in each.partitions]
    assert found == ([100, 107, 108] if version >= 2 else [3, 55, 74])
    if version < 2:
        assert [each.topic_name for each in response.topics] == ["gone", "orders"]


async def test_a_new_isr_is_answered_whole() -> None:
    types = wire.AlterPartitionRequest
    part = types.PartitionData(partition_index=6, new_isr_with_epochs=(types.BrokerState(broker_id=1),))
    body = types(broker_id=1, topics=(types.TopicData(topic_id=TOPIC_ID, partitions=(part,)),))
    altered = parts.AlteredPartition(
        topic_id=TOPIC_ID,
        partition=6,
        error=ErrorCode.NONE,
        leader=1,
        leader_epoch=2,
        partition_epoch=3,
        isr=(1, 4),
        leader_recovery_state=1,
    )
    _, response = await asked(body, 3, parts.AlterPartitionResponse(results=(altered,)))
    (found,) = response.topics[0].partitions
    assert response.topics[0].topic_id == TOPIC_ID
    assert (found.partition_index, found.error_code, found.leader_id, found.leader_epoch) == (6, 0, 1, 2)
    assert (found.isr, found.leader_recovery_state, found.partition_epoch) == ((1, 4), 1, 3)


async def test_places_are_answered_in_the_order_of_the_request() -> None:
    types = wire.AssignReplicasToDirsRequest

    def directory(directory_id: bytes, *indexes: int) -> Any:
        partitions = tuple(types.PartitionData(partition_index=each) for each in indexes)
        return types.DirectoryData(
            id=directory_id, topics=(types.TopicData(topic_id=TOPIC_ID, partitions=partitions),)
        )

    body = types(
        broker_id=1, broker_epoch=3, directories=(directory(DIRECTORY, 4, 5), directory(b"e" * 16, 6))
    )

    def result(index: int, code: ErrorCode) -> parts.AssignmentResult:
        return parts.AssignmentResult(directory_id=DIRECTORY, topic_id=TOPIC_ID, partition=index, error=code)

    codes = [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
    results = tuple(result(*each) for each in zip((4, 5, 6), codes, strict=True))
    request, response = await asked(body, 0, parts.AssignReplicasToDirsResponse(results=results))
    assert [(each.directory_id[:1], each.partition) for each in request.assignments] == [
        *[(b"d", 4), (b"d", 5), (b"e", 6)]
    ]
    assert [
        (each.id[:1], part.partition_index, part.error_code)
        for each in response.directories
        for part in each.topics[0].partitions
    ] == [(b"d", 4, 0), (b"d", 5, 6), (b"e", 6, 0)]


async def test_blocks_of_ids_and_controllers_registrations_arrive() -> None:
    block = settings.AllocateProducerIdsResponse(first_id=5_000, count=1_000)
    request, response = await asked(wire.AllocateProducerIdsRequest(broker_id=1, broker_epoch=2), 0, block)
    assert request == settings.AllocateProducerIdsRequest(broker_id=1, broker_epoch=2)
    assert (response.producer_id_start, response.producer_id_len) == (5_000, 1_000)
    types = wire.ControllerRegistrationRequest
    body = types(
        controller_id=3,
        incarnation_id=b"i" * 16,
        listeners=(types.Listener(name="L", host="h", port=1, security_protocol=1),),
        features=(types.Feature(name="f", min_supported_version=1, max_supported_version=9),),
    )
    request, response = await asked(body, 0, core.Done())
    assert (request.controller_id, request.endpoints[0].host, request.features[0].name) == (3, "h", "f")
    assert (response.error_code, response.error_message) == (0, "")
    _, response = await asked(body, 0, ApiError(ErrorCode.NOT_CONTROLLER, "another"))
    assert (response.error_code, response.error_message) == (41, "another")


@pytest.mark.parametrize("name", sorted(ASKED_BY_NODES))
async def test_a_broker_that_is_not_registered_has_an_epoch_that_ended(name: str) -> None:
    """As Kafka answers; at a registration the code means what it says."""
    body = getattr(wire, f"{name}Request")()
    for code, answered in ((ErrorCode.BROKER_ID_NOT_REGISTERED, 77), (ErrorCode.NOT_CONTROLLER, 41)):
        _, response = await asked(body, 0, ApiError(code, "no"))
        assert response.error_code == (code if name.endswith("Registration") else answered)


# ---- principals and envelopes


@given(st.text(min_size=1).filter(lambda text: ":" not in text), st.text(), st.booleans())
def test_principals_arrive(kind: str, name: str, by_token: bool) -> None:
    sent = ForwardedPrincipal(f"{kind}:{name}", by_token)
    try:
        data = encode_principal(sent)
    except UnicodeEncodeError:
        return
    assert decode_principal(data) == decode_principal(memoryview(data)) == sent
    for end in range(len(data)):
        assert decode_principal(data[:end]) is None


def test_a_request_without_a_principal_has_none() -> None:
    assert decode_principal(None) is decode_principal(b"") is decode_principal(memoryview(b"")) is None


@given(st.binary(max_size=40))
def test_what_is_no_principal_is_none(data: bytes) -> None:
    found = decode_principal(data)
    assert found is None or ":" in found.principal


CREATION = wire.CreateTopicsRequest(
    topics=(wire.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1),)
)
BROKER = Client(listener="CONTROLLER", address="10.0.0.9", principal="User:node", connection=4)
ALICE = ForwardedPrincipal("User:alice", True)


class Core:
    """In the place of the active controller."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def ask(self, request: Any, mutator: Any = None) -> Any:
        self.asked.append((request, mutator))
        return self.answer


def frame_of(body: Any, version: int, correlation_id: int = 99) -> bytes:
    name = type(body).__name__.removesuffix("Request")
    header = codec.RequestHeader(API_BY_NAME[name].key, version, correlation_id, "inner")
    return b"".join(codec.encode_request(header, body))


async def opened(core: Core, authorizer: Authorizer | None = None, **changed: Any) -> Any:
    calls = KafkaCalls(
        core,  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        image=MetadataImage,
        static={},
        token_key=None,
        wall_ms=lambda: 0,
    )
    rights = Rights(authorizer=authorizer, image=MetadataImage, checks=CHECKS_OF_CONTROLLERS)
    fields = {
        "request_data": frame_of(CREATION, 7),
        "request_principal": encode_principal(ALICE),
        "client_host_address": bytes([10, 0, 0, 1]),
        **changed,
    }
    body = wire.EnvelopeRequest(**fields)
    frame = b"".join(codec.encode_request(codec.RequestHeader(58, 0, 1), body))
    return await Envelopes(calls, rights).answer(codec.decode_request(frame), BROKER)


def made() -> Core:
    result = core.TopicResult(name="t", topic_id=TOPIC_ID, error=ErrorCode.NONE)
    return Core(core.TopicsResponse(results=(result,)))


async def test_what_is_in_an_envelope_is_its_clients_request() -> None:
    controller = made()
    answer = await opened(controller)
    ((request, mutator),) = controller.asked
    assert isinstance(request, core.CreateTopicsRequest)
    assert (mutator.user, mutator.client_id) == ("alice", "inner")
    inner = codec.decode_response(19, 7, bytes(answer.response_data))
    assert (answer.error_code, inner.correlation_id) == (0, 99)
    assert [(each.name, each.error_code) for each in inner.body.topics] == [("t", 0)]


async def test_a_client_needs_its_own_rights_in_an_envelope() -> None:
    """The broker's are those to send it, and have been checked before."""
    authorizer = Authorizer(super_users=["User:node"], allow_everyone=False)
    for principal, code in (("User:alice", 29), ("User:node", 0)):
        sent = encode_principal(ForwardedPrincipal(principal, False))
        controller = made()
        answer = await opened(controller, authorizer, request_principal=sent)
        inner = codec.decode_response(19, 7, bytes(answer.response_data)).body
        assert [each.error_code for each in inner.topics] == [code]
        assert len(controller.asked) == (0 if code else 1)


async def test_a_controller_that_is_not_active_refuses_the_whole_envelope() -> None:
    """So the broker looks for the active one; other refusals are the inner request's."""
    answer = await opened(Core(ApiError(ErrorCode.NOT_CONTROLLER, "another")))
    assert (answer.error_code, answer.response_data) == (41, None)
    answer = await opened(Core(ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")))
    inner = codec.decode_response(19, 7, bytes(answer.response_data)).body
    assert (answer.error_code, [each.error_code for each in inner.topics]) == (0, [89])


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"request_principal": None}, 97),
        ({"request_principal": b"\xff\xff\xff"}, 97),
        ({"request_principal": b"\0\1" + encode_principal(ALICE)[2:]}, 97),
        ({"client_host_address": b"\1\2\3"}, 42),
        ({"client_host_address": b""}, 42),
        ({"request_data": b""}, 35),
        ({"request_data": b"\1\2\3"}, 35),
        ({"request_data": frame_of(wire.FetchRequest(), 16)}, 42),
        ({"request_data": frame_of(wire.EnvelopeRequest(request_principal=None), 0)}, 42),
        ({"request_data": frame_of(wire.BrokerHeartbeatRequest(), 1)}, 42),
        ({"request_data": frame_of(CREATION, 7)[:2] + b"\0\x63" + frame_of(CREATION, 7)[4:]}, 35),
    ],
)
async def test_wrong_envelopes_get_kafkas_codes(changed: dict[str, Any], code: int) -> None:
    controller = made()
    answer = await opened(controller, **changed)
    assert (answer.error_code, answer.response_data, controller.asked) == (code, None, [])


BUSY = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many requests wait; nothing was done")


async def test_a_broker_of_ours_is_told_at_once_that_nothing_was_done() -> None:
    """It waits and asks again, as over gRPC; a broker of Kafka's passes the answer on to the client."""
    answer = await opened(Core(BUSY), unknown_tags=((MARK, b""),))
    assert (answer.error_code, answer.response_data) == (89, None)
    answer = await opened(Core(BUSY))
    inner = codec.decode_response(19, 7, bytes(answer.response_data)).body
    assert (answer.error_code, [each.error_code for each in inner.topics]) == (0, [89])


async def test_a_long_request_in_an_envelope_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its array is not one of the envelope's own, so nothing before it has looked at its length."""
    by: list[int] = []
    apart = codec.decode_request_apart
    monkeypatch.setattr(
        codec, "decode_request_apart", lambda frame: (by.append(threading.get_ident()), apart(frame))[1]
    )
    ids = tuple(range(codec.FEW_VALUES))
    topic = wire.CreateTopicsRequest.CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=(wire.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=ids),),
    )
    long = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=1_000)
    assert (await opened(made(), request_data=frame_of(long, 7))).error_code == 0
    assert len(by) == 1 and by[0] != threading.get_ident()


async def test_addresses_of_both_kinds_are_taken() -> None:
    for packed in (bytes([10, 0, 0, 1]), bytes(15) + b"\1", bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1])):
        assert (await opened(made(), client_host_address=packed)).error_code == 0


def test_what_nodes_ask_for_themselves_is_not_forwarded() -> None:
    assert {name for name, each in ANSWERED.items() if each.by is AskedBy.NODES} == ASKED_BY_NODES
    assert not ASKED_BY_NODES & FORWARDED.keys()


# AddRaftVoter and RemoveRaftVoter at a controller's listener: the same changes as over gRPC (KIP-853).


VOTER_DIRECTORY = bytes(range(16))
LISTENER = wire.AddRaftVoterRequest.Listener(name="KAFKA", host="h", port=9095)
BEFORE = wire.AddRaftVoterRequest.Listener(name="KAFKA", host="old", port=1)
ADD = wire.AddRaftVoterRequest(
    cluster_id="c",
    timeout_ms=500,
    voter_id=4,
    voter_directory_id=VOTER_DIRECTORY,
    listeners=(BEFORE, LISTENER),
)
REMOVE = wire.RemoveRaftVoterRequest(cluster_id="c", voter_id=4, voter_directory_id=VOTER_DIRECTORY)
ADDED = AddRaftVoterRequest(
    voter=Voter(4, VOTER_DIRECTORY, (VoterEndpoint("KAFKA", "h", 9095),)), cluster_id="c", timeout_ms=500
)
REMOVED = RemoveRaftVoterRequest(voter_id=4, voter_directory_id=VOTER_DIRECTORY, cluster_id="c")
TWICE = ApiError(ErrorCode.DUPLICATE_VOTER, "4 is already a voter")


@pytest.mark.parametrize(
    ("handle", "body", "wanted"),
    [(add_raft_voter.handle, ADD, ADDED), (remove_raft_voter.handle, REMOVE, REMOVED)],
)
async def test_a_change_is_asked_of_the_quorum(handle: Any, body: Any, wanted: Any) -> None:
    asked: list[Any] = []
    answers: list[Any] = [Done(), TWICE]

    async def ask(request: Any) -> Any:
        asked.append(request)
        return answers.pop(0)

    call = Call(version=0, ask=ask, wall_ms=0, image=MetadataImage())
    done = await handle(body, call)
    assert (done.error_code, done.error_message) == (0, None)
    refused = await handle(body, call)
    assert (refused.error_code, refused.error_message) == (126, "4 is already a voter")
    assert asked == [wanted, wanted]


async def test_changes_of_voters_do_not_go_to_the_core_directly() -> None:
    """A new voter is asked who it is before."""

    asked: list[Any] = []

    class Changes:
        async def change(self, request: Any) -> Any:
            asked.append(request)
            return Done()

    changes: Any = Changes()
    inbox: Any = None
    calls = KafkaCalls(inbox, changes, image=MetadataImage, static={}, token_key=None, wall_ms=lambda: 0)
    for request in (ADDED, REMOVED):
        assert await calls.ask(Mutator(user="", client_id="", strict=False), request) == Done()
    assert asked == [ADDED, REMOVED]


def test_brokers_forward_them_and_they_need_alter() -> None:
    changes = {"AddRaftVoter", "RemoveRaftVoter"}
    assert changes <= FORWARDED.keys()
    assert all(CHECKS_OF_CONTROLLERS[name] == CHECKS_OF_CONTROLLERS["UpdateFeatures"] for name in changes)
