"""What Kafka 3.7's nodes asked its active controller, asked again of a running quorum of ours, in order.

Two of the three voters are processes of ours; the third, and all brokers, are the recording. Where our quorum
cannot have what theirs had, a field is mapped: `MAPPED` has them all.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.messages import CreateTopicsRequest
from metaquorum.wire.table import APIS
from tests.e2e.golden_frames import Replay, mapped, plain_value, rows

LEADER, FOLLOWER, SCRIPTED = 3000, 3001, 3002
"""Who they were in the recordings: the leader, a follower, and the voter that is only a script here."""
FETCH = 1
MAPPED = {
    "cluster_id": "of this quorum",
    "broker_epoch": "what the answer to this broker's registration was here",
    "previous_broker_epoch": "as broker_epoch",
    "topic_id": "of the topic with this name here",
    "current_leader_epoch": "of this quorum's leader; 0, with which an observer begins, stays",
    "leader_epoch": "of this quorum's leader, in answers to fetches",
    "leader_id": "as leader_epoch",
    "fetch_offset": "up to where the answers to this node had records here",
    "last_fetched_epoch": "as fetch_offset",
    "max_wait_ms": "0: the next request is not to wait",
    "current_metadata_offset": "the end of our log when theirs had come to this offset",
    "assignments": "Kafka's placement, as its log has it: ours would draw another one",
    "num_partitions": "-1 beside a placement",
    "replication_factor": "as num_partitions",
    "request_data": "the request in an Envelope, mapped in the same way",
}
"""The fields of requests and expected answers that are not sent or compared as they were recorded."""


@dataclass(frozen=True)
class Exchange:
    """One request to a controller, and Kafka's answer."""

    label: str
    node_id: int
    client: str
    header: RequestHeader
    body: Any
    answer: Any

    @property
    def api(self) -> str:
        return APIS[self.header.api_key].name

    @property
    def asker(self) -> str:
        """Whose channel it is."""
        return self.client.removeprefix("raft-client-")

    @property
    def raft_id(self) -> int | None:
        """The node that follows the log by this request; None: it is another channel of a node."""
        found = re.fullmatch(r"raft-client-(\d+)", self.client)
        return int(found.group(1)) if found else None


def exchanges(path: Path, from_ms: int = 0, until_ms: int | None = None) -> Iterator[Exchange]:
    """Of a recording, in the order of Kafka's answers, those asked in this time. Of fetches that one node
    repeated, with the same answer, the first."""
    waiting: dict[tuple[int, int], dict[str, Any]] = {}
    last: dict[str, tuple[int, Any, Any]] = {}
    for row in rows(path):
        if until_ms is not None and row["t_ms"] > until_ms:
            return
        if row.get("api_key") not in APIS or row.get("event") or not row["link"].startswith("controller-"):
            continue
        place = row["conn"], row["correlation_id"]
        if row["dir"] == ">" and row["t_ms"] >= from_ms:
            waiting[place] = row
        elif place in waiting:
            found = _exchange(path.name, waiting.pop(place), row)
            said = found.node_id, found.body, found.answer
            if found.header.api_key != FETCH or last.get(found.client) != said:
                last[found.client] = said
                yield found


def _exchange(name: str, asked: dict[str, Any], answered: dict[str, Any]) -> Exchange:
    request = codec.decode_request(base64.b64decode(asked["frame"]))
    header = request.header
    answer = codec.decode_response(header.api_key, header.version, base64.b64decode(answered["frame"])).body
    return Exchange(
        label=f"{name} at {asked['t_ms']}, {asked['client_id']}",
        node_id=int(asked["link"].removeprefix("controller-")),
        client=str(asked["client_id"]),
        header=header,
        body=request.body,
        answer=mapped(answer, plain_value),
    )


def batches(answer: Any) -> Iterator[RecordBatch]:
    """Of an answer to a fetch of the metadata log."""
    for topic in answer.responses:
        for part in topic.partitions:
            yield from iter_batches(bytes(part.records or b""))


