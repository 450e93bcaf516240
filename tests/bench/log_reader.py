"""A stand-in broker's fetches of the metadata log, by the client of real ones."""

from __future__ import annotations

from typing import Any

from metaquorum.clients.kafka.connection import NodeConnection
from metaquorum.clients.kafka.grpc_way import GrpcWay
from metaquorum.clients.kafka.quorum import OFFERED
from metaquorum.clients.kafka.raft_messages import request_body, response_of
from metaquorum.raft.messages import FetchRequest, FetchResponse
from metaquorum.rpc.transport import PeerAddress

OPEN_S, ANSWER_S = 10.0, 30.0


class LogReader:
    """One connection; `fetch` raises ConnectionFailed or TimeoutError."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection
        self._version = connection.version("Fetch", *OFFERED["Fetch"])

    @classmethod
    async def at(cls, host: str, port: int) -> LogReader:
        """Over gRPC."""
        return cls(await GrpcWay.of("bench", None).open(PeerAddress(host, port), timeout_s=OPEN_S))

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        body: Any = request_body(request, self._version)
        answer = await self._connection.ask(body, version=self._version, timeout_s=ANSWER_S)
        found: FetchResponse = response_of(answer.body, self._version, request)
        return found

    def close(self) -> None:
        self._connection.close()
