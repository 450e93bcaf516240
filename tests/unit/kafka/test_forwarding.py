"""What a broker hands on: refused as a whole when no controller answers, with its own image when one did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from metaquorum.broker.server.kafka.forwarding import Forwarder, Published
from metaquorum.broker.server.kafka.groups import GROUP, CoordinatorHandlers, InternalTopics
from metaquorum.clients.quorum.admin import AdminClient, ForwardedAnswer
from metaquorum.clients.search import ClientError
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.answers import AnswerFrame
from metaquorum.listeners.forwarded.table import FORWARDED, FORWARDED_BY_KEY
from metaquorum.listeners.rights import CHECKS
from metaquorum.listeners.services import Client
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import InternalTopic
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.messages import (
    CreateDelegationTokenRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    RenewDelegationTokenRequest,
    UnregisterBrokerRequest,
)
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.golden_cluster import GoldenCluster, GoldenNode
from tests.unit.kafka.test_admin_captures import scripted
from tests.unit.kafka.test_cluster_answers import VIEW

CLIENT = Client(listener="PLAINTEXT", address="10.0.0.1", principal="User:alice")
ALICE = "User:alice"
LATEST = {name: api.max_version for name, api in FORWARDED.items()}


class NoController:
    """In the place of the client that finds the active controller."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.timeouts_ms: list[int] = []

    async def forward(
        self, frame: bytes, *, principal: str, client_address: str, timeout_ms: int, **_: Any
    ) -> Any:
        assert principal == ALICE and client_address == "10.0.0.1"
        self.timeouts_ms.append(timeout_ms)
        raise self.error


def codes(value: Any) -> list[int]:
    """Every code in a body, outermost first."""
    if isinstance(value, dict):
        own = [value["error_code"]] if "error_code" in value else []
        return own + [code for each in value.values() for code in codes(each)]
    return [code for each in value for code in codes(each)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClientError("no one"), ErrorCode.REQUEST_TIMED_OUT),
        (ApiError(ErrorCode.NOT_CONTROLLER, "it is another one"), ErrorCode.REQUEST_TIMED_OUT),
        (ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "it has no words"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["silent", "passed on", "cannot say"],
)
def test_without_a_controller_every_part_is_refused(
    shared_data: Path, error: Exception, code: ErrorCode
) -> None:
    """Every recorded request of every version: the answer can be written, and says what happened."""
    controllers = NoController(error)
    forwarder = Forwarder(controllers, node_id=0, published=Published(MetadataImage()))  # type: ignore[arg-type]
    seen = set()
    for exchange in (*scripted(shared_data, "N-all-versions"), *scripted(shared_data, "M-error-cases")):
        if exchange.api_key not in FORWARDED_BY_KEY:
            continue
        request = codec.decode_request(exchange.request)
        body = asyncio.run(forwarder.handle(request, CLIENT))
        frame = b"".join(codec.encode_response(exchange.api_key, exchange.version, 1, body))
        answer = codec.decode_response(exchange.api_key, exchange.version, frame).body
        found = codes(msgspec.to_builtins(answer))
        seen.add(exchange.api)
        if exchange.label.startswith(exchange.api) and "version" in exchange.label:
            assert code in found, exchange.label
        assert any(found) or exchange.version == 0, exchange.label
    assert len(seen) >= 14
    assert 30_000 in controllers.timeouts_ms


@pytest.mark.parametrize(
    ("body", "timeout_ms"),
    [
        (DeleteTopicsRequest(timeout_ms=1), 1),
        (DeleteTopicsRequest(timeout_ms=0), 30_000),
        (DeleteTopicsRequest(timeout_ms=-1), 30_000),
        (UnregisterBrokerRequest(broker_id=1), 30_000),
    ],
)
async def test_a_controller_is_asked_for_as_long_as_the_client_waits(body: Any, timeout_ms: int) -> None:
    """Without a positive timeout, for as long as a request that names none."""
    controllers = NoController(ClientError("no one"))
    forwarder = Forwarder(controllers, node_id=0, published=Published(MetadataImage()))  # type: ignore[arg-type]
    api = API_BY_NAME[type(body).__name__.removesuffix("Request")]
    header = RequestHeader(api.key, api.min_version, 1)
    await forwarder.handle(codec.Request(header, body, 0), CLIENT)
    assert controllers.timeouts_ms == [timeout_ms]


# ---- bytes are passed on


class Controller:
    """In the place of the client that finds the active controller, which accepts every topic."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.frames: list[bytes] = []
        self.sent: list[bytes] = []

    async def forward(self, frame: bytes, **_: Any) -> ForwardedAnswer:
        self.frames.append(frame)
        asked = codec.decode_request(frame)
        created = CreateTopicsResponse.CreatableTopicResult
        body = CreateTopicsResponse(topics=tuple(created(name=each.name) for each in asked.body.topics))
        header = asked.header
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        self.sent.append(b"".join(chunks))
        return ForwardedAnswer(frame=self.sent[-1], offset=self.offset)


def creation(*names: str) -> bytes:
    """With a tag that no release knows, and bytes behind the end: whoever encodes it again loses both."""
    topics = tuple(CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1) for name in names)
    header = RequestHeader(API_BY_NAME["CreateTopics"].key, 7, 77, "app", ((99, b"new"),))
    return b"".join(codec.encode_request(header, CreateTopicsRequest(topics=topics))) + b"more"


class Only(Authorizer):
    """Allows everything on resources with these names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._names = names

    def allows(self, image: Any, caller: Any, operation: Any, resource: Any, name: str) -> bool:
        return name in self._names