def logged(found: list[Exchange]) -> Iterator[tuple[int, Any]]:
    """The metadata records in the answers to fetches, with the place of the exchange; many are repeated."""
    for at, each in enumerate(found):
        for batch in batches(each.answer) if each.header.api_key == FETCH else ():
            for record in decode_batch(batch):
                yield at, record.record


def placements(found: list[Exchange]) -> dict[str, dict[int, tuple[int, ...]]]:
    """The replicas of each partition, by topic, as the recorded log first has them."""
    names: dict[bytes, str] = {}
    placed: dict[str, dict[int, tuple[int, ...]]] = {}
    for _, record in logged(found):
        match record:
            case records.TopicRecord():
                names[record.topic_id] = record.name
            case records.PartitionRecord():
                placed.setdefault(names[record.topic_id], {}).setdefault(record.partition_id, record.replicas)
    return placed


def opened(asked: Exchange, answer: Any) -> Any:
    """What is in the answer to an Envelope; another answer is what it is."""
    if asked.api != "Envelope" or answer is None or answer.error_code:
        return answer
    inside = codec.decode_request(bytes(asked.body.request_data)).header
    found = codec.decode_response(inside.api_key, inside.version, bytes(answer.response_data))
    assert found.correlation_id == inside.correlation_id
    return mapped(found.body, plain_value)


