"""Topics that are created because a client requested them (auto.create.topics.enable).

Owns the set being created: many clients request a new topic at once, and one request is sent. Does not decide
whether a client may create one: `access` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from metaquorum.broker.server.kafka.cluster import INTERNAL_TOPICS
from metaquorum.broker.server.kafka.forwarding import Forwarder
from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.kafka.services import Client
from metaquorum.wire.apis import API_BY_NAME
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import CreateTopicsRequest, CreateTopicsResponse

CREATING_MAX = 1000
"""Topics that are being created at once; clients retry for more."""

TIMEOUT_MS = 30_000
_CREATE_TOPICS = API_BY_NAME["CreateTopics"]
BY_DEFAULT = -1
"""The number in the controllers' configuration."""

_log = logging.getLogger(__name__)


class AutoTopics:
    """Call `want` for missing topics that clients requested. The controllers' defaults give the size of a
    topic unless this broker's `partitions` and `replication_factor` do."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        enabled: bool,
        partitions: int = BY_DEFAULT,
        replication_factor: int = BY_DEFAULT,
    ) -> None:
        self._forwarder = forwarder
        self._enabled = enabled
        self._size = partitions, replication_factor
        self._creating: set[str] = set()

    def want(self, names: Iterable[str], client: Client, client_id: str | None) -> None:
        """Starts to create the topics; the client retries until they exist, as with Kafka. Internal topics
        are created by their coordinators."""
        if not self._enabled:
            return
        new = [name for name in names if name not in self._creating and name not in INTERNAL_TOPICS]
        new = new[: CREATING_MAX - len(self._creating)]
        if new:
            self._creating.update(new)
            self._forwarder.spawn(self._create(new, client, client_id))

    async def _create(self, names: list[str], client: Client, client_id: str | None) -> None:
        topic, (partitions, replicas) = CreateTopicsRequest.CreatableTopic, self._size
        body = CreateTopicsRequest(
            topics=tuple(
                topic(name=name, num_partitions=partitions, replication_factor=replicas) for name in names
            ),
            timeout_ms=TIMEOUT_MS,
        )
        header = RequestHeader(_CREATE_TOPICS.key, _CREATE_TOPICS.max_version, 0, client_id)
        try:
            answer: CreateTopicsResponse = await self._forwarder.handle(Request(header, body, 0), client)
            for each in answer.topics:
                if each.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    _log.warning("topic %s was not created automatically: %s", each.name, each.error_message)
        finally:
            self._creating.difference_update(names)
