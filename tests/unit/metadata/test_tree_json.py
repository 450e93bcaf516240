"""The JSON of a state in pieces is that of the whole tree, byte for byte."""

from __future__ import annotations

import tracemalloc

import pytest

from metaquorum.cli.text.output import json_line
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.text.tree import image_json, image_tree, topics_json
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import shared_data_path

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
