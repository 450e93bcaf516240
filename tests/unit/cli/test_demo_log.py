"""The demo's checks can fail: each kind of disagreement ends it with a line that says what."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import Layout, create
from metaquorum.cli.local import demo as demo_module
from metaquorum.cli.local import demo_checks
from metaquorum.cli.log.input.source import items
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic
from metaquorum.metadata.image.types import BrokerRegistration

STORY = [
    ("election", "controller/3000"),
    ("broker fenced", "broker/1"),
    ("broker registered", "broker/1"),
    ("broker unfenced", "broker/1"),
    ("broker in controlled shutdown", "broker/0"),
]
NAMES = [demo_checks.KAFKA_SEGMENT, demo_checks.KAFKA_CHECKPOINT]


@pytest.fixture
def kafka_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of Kafka's files that a test may hurt."""
    copy = tmp_path / "kafka"
    copy.mkdir()
    for name in NAMES:
        shutil.copy(demo_checks.KAFKA_DATA / name, copy / name)
        shutil.copy(demo_checks.KAFKA_DATA / f"{name}.dump.txt", copy / f"{name}.dump.txt")
    monkeypatch.setattr(demo_checks, "KAFKA_DATA", copy)
    return copy


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A cluster whose controllers all have the same log: the recorded one."""
    layout = create(tmp_path / "cluster", brokers=0)
    for node in layout.controllers:
        layout.metadata_log(node).mkdir()
        shutil.copy(demo_checks.KAFKA_DATA / demo_checks.KAFKA_SEGMENT, layout.metadata_log(node))
    return layout


def answered() -> tuple[list[DescribedTopic], list[BrokerRegistration]]:
    """What a controller with the recorded log would answer."""
    image = demo_checks.load(str(demo_checks.KAFKA_DATA / demo_checks.KAFKA_SEGMENT)).image
    topics = [
        DescribedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                DescribedPartition(
                    index=each.index,
                    leader=each.leader,
                    leader_epoch=each.leader_epoch,
                    replicas=each.replicas,
                    isr=each.isr,
                )
                for each in image.topics.partitions_of(topic.topic_id)
            ),
        )
        for topic in image.topics.all()
    ]
    return topics, image.brokers.values()


def test_kafkas_log_agrees(kafka_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo_checks.show_kafkas_log()
    assert "293 records decoded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "old", "new", "part"),
    [
        (NAMES[0], '"featureLevel":7}', '"featureLevel":8}', "offset 1: Kafka printed"),
        (NAMES[0], "| offset: 260 ", "| offset: 999 ", "offset 260: Kafka printed None"),
        (NAMES[1], '"rack":"rack-a"', '"rack":"rack-x"', "Kafka printed"),
    ],
)
def test_a_dump_that_differs(kafka_data: Path, name: str, old: str, new: str, part: str) -> None:
    path = kafka_data / f"{name}.dump.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(Failure, match=part):
        demo_checks.show_kafkas_log()


def test_a_payload_that_was_not_read(kafka_data: Path) -> None:
    path = kafka_data / f"{NAMES[0]}.dump.txt"
    last = path.read_text().splitlines()[-1].replace("offset: 260", "offset: 261")
    path.write_text(path.read_text() + last + "\n")
    with pytest.raises(Failure, match="Kafka printed 261 payloads, 260 were read"):
        demo_checks.show_kafkas_log()


def test_damage_in_kafkas_log(kafka_data: Path) -> None:
    data = bytearray((kafka_data / NAMES[0]).read_bytes())
    data[5000] ^= 1
    (kafka_data / NAMES[0]).write_bytes(data)
    with pytest.raises(Failure, match="at byte"):
        demo_checks.show_kafkas_log()


def test_kafkas_log_is_absent(kafka_data: Path) -> None:
    (kafka_data / NAMES[0]).unlink()
    with pytest.raises(Failure, match="is missing; reinstall metaquorum"):
        demo_checks.show_kafkas_log()


def test_our_log_tells_the_story(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    demo_checks.show_our_log(layout, STORY, *answered())
    printed = capsys.readouterr().out
    assert "broker fenced                broker 1 (was unfenced)" in printed
    assert "3 controllers hold the same log; replayed to offset 261" in printed


@pytest.mark.parametrize(
    "story",
    [
        [*STORY, ("election", "controller/3001")],
        [("broker fenced", "broker/1")] * 3,
        [("topic deleted", "topic/u33")],
    ],
    ids=["not there", "not so often", "never happened"],
)
def test_a_step_that_did_not_happen(layout: Layout, story: list[tuple[str, str]]) -> None:
    with pytest.raises(Failure, match="the log does not show"):
        demo_checks.show_our_log(layout, story, *answered())


def test_controllers_that_disagree(layout: Layout) -> None:
    path = layout.metadata_log(layout.controllers[1]) / demo_checks.KAFKA_SEGMENT
    first = next(iter(items(str(path))))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data[: 2 * 91])
    assert first
    with pytest.raises(Failure, match="is not the beginning of the one in"):
        demo_checks.show_our_log(layout, STORY, *answered())


def test_an_empty_log_is_no_agreement(layout: Layout) -> None:
    (layout.metadata_log(layout.controllers[1]) / demo_checks.KAFKA_SEGMENT).write_bytes(b"")
    with pytest.raises(Failure, match="is not the beginning of the one in"):
        demo_checks.show_our_log(layout, STORY, *answered())


def test_an_answer_that_the_log_does_not_give(layout: Layout) -> None:
    topics, brokers = answered()
    with pytest.raises(Failure, match="has the topics"):
        demo_checks.show_our_log(layout, STORY, topics[1:], brokers)
    with pytest.raises(Failure, match="about the registered brokers"):
        demo_checks.show_our_log(layout, STORY, topics, brokers[1:])
    short = structs.replace(topics[0], partitions=topics[0].partitions[:-1])
    with pytest.raises(Failure, match="about the partitions of"):
        demo_checks.show_our_log(layout, STORY, [short, *topics[1:]], brokers)


# How the demo ends when it does not come to its end: what it says, and which files it leaves.


@pytest.mark.parametrize(
    ("error", "says", "stays"),
    [(BrokenPipeError(), "", False), (OSError(28, "no space"), "the demo failed", True)],
)
def test_a_reader_that_went_away_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str, stays: bool
) -> None:
    home = tmp_path / "demo"

    def ends(layout: object) -> None:
        raise error

    monkeypatch.setattr(demo_module, "LocalCluster", ends)
    done = CliRunner().invoke(demo_module.demo, ["--directory", str(home)])
    assert (done.exception, home.exists()) == (error, stays)
    assert done.stderr.startswith(says) and bool(done.stderr) == bool(says)
