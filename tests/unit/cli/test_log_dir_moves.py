"""`log-dirs move` against a broker in memory over a real socket, which moves as the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.admin import log_dirs
from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.unit.cli.test_log_dirs import Directory, Partition, Topic, served
from tests.unit.kafka.kafka_node import FakeNode

A, B = "/d/a", "/d/b"
NOT_HELD = "broker 0 holds no replica of {} in a directory that is online; see: metaquorum topics describe "


@dataclass
class Replica:
    at: str = A
    future: str | None = None
    lag: int = 0
    error: ErrorCode = ErrorCode.NONE


class Broker(FakeNode):
    """Topic `t`, with two replicas in A. `passes` is called with each description but the first."""

    def __init__(self) -> None:
        super().__init__({"DescribeLogDirs": self.describe, "AlterReplicaLogDirs": self.alter})
        self.replicas = {0: Replica(), 1: Replica()}
        self.lost: dict[str, str] = {}
        self.wanted: list[tuple[str, tuple[int, ...]]] = []
        self.described = 0
        self.passes: Callable[[int], None] = lambda at: None

    def alter(self, body: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        ((path, topics),) = [(each.path, each.topics) for each in body.dirs]
        (topic,) = topics
        self.wanted.append((path, topic.partitions))
        parts = []
        for index in topic.partitions:
            each = self.replicas[index]
            if not each.error:
                each.future = None if path == each.at else path
            parts.append(
                AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                    partition_index=index, error_code=each.error
                )
            )
        result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
            topic_name=topic.name, partitions=tuple(parts)
        )
        return AlterReplicaLogDirsResponse(results=(result,))

    def describe(self, body: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        if self.described:
            self.passes(self.described)
        self.described += 1
        (topic,) = body.topics or ()
        return DescribeLogDirsResponse(results=tuple(self._directory(path, topic) for path in (A, B)))

    def _directory(self, path: str, topic: DescribeLogDirsRequest.DescribableLogDirTopic) -> Directory:
        parts = [
            Partition(partition_index=index, partition_size=300, offset_lag=each.lag, is_future_key=future)
            for index, each in self.replicas.items()
            for future, at in ((False, each.at), (True, each.future))
            if at == path and index in topic.partitions and topic.topic == "t"
        ]
        return Directory(
            log_dir=path,
            usable_bytes=400,
            topics=(Topic(name="t", partitions=tuple(parts)),),
            error_code=ErrorCode.KAFKA_STORAGE_ERROR if path in self.lost else 0,
            error_message=self.lost.get(path),
        )


@pytest.fixture(name="broker")
def fixture_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(log_dirs, "POLL_S", 0.01)
    broker, other = Broker(), Broker()
    with served(broker, other):
        yield broker
    assert other.wanted == [] and other.described == 0, "only the broker with the replicas is asked"


def move(broker: Broker, *words: str, to: str = B) -> Result:
    server = f"127.0.0.1:{broker.peers[1].port}"
    return CliRunner().invoke(main, ["log-dirs", "move", "-b", server, "--broker", "0", "--to", to, *words])


def test_replicas_begin_to_move_and_the_command_does_not_wait(broker: Broker) -> None:
    ended = move(broker, "t", "0", "1", "0", to="/d//b/")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == "t-0 is moving from /d/a to /d/b\nt-1 is moving from /d/a to /d/b\n"
    assert broker.wanted == [(B, (0, 1))] and broker.described == 1


def test_it_waits_until_the_last_one_has_arrived(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dirs, "PROGRESS_S", 0.0)

    def passes(count: int) -> None:
        broker.replicas[0].lag = 7
        if count == 3:
            broker.replicas[0] = Replica(B)
        if count == 2:
            broker.replicas[1] = Replica(B)

    broker.passes = passes
    ended = move(broker, "t", "0", "1", "--wait", "90")
    assert (ended.exit_code, ended.stdout) == (0, "t-0 is in /d/b\nt-1 is in /d/b\n")
    assert "t-0 is moving (its copy is 7 offsets behind)\n" in ended.stderr
    assert broker.described == 4 and len(broker.wanted) == 1


@pytest.mark.parametrize(
    ("lag", "behind"),
    [(9, " (its copy is 9 offsets behind)"), (0, " (its copy is 0 offsets behind)"), (-1, "")],
)
def test_a_wait_has_an_end_and_the_move_goes_on(broker: Broker, lag: int, behind: str) -> None:
    broker.replicas[1].lag = lag
    ended = move(broker, "t", "1", "--wait", "0.2")
    assert ended.exit_code == 1
    assert ended.stdout == f"t-1 is moving from /d/a to /d/b{behind}\n"
    assert broker.replicas[1].future == B


def test_a_move_that_ended_is_not_waited_for(broker: Broker) -> None:
    broker.passes = lambda count: setattr(broker.replicas[0], "future", None)
    ended = move(broker, "t", "0", "--wait", "90")
    text = "metaquorum: t-0: no longer moves to /d/b; see the log of broker 0\n"
    assert (ended.exit_code, ended.stderr, ended.stdout) == (1, text, "")


def test_a_broker_that_does_not_know_yet_may_still_move_it(broker: Broker) -> None:
    """It has begun again, or is cut off for a moment."""

    def passes(count: int) -> None:
        broker.replicas[0] = Replica("") if count < 3 else Replica(B)

    broker.passes = passes
    assert move(broker, "t", "0", "--wait", "90").stdout == "t-0 is in /d/b\n"


def test_a_dry_run_changes_nothing(broker: Broker) -> None:
    broker.replicas[1].at = B
    ended = move(broker, "t", "0", "1", "--dry-run")
    assert ended.exit_code == 0 and broker.wanted == []
    assert ended.stdout == (
        "t-0 would move from /d/a to /d/b (300 bytes, 400 usable there)\nt-1 stays in /d/b\n"
    )


def test_naming_where_it_is_ends_a_move(broker: Broker) -> None:
    broker.replicas[0].future = B
    ended = move(broker, "t", "0", "--wait", "90", to=A)
    assert (ended.exit_code, ended.stdout) == (0, "t-0 stays in /d/a, not moving to /d/b\n")
    assert broker.wanted == [(A, (0,))] and broker.replicas[0].future is None


def test_one_that_is_refused_holds_up_no_other(broker: Broker) -> None:
    broker.replicas[0].error = ErrorCode.KAFKA_STORAGE_ERROR
    ended = move(broker, "t", "0", "1")
    assert (ended.exit_code, ended.stdout) == (1, "t-1 is moving from /d/a to /d/b\n")
    assert ended.stderr == "metaquorum: t-0: broker 0 refused: KAFKA_STORAGE_ERROR\n"


def test_json_has_what_the_text_has(broker: Broker) -> None:
    broker.replicas[0].error = ErrorCode.KAFKA_STORAGE_ERROR
    ended = move(broker, "t", "0", "1", "--json")
    found = json.loads(ended.stdout)
    assert (ended.exit_code, ended.stderr, found["brokerId"], found["to"]) == (1, "", 0, B)
    refused, moving = found["replicas"]
    assert (refused["state"], refused["error"]) == ("refused", "KAFKA_STORAGE_ERROR")
    assert moving == {
        "topic": "t",
        "partition": 1,
        "from": A,
        "sizeBytes": 300,
        "state": "moving",
        "lag": None,
        "error": "NONE",
    }


@pytest.mark.parametrize(
    ("words", "to", "text"),
    [
        (("t", "0"), "/d/c", "broker 0 has no log directory /d/c; it has: /d/a, /d/b"),
        (
            ("t", "0", "2"),
            B,
            NOT_HELD.format("t-2") + "t",
        ),
        (
            ("u", "0"),
            B,
            NOT_HELD.format("u-0") + "u",
        ),
        (("t", "0", "--broker", "7"), B, "broker 7 is not live; see: metaquorum brokers list"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    broker: Broker, words: tuple[str, ...], to: str, text: str
) -> None:
    ended = move(broker, *words, to=to)
    assert (ended.exit_code, ended.stderr, ended.stdout) == (1, f"metaquorum: {text}\n", "")
    assert broker.wanted == []


def by_plan(broker: Broker, path: Path, *entries: dict[str, object], more: tuple[str, ...] = ()) -> Result:
    path.write_text(json.dumps({"version": 1, "partitions": list(entries)}))
    server = f"127.0.0.1:{broker.peers[1].port}"
    return CliRunner().invoke(main, ["log-dirs", "move", "-b", server, "--plan", str(path), *more])


def entry(index: int, *log_dirs: str) -> dict[str, object]:
    return {"topic": "t", "partition": index, "replicas": [1, 0], "log_dirs": list(log_dirs)}


def test_a_plan_of_kafkas_tool_says_what_moves_where(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    broker.replicas[1] = Replica(B)
    ended = by_plan(broker, path, entry(0, "any", "/d/b/"), entry(1, "any", A), more=("--dry-run",))
    assert ended.stdout.startswith("t-0 would move from /d/a to /d/b (300 bytes")
    assert "t-1 would move from /d/b to /d/a (300 bytes" in ended.stdout and broker.wanted == []

    def passes(count: int) -> None:
        if len(broker.wanted) == 2:
            broker.replicas = {0: Replica(B), 1: Replica(A)}

    broker.passes = passes
    words = ("--wait", "90", "--json")
    ended = by_plan(broker, path, entry(0, "any", "/d/b/"), entry(1, "any", A), more=words)
    told = [
        (each["to"], one["partition"], one["state"])
        for each in json.loads(ended.stdout)
        for one in each["replicas"]
    ]
    assert (ended.exit_code, told) == (0, [(B, 0, "moved"), (A, 1, "moved")])
    assert broker.wanted == [(B, (0,)), (A, (1,))]


def test_of_a_plan_that_cannot_be_nothing_moves(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = by_plan(broker, path, entry(0, "any", B), entry(1, "any", "/d/c"))
    text = "metaquorum: broker 0 has no log directory /d/c; it has: /d/a, /d/b\n"
    assert (ended.exit_code, ended.stderr) == (1, text)
    ended = by_plan(broker, path, entry(0, "any", "any"))
    assert ended.exit_code == 1 and "names no log directory" in ended.stderr
    assert ended.stderr.count("\n") == 1
    for words in (("t", "0"), ("--to", B), ("--broker", "0")):
        ended = by_plan(broker, path, entry(0, "any", B), more=words)
        assert ended.exit_code == 2 and "--plan names replicas and directories" in ended.stderr
    ended = CliRunner().invoke(main, ["log-dirs", "move", "-b", "127.0.0.1:1", "t"])
    assert ended.exit_code == 2 and "or --plan" in ended.stderr
    assert broker.wanted == []


def test_nothing_moves_to_a_directory_that_is_offline(broker: Broker) -> None:
    broker.lost[B] = "it gave EIO; replace the disk"
    ended = move(broker, "t", "0")
    text = "metaquorum: /d/b of broker 0 is offline: it gave EIO; replace the disk\n"
    assert (ended.exit_code, ended.stderr) == (1, text) and broker.wanted == []
