"""The quota of changes on its way: whose it is, who is refused, and what is kept of clients.

What is refused is in tests/scripts/controller/mutations.txt.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.controller.partitions import topics as module
from metaquorum.controller.partitions.topics import Allowance, Mutations
from metaquorum.controller.server.forwarding_service import ForwardingService, KafkaCalls
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import NO_BROKER, Mutator, TopicResult, TopicsResponse
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.rpc.messages.errors import NO_HINTS
from metaquorum.rpc.requests import CALLER
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    CreateDelegationTokenRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from metaquorum.wire.table import API_BY_NAME, request_type

TOPICS = {
    "CreateTopics": CreateTopicsRequest(
        topics=(CreateTopicsRequest.CreatableTopic(name="x", num_partitions=1, replication_factor=1),)
    ),
    "DeleteTopics": DeleteTopicsRequest(topic_names=("x",)),
    "CreatePartitions": CreatePartitionsRequest(
        topics=(CreatePartitionsRequest.CreatePartitionsTopic(name="x", count=2),)
    ),
}


class Requests:
    """In the place of the node's inbox."""

    def __init__(self, message: str | None = None) -> None:
        self.asked: list[Mutator | None] = []
        self.message = message

    async def ask(self, request: object, mutator: Mutator | None = None) -> TopicsResponse:
        self.asked.append(mutator)
        error = ErrorCode.INVALID_REQUEST if self.message else ErrorCode.NONE
        result = TopicResult(name="x", topic_id=b"x" * 16, error=error, message=self.message)
        return TopicsResponse(results=(result,), throttle_ms=7)


def service_of(requests: Requests) -> ForwardingService:
    unused: Any = None
    calls = KafkaCalls(
        requests,  # type: ignore[arg-type]
        unused,
        image=MetadataImage,
        static={},
        token_key=None,
        wall_ms=lambda: 1_234,
    )
    return ForwardingService(calls, NO_HINTS, unused)


