"""The checks of the demo: every message is accounted for, and logs show what happened, ours and Kafka's.

The log that Apache Kafka wrote is in `cli/kafka_log`, with the output of Kafka's dump tool for it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import Layout
from metaquorum.cli.log import timeline as log_timeline
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.source import ReadBatch
from metaquorum.clients.admin.topics import DescribedTopic
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.causes.rule import DETAIL
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.states import FoundState, state_at
from metaquorum.metadata.text.dump import payload_json
from metaquorum.metadata.text.tree import image_tree
from metaquorum.storage.uuids import ZERO_UUID

KAFKA_DATA = Path(__file__).resolve().parents[1] / "kafka_log"
KAFKA_SEGMENT = "00000000000000000000.log"
KAFKA_CHECKPOINT = "00000000000000000176-0000000001.checkpoint"
_PRINTED = re.compile(r"\| offset: (\d+) CreateTime: (\d+) .*? payload: (\{.*\})$")


def load(path: str, point: Point = END) -> FoundState:
    """The state at `point` of a log, segment or checkpoint. Raises what `open_log` raises."""
    log = log_source.open_path(path)
    try:
        return state_at(log, point)
    finally:
        if isinstance(log.on_read, log_source.ReadProgress):
            log.on_read.clear()


def show_our_log(
    layout: Layout,
    expected: list[tuple[str, str]],
    topics: list[DescribedTopic],
    brokers: list[BrokerRegistration],
) -> None:
    """Prints the timeline of the log and checks it. Raises Failure.

    The steps must be in it in order, all controllers must have the same log, and its replay must give what
    the active controller answered last.
    """
    paths = [str(layout.metadata_log(node)) for node in layout.controllers]
    longest = max(paths, key=lambda path: sum(len(data) for data in _segments(path)))
    click.echo(f"\n== What the log of the quorum says ({longest})")
    problems: list[str] = []
    events = [at for at in log_timeline.events(longest, problems.append) if at.severity != DETAIL]
    for event in events:
        click.echo("   " + log_timeline.event_text(event))
    if problems:
        raise Failure(problems[0])
    _check_order([(event.kind, event.entity) for event in events], expected)
    _check_same(paths, longest)
    state = load(longest)
    if state.problems:
        raise Failure(state.problems[0])
    _check_image(state.image, topics, brokers)
    click.echo(
        f"   {len(paths)} controllers hold the same log; replayed to offset {state.end_offset}, it gives "
        "the topics and brokers that the cluster reported"
    )


def _check_order(events: list[tuple[str, str]], expected: list[tuple[str, str]]) -> None:
    """Raises Failure unless `expected` is in `events`, in order."""
    left = iter(events)
    for step in expected:
        if step not in left:
            raise Failure(f"the log does not show {step[0]} {step[1]} at the expected place")


def _segments(path: str) -> list[bytes]:
    return [segment.read_bytes() for segment in sorted(Path(path).glob("*.log"))]


def _check_same(paths: list[str], longest: str) -> None:
    whole = b"".join(_segments(longest))
    for path in paths:
        own = b"".join(_segments(path))
        if not own or not whole.startswith(own):
            raise Failure(f"the log in {path} is not the beginning of the one in {longest}")


def _check_image(
    image: MetadataImage, topics: list[DescribedTopic], brokers: list[BrokerRegistration]
) -> None:
    # A consumer's request for its group may create __consumer_offsets at any time.
    names = {topic.name for topic in topics if not topic.name.startswith("__")}
    replayed = {topic.name for topic in image.topics.all() if not topic.name.startswith("__")}
    if replayed != names:
        raise Failure(
            f"the replayed log has the topics {sorted(replayed)}, the cluster reported {sorted(names)}"
        )
    for topic in topics:
        ours = image.topics.partitions_of(topic.topic_id or ZERO_UUID)
        same = [(one.index, one.replicas) for one in ours] == [
            (one.index, one.replicas) for one in topic.partitions
        ]
        if not same:
            raise Failure(f"the replayed log and the cluster differ about the partitions of {topic.name}")
    if {broker.broker_id: broker.epoch for broker in brokers} != {
        broker_id: image.brokers[broker_id].epoch for broker_id in image.brokers
    }:
        raise Failure("the replayed log and the cluster differ about the registered brokers")


def show_kafkas_log() -> None:
    """Dumps and replays a log of Apache Kafka 3.7.0 and compares it with Kafka's dump. Raises Failure."""
    segment, checkpoint = KAFKA_DATA / KAFKA_SEGMENT, KAFKA_DATA / KAFKA_CHECKPOINT
    click.echo(f"\n== A log that Apache Kafka 3.7.0 wrote ({segment})")
    if not segment.is_file():
        raise Failure(f"{segment} is missing; reinstall metaquorum")
    compared = sum(_compare_with_dump(path) for path in (segment, checkpoint))
    click.echo(f"   {compared} records decoded; every field matches the output of Kafka's own dump tool")
    replayed = load(str(segment), Point(offset=176))
    snapshot = load(str(checkpoint))
    for found in (replayed, snapshot):
        if found.problems:
            raise Failure(found.problems[0])
    if image_tree(replayed.image, secrets=True) != image_tree(snapshot.image, secrets=True):
        raise Failure("the replayed log and Kafka's snapshot at offset 176 differ")
    image = replayed.image
    click.echo(
        f"   replayed to offset 176, it gives exactly Kafka's snapshot: {len(image.brokers)} brokers, "
        f"{len(image.topics)} topics, {image.topics.partition_count} partitions"
    )
    problems: list[str] = []
    events = [at for at in log_timeline.events(str(segment), problems.append) if at.severity != DETAIL]
    for event in events[-6:]:
        click.echo("   " + log_timeline.event_text(event))


