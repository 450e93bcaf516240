"""Raft's requests in Kafka's protocol: fetches of the metadata log, and what voters ask each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from metaquorum.clients.kafka import raft_messages
from metaquorum.clients.kafka.quorum import OFFERED
from metaquorum.clients.kafka.raft_messages import Misshapen
from metaquorum.listeners.services import Client, EndConnection, Later, Offered
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ControllerRegistration, MetadataImage, NodeEndpoint
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
)
from metaquorum.raft.voters import Endpoint
from metaquorum.rpc.transport import RaftService
from metaquorum.wire.codec import Request

ASKED_BY_VOTERS = {
    "Vote": (0, 2),
    "BeginQuorumEpoch": (0, 1),
    "EndQuorumEpoch": (0, 1),
    "UpdateRaftVoter": (0, 0),
}
"""The versions of Kafka 3.7 to 4.1."""


class RaftRequests:
    """The handlers. `voters_ask`: of a listener of voters; elsewhere a caller that names a voter's id is
    refused, so that nothing but a voter acknowledges. `reader` stands for observers without a directory
    id. `image` has the leader's address for callers that learn it from answers (KIP-853)."""

    def __init__(
        self,
        cluster_id: str,
        raft: RaftCore,
        service: RaftService,
        reader: bytes,
        image: Callable[[], MetadataImage],
        *,
        voters_ask: bool = False,
    ) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._service = service
        self._reader = reader
        self._image = image
        self._voters_ask = voters_ask
        self._rounds = RoundsRepeated()

    def offered(self) -> dict[str, Offered]:
        """By API."""
        versions = OFFERED | (ASKED_BY_VOTERS if self._voters_ask else {})
        return {name: Offered(lowest, highest, self.answer) for name, (lowest, highest) in versions.items()}

    def answer(self, request: Request, client: Client) -> Any:
        """The response to a request of any of these APIs, which has no task while it waits."""
        version = request.header.version
        try:
            asked = self._asked(request.body, version, client)
        except Misshapen:
            return raft_messages.refusal(request.body, ErrorCode.INVALID_REQUEST)
        waiting = self._service.ask(asked)
        if waiting is None:
            raise EndConnection("this node is stopping")
        return Later(waiting, lambda answer: self._answered(answer, version, client))

    def _answered(self, answer: RaftResponse, version: int, client: Client) -> Any:
        if isinstance(answer, FetchResponse):
            self._rounds.answered(client.connection, answer)
        return raft_messages.response_body(answer, version, self._leader(answer, client))

    def _asked(self, body: Any, version: int, client: Client) -> RaftRequest:
        node_id = self._raft.node_id
        asked: RaftRequest = raft_messages.request_of(
            body, version, cluster_id=self._cluster_id, node_id=node_id
        )
        if not isinstance(asked, FetchRequest | FetchSnapshotRequest):
            return asked
        is_voter = asked.replica_id in self._raft.voters
        if is_voter and not self._voters_ask:
            raise Misshapen("voters do not fetch here")
        if not is_voter and not asked.replica_directory_id:
            # Each connection is a reader of its own: a leader holds one fetch of each.
            directory_id = self._reader[:8] + client.connection.to_bytes(8, "big")
            asked = replace(asked, replica_directory_id=directory_id)
        return self._rounds.asked(client.connection, asked) if isinstance(asked, FetchRequest) else asked

    def _leader(self, answer: RaftResponse, client: Client) -> Endpoint | None:
        """Where the leader that an answer names has the listener by whose name the client came."""
        if answer.leader_id is None:
            return None
        known = [at for at in answer.leader_endpoints if at.name.upper() == client.listener.upper()]
        at = listens_at(self._image().controllers, answer.leader_id, client)
        return next(iter(known), None if at is None else Endpoint(at.name, at.host, at.port))


def listens_at(
    registered: Mapping[int, ControllerRegistration], node_id: int, client: Client
) -> NodeEndpoint | None:
    """Where a controller has the listener by whose name the client came."""
    each = registered.get(node_id)
    endpoints = () if each is None else each.endpoints
    return next((at for at in endpoints if at.name == client.listener), None)


CONNECTIONS_MAX = 1_000
"""The most connections whose last answer is remembered; without it, a read waits for another fetch."""


class RoundsRepeated:
    """The rounds of reads that fetches of Kafka's nodes repeat, who do not say them (docs/raft.md).

    A voter of Kafka's sends nothing while it waits for an answer, and gives a request up only with its
    connection. So what arrives on a connection was sent after the last answer on it: it repeats that answer's
    round, for the same epoch."""

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int]] = {}

    def answered(self, connection: int, answer: FetchResponse) -> None:
        """An answer leaves on a connection."""
        self._answered.pop(connection, None)
        if answer.read_round:
            self._answered[connection] = answer.epoch, answer.read_round
            if len(self._answered) > CONNECTIONS_MAX:
                del self._answered[next(iter(self._answered))]

    def asked(self, connection: int, request: FetchRequest) -> FetchRequest:
        """The fetch with the round that it repeats."""
        epoch, read_round = self._answered.pop(connection, (0, 0))
        if request.read_round or epoch != request.epoch:
            return request
        return replace(request, read_round=read_round)
