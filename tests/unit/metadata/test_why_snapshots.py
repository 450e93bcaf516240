"""`why` begins at the newest snapshot that does, and answers as if it had read the whole log."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from metaquorum.cli.log.why import explanation_lines
from metaquorum.metadata.inspect.answers import explanation_json
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.log.log import InspectError, MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.why import explain as explain_module
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.explanation import Explanation
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.types import LogPosition
from tests.conftest import needs_shared_data, shared_data_path
from tests.images import replay_all
from tests.sums.survey import Survey, text_of
from tests.unit.metadata.made_logs import memory_disk, strict, write
from tests.unit.metadata.random_logs import random_node

ROOT = shared_data_path() or Path("absent")
RECORDED = ROOT / "kafka-3.7" / "controller-3000"
TARGETS = (
    *("topic/topic-1", "topic/topic-4/0.leader", "topic/topic-7/0", "topic/topic-9", "broker/1"),
    *("broker/2.fenced", "config/topic/topic-3", "quorum.leader", "topic/no-such-topic/0"),
)


def add_right_snapshots(log: MetadataLog, seed: int, count: int) -> None:
    """Right ones, none of them inside a transaction."""
    rng = random.Random(f"why {seed}")
    add_snapshots_behind(log, sorted(rng.sample(range(1, len(strict(log))), count)))


def add_snapshots_behind(log: MetadataLog, counts: Iterable[int]) -> None:
    """Right ones, each behind so many batches."""
    batches = strict(log)
    for upto in counts:
        state = replay_all(ReplayState(), batches[:upto], on_error=lambda error: None)
        header = batches[upto - 1].header
        position = LogPosition(header.leader_epoch, header.next_offset)
        if state.transaction is None:
            content = b"".join(snapshot_batches(state.image, position=position))
            write(log.disk, snapshot_path(log.directory, position), content)


def answer(
    log: MetadataLog,
    text: str,
    point: Point,
    last: int | None,
    patch: pytest.MonkeyPatch,
    *,
    whole: bool,
) -> Explanation | str:
    with patch.context() as patched:
        if whole:
            patched.setattr(log, "snapshots", list)
        try:
            found = explain(log, parse_target(text), point, last=last)
        except InspectError as error:
            return str(error)
    found.unknown = 0  # counted as far as the log was read
    if last is not None:
        newest = found.last
        found.dropped = 0
        assert newest is not None
        found.links = [*found.links[-last:], newest]
        found.read_from = None
    return found


@pytest.fixture
def enough(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What chains that began in the middle of a log said of themselves."""
    said: list[bool] = []
    own = explain_module._is_enough

    def asked(chain: Chain, last: int | None) -> bool:
        said.append(own(chain, last))
        return said[-1]

    monkeypatch.setattr(explain_module, "_is_enough", asked)
    return said


def assert_same(
    log: MetadataLog, targets: tuple[str, ...], points: list[Point], patch: pytest.MonkeyPatch
) -> None:
    for text in targets:
        for point in points:
            for last in (None, 2):
                expected = answer(log, text, point, last, patch, whole=True)
                assert answer(log, text, point, last, patch, whole=False) == expected, (text, point, last)


@pytest.mark.parametrize("seed", range(2))
def test_generated_logs_are_explained_alike(
    seed: int, monkeypatch: pytest.MonkeyPatch, enough: list[bool]
) -> None:
    node = random_node(memory_disk(), seed, wild=0.01, rounds=10, garbage=False)
    add_right_snapshots(node.log, seed, 5)
    end = node.log.end_offset
    points = [END, Point(offset=end * 2 // 3)]
    assert_same(node.log, TARGETS, points, monkeypatch)
    assert True in enough and False in enough


@pytest.mark.parametrize("name", ["losses", "oldest_of_several", "leaders"])
def test_stories_are_explained_alike_wherever_a_snapshot_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cause may be before the snapshot from which on the log is read."""
    Survey(text_of(name), tmp_path).write()
    log = open_log(PosixDisk(), str(tmp_path / "n"))
    named = {path for event in events(log, lambda line: None) for path in event.entities}
    targets = sorted(path for path in named if path.count("/") == 2 or path.startswith("broker/"))
    add_snapshots_behind(log, range(1, len(strict(log)), 2))
    log = open_log(PosixDisk(), str(tmp_path / "n"))
    assert len(log.snapshots()) > 5
    for text in targets[:6]:
        for field in (".leader", ".isr") if text.startswith("topic") else (".fenced",):
            for last in (1, 2):
                asked = log, text + field, END, last, monkeypatch
                assert answer(*asked, whole=False) == answer(*asked, whole=True), (text, field, last)


@needs_shared_data
def test_the_recorded_log_is_explained_alike(monkeypatch: pytest.MonkeyPatch, enough: list[bool]) -> None:
    log = open_log(PosixDisk(), str(RECORDED))
    targets = ("topic/t01/0", "topic/unclean/0.leader", "topic/t18/1.isr", "topic/t04/0.replicas")
    places = [END, Point(offset=1922)]
    assert log.snapshots()
    assert_same(log, (*targets, "broker/1", "broker/3.fenced", "config/topic/t01"), places, monkeypatch)
    assert enough.count(True) > 5


def test_what_was_not_read_is_said() -> None:
    node = random_node(memory_disk(), 1, wild=0.0, garbage=False)
    add_right_snapshots(node.log, 1, 5)
    found = explain(node.log, parse_target("topic/topic-1/0"), last=1)
    start = found.read_from
    assert start in [at.offset for at in node.log.snapshots()]
    assert all(link.offset >= start for link in found.links)
    [*_, told, _] = explanation_lines(found, found.links[-1:])
    assert told == f"earlier records are not shown: the log was read from offset {start} on"
    asked = explanation_json(found, found.links[-1:])
    assert (asked["earlierRecords"], asked["readFrom"]) == (None, start)
