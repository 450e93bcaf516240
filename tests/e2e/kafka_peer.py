"""The model of Kafka 3.7's voter (`tests.raft.kafka_voter`) behind a real socket, among real processes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from msgspec import structs

from metaquorum.clients.kafka.connection import ConnectionFailed, NodeConnection, connect
from metaquorum.clients.kafka.raft_messages import (
    Misshapen,
    NotOfRaft,
    api_of,
    request_body,
    request_of,
    response_body,
    response_of,
)
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.services import Client, Features, Offered, Services, at_once
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.wire.codec import Request
from tests.e2e.cluster import HOST, Node, client_loop
from tests.raft.kafka_voter import REQUEST_TIMEOUT_MS, KafkaStops, KafkaVoter
from tests.raft.mixed_world import VERSIONS
from tests.raft.world import MemoryDisk

TICK_S = 0.01


class KafkaPeer:
    """One such voter, on the loop of all clients. `ports`: of all voters, by id, its own too."""

    def __init__(self, node_id: int, ports: dict[int, int], cluster_id: str) -> None:
        self.voter = KafkaVoter(node_id, tuple(ports), MemoryDisk(), random.Random(1), 0)
        self.stopped: KafkaStops | None = None
        self._ports, self._cluster_id = ports, cluster_id
        self._connections: dict[int, NodeConnection] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[ClientConnection] = set()

    def start(self) -> None:
        client_loop().call(self._start())

    def close(self) -> None:
        client_loop().call(self._close())

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        handle = at_once(self._answer)
        offered = {api: Offered(0, version, handle) for api, version in VERSIONS.items()}
        services = Services(offered, lambda: Features(supported={}, finalized={}, epoch=1))
        config = ConnectionConfig(listener="KAFKA", request_max_bytes=1 << 20, max_idle_s=60)
        limits = ConnectionLimits(max_connections=50, max_per_ip=50)

        def connection() -> ClientConnection:
            place = limits.admit("KAFKA", HOST)
            assert isinstance(place, ConnectionSlot)
            return ClientConnection(config, services, place, self._open.add, self._open.discard)

        self._server = await loop.create_server(connection, HOST, self._ports[self.voter.node_id])
        self.voter.now = self._now()
        self.voter.start()
        self._begin(self._live())

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for each in list(self._open):
            each.cut_off("it is closed")
        for connection in self._connections.values():
            connection.close()
        await asyncio.sleep(0)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _live(self) -> None:
        while self.stopped is None:
            self._step(self.voter.tick, self._now())
            await asyncio.sleep(TICK_S)

    def _step(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except KafkaStops as error:
            self.stopped = error
        answers, self.voter.answers = self.voter.answers, []
        sends, self.voter.sends = self.voter.sends, []
        for _, number, response in answers:
            waiting = self._asked.pop(number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(response)
        for to, number, request in sends:
            self._begin(self._ask(to, number, structs.replace(request, cluster_id=self._cluster_id)))

    async def _answer(self, request: Request, client: Client) -> Any:
        version = request.header.version
        own = self.voter.node_id
        asked = request_of(request.body, version, cluster_id=self._cluster_id, node_id=own)
        number = self.voter.last_id = self.voter.last_id + 1
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        self._step(self.voter.on_request, client.connection, number, asked, self._now())
        return response_body(await waiting, version, None)

    async def _ask(self, to: int, number: int, request: Any) -> None:
        version, timeout_s = VERSIONS[api_of(request)], REQUEST_TIMEOUT_MS / 1000
        try:
            connection = self._connections.get(to)
            if connection is None or not connection.is_open:
                connection = self._connections[to] = await connect(
                    HOST,
                    self._ports[to],
                    client_id=f"raft-client-{self.voter.node_id}",
                    answer_max_bytes=64 << 20,
                    timeout_s=timeout_s,
                )
            body = request_body(request, version)
            answer = await connection.ask(body, version=version, timeout_s=timeout_s)
            response = response_of(answer.body, version, request)
        except (ConnectionFailed, TimeoutError, NotOfRaft, Misshapen):
            self._step(self.voter.failed, to, number)
        else:
            self._step(self.voter.on_response, to, number, response, self._now())


def answers(node: Node, asked: list[Any]) -> list[Any]:
    """What a controller answers to a voter of Kafka's, in the newest versions."""

    async def ask() -> list[Any]:
        connection = await connect(
            HOST, node.kafka_port, client_id="raft-client-3002", answer_max_bytes=1 << 26, timeout_s=20
        )
        found = []
        for request in asked:
            version = connection.version(api_of(request))
            answer = await connection.ask(request_body(request, version), version=version, timeout_s=20)
            found.append(response_of(answer.body, version, request))
        connection.close()
        return found

    return client_loop().call(ask())