def _compare_with_dump(path: Path) -> int:
    """The number of payloads, which all agree with `<path>.dump.txt`. Raises Failure for one that differs."""
    printed = {}
    for line in Path(f"{path}.dump.txt").read_text().splitlines():
        match = _PRINTED.match(line)
        if match is not None:
            printed[int(match[1])] = (int(match[2]), json.loads(match[3]))
    compared = 0
    for item in log_source.items(str(path)):
        if not isinstance(item, ReadBatch):
            raise Failure(log_source.damage_line(item))
        if item.batch.header.is_control:
            continue
        for decoded in item.records:
            ours = (decoded.timestamp_ms, payload_json(decoded.record, decoded.version, secrets=True))
            if printed.get(decoded.offset) != ours:
                raise Failure(
                    f"{path}, offset {decoded.offset}: Kafka printed {printed.get(decoded.offset)}, we {ours}"
                )
            compared += 1
    if compared != len(printed) or not compared:
        raise Failure(f"{path}: Kafka printed {len(printed)} payloads, {compared} were read")
    return compared


KEYS = 24
ROUND_S = 0.05
"""Interval between two messages of a key, in seconds."""

END_WAIT_S = 5.0


@dataclass(slots=True)
class TrafficTotals:
    """Messages so far, by key. `written`: to the producer. `read`: by the consumer. `acknowledged`: the
    total, once the producer has ended. `longest_s`: the longest time from writing a message to reading it."""

    written: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    longest_s: float = 0.0

    @property
    def written_total(self) -> int:
        return sum(self.written.values())

    @property
    def read_total(self) -> int:
        return sum(self.read.values())