async def test_an_answer_that_no_frame_can_hold_is_an_error_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Asked again and again, the client would wait until its own time is over."""
    header = codec.RequestHeader(API_BY_NAME["CreateTopics"].key, 4, 1, "cli")
    frame = b"".join(codec.encode_request(header, TOPICS["CreateTopics"]))
    service = service_of(Requests(message="x" * 40_000))
    answer = await service.Forward(pb.ForwardRequest(frame=frame, principal="User:a"), None)
    assert ErrorCode(answer.error.code) is ErrorCode.UNKNOWN_SERVER_ERROR
    (line,) = caplog.messages
    assert "CreateTopics 4" in line and "\n" not in line


@pytest.mark.parametrize(
    ("name", "strict_from"), [("CreateTopics", 6), ("DeleteTopics", 5), ("CreatePartitions", 3)]
)
async def test_versions_that_know_the_refusal_are_refused(name: str, strict_from: int) -> None:
    requests, api = Requests(), API_BY_NAME[name]
    service = service_of(requests)
    for version, strict, client_id in (
        (strict_from - 1, False, "cli"),
        (strict_from, True, "cli"),
        (strict_from, True, None),
    ):
        header = codec.RequestHeader(api.key, version, 1, client_id)
        frame = b"".join(codec.encode_request(header, TOPICS[name]))
        answer = await service.Forward(pb.ForwardRequest(frame=frame, principal="User:a:b"), None)
        assert requests.asked.pop() == Mutator(user="a:b", client_id=client_id or "", strict=strict)
        assert codec.decode_response(api.key, version, answer.frame).body.throttle_time_ms == 7


async def test_who_asks_a_controller_for_a_token_is_whom_the_connection_names() -> None:
    class Tokens:
        asked: Any = None

        async def ask(self, request: Any, mutator: Mutator | None = None) -> ApiError:
            self.asked = request
            return ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "none here")

    api, tokens = API_BY_NAME["CreateDelegationToken"], Tokens()
    CALLER.set(BatchCause(principal="User:CN=root"))
    header = codec.RequestHeader(api.key, 3, 1, "cli")
    frame = b"".join(codec.encode_request(header, CreateDelegationTokenRequest()))
    asked = pb.ForwardRequest(frame=frame, principal="User:other", broker_id=NO_BROKER)
    answer = await service_of(tokens).Forward(asked, None)  # type: ignore[arg-type]
    assert tokens.asked.requester == "User:CN=root"
    body = codec.decode_response(api.key, 3, answer.frame).body
    assert body.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def image(**rates: float) -> MetadataImage:
    empty = MetadataImage()
    builder = empty.quotas.builder()
    for user, rate in rates.items():
        builder.put((("user", None if user == "any" else user),), {"controller_mutation_rate": rate})
    return replace(empty, quotas=builder.freeze())


def client(user: str, *, strict: bool = True) -> Mutator:
    return Mutator(user=user, client_id="c", strict=strict)


def test_who_has_no_quota_takes_what_it_wants() -> None:
    mutations = Mutations(lambda: image(a=1), 1_000)
    for mutator in (None, client("b")):
        allowance = mutations.allowance(mutator, 0)
        assert (
            allowance.refusal(10**9) is None and allowance.refusal(1) is None and allowance.throttle_ms == 0
        )


def test_a_bucket_fills_at_its_rate_and_never_over() -> None:
    mutations = Mutations(lambda: image(any=2), 5_000)
    assert mutations.allowance(client("a"), 0).tokens == 10
    mutations.take(client("a"), 30, 0)
    assert mutations.allowance(client("a"), 0).tokens == -20
    assert mutations.allowance(client("b"), 0).tokens == 10, "a default is for each user"
    assert mutations.allowance(client("a"), 9_000).tokens == -2
    assert mutations.allowance(client("a"), 90_000).tokens == 10


def test_a_rate_that_changes_counts_at_once() -> None:
    rates = [image(a=1)]
    mutations = Mutations(lambda: rates[0], 1_000)
    mutations.take(client("a"), 11, 0)
    assert mutations.allowance(client("a"), 0).wait_ms == 10_000
    rates[0] = image(a=100)
    assert mutations.allowance(client("a"), 0).wait_ms == 100
    rates[0] = image()
    assert mutations.allowance(client("a"), 0).refusal(10**6) is None


def test_only_a_refusal_makes_a_strict_client_wait() -> None:
    allowance = Allowance(tokens=1, rate=1, strict=True)
    assert allowance.refusal(5) is None and allowance.throttle_ms == 0
    refused = allowance.refusal(1)
    assert refused is not None and refused[0] is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (allowance.throttle_ms, allowance.taken) == (4_000, 5)
    patient = Allowance(tokens=-1, rate=1)
    assert patient.throttle_ms == 0, "it changed nothing"
    assert patient.refusal(1) is None and patient.throttle_ms == 2_000


def test_what_is_kept_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BUCKETS", 3)
    mutations = Mutations(lambda: image(any=1), 1_000)
    for number in range(10):
        mutations.take(client(f"u{number}"), 5, 0)
    assert len(mutations) == 3
    assert [mutations.allowance(client(f"u{n}"), 0).tokens for n in (6, 7, 8, 9)] == [1, -4, -4, -4]


@pytest.mark.parametrize(
    ("frame", "broker_id", "code", "text"),
    [
        (b"", 1, ErrorCode.INVALID_REQUEST, "the frame cannot be read"),
        (b"\x00\x13\x00\x07\x00\x00", 1, ErrorCode.INVALID_REQUEST, "the frame cannot be read"),
        (("Heartbeat", 0), 1, ErrorCode.UNSUPPORTED_VERSION, "API 12 version 0 is not forwarded"),
        (("Heartbeat", 0), NO_BROKER, ErrorCode.UNSUPPORTED_VERSION, "API 12 version 0 is not answered here"),
        (("ApiVersions", 3), 1, ErrorCode.UNSUPPORTED_VERSION, "API 18 version 3 is not forwarded"),
    ],
)
async def test_a_frame_that_is_not_for_the_controller_is_refused(
    frame: Any, broker_id: int, code: ErrorCode, text: str
) -> None:
    if isinstance(frame, tuple):
        name, version = frame
        key = API_BY_NAME[name].key
        body = request_type(key).cls()
        frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, 1, "cli"), body))
    requests = Requests()
    answer = await service_of(requests).Forward(pb.ForwardRequest(frame=frame, broker_id=broker_id), None)
    assert ErrorCode(answer.error.code) is code and text in answer.error.message
    assert not answer.frame and requests.asked == []
