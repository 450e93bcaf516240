"""Settings go with their topic, and with no other one."""

from __future__ import annotations

import pytest

from metaquorum.metadata.records import types as r
from tests.unit.pipeline.intervals.telling import Line, batches, broker, leads, told

NAMES = ("a", "b", "c")
IDS = {name: name.encode() * 16 for name in NAMES}


@pytest.mark.parametrize("removed", NAMES)
def test_the_settings_of_a_topic_end_with_it_alone(removed: str) -> None:
    settings = [(2, name) for name in NAMES] + [(4, ""), (4, "1"), (32, "b"), (16, "c")]
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [broker(1, 1)]),
        (0, [r.TopicRecord(name, IDS[name]) for name in NAMES]),
        (10, [r.ConfigRecord(kind, name, "min.insync.replicas", "2") for kind, name in settings]),
        (20, [r.ConfigRecord(2, removed, "retention.ms", "5")]),
        (30, [r.RemoveTopicRecord(IDS[removed])]),
    ]
    rows = told(batches(lines), "configs")
    ended = [
        (row["resource_type"], row["resource"], row["name"]) for row in rows if row["to_offset"] is not None
    ]
    assert len(rows) == len(settings) + 1
    assert sorted(ended) == [("topic", removed, name) for name in ("min.insync.replicas", "retention.ms")]
