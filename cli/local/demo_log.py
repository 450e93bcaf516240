"""The end of the demo: what our log shows, and whether we read Kafka's log as Kafka does.

Owns the checks of files. Does not start or ask processes. The log that Apache Kafka wrote is in
`cli/kafka_log`, with the output of Kafka's dump tool for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import Layout
from metaquorum.cli.log import state as log_state
from metaquorum.cli.log import timeline as log_timeline
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.source import ReadBatch
from metaquorum.cli.log.state import Point
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.timeline.event import DETAIL
from metaquorum.metadata.text.dump import payload_json
from metaquorum.runtime.client.admin import TopicDescription

KAFKA_DATA = Path(__file__).resolve().parents[1] / "kafka_log"
KAFKA_SEGMENT = "00000000000000000000.log"
KAFKA_CHECKPOINT = "00000000000000000176-0000000001.checkpoint"
_PRINTED = re.compile(r"\| offset: (\d+) CreateTime: (\d+) .*? payload: (\{.*\})$")


def show_our_log(
    layout: Layout,
    expected: list[tuple[str, str]],
    topics: list[TopicDescription],
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
    told = [at for at in log_timeline.events(longest, problems.append) if at.severity != DETAIL]
    for event in told:
        click.echo("   " + log_timeline.event_text(event))
    if problems:
        raise Failure(problems[0])
    _check_order([(event.kind, event.entity) for event in told], expected)
    _check_same(paths, longest)
    found = log_state.load(longest, Point())
    if found.problems:
        raise Failure(found.problems[0])
    _check_image(found.image, topics, brokers)
    click.echo(
        f"   {len(paths)} controllers hold the same log; replayed to offset {found.end_offset}, it gives "
        "the topics and brokers that the active controller reported"
    )


def _check_order(told: list[tuple[str, str]], expected: list[tuple[str, str]]) -> None:
    """Raises Failure unless `expected` is in `told`, in order."""
    left = iter(told)
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
    image: MetadataImage, topics: list[TopicDescription], brokers: list[BrokerRegistration]
) -> None:
    # A consumer's request for its group may create __consumer_offsets at any time.
    names = {topic.info.name for topic in topics if not topic.info.name.startswith("__")}
    replayed = {topic.name for topic in image.topics.all() if not topic.name.startswith("__")}
    if replayed != names:
        raise Failure(
            f"the replayed log has the topics {sorted(replayed)}, the controller reported {sorted(names)}"
        )
    for topic in topics:
        ours = image.topics.partitions_of(topic.info.topic_id)
        same = [(one.index, one.replicas) for one in ours] == [
            (one.index, one.replicas) for one in topic.partitions
        ]
        if not same:
            raise Failure(
                f"the replayed log and the controller differ about the partitions of {topic.info.name}"
            )
    if {broker.broker_id: broker.epoch for broker in brokers} != {
        broker_id: image.brokers[broker_id].epoch for broker_id in image.brokers
    }:
        raise Failure("the replayed log and the controller differ about the registered brokers")


def show_kafkas_log() -> None:
    """Dumps and replays a log of Apache Kafka 3.7.0 and compares it with Kafka's dump. Raises Failure."""
    segment, checkpoint = KAFKA_DATA / KAFKA_SEGMENT, KAFKA_DATA / KAFKA_CHECKPOINT
    click.echo(f"\n== A log that Apache Kafka 3.7.0 wrote ({segment})")
    if not segment.is_file():
        raise Failure(f"{segment} is missing; reinstall metaquorum")
    compared = sum(_compare_with_dump(path) for path in (segment, checkpoint))
    click.echo(f"   {compared} records decoded; every field matches the output of Kafka's own dump tool")
    replayed = log_state.load(str(segment), Point(offset=176))
    snapshot = log_state.load(str(checkpoint), Point())
    for found in (replayed, snapshot):
        if found.problems:
            raise Failure(found.problems[0])
    if log_state.tree_of(replayed, secrets=True) != log_state.tree_of(snapshot, secrets=True):
        raise Failure("the replayed log and Kafka's snapshot at offset 176 differ")
    image = replayed.image
    click.echo(
        f"   replayed to offset 176, it gives exactly Kafka's snapshot: {len(image.brokers)} brokers, "
        f"{len(image.topics)} topics, {image.topics.partition_count} partitions"
    )
    problems: list[str] = []
    told = [at for at in log_timeline.events(str(segment), problems.append) if at.severity != DETAIL]
    for event in told[-6:]:
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
