"""A broker of Apache Kafka 3.7 as controllers see it: its frames, in its order, by the captures."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Self

from metaquorum.clients.kafka.message_forms import METADATA_TOPIC_ID
from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.principal import ForwardedPrincipal
from metaquorum.wire.table import API_BY_NAME
from tests.unit.server.nodes import CLUSTER_ID

VERSIONS = {
    "ApiVersions": 3,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    "Fetch": 16,
    "BrokerRegistration": 3,
    "BrokerHeartbeat": 1,
    "AlterPartition": 3,
    "CreateTopics": 7,
    "Envelope": 0,
}
"""What 3.7 sends; of other APIs version 0."""
ALICE = ForwardedPrincipal("User:alice", False)
WAIT_S = 60
FENCED_LEADER_EPOCH, SHRINK_TO = 74, 1


def encode_principal(forwarded: ForwardedPrincipal) -> bytes:
    """As Kafka's DefaultKafkaPrincipalBuilder writes it."""

    def text(value: str) -> bytes:
        data, out = value.encode(), bytearray()
        left = len(data) + 1
        while left > 127:
            out.append(left & 127 | 128)
            left >>= 7
        return bytes(out) + bytes([left]) + data

    kind, _, name = forwarded.principal.partition(":")
    return b"\0\0" + text(kind) + text(name) + bytes([forwarded.by_token, 0])