def allowed(frame: bytes, controller: Controller, authorizer: Authorizer | None) -> Any:
    image = MetadataImage()
    forwarder = Forwarder(controller, node_id=0, published=Published(image))  # type: ignore[arg-type]
    rights = Rights(authorizer=authorizer, image=lambda: image, checks=CHECKS)
    handle = guarded({"CreateTopics": forwarder.offered()["CreateTopics"]}, rights)["CreateTopics"].handle

    async def answered() -> Any:
        return await handle(codec.decode_request(frame), CLIENT)

    return asyncio.run(answered())


def test_an_unchanged_request_and_its_answer_are_passed_on_as_bytes() -> None:
    for authorizer in (None, Only("a", "b")):
        controller, frame = Controller(), creation("a", "b")
        answer = allowed(frame, controller, authorizer)
        assert controller.frames == [frame]
        assert isinstance(answer, AnswerFrame)
        assert [answer.frame] == controller.sent


def test_a_request_that_a_check_has_changed_is_encoded_again_and_so_is_its_answer() -> None:
    controller = Controller()
    answer = allowed(creation("a", "b"), controller, Only("a"))
    (frame,) = controller.frames
    assert [each.name for each in codec.decode_request(frame).body.topics] == ["a"]
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]


async def test_an_answer_waits_for_the_brokers_own_image() -> None:
    def at(offset: int) -> MetadataImage:
        records = [NoOpRecord()] * offset
        state = ReplayState(MetadataImage())
        return replay_records(state, base_offset=0, epoch=1, timestamp_ms=0, records=records).image

    published = Published(at(1))
    assert await published.reach(1, 0.0)
    assert not await published.reach(3, 0.01)
    waiting = asyncio.ensure_future(published.reach(3, 30))
    await asyncio.sleep(0)
    published.publish(at(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    published.publish(at(3))
    assert await waiting


@pytest.mark.parametrize(("asked_ms", "waits_s"), [(30_000, 5.0), (0, 5.0), (700, 0.7)])
async def test_a_busy_broker_has_some_seconds_to_apply_the_change_and_no_longer_than_the_client_waits(
    asked_ms: int, waits_s: float
) -> None:
    """A client that created a topic asks this broker for it next."""

    class Slow(Published):
        def __init__(self) -> None:
            super().__init__(MetadataImage())
            self.waits: list[tuple[int, float]] = []

        async def reach(self, offset: int, timeout_s: float) -> bool:
            self.waits.append((offset, timeout_s))
            return False

    published = Slow()
    forwarder = Forwarder(Controller(offset=3), node_id=0, published=published)  # type: ignore[arg-type]
    topics = (CreateTopicsRequest.CreatableTopic(name="a", num_partitions=1),)
    body = CreateTopicsRequest(topics=topics, timeout_ms=asked_ms)
    header = RequestHeader(API_BY_NAME["CreateTopics"].key, 7, 1)
    assert isinstance(await forwarder.handle(codec.Request(header, body, 0), CLIENT), AnswerFrame)
    assert published.waits == [(3, waits_s)]


async def test_the_first_image_is_waited_for() -> None:
    published = Published(MetadataImage())
    waiting = asyncio.ensure_future(published.first())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    published.publish(MetadataImage())
    async with asyncio.timeout(20):
        await waiting
        await published.first()


# ---- delegation tokens, of clients that authenticated


def ask(node: GoldenNode, name: str, body: Any, principal: str = ALICE) -> Any:
    header = RequestHeader(API_BY_NAME[name].key, LATEST[name], 1)
    return node.answer(b"".join(codec.encode_request(header, body)), principal=principal)


def test_a_tokens_life(shared_data: Path) -> None:
    cluster = GoldenCluster(shared_data / "kafka-3.7-wire")
    node = GoldenNode(cluster, cluster.at(900), 0)
    asked = CreateDelegationTokenRequest(
        renewers=(
            CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="bob"),
        ),
        max_lifetime_ms=-1,
    )
    made = ask(node, "CreateDelegationToken", asked)
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
        0,
        "alice",
        "alice",
    )
    shown = DescribeDelegationTokenRequest(owners=None)
    (token,) = ask(node, "DescribeDelegationToken", shown, "User:bob").tokens
    assert (token.token_id, token.hmac) == (made.token_id, made.hmac)
    (renewer,) = token.renewers
    assert [
        (token.principal_type, token.principal_name),
        (token.token_requester_principal_type, token.token_requester_principal_name),
        (renewer.principal_type, renewer.principal_name),
    ] == [("User", "alice"), ("User", "alice"), ("User", "bob")]
    assert ask(node, "DescribeDelegationToken", shown, "User:mallory").tokens == ()
    renew = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000)
    renewed = ask(node, "RenewDelegationToken", renew, "User:bob")
    assert (renewed.error_code, renewed.expiry_timestamp_ms - made.issue_timestamp_ms) == (0, 1000)
    expire = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
    refused = ask(node, "ExpireDelegationToken", expire, "User:mallory")
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    expired = ask(node, "ExpireDelegationToken", expire)
    assert (expired.error_code, expired.expiry_timestamp_ms) == (0, -1)
    assert ask(node, "DescribeDelegationToken", shown).tokens == ()


