"""`metaquorum groups` and `transactions` on what Kafka 3.7's brokers answered to Kafka's own tools: the same
answers give what those tools printed, and the same requests."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    DescribeProducersResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetFetchResponse,
)
from metaquorum.wire.table import APIS
from tests.unit.kafka.kafka_node import FakeNode, running

pytestmark = pytest.mark.shared_data
NODES = ("broker-0", "broker-1", "broker-2")
TOOLS = ("kafka-consumer-groups", "kafka-transactions")


@dataclass
class Recorded:
    """One run of a tool: what it asked of which node, the answers, and what it printed."""

    exchanges: list[tuple[int, str, Any, Any]] = field(default_factory=list)
    printed: list[list[str]] = field(default_factory=list)

    def answers(self, api: str, node: int | None = None) -> list[Any]:
        return [a for at, name, _, a in self.exchanges if name == api and node in (None, at)]

    def requests(self, api: str) -> list[Any]:
        return [asked for _, name, asked, _ in self.exchanges if name == api]


@pytest.fixture(scope="module")
def runs(shared_data: Path) -> dict[str, Recorded]:
    """By the words of the command line."""
    with gzip.open(shared_data / "kafka-3.7-wire" / "E-admin-tools.jsonl.gz") as lines:
        rows = list(map(json.loads, lines))
    found: dict[str, Recorded] = {}
    now = Recorded()
    asked: dict[tuple[int, int], Any] = {}
    for row in rows:
        if row["dir"] == "mark" and row["text"].startswith("$ "):
            words = row["text"].split()
            now = Recorded()
            if words[1] in TOOLS:
                found[" ".join(words[4:])] = now
        elif row["dir"] == "mark" and row["text"].startswith("-> exit 0: "):
            printed = row["text"].removeprefix("-> exit 0: ")
            now.printed = [line.split() for line in printed.split(" | ") if line.strip()]
        elif row["dir"] in "<>" and row["link"] in NODES and row.get("event") is None:
            place = row["conn"], row["correlation_id"]
            data = base64.b64decode(row["frame"])
            if row["dir"] == ">" and str(row["client_id"]).startswith("admin"):
                asked[place] = codec.decode_request(data).body
            elif row["dir"] == "<" and place in asked:
                answer = codec.decode_response(row["api_key"], row["api_version"], data).body
                name = APIS[row["api_key"]].name
                now.exchanges.append((NODES.index(row["link"]), name, asked.pop(place), answer))
    return found


class RecordedNode(FakeNode):
    """One broker, as it was in a run."""

    def __init__(self, node: int, run: Recorded) -> None:
        self.node, self.run = node, run
        self.bodies: list[Any] = []
        names = {"Metadata", "FindCoordinator", "OffsetFetch", "DescribeGroups"} | {
            name for at, name, _, _ in run.exchanges if at == node
        }
        special = {
            "Metadata": self.metadata,
            "FindCoordinator": self.coordinator,
            "OffsetFetch": self.offsets,
            "ListOffsets": self.ends,
            "DescribeProducers": self.producers,
        }
        versions = {name: (0, max(APIS_OF[name].max_version, 0)) for name in names}
        super().__init__({name: special.get(name, self.next(name)) for name in names}, **versions)

    def next(self, name: str) -> Any:
        answers = iter(self.run.answers(name, self.node))

        def answer(body: Any) -> Any:
            self.bodies.append(body)
            return next(answers)

        return answer

    def metadata(self, body: Any) -> MetadataResponse:
        topics = {each.name: each for one in self.run.answers("Metadata") for each in one.topics}
        wanted = topics if body.topics is None else [each.name for each in body.topics]
        brokers = self.brokers(body)
        return MetadataResponse(
            brokers=brokers.brokers,
            controller_id=brokers.controller_id,
            topics=tuple(topics[name] for name in wanted),
        )

    def coordinator(self, body: Any) -> FindCoordinatorResponse:
        (found,) = self.run.answers("FindCoordinator")[0].coordinators
        Coordinator = FindCoordinatorResponse.Coordinator
        port = self.peers[found.node_id].port
        return FindCoordinatorResponse(
            coordinators=(Coordinator(key=found.key, node_id=found.node_id, host="127.0.0.1", port=port),)
        )

    def offsets(self, body: Any) -> OffsetFetchResponse:
        message = OffsetFetchResponse
        if not self.run.answers("OffsetFetch"):
            return message()  # Kafka's tool did not look
        (group,) = self.run.answers("OffsetFetch")[0].groups
        return message(
            topics=tuple(
                message.OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        message.OffsetFetchResponsePartition(
                            partition_index=each.partition_index,
                            committed_offset=each.committed_offset,
                            committed_leader_epoch=each.committed_leader_epoch,
                            metadata=each.metadata,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in group.topics
            )
        )

    def ends(self, body: Any) -> ListOffsetsResponse:
        """Of the partitions that are asked for, by time."""
        known = {}
        for at, name, asked, answer in self.run.exchanges:
            if name == "ListOffsets" and at == self.node:
                times = {(t.name, p.partition_index): p.timestamp for t in asked.topics for p in t.partitions}
                for topic in answer.topics:
                    for each in topic.partitions:
                        place = topic.name, each.partition_index
                        known[*place, times[place]] = each
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        known[topic.name, each.partition_index, each.timestamp] for each in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )

    def producers(self, body: Any) -> DescribeProducersResponse:
        known = {
            (topic.name, each.partition_index): each
            for answer in self.run.answers("DescribeProducers", self.node)
            for topic in answer.topics
            for each in topic.partitions
        }
        return DescribeProducersResponse(
            topics=tuple(
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=tuple(known[topic.name, index] for index in topic.partition_indexes),
                )
                for topic in body.topics
            )
        )


APIS_OF = {api.name: api for api in APIS.values()}


async def ours(run: Recorded, *words: str) -> tuple[Result, list[RecordedNode]]:
    nodes = [RecordedNode(at, run) for at in range(len(NODES))]
    async with running(*nodes) as servers:
        command = [*words, "--bootstrap", servers, "--timeout", "60"]
        result = await asyncio.to_thread(lambda: CliRunner().invoke(main, command))
    return result, nodes


async def shown(run: Recorded, *words: str) -> Any:
    result, _ = await ours(run, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_groups_are_listed(runs: dict[str, Recorded]) -> None:
    run = runs["--list --state"]
    found = await shown(run, "groups", "list")
    assert sorted([each["groupId"], each["state"]] for each in found) == sorted(run.printed[1:])
    assert {each["coordinator"] for each in found} == {1, 2}
    assert await shown(run, "groups", "list", "--state", "Stable") == []


async def test_a_group_is_described(runs: dict[str, Recorded]) -> None:
    run = runs["--describe --group e-group"]
    (found,) = await shown(run, "groups", "describe", "e-group")
    assert (found["state"], found["type"], found["members"]) == ("Empty", "classic", [])
    names = "topic", "partition", "committedOffset", "endOffset", "lag"
    rows = [["e-group", *(str(each[name]) for name in names), "-", "-", "-"] for each in found["partitions"]]
    assert rows == run.printed[2:]
    result, _ = await ours(run, "groups", "describe", "e-group")
    heading, columns, *lines = result.stdout.splitlines()
    assert heading == "group e-group: Empty, no members (classic)"
    assert columns.split() == "TOPIC PARTITION COMMITTED END LAG MEMBER CLIENT HOST".split()
    assert [line.split() for line in lines] == [row[1:] for row in run.printed[2:]]


async def test_offsets_are_reset_as_kafkas_tool_does(runs: dict[str, Recorded]) -> None:
    run = runs["--reset-offsets --group e-group --topic e1 --to-earliest --execute"]
    result, nodes = await ours(
        run, "groups", "reset", "e-group", "--topic", "e1", "--to-earliest", "--execute", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["executed"] is True
    assert sorted(printed_offsets(found)) == sorted(run.printed[1:])
    (theirs,) = run.requests("OffsetCommit")
    (mine,) = [body for node in nodes for body in node.bodies if type(body) is type(theirs)]
    assert in_order(mine) == in_order(theirs)
    run = runs["--reset-offsets --group e-group --topic e1:0 --shift-by 1 --dry-run"]
    found = await shown(run, "groups", "reset", "e-group", "--topic", "e1:0", "--shift-by", "1")
    assert found["executed"] is False
    assert printed_offsets(found) == run.printed[-1:]


def printed_offsets(found: Any) -> list[list[str]]:
    return [
        [found["groupId"], each["topic"], str(each["partition"]), str(each["newOffset"])]
        for each in found["offsets"]
    ]


def in_order(commit: Any) -> list[tuple[Any, ...]]:
    rows = [
        (*group_of(commit), topic.name, each.partition_index, each.committed_offset, each.committed_metadata)
        for topic in commit.topics
        for each in topic.partitions
    ]
    return sorted(rows)


def group_of(commit: Any) -> tuple[Any, ...]:
    return (
        *(commit.group_id, commit.generation_id_or_member_epoch, commit.member_id),
        commit.group_instance_id or "",
    )


async def test_offsets_and_groups_are_deleted(runs: dict[str, Recorded]) -> None:
    run = runs["--delete-offsets --group e-group --topic e1"]
    found = await shown(run, "groups", "delete", "e-group", "--offsets", "--topic", "e1")
    assert [[each["topic"], str(each["partition"]), "Successful"] for each in found] == run.printed[2:]
    assert {each["error"] for each in found} == {"NONE"}
    result, _ = await ours(runs["--delete --group e-group"], "groups", "delete", "e-group")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "metaquorum: GROUP_ID_NOT_FOUND: group e-group: the group does not exist; see: metaquorum groups "
        "list\n"
    )


async def test_transactions_are_listed_and_described(runs: dict[str, Recorded]) -> None:
    run = runs["list"]
    found = await shown(run, "transactions", "list")
    names = "transactionalId", "coordinator", "producerId", "state"
    assert sorted([str(each[name]) for name in names] for each in found) == sorted(run.printed[1:])
    run = runs["describe --transactional-id rd-tx-1"]
    (one,) = await shown(run, "transactions", "describe", "rd-tx-1")
    names = "transactionalId", "producerId", "producerEpoch", "state", "timeoutMs", "startTimeMs"
    assert [str(one[name]) for name in names] == run.printed[1][1:7]
    assert (one["partitions"], one["durationMs"]) == ([], None)


async def test_producers_are_described_and_none_hangs(runs: dict[str, Recorded]) -> None:
    run = runs["describe-producers --topic rd-txn --partition 0"]
    found = await shown(run, "transactions", "describe-producers", "--topic", "rd-txn", "--partition", "0")
    names = "producerId", "producerEpoch", "coordinatorEpoch", "lastSequence", "lastTimestampMs"
    rows = [[str(each[name]) for name in names] for each in found]
    assert rows == [row[:5] for row in run.printed[1:]]
    assert {each["currentTransactionStartOffset"] for each in found} == {None}
    result, nodes = await ours(
        runs["find-hanging --broker-id 0"], "transactions", "find-hanging", "--broker", "0"
    )
    assert (result.exit_code, result.output.count("\n")) == (0, 1), result.output
    assert result.stdout.startswith("no transaction hangs in ")
    assert [node.asked.count("DescribeProducers") for node in nodes] == [1, 0, 0]