class Channel:
    """One connection: requests one after another, as on Kafka's channels to the controller."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, client_id: str = "7") -> None:
        self._port = port
        self._context = context
        self._client_id = client_id
        self._correlation_id = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.close()

    async def ask(self, body: Any, version: int | None = None) -> Any:
        """The response's body. Raises IncompleteReadError if the controller ends the connection."""
        name = type(body).__name__.removesuffix("Request")
        key = API_BY_NAME[name].key
        version = VERSIONS.get(name, 0) if version is None else version
        self._correlation_id += 1
        header = codec.RequestHeader(key, version, self._correlation_id, self._client_id)
        frame = b"".join(codec.encode_request(header, body))
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        async with asyncio.timeout(WAIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = codec.decode_response(key, version, await self._reader.readexactly(size))
        assert answer.correlation_id == self._correlation_id
        return answer.body

    async def log_in(self, user: str, password: str) -> int:
        """The code of a login with PLAIN."""
        assert not (await self.ask(wire.SaslHandshakeRequest(mechanism="PLAIN"))).error_code
        token = f"\0{user}\0{password}".encode()
        return int((await self.ask(wire.SaslAuthenticateRequest(auth_bytes=token))).error_code)

    async def versions(self) -> dict[int, tuple[int, int]]:
        """What the listener offers."""
        asked = wire.ApiVersionsRequest(
            client_software_name="apache-kafka-java", client_software_version="3.7.0"
        )
        found = await self.ask(asked)
        return {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}


class ForeignBroker:
    """See the module. `state` is what it has fetched of the metadata log."""

    def __init__(self, broker_id: int, *, start: int = 0) -> None:
        self.broker_id = broker_id
        self.start = start
        self.epoch = -1
        self.state = ReplayState()
        self._leader_epoch = self._last_epoch = 0

    @property
    def directory(self) -> bytes:
        return bytes([100 + self.broker_id]) * 16

    def registration(self, **changed: Any) -> wire.BrokerRegistrationRequest:
        types = wire.BrokerRegistrationRequest
        listener = types.Listener(
            name="PLAINTEXT", host="127.0.0.1", port=9092 + self.broker_id, security_protocol=0
        )
        levels = types.Feature(name="metadata.version", min_supported_version=1, max_supported_version=19)
        fields: dict[str, Any] = {
            "broker_id": self.broker_id,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": bytes([self.broker_id, self.start]) * 8,
            "listeners": (listener,),
            "features": (levels,),
            "rack": None,
            "log_dirs": (self.directory,),
            **changed,
        }
        return types(**fields)

    async def register(self, channel: Channel, **changed: Any) -> int:
        """The code of the answer."""
        answer = await channel.ask(self.registration(**changed))
        if not answer.error_code:
            self.epoch = answer.broker_epoch
        return int(answer.error_code)

    async def beat(self, channel: Channel, **changed: Any) -> wire.BrokerHeartbeatResponse:
        """A heartbeat that names the last record that it has applied."""
        fields: dict[str, Any] = {
            "broker_id": self.broker_id,
            "broker_epoch": self.epoch,
            "current_metadata_offset": self.state.end_offset - 1,
            **changed,
        }
        answer: wire.BrokerHeartbeatResponse = await channel.ask(wire.BrokerHeartbeatRequest(**fields))
        return answer

    async def fetch(self, channel: Channel) -> None:
        """One fetch of the metadata log, with what Kafka's observers send: the epoch that they know, at first
        0, with which they find out the leader's."""
        types = wire.FetchRequest
        part = types.FetchPartition(
            partition=0,
            current_leader_epoch=self._leader_epoch,
            fetch_offset=self.state.end_offset,
            last_fetched_epoch=self._last_epoch,
            log_start_offset=-1,
            partition_max_bytes=0,
        )
        answer = await channel.ask(
            types(
                cluster_id=CLUSTER_ID,
                replica_id=-1,
                replica_state=types.ReplicaState(replica_id=self.broker_id, replica_epoch=-1),
                max_wait_ms=500,
                min_bytes=0,
                max_bytes=8_388_608,
                session_epoch=-1,
                topics=(types.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=(part,)),),
            )
        )
        assert not answer.error_code
        (found,) = answer.responses[0].partitions
        assert found.error_code in (0, FENCED_LEADER_EPOCH)
        self._leader_epoch = max(self._leader_epoch, found.current_leader.leader_epoch)
        for batch in iter_batches(bytes(found.records or b"")):
            self.state = replay(self.state, batch)
            self._last_epoch = batch.header.leader_epoch

    async def follow(self, fetches: Channel, beats: Channel, until: Any) -> wire.BrokerHeartbeatResponse:
        """Fetches and heartbeats until `until(last answer)`; the last answer."""
        async with asyncio.timeout(WAIT_S):
            while not until(answer := await self.beat(beats)):
                await self.fetch(fetches)
        return answer

    async def catch_up(self, fetches: Channel, reached: Any) -> None:
        """Fetches until `reached()`."""
        async with asyncio.timeout(WAIT_S):
            while not reached():
                await self.fetch(fetches)

    async def forward(self, channel: Channel, body: Any, principal: ForwardedPrincipal = ALICE) -> Any:
        """A client's request in an Envelope: the inner answer, or the code of the envelope."""
        name = type(body).__name__.removesuffix("Request")
        key, version = API_BY_NAME[name].key, VERSIONS.get(name, 0)
        inner = b"".join(codec.encode_request(codec.RequestHeader(key, version, 99, "inner"), body))
        answer = await channel.ask(
            wire.EnvelopeRequest(
                request_data=inner,
                request_principal=encode_principal(principal),
                client_host_address=bytes([10, 0, 0, 1]),
            )
        )
        if answer.error_code:
            return answer.error_code
        found = codec.decode_response(key, version, bytes(answer.response_data))
        assert found.correlation_id == 99
        return found.body

    def alteration(self, topic_id: bytes, *isr: ForeignBroker, **changed: Any) -> wire.AlterPartitionRequest:
        """The ISR that it wants as the leader of partition 0, with the epochs that it knows."""
        known = self.state.image.topics.partition(topic_id, 0)
        assert known is not None
        types = wire.AlterPartitionRequest
        fields: dict[str, Any] = {
            "partition_index": 0,
            "leader_epoch": known.leader_epoch,
            "partition_epoch": known.partition_epoch,
            "new_isr_with_epochs": tuple(
                types.BrokerState(broker_id=each.broker_id, broker_epoch=each.epoch) for each in isr
            ),
            **changed,
        }
        topic = types.TopicData(topic_id=topic_id, partitions=(types.PartitionData(**fields),))
        return types(broker_id=self.broker_id, broker_epoch=self.epoch, topics=(topic,))

    async def assign(self, channel: Channel, topic_id: bytes, *partitions: int) -> list[int]:
        """Reports where its replicas are; the codes of the answer."""
        types = wire.AssignReplicasToDirsRequest
        parts = tuple(types.PartitionData(partition_index=each) for each in partitions)
        topic = types.TopicData(topic_id=topic_id, partitions=parts)
        directory = types.DirectoryData(id=self.directory, topics=(topic,))
        answer = await channel.ask(
            types(broker_id=self.broker_id, broker_epoch=self.epoch, directories=(directory,))
        )
        assert not answer.error_code
        return [part.error_code for part in answer.directories[0].topics[0].partitions]
