"""Nodes for tests of the client: one that answers with the frames that Kafka 3.7 was recorded with, and ones
whose handlers the test brings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.login_rules import ListenerRules
from metaquorum.listeners.services import Features, Offered, Services
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.wire import codec
from metaquorum.wire.messages import MetadataResponse
from metaquorum.wire.table import API_BY_NAME, APIS

Handler = Callable[[Any], Any]
Frames = dict[tuple[int, int], bytes]


class FakeNode:
    """`handlers` by API: what makes the body of the answer to a body, at once or awaited. `versions`: the
    lowest and highest of an API, where they are not the table's."""

    def __init__(
        self, handlers: dict[str, Handler], *, sasl: SaslRules | None = None, **versions: tuple[int, int]
    ) -> None:
        self.handlers = handlers
        self.asked: list[str] = []
        self.open: set[ClientConnection] = set()
        self.port = 0
        self.broker_id = 0
        self.features = Features(supported={}, finalized={}, epoch=1)
        self._limits = ConnectionLimits(max_connections=100, max_per_ip=100)
        rules = None
        if sasl is not None:
            rules = ListenerRules(sasl=sasl, certificates=None)  # type: ignore[arg-type]
        self.config = ConnectionConfig(
            listener="KAFKA", request_max_bytes=100_000, max_idle_s=60, rules=rules, failed_login_delay_s=0
        )
        self.handlers.setdefault("Metadata", self.brokers)
        self.peers: list[FakeNode] = [self]
        self._services = Services(
            {
                name: Offered(
                    *versions.get(name, (API_BY_NAME[name].min_version, _newest(name))), self._answer
                )
                for name in self.handlers
            },
            lambda: self.features,
        )

    async def _answer(self, request: codec.Request, client: Any) -> Any:
        name = APIS[request.header.api_key].name
        self.asked.append(name)
        found = self.handlers[name](request.body)
        return await found if asyncio.iscoroutine(found) else found

    def brokers(self, _: Any) -> MetadataResponse:
        """The peers by their place in the list, the last of them the controller."""
        Broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            brokers=tuple(
                Broker(node_id=at, host="127.0.0.1", port=each.port) for at, each in enumerate(self.peers)
            ),
            controller_id=len(self.peers) - 1,
        )

    def connection(self) -> ClientConnection:
        place = self._limits.admit(self.config.listener, "127.0.0.1")
        assert isinstance(place, ConnectionSlot)
        return ClientConnection(self.config, self._services, place, self.open.add, self.open.discard)


def _newest(name: str) -> int:
    return API_BY_NAME[name].max_version


@contextlib.asynccontextmanager
async def running(*nodes: FakeNode) -> AsyncIterator[str]:
    """The nodes as one cluster; gives their addresses, as bootstrap servers."""
    listening = []
    for node in nodes:
        server = await asyncio.get_running_loop().create_server(node.connection, "127.0.0.1", 0)
        node.port = server.sockets[0].getsockname()[1]
        node.peers = list(nodes)
        listening.append(server)
    try:
        yield ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    finally:
        for server in listening:
            server.close()
        for node in nodes:
            for each in list(node.open):
                each.end()


def recorded_frames(shared_data: Path, *names: str) -> Frames:
    """The answers of Kafka's brokers by API and version, the last one of each kind."""
    found: Frames = {}
    for name in names or ("N-all-versions",):
        with gzip.open(shared_data / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
            for row in map(json.loads, lines):
                if row["response"] is not None and row["to"].startswith("broker"):
                    key = row["api_key"], row["api_version"]
                    found[key] = base64.b64decode(row["response"])
    return found


@contextlib.contextmanager
def replaying(frames: Frames) -> Iterator[str]:
    """The address of a node that answers with these frames, on a thread of its own; a request for which there
    is none ends its connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, KeyError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                asked = await reader.readexactly(size)
                key = int.from_bytes(asked[:2], "big"), int.from_bytes(asked[2:4], "big")
                frame = asked[4:8] + frames[key][4:]
                writer.write(len(frame).to_bytes(4, "big") + frame)
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