@dataclass
class NodeReplay:
    """`ports`: ours, by the ids of the recordings. `leader`: our leader's id and epoch."""

    ports: dict[int, int]
    leader: tuple[int, int]
    cluster_id: str
    placed: dict[str, dict[int, tuple[int, ...]]]
    epochs: dict[int, int] = field(default_factory=dict)
    topics: dict[bytes, bytes] = field(default_factory=dict)
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    _their_ends: list[int] = field(default_factory=list)
    _our_ends: list[int] = field(default_factory=list)
    registered: dict[int, int] = field(default_factory=dict)
    """Where our log has the registration with a broker epoch: it may be after the epoch, in its batch."""
    fenced: set[int] = field(default_factory=set)
    """The brokers that our log says are fenced."""
    _last_fetch: Exchange | None = None
    _channels: dict[str, Replay] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> NodeReplay:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def ask(self, asked: Exchange) -> Any:
        """Our answer to the request; what it says of our ids and offsets is known from here on."""
        channel = self._channels.get(asked.client)
        if channel is None:
            channel = self._channels[asked.client] = self._stack.enter_context(Replay(self.ports))
        answer = channel.send(asked.node_id, asked.header, self.request(asked))
        if answer is not None:
            self._learn(asked, answer)
        return answer

    def request(self, asked: Exchange) -> Any:
        return self._mapped(asked.api, asked.body, asked)

    def expected(self, asked: Exchange) -> Any:
        """Kafka's answer in our terms, what is in an Envelope opened."""
        return self._mapped(asked.api, opened(asked, asked.answer), asked)

    # ---- what is learnt --------------------------------------------------------------------------

    def _learn(self, asked: Exchange, answer: Any) -> None:
        if asked.api == "BrokerRegistration" and answer.broker_epoch >= 0:
            self.epochs[asked.answer.broker_epoch] = answer.broker_epoch
        elif asked.api == "Fetch" and asked.raft_id is not None:
            self._follow(asked.raft_id, asked.answer, answer)
            if asked.node_id == LEADER:
                self._last_fetch = asked
        else:
            self._learn_topics(opened(asked, asked.answer), opened(asked, answer))

    def _follow(self, node_id: int, theirs: Any, ours: Any) -> None:
        for batch in batches(ours):
            self.positions[node_id] = batch.header.next_offset, batch.header.leader_epoch
            for each in decode_batch(batch):
                match each.record:
                    case records.BrokerRecord(broker_epoch=epoch):
                        self.registered[epoch] = each.offset
                    case records.FenceBrokerRecord(id=broker_id):
                        self.fenced.add(broker_id)
                    case records.UnfenceBrokerRecord(id=broker_id):
                        self.fenced.discard(broker_id)
        their_end = max((each.header.next_offset for each in batches(theirs)), default=-1)
        if their_end > max(self._their_ends, default=-1):
            self._their_ends.append(their_end)
            self._our_ends.append(self._our_end())

    def _learn_topics(self, theirs: Any, ours: Any) -> None:
        for one, other in zip(getattr(theirs, "topics", ()), getattr(ours, "topics", ()), strict=False):
            if hasattr(one, "topic_config_error_code") and not one.error_code:
                self.topics[one.topic_id] = other.topic_id

    # ---- what is mapped --------------------------------------------------------------------------

    def _mapped(self, api: str, message: Any, asked: Exchange) -> Any:
        found = mapped(message, lambda name, value: self._value(api, name, value))
        match type(found).__name__:
            case "FetchRequest":
                found = self._fetch(found, asked)
            case "BrokerHeartbeatRequest":
                offset = self._offset(asked.body.current_metadata_offset, asked.body.broker_epoch)
                found = structs.replace(found, current_metadata_offset=offset)
            case "CreateTopicsRequest":
                found = structs.replace(found, topics=tuple(map(self._placed, found.topics)))
            case "EnvelopeRequest":
                inside = codec.decode_request(bytes(asked.body.request_data))
                body = self._mapped(APIS[inside.header.api_key].name, inside.body, asked)
                data = b"".join(codec.encode_request(inside.header, body))
                found = structs.replace(found, request_data=data)
        return found

    def _value(self, api: str, name: str, value: Any) -> Any:
        match name:
            case "cluster_id":
                return self.cluster_id
            case "broker_epoch" | "previous_broker_epoch":
                return self.epochs.get(value, value)
            case "topic_id":
                return self.topics.get(bytes(value), bytes(value))
            case "current_leader_epoch" | "leader_epoch" if api == "Fetch" and value > 0:
                return self.leader[1]
            case "leader_id" if api == "Fetch" and value == LEADER:
                return self.leader[0]
            case "max_wait_ms":
                return 0
        return plain_value(name, value)

    def _fetch(self, request: Any, asked: Exchange) -> Any:
        assert asked.raft_id is not None
        offset, epoch = self.positions.setdefault(asked.raft_id, (0, 0))
        (topic,) = request.topics
        (part,) = topic.partitions
        part = structs.replace(part, fetch_offset=offset, last_fetched_epoch=epoch)
        return structs.replace(request, topics=(structs.replace(topic, partitions=(part,)),))

    def _newest(self) -> int:
        """The end of what is committed, which a node of the recording fetches once more."""
        before = -1
        while self._last_fetch is not None and before != self._our_end():
            before = self._our_end()
            self.ask(self._last_fetch)
        return self._our_end()

    def _our_end(self) -> int:
        return max(offset for offset, _ in self.positions.values())

    def _offset(self, offset: int, broker_epoch: int) -> int:
        """Before a broker's own registration exactly where theirs was."""
        at, epoch = bisect_right(self._their_ends, offset), self.epochs.get(broker_epoch, -1)
        ours = (self._newest() if at >= len(self._our_ends) - 1 else self._our_ends[at]) - 1
        own = self.registered.get(epoch, epoch)
        return min(ours, own - 1) if offset < broker_epoch else max(ours, own)

    def _placed(self, topic: Any) -> Any:
        types, found = CreateTopicsRequest, self.placed.get(topic.name)
        if found is None or topic.assignments:
            return topic
        assignments = tuple(
            types.CreatableReplicaAssignment(partition_index=at, broker_ids=replicas)
            for at, replicas in sorted(found.items())
        )
        return structs.replace(topic, assignments=assignments, num_partitions=-1, replication_factor=-1)
