"""The cluster of the golden captures as it was at any moment, and our answers on its state.

The metadata log of Kafka's controllers gives the image; a request is decided by our active controller, or
answered out of the image, as a broker of ours does. Nothing is written: each request meets Kafka's own state.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from metaquorum import open_log
from metaquorum.broker.server.kafka.cluster import (
    Viewpoint,
    answer_describe_cluster,
    answer_describe_topic_partitions,
    answer_metadata,
)
from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.settings.access import TokenSecret
from metaquorum.listeners.forwarded.api import Call
from metaquorum.listeners.forwarded.describe import DESCRIBED
from metaquorum.listeners.forwarded.described_configs import OwnConfig, describe_configs
from metaquorum.listeners.forwarded.own_changes import OwnChanges
from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.listeners.forwarded.table import FORWARDED_BY_KEY
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import ReadBatch
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.replay import Replays, ReplayState, replay
from metaquorum.metadata.requests.common import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ReadImageRequest,
    ReadImageResponse,
    ReplicaStatus,
)
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS
from metaquorum.wire import codec
from metaquorum.wire.table import APIS

SECRET = "wire-capture-secret"
CONTROLLERS = (3000, 3001, 3002)
WALL_MS = 1_795_316_700_000


class GoldenCluster:
    """Images by the end of their last batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        log = open_log(str(folder / "logs/controller-3000-after-clean-shutdown"))
        state = ReplayState(MetadataImage())
        self._ends: list[int] = []
        self._times: list[int] = []
        self._images: list[MetadataImage] = []
        self.created_ms: dict[str, int] = {}
        """When a topic was created first."""
        for item in log.items():
            assert isinstance(item, ReadBatch)
            state = replay(state, item.batch)
            self._ends.append(state.end_offset)
            self._times.append(item.batch.header.max_timestamp_ms)
            self._images.append(state.image)
            for topic in state.image.topics.all():
                self.created_ms.setdefault(topic.name, self._times[-1])

    def around(self, time_ms: int) -> list[MetadataImage]:
        """The images that a node may have had when it answered a request of this moment."""
        first, last = bisect_left(self._times, time_ms - 2000), bisect_left(self._times, time_ms + 500)
        return self._images[max(0, first - 1) : last]

    def at(self, offset: int) -> MetadataImage:
        """Everything below `offset`."""
        return self._images[max(0, bisect_left(self._ends, offset + 1) - 1)]

    def static(self, node: str) -> dict[str, str]:
        """What a node's file says of keys that can change while it runs."""
        text = (self._folder / f"server-properties/{node}.properties").read_text()
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        known = BROKER_KEYS.keys() | BROKER_SYNONYMS
        return {name: value for name, value in lines.items() if name in known}


