"""Finds the coordinators of groups and transactional ids; creates the internal topics on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from metaquorum.broker.server.kafka.cluster import Viewpoint, endpoint_of
from metaquorum.clients.kafka.grpc_way import ForwardsRequests, ask_controllers
from metaquorum.clients.search import ClientError
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.coordinators import InternalTopic
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import CreateTopicsRequest, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
"""Types of keys."""
CREATE_TIMEOUT_MS = 10_000
RETRY_S = 1.0
"""How long after an attempt a topic is not created again: clients retry often."""

_MANY = 4
"""From this version on a request has several keys."""
_NO_ERROR = "NONE"
"""The message beside error code 0 in older versions, as in Kafka."""
_log = logging.getLogger(__name__)


def partition_of(key: str, partitions: int) -> int:
    """The partition of an internal topic for a group or a transactional id: by Java's string hash, where the
    smallest int, which has no absolute value, counts as 0."""
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value % partitions


class InternalTopics:
    """Creates them through the active controller, each with one request at a time."""

    def __init__(self, controllers: ForwardsRequests, topics: Mapping[int, InternalTopic]) -> None:
        self._controllers = controllers
        self.by_type = topics
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._retry_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def need(self, topic: InternalTopic) -> None:
        """A client requested a topic that does not exist."""
        now_s = asyncio.get_running_loop().time()
        if topic.name not in self._creating and now_s >= self._retry_s.get(topic.name, 0):
            self._creating[topic.name] = asyncio.ensure_future(self._create(topic))

    def absence(self, topic: InternalTopic) -> str:
        """Why a topic does not exist."""
        problem = self._reported.get(topic.name)
        if problem is None:
            return f"{topic.name} does not exist yet: try again"
        return f"{topic.name} cannot be created: {problem}"

    async def _create(self, topic: InternalTopic) -> None:
        setting = CreateTopicsRequest.CreatableTopicConfig
        new = CreateTopicsRequest.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(setting(name=name, value=value) for name, value in topic.configs),
        )
        asked = CreateTopicsRequest(topics=(new,), timeout_ms=CREATE_TIMEOUT_MS)
        version = FORWARDED["CreateTopics"].max_version
        try:
            response = await ask_controllers(self._controllers, asked, version, timeout_ms=CREATE_TIMEOUT_MS)
            (result,) = response.topics
            code = ErrorCode.of(result.error_code)
            known = code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            problem = None if known else result.error_message or code.name
        except (ApiError, ClientError, OSError) as error:
            problem = str(error) or "the controllers did not answer"
        if problem is None:
            self._reported.pop(topic.name, None)
            _log.info("created the internal topic %s", topic.name)
        elif self._reported.get(topic.name) != problem:
            self._reported[topic.name] = problem
            _log.warning("the internal topic %s cannot be created: %s", topic.name, problem)
        self._retry_s[topic.name] = asyncio.get_running_loop().time() + RETRY_S
        del self._creating[topic.name]


class CoordinatorHandlers:
    """FindCoordinator. `view` gives the image for a listener's name."""

    def __init__(self, view: Callable[[str], Viewpoint], topics: InternalTopics) -> None:
        self._view = view
        self._topics = topics

    def find_coordinator(self, request: Request, client: Client) -> FindCoordinatorResponse:
        body: FindCoordinatorRequest = request.body
        view = self._view(client.listener)
        several = request.header.version >= _MANY
        coordinators = [
            self._find(body.key_type, key, view)
            for key in (body.coordinator_keys if several else (body.key,))
        ]
        if several:
            return FindCoordinatorResponse(coordinators=tuple(coordinators))
        coordinator = coordinators[0]
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message if coordinator.error_code else _NO_ERROR,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _find(self, key_type: int, key: str, view: Viewpoint) -> FindCoordinatorResponse.Coordinator:
        topic = self._topics.by_type.get(key_type)
        if topic is None:
            return _nowhere(key, ErrorCode.INVALID_REQUEST, f"{key_type} is not a type of coordinator")
        leader = self._leader(view.image, topic, key)
        if leader is None:
            text = self._topics.absence(topic)
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        endpoint = endpoint_of(view.image, leader, view.listener)
        if endpoint is None:
            text = f"the partition of {topic.name} for {key!r} has no leader now: try again"
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=leader, host=endpoint.host, port=endpoint.port
        )

    def _leader(self, image: MetadataImage, topic: InternalTopic, key: str) -> int | None:
        topic_info = image.topics.topic_named(topic.name)
        count = 0 if topic_info is None else image.topics.partition_count_of(topic_info.topic_id)
        if topic_info is None or not count:
            self._topics.need(topic)
            return None
        partition = image.topics.partition(topic_info.topic_id, partition_of(key, count))
        return None if partition is None else partition.leader


def _nowhere(key: str, error: ErrorCode, text: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=error, error_message=text
    )
