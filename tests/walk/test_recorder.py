"""What the recorder notes, and what it leaves out."""

from __future__ import annotations

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.parsed import Batches
from tests.walk.document import line
from tests.walk.recorder import Entry, Recorder, Step, between, steps


def entry(name: str, caller: str = "") -> Entry:
    return Entry(f"{name}.py", f"{name}.run", caller and f"{caller}.py")


def test_files_are_noted_in_the_order_in_which_they_are_entered() -> None:
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=1, values=[b"x"])
    recorder = Recorder()
    recorder.install()
    try:
        recorder.start()
        Batches.parse(data)
        entries = recorder.stop()
        Batches.parse(data)
    finally:
        recorder.remove()
    files = list(dict.fromkeys(each.file for each in entries))
    assert files[:2] == ["storage/batches/parsed.py", "storage/batches/batch.py"]
    assert entries[0].function == "Batches.parse"
    assert len(recorder.entries) == len(entries), "what happens after `stop` is not noted"


def test_a_way_goes_from_its_door_to_its_answer() -> None:
    way = [entry("before"), entry("door"), entry("inside"), entry("answer"), entry("after")]
    assert between(way, "door.run", "answer.run") == way[1:4]
    with pytest.raises(ValueError, match="answer was not called"):
        between(way[:3], "door.run", "answer")
    with pytest.raises(ValueError, match="window was not called"):
        between(way, "window", "answer.run")


def test_helpers_and_chance_are_left_out() -> None:
    run = [
        entry("a"),
        entry("b", "a"),
        entry("clock", "b"),
        entry("c", "b"),
        entry("d", "c"),
        entry("b", "c"),
    ]
    other = [*run[:2], entry("tick"), entry("e", "tick"), *run[2:]]
    found = steps([other, run])
    assert [(step.file, step.entered) for step in found] == [("a.py", 1), ("b.py", 2), ("c.py", 1)]


def test_a_step_is_told_by_its_docstring_and_what_is_called() -> None:
    told = line(3, Step("storage/types.py", ("LogPosition.key", "f.<locals>.run", "g.<locals>.<lambda>"), 2))
    assert told.startswith("| 3 | `storage/types.py` | Value types that name places in a log")
    assert told.endswith("| `LogPosition.key`, `run` |")