class Traffic:
    """Writes to `topic` and reads it, from `start` to `finish`. `directory`: for the processes' errors."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._account = TrafficTotals()
        self._written_s: dict[tuple[str, int], float] = {}
        self._stop = threading.Event()
        self._problem: str | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._begin("produce", "--key-separator", "\t", "--linger-ms", "2", "--json", "--no-progress")
        self._begin("consume", "--from", "earliest", "--follow", "--key", "--no-progress")
        for work in (self._write, self._read):
            thread = threading.Thread(target=work, name=f"traffic-{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def passed(self) -> int:
        """The number of messages that were read. Raises Failure if something is already wrong."""
        self._check()
        return self._account.read_total

    def finish(self, timeout_s: float) -> TrafficTotals:
        """Stops writing, then waits until the producer has ended and the consumer has read everything. Raises
        Failure for a message that failed, is missing, repeated or out of order."""
        self._stop.set()
        producer = self._processes["produce"]
        account = self._account
        deadline = time.monotonic() + timeout_s
        try:
            summary: dict[str, Any] = msgspec.json.decode(self._last_output(producer, timeout_s))
            account.acknowledged = int(summary["messages"])
            while account.read != account.written and time.monotonic() < deadline:
                self._check()
                time.sleep(0.05)
        finally:
            self.abandon()
        self._check()
        written, read = account.written_total, account.read_total
        if producer.returncode != 0 or account.acknowledged != written or account.read != account.written:
            raise Failure(
                f"{written} messages were written, {account.acknowledged} acknowledged and {read} read"
                f" (the producer's exit code: {producer.returncode}): {_difference(account)}"
            )
        return account

    def abandon(self) -> None:
        """Ends the two processes and drops messages in flight."""
        self._stop.set()
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(END_WAIT_S)

    def _begin(self, command: str, *options: str) -> None:
        writes = command == "produce"
        with (self._directory / f"{command}.log").open("wb") as log:
            self._processes[command] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "metaquorum.cli",
                    command,
                    self._topic,
                    "--bootstrap",
                    self._bootstrap,
                    *options,
                ],
                stdin=subprocess.PIPE if writes else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,  # a folder named cli in the current directory is not ours
                start_new_session=True,  # Ctrl-C reaches the demo, which ends them
            )

    def _check(self) -> None:
        if self._problem is not None:
            raise Failure(self._problem)
        for command, process in self._processes.items():
            if process.poll() is not None and not self._stop.is_set():
                said = (self._directory / f"{command}.log").read_text().strip().splitlines()
                last = said[-1] if said else "it printed nothing"
                raise Failure(f"metaquorum {command} exited with code {process.returncode}: {last}")

    @staticmethod
    def _last_output(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        """What the process prints before it ends by itself. Raises Failure if it does not end."""
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failure(
                f"the producer is still waiting for acknowledgements after {timeout_s:.0f} s"
            ) from None
        return b"" if process.stdout is None else process.stdout.read()

    # --- the threads

    def _write(self) -> None:
        pipe = self._processes["produce"].stdin
        if pipe is None:
            return
        written = self._account.written
        try:
            with pipe:
                while not self._stop.wait(ROUND_S):
                    now_s = time.monotonic()
                    lines = []
                    for at in range(KEYS):
                        key = f"k{at}"
                        number = written.get(key, 0)
                        lines.append(f"{key}\t{key}:{number}\n")
                        self._written_s[key, number] = now_s
                        written[key] = number + 1
                    pipe.write("".join(lines).encode())
                    pipe.flush()
        except BrokenPipeError:
            return  # the producer ended; `_check` reports how

    def _read(self) -> None:
        pipe = self._processes["consume"].stdout
        if pipe is None:
            return
        account = self._account
        for line in pipe:
            key, _, value = line.decode().rstrip("\n").partition("\t")
            expected = account.read.get(key, 0)
            if value != f"{key}:{expected}":
                self._problem = f"key {key}: expected message {expected}, got {value!r}"
                return
            waited_s = time.monotonic() - self._written_s.pop((key, expected))
            account.longest_s = max(account.longest_s, waited_s)
            account.read[key] = expected + 1


def _difference(account: TrafficTotals) -> str:
    keys: Mapping[str, int] = account.written
    apart = [key for key in keys if account.read.get(key, 0) != account.written[key]]
    if not apart:
        return "for every key, all written messages were read"
    key = apart[0]
    return f"key {key}: {account.written[key]} messages written, {account.read.get(key, 0)} read"
