"""A quorum of our cores and of Kafka's voters (`kafka_voter`): what they say to each other passes through the
product's own forms of Kafka's protocol, in the versions of 3.7, over connections as Kafka's nodes use them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from metaquorum.clients.kafka.message_forms import CannotSay
from metaquorum.clients.kafka.raft_messages import (
    api_of,
    refusal,
    request_body,
    request_of,
    response_body,
    response_of,
)
from metaquorum.controller.server.kafka import RoundsRepeated
from metaquorum.metadata.errors import ErrorCode
from metaquorum.raft import messages as ms
from metaquorum.raft.messages import RaftError
from metaquorum.raft.voters import majority
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME
from tests.raft.kafka_voter import KafkaVoter
from tests.raft.telling import CLUSTER_ID
from tests.raft.world import Message, World

VERSIONS = {"Vote": 0, "BeginQuorumEpoch": 0, "EndQuorumEpoch": 0, "Fetch": 16, "FetchSnapshot": 0}

NO_PRE_VOTE = ms.VoteResponse(
    error=RaftError.UNSUPPORTED_VERSION, epoch=0, leader_id=None, vote_granted=False, pre_vote=True
)
"""What the transport answers for a release without pre-votes."""


VERSIONS_39 = {
    "Vote": 1,
    "BeginQuorumEpoch": 1,
    "EndQuorumEpoch": 1,
    "Fetch": 17,
    "FetchSnapshot": 1,
    "UpdateRaftVoter": 0,
}


def asked_in_kafkas_words(
    request: Any, to: int, cluster_id: str = CLUSTER_ID, versions: Mapping[str, int] = VERSIONS
) -> Any:
    """The request as its receiver has it. Raises CannotSay."""
    api = api_of(request)
    version = versions[api]
    header = codec.RequestHeader(API_BY_NAME[api].key, version, 1)
    frame = b"".join(codec.encode_request(header, request_body(request, version)))
    return request_of(codec.decode_request(frame).body, version, cluster_id=cluster_id, node_id=to)


def answered_in_kafkas_words(
    response: Any, request: Any, *, by_kafka: bool = False, versions: Mapping[str, int] = VERSIONS
) -> Any:
    """The response as its receiver has it. What a node of Kafka 3.7 refuses of a snapshot, it refuses as a
    whole."""
    api = api_of(request)
    key, version = API_BY_NAME[api].key, versions[api]
    body = response_body(response, version, next(iter(response.leader_endpoints), None))
    if by_kafka and isinstance(response, ms.FetchSnapshotResponse) and response.error is not RaftError.NONE:
        body = refusal(request_body(request, version), ErrorCode.UNKNOWN_SERVER_ERROR)
    frame = b"".join(codec.encode_response(key, version, 1, body))
    return response_of(codec.decode_response(key, version, frame).body, version, request)


class MixedWorld(World):
    """The last `kafka` of the voters are Kafka's."""

    def __init__(self, voters: int, kafka: int, *, seed: int, config: Any) -> None:
        super().__init__(voters, observers=0, seed=seed, pinned=False, config=config)
        self.kafka: dict[int, KafkaVoter | None] = dict.fromkeys(range(voters - kafka + 1, voters + 1))
        self.rounds: dict[int, RoundsRepeated] = {}
        self.said_on: dict[tuple[int, int], tuple[int, Any]] = {}
        """By asker and correlation id: the connection, and the request as it was said."""
        self.led_by_kafka = 0
        self.boots = 0

    # ---- life

    def start(self, node_id: int) -> None:
        if node_id not in self.kafka:
            self.rounds[node_id] = RoundsRepeated()
            super().start(node_id)
            return
        self.boots += 1
        node = self.nodes[node_id]
        voter = KafkaVoter(
            node_id,
            tuple(each.node_id for each in self.voters),
            node.disk,
            random.Random(self.seed * 1000 + self.boots),
            self.now,
        )
        voter.connection = dict.fromkeys(self.nodes, self.boots * 1_000_000)
        self.kafka[node_id] = voter
        voter.start()
        self._take(voter)

    def is_up(self, node_id: int) -> bool:
        voter = self.kafka.get(node_id)
        return voter is not None or self.nodes[node_id].core is not None

    def kill(self, node_id: int) -> None:
        if node_id not in self.kafka:
            super().kill(node_id)
            for voter in list(self.kafka.values()):
                if voter is not None and node_id in voter.asked:
                    voter.failed(node_id, voter.asked[node_id].correlation_id)
            return
        self.kafka[node_id] = None
        self.nodes[node_id].disk.partial = None
        self.messages = [m for m in self.messages if node_id not in (m.source, m.target)]
        for key, (asker, _, asked) in list(self.requests.items()):
            if asker == node_id and self.nodes[asked].core is not None:
                self.abandoned.add(key)
                self.input(asked, lambda core, key=key: core.on_request_abandoned(key, now_ms=self.now))
        for who, correlation_id in [flight for flight, (to, _) in self.outstanding.items() if to == node_id]:
            self.fail(who, correlation_id, "connection reset")
        for other in self.kafka.values():
            if other is not None and node_id in other.asked:
                other.failed(node_id, other.asked[node_id].correlation_id)

    def crash(self, node_id: int) -> None:
        self.kill(node_id)
        if node_id not in self.kafka:
            self.nodes[node_id].disk.lose_unsynced()

    def tick_kafka(self, node_id: int) -> None:
        voter = self.kafka[node_id]
        if voter is not None:
            voter.tick(self.now)
            self._take(voter)

    def append_to_kafka(self, node_id: int, text: str) -> None:
        voter = self.kafka[node_id]
        if voter is not None and voter.role == "leader":
            voter.append([text.encode()])
            self._take(voter)

    # ---- messages

    def involves_kafka(self, message: Message) -> bool:
        return message.source in self.kafka or message.target in self.kafka

    def lose(self, message: Message) -> None:
        """A connection does not lose one message: it breaks, and Kafka's voter opens another one."""
        self.messages.remove(message)
        for one, other in ((message.source, message.target), (message.target, message.source)):
            voter = self.kafka.get(one)
            if voter is not None:
                voter.connection[other] += 1

    def deliver(self, message: Message) -> None:
        payload, source, target = message.payload, message.source, message.target
        voter = self.kafka.get(target)
        if target in self.kafka:
            if voter is None:
                if message.is_request:
                    self._refused(message)
                return
            if message.is_request:
                self._ask_kafka(voter, message)
            else:
                _, request = self.said_on[target, message.correlation_id]
                told = payload if source in self.kafka else answered_in_kafkas_words(payload, request)
                voter.on_response(source, message.correlation_id, told, self.now)
            self._take(voter)
            return
        if message.is_request and source in self.kafka:
            if self.nodes[target].core is None:
                self._refused(message)
                return
            connection, request = self.said_on[source, message.correlation_id]
            told = asked_in_kafkas_words(request, target)
            if isinstance(told, ms.FetchRequest):
                told = self.rounds[target].asked(connection * 10 + source, told)
            message = Message(source, target, message.correlation_id, told, True)
        super().deliver(message)

    def _refused(self, message: Message) -> None:
        voter = self.kafka.get(message.source)
        if voter is not None:
            voter.failed(message.target, message.correlation_id)
        else:
            self.fail(message.source, message.correlation_id, "connection refused")

    def _ask_kafka(self, voter: KafkaVoter, message: Message) -> None:
        request: Any = message.payload
        if message.source not in self.kafka:
            try:
                request = asked_in_kafkas_words(request, voter.node_id)
            except CannotSay:
                self.messages.append(
                    Message(voter.node_id, message.source, message.correlation_id, NO_PRE_VOTE, False)
                )
                return
            self.said_on[message.source, message.correlation_id] = 0, request
        voter.on_request(message.source, message.correlation_id, request, self.now)

    def _take(self, voter: KafkaVoter) -> None:
        """What a voter of Kafka's wants is done, and its laws are checked."""
        own = voter.node_id
        sends, voter.sends = voter.sends, []
        answers, voter.answers = voter.answers, []
        for to, correlation_id, asked in sends:
            request = structs.replace(asked, cluster_id=CLUSTER_ID)
            self.said_on[own, correlation_id] = voter.connection[to], request
            self.messages.append(Message(own, to, correlation_id, request, True))
        for to, correlation_id, response in answers:
            told = response
            if to not in self.kafka:
                asked = self.said_on[to, correlation_id][1]
                told = answered_in_kafkas_words(response, asked, by_kafka=True)
            self.messages.append(Message(own, to, correlation_id, told, False))
        if voter.disk.snapshots:
            self.marks.add("snapshot fetched by Kafka's voter")
        if voter.role == "leader":
            self.led_by_kafka = max(self.led_by_kafka, voter.epoch)
            self._committed_by_kafka(voter)
        self._check()

    def _respond(self, node: Any, key: int, response: Any) -> None:
        asker, correlation_id, _ = self.requests.get(key, (0, 0, 0))
        if asker in self.kafka and isinstance(response, ms.FetchResponse) and key not in self.abandoned:
            connection = self.said_on[asker, correlation_id][0]
            self.rounds[node.node_id].answered(connection * 10 + asker, response)
        super()._respond(node, key, response)

    # ---- laws

    def _committed_by_kafka(self, voter: KafkaVoter) -> None:
        if voter.high_watermark <= 0:
            return
        durable = [each for each in self.voters if self._holds(each.node_id, voter.high_watermark)]
        assert len(durable) >= majority(len(self.voters)), "what is committed is on the disks of a majority"
        self.acknowledged = max(self.acknowledged, voter.high_watermark)

    def _holds(self, node_id: int, offset: int) -> bool:
        return self.nodes[node_id].disk.synced >= offset

    def _check(self) -> None:
        super()._check()
        leaders: dict[int, int] = {}
        for node in self.live:
            if node.core is not None and node.core.is_leader:
                leaders[node.core.epoch] = node.node_id
                assert not node.core.losses, "nothing that was committed is reported as lost"
        for voter in self.kafka.values():
            if voter is None:
                continue
            if voter.role == "leader":
                assert leaders.setdefault(voter.epoch, voter.node_id) == voter.node_id, "one leader an epoch"
            for base, end, _, data in voter.disk.batches[-8:]:
                if end <= voter.high_watermark:
                    assert self.content.setdefault(base, data) == data, "one committed log, byte for byte"
