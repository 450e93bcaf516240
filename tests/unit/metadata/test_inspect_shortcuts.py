"""Answers that do not depend on the way to them: over damage, from snapshots, by places of every form."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from metaquorum.cli.text.output import json_line
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.checks.check import check_log
from metaquorum.metadata.inspect.entities import targets
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.repair.log_copy import node_files
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.walk import rewrite
from metaquorum.metadata.inspect.walk.rewrite import regular, without_records
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.inspect.why import explain as explain_module
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.text.tree import image_json, image_tree, topics_json
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, parse_header, seal_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.segment import segment_name
from tests.conftest import shared_data_path
from tests.images import replay_all
from tests.unit.metadata.made_logs import (
    HOME,
    ORDERS,
    START_MS,
    STORY,
    Batch,
    add_snapshot,
    flip,
    make_node,
    memory_disk,
    strict,
)
from tests.unit.metadata.test_clock import AHEAD, SECONDS, node, with_stamp

LAST_MS = START_MS + 1000 * (len(STORY) - 1)
ENDS = [END, Point(offset=15), Point(time_ms=LAST_MS + 1)]
"""The end of the log of `STORY`, in every form that a place has."""


@pytest.mark.parametrize("start", ENDS)
def test_nothing_happens_from_the_end_on(start: Point) -> None:
    log = make_node(memory_disk()).log
    found = [one.kind for one in events(log, lambda line: None, start=start)]
    assert found == ([] if start.time_ms else ["still leaderless"])


@pytest.mark.parametrize("start", [Point(offset=14), Point(time_ms=LAST_MS)])
@pytest.mark.parametrize("end", ENDS)
def test_the_last_event_is_before_the_end(start: Point, end: Point) -> None:
    log = make_node(memory_disk()).log
    found = [(one.offset, one.kind) for one in events(log, lambda line: None, start=start, end=end)]
    assert found == [(14, "config changed"), (15, "still leaderless")]


@pytest.mark.parametrize("damaged", [None, 1, 5, 12])
@pytest.mark.parametrize("jump", [6, 7])
def test_a_clock_that_jumps_is_found_on_either_side_of_damage(
    tmp_path: Path, damaged: int | None, jump: int
) -> None:
    home = node(tmp_path / "node", with_stamp(jump, AHEAD))
    log = open_log(PosixDisk(), str(home))
    jumps = [one for one in check_log(log).findings if one.rule == "clock-does-not-jump"]
    assert [one.offset for one in jumps if one.offset == jump + 1] == [jump + 1]
    if damaged is not None:
        flip(node_files(log), damaged)
        again = open_log(PosixDisk(), str(home))
        assert [one for one in check_log(again).findings if one.rule == "clock-does-not-jump"] == jumps
    assert SECONDS[jump] == jump


MORE: list[Batch] = [(2, list(records)) for _, records in STORY[9:] for _ in range(3)]


@pytest.mark.parametrize("snapshots", [[], [13], [10, 13]])
def test_what_cannot_be_read_is_told_wherever_an_explanation_begins(snapshots: list[int]) -> None:
    made = make_node(memory_disk(), [*STORY, *MORE])
    for offset in snapshots:
        add_snapshot(made, offset)
    flip(made, 19)
    told: list[str] = []
    found = explain(
        made.log, parse_target("topic/orders/1.leader"), on_problem=told.append, past_corruption=True, last=1
    )
    assert (found.read_from is not None) == bool(snapshots)
    assert len(told) == 1
    assert "19" in told[0]


def test_of_many_names_the_closest_one_is_found_among_those_that_begin_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = replay_all(ReplayState(), strict(make_node(memory_disk()).log)[:6])
    names = {"topic/ordres", "topic/Orders", "topic/orders-by-country", "topic/xorders", "topic/os"}

    def suggested(name: str) -> str:
        image: MetadataImage = state.image
        return targets.suggestion(f"topic/{name}", image, names)

    for most in (100, 2):
        monkeypatch.setattr(targets, "MAX_COMPARED", most)
        assert suggested("orderz") == "; did you mean topic/orders?"
        assert suggested("ORDERS") in ("; did you mean topic/orders?", "; did you mean topic/Orders?")
        assert suggested("orders-by-countrz") == "; did you mean topic/orders-by-country?"
    assert suggested("yorders") == ""  # too many are compared only if they begin alike
    assert suggested("orders-by-cou") == ""  # and are about as long


@pytest.mark.parametrize(("count", "fits"), [(16 * 5, True), (16 * 5 + 1, False)])
def test_a_batch_that_cannot_be_split_is_replaced_up_to_a_size(
    count: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "FILL_RECORDS", 5)
    header = parse_header(encode_batch(base_offset=5, leader_epoch=1, timestamp_ms=1, values=[b"v"]))
    data = seal_batch(header._replace(records_count=count, last_offset_delta=count - 1), b"\xff" * 30)
    batch = RecordBatch(parse_header(data), data)
    ways: list[Callable[[], RecordBatch]] = [partial(regular, batch), partial(without_records, batch, [5])]
    for made in ways:
        if fits:
            found = made()
            assert (found.header.base_offset, found.header.next_offset) == (5, 5 + count)
            assert len(found.records()) == count
        else:
            with pytest.raises(BatchError, match="offset 5 claims"):
                made()


@pytest.mark.parametrize(("last", "is_told"), [(None, True), (1, False), (2, False), (3, True), (9, True)])
def test_what_a_trimmed_log_cannot_say_is_told_unless_the_links_asked_for_are_known(
    last: int | None, is_told: bool
) -> None:
    """The log begins at 3, the state is known from 10 on, where the first of the last two changes is."""
    fences: Batch = (1, [r.FenceBrokerRecord(1, 2)])
    unfences: Batch = (2, [r.UnfenceBrokerRecord(1, 2)])
    disk = memory_disk()
    made = make_node(disk, [*STORY[:6], fences, *STORY[7:], unfences], per_segment=3)
    add_snapshot(made, 10)
    disk.remove(join(made.log.directory, segment_name(0)))
    log = open_log(disk, HOME)
    assert log.start_offset == 3
    for read_all in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if read_all:  # as if no snapshot behind the first known state could serve
                patch.setattr(explain_module, "_is_enough", lambda chain, last: False)
            found = explain(log, parse_target("broker/1.fenced"), last=last)
        assert bool(found.limits.coverage) == is_told, (read_all, found.limits.coverage)


def test_a_cause_in_what_is_not_known_is_not_certain() -> None:
    """Why broker 2 left the ISR: whether it was there at all was said before the log begins."""
    made = r.PartitionRecord(0, ORDERS, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0)
    created: Batch = (1, [r.TopicRecord("orders", ORDERS), made])
    shrunk: Batch = (2, [r.PartitionChangeRecord(0, ORDERS, isr=(1,))])
    disk = memory_disk()
    node_made = make_node(disk, [*STORY[:4], created, shrunk], per_segment=3)
    for is_trimmed in (False, True):
        if is_trimmed:
            disk.remove(join(node_made.log.directory, segment_name(0)))
        found = explain(open_log(disk, HOME), parse_target("topic/orders/0.isr"))
        (cause,) = found.links[-1].causes
        unknown = "the earlier state of broker 2 is unknown" in cause.text
        assert (unknown, cause.certain) == (is_trimmed, not is_trimmed), cause


# The JSON of a state in pieces is that of the whole tree, byte for byte.


ROOT = shared_data_path()
LOGS = sorted({path.parent for path in ROOT.rglob("*.log")}) if ROOT else []


def image(partitions: int, *names: str) -> MetadataImage:
    engine = Replayer(ReplayState())
    listed: list[object] = [r.ConfigRecord(2, "a", "k", "v"), r.ProducerIdsRecord(1, 1, 1000)]
    for at, name in enumerate(names):
        topic_id = bytes([at]) * 16
        listed.append(r.TopicRecord(name, topic_id))
        nodes = tuple(range(3))
        listed += [
            r.PartitionRecord(index, topic_id, replicas=nodes, isr=nodes, leader=0)
            for index in range(partitions)
        ]
    engine.apply_records(base_offset=0, epoch=1, timestamp_ms=1, records=listed)
    return engine.state().image


@pytest.mark.parametrize(
    "one", [MetadataImage(), image(0, "empty"), image(2, "b", 'a"\u00e9\\'), image(5000, "long")]
)
def test_pieces_are_the_whole(one: MetadataImage) -> None:
    for secrets in (False, True):
        tree = image_tree(one, secrets=secrets)
        assert "".join(image_json(one, json_line, secrets=secrets)) == json_line(tree)
    assert "".join(topics_json(one, json_line)) == json_line(tree["topic"])


@pytest.mark.skipif(not LOGS, reason="recorded logs are absent")
@pytest.mark.parametrize("path", LOGS, ids=str)
def test_recorded_states_are_the_same(path: object) -> None:
    found = state_at(open_log(PosixDisk(), str(path)), past_corruption=True).image
    assert "".join(image_json(found, json_line, secrets=True)) == json_line(image_tree(found, secrets=True))


def test_memory_is_that_of_a_piece() -> None:
    one = image(20_000, "long")
    tracemalloc.start()
    try:
        size = sum(map(len, image_json(one, json_line)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 2_000_000
    assert peak < size
