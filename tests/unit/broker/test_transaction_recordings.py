"""Transactions as they were recorded between clients, brokers and Kafka 3.7's coordinators: epochs and codes
are Kafka's, step by step. Producer ids are each cluster's own."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator.transaction import COMPLETION_WAIT_MS, InitProducer
from metaquorum.broker.server.kafka.transactions.handlers import TransactionHandlers
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import codec
from tests.unit.broker.manager_world import Cluster
from tests.unit.broker.test_group_captures import plain
from tests.unit.broker.test_group_recordings import in_any_order
from tests.unit.broker.test_transaction_state import Coordinator

pytestmark = pytest.mark.shared_data
HANDLERS = {22: "init_producer_id", 24: "add_partitions_to_txn", 25: "add_offsets_to_txn", 26: "end_txn"}
ADD_PARTITIONS = 24
OFFSETS = ("__consumer_offsets", 2)
ELSEWHERE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
CLIENT = Client(listener="KAFKA", address="127.0.0.1")


class World:
    """One coordinator of everything. `is_busy`: whether a transaction's markers are still to be written."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.coordinator = Coordinator()
        self.is_busy = False
        cluster = Cluster()
        for name, count in topics.items():
            cluster.topic(name, partitions=count)
        image = cluster.image()
        self.handlers = TransactionHandlers(self, None, lambda: image, OFFSETS)  # type: ignore[arg-type]

    async def ask(self, name: str, body: Any, request: codec.Request, client: Client) -> Any:
        if isinstance(body, InitProducer):
            self.coordinator.next_id += 1
            body = replace(body, fresh_id=self.coordinator.next_id)
        if not self.is_busy:
            self._write_markers(name)
        answer = self.coordinator.ask(body)
        if answer is None:  # it waits for the markers, which do not come
            self.coordinator.let(COMPLETION_WAIT_MS)
            answer = self.coordinator.replies[-1].body
        return answer

    def _write_markers(self, transactional_id: str) -> None:
        markers = self.coordinator.markers
        for sent in [each for each in markers if each.transactional_id == transactional_id]:
            markers.remove(sent)
            self.coordinator.written(sent)


def exchanges(folder: Path, name: str) -> list[tuple[int, int, codec.Request, Any]]:
    """(time, API, request, answer) by the moment of the request."""
    found, waiting = [], dict[tuple[int, int], Any]()
    with gzip.open(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
        for row in map(json.loads, lines):
            if row.get("api_key") not in HANDLERS or row.get("event") is not None or row["dir"] not in "<>":
                continue
            place, data = (row["conn"], row["correlation_id"]), base64.b64decode(row["frame"])
            if row["dir"] == ">":
                waiting[place] = row["t_ms"], codec.decode_request(data)
            elif place in waiting:
                time_ms, request = waiting.pop(place)
                answer = codec.decode_response(row["api_key"], row["api_version"], data).body
                found.append((time_ms, row["api_key"], request, answer))
    return sorted(found, key=lambda one: one[0])


def codes_in(value: Any) -> set[int]:
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        own = {each for name, each in fields.items() if name.endswith("error_code")}
        return own.union(*map(codes_in, fields.values()))
    return set().union(*map(codes_in, value)) if isinstance(value, tuple) else set()


def with_ids(value: Any, ids: dict[int, int]) -> Any:
    """A message with other ids of producers."""
    if isinstance(value, tuple):
        return tuple(with_ids(each, ids) for each in value)
    if isinstance(value, msgspec.Struct):
        fields = {
            name: ids.get(each, each) if name.endswith("producer_id") else with_ids(each, ids)
            for name in value.__struct_fields__
            for each in [getattr(value, name)]
        }
        return type(value)(**fields)
    return value


def topics_in(found: list[tuple[int, int, codec.Request, Any]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for _, key, request, _ in found:
        if key == ADD_PARTITIONS:
            body = request.body
            for topic in (*body.v3_and_below_topics, *(t for one in body.transactions for t in one.topics)):
                counts[topic.name] = max(counts[topic.name], *(index + 1 for index in topic.partitions))
    return dict(counts)


@pytest.mark.parametrize("name", ["G-librdkafka", "H-python-clients", "J-producing-for-logs"])
async def test_transactions_take_the_steps_that_kafka_let_them_take(shared_data: Path, name: str) -> None:
    found = exchanges(shared_data, name)
    world = World(topics_in(found))
    ids: dict[int, int] = {}
    compared: Counter[str] = Counter()
    for time_ms, key, request, theirs in found:
        codes = codes_in(theirs)
        if codes & ELSEWHERE or (key == 22 and request.body.transactional_id is None):
            continue
        world.is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in codes
        asked = msgspec.structs.replace(request, body=with_ids(request.body, ids))
        ours = await getattr(world.handlers, HANDLERS[key])(asked, CLIENT)
        chunks = codec.encode_response(key, request.header.version, 1, ours)
        ours = codec.decode_response(key, request.header.version, b"".join(map(bytes, chunks))).body
        if key == 22 and theirs.producer_id >= 0:
            ids.setdefault(theirs.producer_id, ours.producer_id)
        label = name, time_ms, HANDLERS[key]
        assert in_any_order(plain(with_ids(theirs, ids))) == in_any_order(plain(ours)), label
        compared[HANDLERS[key]] += 1
    assert compared["end_txn"] > 4 and compared["add_partitions_to_txn"] > 15, compared
