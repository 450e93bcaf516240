"""Members of groups as they were recorded between clients and Kafka 3.7: every join, sync, commit and leave
at its moment, with what waits for others; the answers are Kafka's, field by field."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.broker.coordinator.state import Ask
from metaquorum.listeners.services import Client
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.requests.data import CoordinatorRequest, CoordinatorResponse
from metaquorum.wire import codec
from tests.unit.broker.group_world import Groups
from tests.unit.broker.test_group_captures import HANDLERS, Broker, learn, plain, with_names

pytestmark = pytest.mark.shared_data
HEARTBEAT, LIST_GROUPS, OFFSET_COMMIT = 12, 16, 8
BEAT_MS = 1_000
PATIENCE_MS = 3_000
"""How much longer than Kafka's an answer may take here."""
Row = dict[str, Any]


class RecordedBroker(Broker):
    """Answers while time stands still; `wait` lets it pass."""

    def __init__(self, topics: set[tuple[str, int]]) -> None:
        super().__init__(topics)
        # As the recorded brokers were configured.
        self.groups = Groups(GroupConfig(group_initial_rebalance_delay_ms=0), now_ms=0)
        self._pending: dict[int, asyncio.Future[None]] = {}

    async def begin(self, request: CoordinatorRequest) -> CoordinatorResponse:
        groups = self.groups
        groups.next_key += 1
        key = groups.next_key
        groups._take(groups.state.decide(Ask(key, request), groups.now))
        self._pending[key] = asyncio.get_running_loop().create_future()
        await self._pending[key]
        return CoordinatorResponse(body=groups.answers[key])

    def begun(self, request: codec.Request) -> asyncio.Task[Any]:
        name = HANDLERS[request.header.api_key]
        handler = getattr(self.offsets if name.startswith("offset") else self.members, name)
        return asyncio.ensure_future(handler(request, Client(listener="KAFKA", address="127.0.0.1")))

    async def until(self, time_ms: int) -> None:
        self.groups.wait(max(0, time_ms - self.groups.now_ms))
        for _ in range(5):
            for key in self._pending.keys() & self.groups.answers.keys():
                self._pending.pop(key).set_result(None)  # type: ignore[call-overload]
            await asyncio.sleep(0)


def events(folder: Path, name: str) -> list[Row]:
    """What was asked and answered about groups, with the idle heartbeats that the recording leaves out."""
    with gzip.open(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
        found = [
            row
            for row in map(json.loads, lines)
            if row.get("api_key") in HANDLERS and row.get("event") is None and row["dir"] in "<>"
        ]
    last: dict[int, Row] = {}
    added = []
    for row in found:
        if row["dir"] == ">" and row["api_key"] == HEARTBEAT:
            before = last.get(row["conn"])
            if before is not None and before["frame"][16:] == row["frame"][16:]:
                for time_ms in range(before["t_ms"] + BEAT_MS, row["t_ms"], BEAT_MS):
                    added.append({**before, "t_ms": time_ms, "correlation_id": None})
            last[row["conn"]] = row
        elif row["dir"] == ">":
            last.pop(row["conn"], None)
    return sorted([*found, *added], key=lambda row: int(row["t_ms"]))


def decoded(row: Row) -> Any:
    data = base64.b64decode(row["frame"])
    if row["dir"] == ">":
        return codec.decode_request(data)
    return codec.decode_response(row["api_key"], row["api_version"], data).body


def in_any_order(value: Any) -> Any:
    """The order of topics, partitions and members is no promise."""
    if isinstance(value, dict):
        return {name: in_any_order(each) for name, each in value.items()}
    return sorted(map(in_any_order, value), key=repr) if isinstance(value, list) else value


def committed_partitions(rows: list[Row]) -> set[tuple[str, int]]:
    return {
        (topic.name, part.partition_index)
        for row in rows
        if row["dir"] == "<" and row["api_key"] == OFFSET_COMMIT
        for topic in decoded(row).topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("name", ["G-librdkafka", "H-python-clients"])
async def test_members_are_answered_as_kafka_answered_them(shared_data: Path, name: str) -> None:
    rows = events(shared_data, name)
    broker = RecordedBroker(committed_partitions(rows))
    names: dict[str, str] = {}
    waiting: dict[tuple[int, int | None], asyncio.Task[Any]] = {}
    compared: Counter[str] = Counter()
    for row in rows:
        await broker.until(row["t_ms"])
        place = row["conn"], row["correlation_id"]
        if row["dir"] == ">":
            request = decoded(row)
            request = msgspec.structs.replace(request, body=with_names(request.body, names))
            waiting[place] = broker.begun(request)
            await broker.until(row["t_ms"])
            continue
        task = waiting.pop(place, None)
        if task is None:
            continue
        for _ in range(PATIENCE_MS // 10):
            if task.done():
                break
            await broker.until(broker.groups.now_ms + 10)
        assert task.done(), (name, row["t_ms"], HANDLERS[row["api_key"]])
        chunks = codec.encode_response(row["api_key"], row["api_version"], 1, task.result())
        ours = codec.decode_response(row["api_key"], row["api_version"], b"".join(map(bytes, chunks))).body
        theirs = decoded(row)
        learn(theirs, ours, names)
        if row["api_key"] == LIST_GROUPS:
            continue  # which groups there are depends on what was asked of which broker
        label = name, row["t_ms"], HANDLERS[row["api_key"]]
        assert in_any_order(plain(with_names(theirs, names))) == in_any_order(plain(ours)), label
        compared[HANDLERS[row["api_key"]]] += 1
    for task in waiting.values():
        task.cancel()
    assert compared["join_group"] > 15 and compared["heartbeat"] > 20, compared
