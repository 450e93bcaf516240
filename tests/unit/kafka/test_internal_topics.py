"""FindCoordinator while an internal topic is missing: it is created, or the answer says why not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaquorum.broker.server.kafka.groups import GROUP, CoordinatorHandlers, InternalTopics
from metaquorum.clients.quorum.admin import AdminClient, ForwardedAnswer
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import InternalTopic
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tests.unit.kafka.test_cluster_answers import VIEW

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
