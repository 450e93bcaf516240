"""A controller of ours in the place of Kafka's in the golden captures: its services on an image."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.active.outcome import Step, Turn
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.controller.server.kafka import controller_services
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.replay import Replays, ReplayState
from metaquorum.rpc.transport import RaftService
from metaquorum.wire import codec
from tests.unit.kafka.golden_cluster import CONTROLLERS, SECRET, WALL_MS, read_of

CLUSTER_ID = "d2lyZS1jYXB0dXJlLTM3MA"
TURNS_MAX = 50
NOT_ACTIVE = ApiError(ErrorCode.NOT_CONTROLLER, "another controller is active")


def golden_config(folder: Path, **more: str) -> NodeConfig:
    """The file of a controller with a listener of Kafka's protocol."""
    path = folder / "controller.properties"
    lines = {
        "process.roles": "controller",
        "node.id": str(CONTROLLERS[0]),
        "listeners": "GRPC://127.0.0.1:9093,CONTROLLER://127.0.0.1:9094",
        "controller.listener.names": "GRPC,CONTROLLER",
        "controller.quorum.voters": "3000@127.0.0.1:9093",
        "log.dirs": str(folder / "d"),
        **more,
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return load_config(path, "controller")


class GoldenController:
    """The active controller on an image, in front of it what its listener offers; `active` False: another one
    is. Brokers that run have a lease and, if `all_applied`, have applied the whole log."""

    def __init__(
        self,
        config: NodeConfig,
        image: MetadataImage,
        *,
        static: dict[str, str] | None = None,
        active: bool = True,
        all_applied: bool = True,
    ) -> None:
        at = image.provenance.offset
        replica: Any = SimpleNamespace(state=ReplayState(image), applied_offset=at, replays=Replays())
        self._ledger = Ledger(replica)
        self._is_active = active
        sessions = Sessions(9_000, 30_000)
        for broker_id, known in image.brokers.items():
            if not known.fenced:
                lease = sessions.fresh(known.epoch, 0)
                applied = self._ledger.newest_state.end_offset if all_applied else 0
                sessions.put(broker_id, replace(lease, applied_offset=applied))
        quorum: Any = SimpleNamespace(voters=CONTROLLERS, kraft_version=0, leader_id=CONTROLLERS[0])
        self._controller = ActiveController(
            ControllerConfig(
                cluster_id=CLUSTER_ID,
                node_id=CONTROLLERS[0],
                delegation_token_secret_key=SECRET,
                num_partitions=1,
                default_replication_factor=3,
            ),
            self._ledger,
            sessions,
            Random(1),
            quorum=quorum,
            incarnation_id=bytes(16),
            now_ms=0,
        )
        calls = KafkaCalls(
            SimpleNamespace(ask=self._ask),  # type: ignore[arg-type]
            SimpleNamespace(),  # type: ignore[arg-type]
            image=lambda: self.image,
            static=static or {},
            token_key=SECRET,
            wall_ms=lambda: WALL_MS,
        )
        service = RaftService(lambda event: True)
        self._services = controller_services(config, CLUSTER_ID, quorum, service, calls, Random(2))

    @property
    def image(self) -> MetadataImage:
        return self._ledger.newest

    def answer(self, frame: bytes, *, principal: str = "User:ANONYMOUS") -> Any:
        """Our answer's body, as the peer decodes it, in the request's version; None: the listener does not
        offer this version, and ends the connection."""
        header = codec.decode_request(frame).header
        found = asyncio.run(self._answer(frame, principal))
        return None if found is None else codec.decode_response(header.api_key, header.version, found).body

    async def _answer(self, frame: bytes, principal: str) -> bytes | None:
        request = codec.decode_request(frame)
        header = request.header
        handler = self._services.find(header.api_key, header.version)
        if handler is None:
            return None
        body = handler(request, Client(listener="CONTROLLER", address="127.0.0.1", principal=principal))
        if isinstance(body, Awaitable):
            body = await body
        return b"".join(codec.encode_response(header.api_key, header.version, header.correlation_id, body))

    async def _ask(self, request: Any, mutator: Any = None) -> Any:
        if not self._is_active:
            return NOT_ACTIVE
        read = read_of(self.image, request)
        if read is not None:
            return read
        turns: deque[Turn] = deque([RequestArrived(key=1, arrived_ms=0, request=request)])
        for _ in range(TURNS_MAX):
            turn = turns.popleft() if turns else Step.WORK
            outcome = self._controller.decide(turn, now_ms=0, wall_ms=WALL_MS)
            if outcome.batch is not None:
                end = self._ledger.newest_state.end_offset
                self._ledger.append(outcome.batch.records, base_offset=end, epoch=99, timestamp_ms=WALL_MS)
            self._controller.take_up(outcome, 0)
            for answer in outcome.answers:
                if answer.key == 1:
                    return answer.response
            turns.extendleft(reversed(outcome.then))
        raise AssertionError(f"no answer to {request}")