def test_who_did_not_log_in_gets_no_token(shared_data: Path) -> None:
    cluster = GoldenCluster(shared_data / "kafka-3.7-wire")
    node = GoldenNode(cluster, cluster.at(900), 0)
    for name, body in (
        ("CreateDelegationToken", CreateDelegationTokenRequest()),
        ("RenewDelegationToken", RenewDelegationTokenRequest(hmac=b"x")),
        ("ExpireDelegationToken", ExpireDelegationTokenRequest(hmac=b"x")),
        ("DescribeDelegationToken", DescribeDelegationTokenRequest(owners=None)),
    ):
        answer = ask(node, name, body, "User:ANONYMOUS")
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


# FindCoordinator while an internal topic is missing: it is created, or the answer says why not.


TOPIC = InternalTopic(name="__missing", partitions=50, replication_factor=3, configs=())


class Controllers:
    """Refuse to create topics until `error` is taken away."""

    def __init__(self) -> None:
        self.asked: list[CreateTopicsRequest.CreatableTopic] = []
        self.error = ErrorCode.INVALID_REPLICATION_FACTOR

    async def forward(self, frame: bytes, **_: Any) -> ForwardedAnswer:
        asked = codec.decode_request(frame)
        self.asked += asked.body.topics
        message = "replication factor 3, but 1 broker" if self.error else None
        result = CreateTopicsResponse.CreatableTopicResult(
            name=asked.body.topics[0].name, error_code=self.error, error_message=message
        )
        header, body = asked.header, CreateTopicsResponse(topics=(result,))
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        return ForwardedAnswer(frame=b"".join(chunks), offset=0)


async def find(handlers: CoordinatorHandlers) -> FindCoordinatorResponse.Coordinator:
    request = SimpleNamespace(
        body=FindCoordinatorRequest(key_type=GROUP, coordinator_keys=("g",)),
        header=SimpleNamespace(version=4),
    )
    (found,) = handlers.find_coordinator(
        cast("Any", request), cast("Any", SimpleNamespace(listener="KAFKA"))
    ).coordinators
    for _ in range(3):
        await asyncio.sleep(0)
    return found


async def test_a_topic_that_cannot_be_created_is_the_answer() -> None:
    controllers = Controllers()
    topics = InternalTopics(cast("AdminClient", controllers), {GROUP: TOPIC})
    handlers = CoordinatorHandlers(lambda listener: VIEW, topics)
    first, second = await find(handlers), await find(handlers)
    assert [first.error_code, second.error_code] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert first.error_message == "__missing does not exist yet: try again"
    assert second.error_message == "__missing cannot be created: replication factor 3, but 1 broker"
    assert [(each.name, each.num_partitions, each.replication_factor) for each in controllers.asked] == [
        ("__missing", 50, 3)
    ]


async def test_what_was_in_the_way_is_forgotten_once_the_topic_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaquorum.broker.server.kafka.groups.RETRY_S", 0.0)
    controllers = Controllers()
    topics = InternalTopics(cast("AdminClient", controllers), {GROUP: TOPIC})
    handlers = CoordinatorHandlers(lambda listener: VIEW, topics)
    await find(handlers)
    assert topics.absence(TOPIC).startswith("__missing cannot be created")
    controllers.error = ErrorCode.NONE
    await find(handlers)
    assert topics.absence(TOPIC) == "__missing does not exist yet: try again"


@pytest.mark.parametrize(("error", "text", "shown"), [(0, "", "NONE"), (15, "wait", "wait")])
def test_older_versions_name_the_absence_of_an_error(
    monkeypatch: pytest.MonkeyPatch, error: int, text: str, shown: str
) -> None:
    """As Kafka does up to version 3; kafkajs, for one, takes null or NONE."""
    found = FindCoordinatorResponse.Coordinator(
        key="g", node_id=1, host="h", port=2, error_code=error, error_message=text
    )
    handlers = CoordinatorHandlers(lambda listener: VIEW, InternalTopics(cast("AdminClient", None), {}))
    monkeypatch.setattr(handlers, "_find", lambda key_type, key, view: found)
    body = FindCoordinatorRequest(key_type=GROUP, key="g", coordinator_keys=("g",))
    client = cast("Any", SimpleNamespace(listener="KAFKA"))
    answers = [
        handlers.find_coordinator(
            cast("Any", SimpleNamespace(body=body, header=SimpleNamespace(version=version))), client
        )
        for version in (3, 4)
    ]
    assert (answers[0].error_message, answers[0].node_id, answers[0].port) == (shown, 1, 2)
    assert answers[1].coordinators == (found,)