class GoldenNode:
    """A broker of ours, and the active controller, on one image; what is decided is the state of the next
    request."""

    def __init__(self, cluster: GoldenCluster, image: MetadataImage, node_id: int) -> None:
        self._own = OwnConfig(node_id=node_id, static=cluster.static(f"broker-{node_id}"), fixed=())
        self._new_topics = NewTopics(cluster.static("controller-3000"))
        config = ControllerConfig(
            cluster_id="d2lyZS1jYXB0dXJlLTM3MA",
            node_id=CONTROLLERS[0],
            delegation_token_secret_key=SECRET,
            num_partitions=1,
            default_replication_factor=3,
        )
        at = image.provenance.offset
        replica: Any = SimpleNamespace(state=ReplayState(image), applied_offset=at, replays=Replays())
        self._ledger = Ledger(replica)
        sessions = Sessions(9000, 30_000)
        for broker_id in image.brokers:
            sessions.put(broker_id, sessions.fresh(image.brokers[broker_id].epoch, 0))
        self._controller = ActiveController(
            config,
            self._ledger,
            sessions,
            Random(1),
            quorum=SimpleNamespace(voters=CONTROLLERS, kraft_version=0),  # type: ignore[arg-type]
            incarnation_id=bytes(16),
            now_ms=0,
        )

    @property
    def image(self) -> MetadataImage:
        return self._ledger.newest

    def answer(self, frame: bytes, *, listener: str = "PLAINTEXT", principal: str = "User:ANONYMOUS") -> Any:
        """Our answer's body, as the client decodes it, in the request's version."""
        request = codec.decode_request(frame)
        header = request.header
        body = self._local(request, listener)
        if body is None:
            call = Call(
                version=header.version,
                ask=self._ask,
                wall_ms=WALL_MS,
                image=self.image,
                principal=principal,
                new_topics=self._new_topics,
                token_hmac=TokenSecret(key=SECRET).hmac_of,
            )
            body = asyncio.run(self._forwarded(request, call))
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        return codec.decode_response(header.api_key, header.version, b"".join(chunks)).body

    async def _forwarded(self, request: codec.Request, call: Call) -> Any:
        def behind(changed: codec.Request, client: Any) -> Any:
            return FORWARDED_BY_KEY[changed.header.api_key].handle(changed.body, call)

        handle: Any = behind
        if APIS[request.header.api_key].name in {"AlterConfigs", "IncrementalAlterConfigs"}:
            handle = OwnChanges(self._own.node_id, behind, is_broker=True).handle
        found = handle(request, None)
        return await found if isinstance(found, Awaitable) else found

    def _local(self, request: codec.Request, listener: str) -> Any:
        body, version, image = request.body, request.header.version, self.image
        view = Viewpoint(
            image=image, cluster_id="d2lyZS1jYXB0dXJlLTM3MA", node_id=self._own.node_id, listener=listener
        )
        match request.header.api_key:
            case 3:
                return answer_metadata(body, version, view)
            case 60:
                return answer_describe_cluster(body, view)
            case 75:
                return answer_describe_topic_partitions(body, view)
            case 32:
                return describe_configs(body, version, image, self._own)
        described = DESCRIBED.get(APIS[request.header.api_key].name)
        return None if described is None else described.answer(body, version, image)

    async def _ask(self, request: Any) -> Any:
        read = read_of(self.image, request)
        if read is not None:
            return read
        outcome = self._controller.decide(
            RequestArrived(key=1, arrived_ms=0, request=request), now_ms=0, wall_ms=WALL_MS
        )
        if outcome.batch is not None:
            state = self._ledger.newest_state
            self._ledger.append(
                outcome.batch.records, base_offset=state.end_offset, epoch=99, timestamp_ms=WALL_MS
            )
        if not outcome.answers:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT, "its answer takes several steps")
        return outcome.answers[0].response


def read_of(image: MetadataImage, request: Any) -> Any:
    """What a node answers without a decision; None for other requests."""
    if isinstance(request, ReadImageRequest):
        return ReadImageResponse(image=image, offset=0)
    return _quorum(image) if isinstance(request, DescribeQuorumRequest) else None


def _quorum(image: MetadataImage) -> DescribeQuorumResponse:
    """Brokers that run follow the metadata log."""

    def status(node_id: int) -> ReplicaStatus:
        return ReplicaStatus(
            node_id=node_id,
            directory_id=node_id.to_bytes(16),
            log_end_offset=1,
            lag=0,
            last_fetch_ms=1,
            last_caught_up_ms=1,
            status="",
        )

    fetching = sorted(node_id for node_id, broker in image.brokers.items() if not broker.fenced)
    return DescribeQuorumResponse(
        cluster_id="",
        leader_id=CONTROLLERS[0],
        leader_epoch=1,
        high_watermark=1,
        voters=tuple(map(status, CONTROLLERS)),
        observers=tuple(map(status, fetching)),
    )


ANSWERED = frozenset(FORWARDED_BY_KEY) | {3, 29, 32, 48, 50, 60, 74, 75}
"""Keys of the APIs that `GoldenNode` answers."""
