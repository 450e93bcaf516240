"""Controllers answer Kafka's protocol without tasks: an answer leaves within the step that decides it."""

from __future__ import annotations

from typing import Any

from metaquorum.clock import SystemClock
from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.controller.server.kafka import asked
from metaquorum.listeners.access.steps import with_pauses
from metaquorum.listeners.forwarded.table import ANSWERED, FORWARDED
from metaquorum.listeners.services import Client, Later
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import Answer, RequestArrived, TopicResult, TopicsResponse
from metaquorum.network.deferred import Driven
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.rpc.requests import WaitingRequests
from metaquorum.wire import codec
from metaquorum.wire.messages import CreateTopicsRequest
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.test_mutation_quota import TOPICS, Requests, service_of
from tests.unit.kafka.test_too_many import request_of


class Inbox(list[RequestArrived]):
    def submit(self, event: RequestArrived) -> bool:
        self.append(event)
        return True


def calls_of(requests: WaitingRequests) -> KafkaCalls:
    unused: Any = None
    return KafkaCalls(requests, unused, image=MetadataImage, static={}, token_key=None, wall_ms=lambda: 1_234)


def creation() -> codec.Request:
    body: CreateTopicsRequest = TOPICS["CreateTopics"]  # type: ignore[assignment]
    return codec.Request(codec.RequestHeader(API_BY_NAME["CreateTopics"].key, 7, 1, "cli"), body, 0)


async def test_an_answer_is_there_when_the_node_gives_it_and_each_request_has_its_own_cause() -> None:
    inbox = Inbox()
    requests = WaitingRequests(inbox.submit, SystemClock())
    handle = asked(FORWARDED["CreateTopics"], calls_of(requests)).handle
    first, second = [
        handle(creation(), Client(listener="KAFKA", address="10.0.0.1", principal=f"User:{name}"))
        for name in ("alice", "bob")
    ]
    assert isinstance(first, Later) and isinstance(second, Later)
    assert [each.cause.principal for each in inbox if each.cause is not None] == ["User:alice", "User:bob"]
    result = TopicResult(name="x", topic_id=b"x" * 16, error=ErrorCode.NONE)
    requests.answer(Answer(key=inbox[0].key, response=TopicsResponse(results=(result,))))
    assert first.deferred.done() and not second.deferred.done()
    assert first.finish(first.deferred.result()).topics[0].topic_id == b"x" * 16
    second.deferred.cancel()
    assert len(requests) == 0


async def test_only_what_asks_other_nodes_has_a_task() -> None:
    calls = calls_of(WaitingRequests(Inbox().submit, SystemClock()))
    with_a_task = set()
    for name, api in ANSWERED.items():
        body = codec.Request(codec.RequestHeader(API_BY_NAME[name].key, api.max_version, 1), None, 0)
        answer = asked(api, calls).handle(body, Client(listener="K", address=""))
        if not isinstance(answer, Later):
            answer.cancel()
            with_a_task.add(name)
    assert with_a_task == {"UpdateFeatures", "AddRaftVoter", "RemoveRaftVoter"}


async def test_long_work_pauses_without_a_task() -> None:
    request = request_of("CreateAcls", ("creations",), 10_001)
    forwarded = pb.ForwardRequest(frame=bytes(request.frame or b""), principal="User:a")
    answer = await Driven(service_of(Requests()).Forward(forwarded, None))
    body = codec.decode_response(request.header.api_key, request.header.version, answer.frame).body
    assert {each.error_code for each in body.results} == {ErrorCode.POLICY_VIOLATION}

    def checks() -> Any:
        yield
        yield
        return 3

    assert await Driven(with_pauses(checks())) == 3
