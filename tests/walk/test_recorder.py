"""What the recorder records, and what it leaves out."""

from __future__ import annotations

import pytest

from metaquorum.storage.batches.batch import Batches, encode_batch
from tests.walk.__main__ import called
from tests.walk.recorder import Entry, Recorder, Step, along, passed


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
    files = list(dict.fromkeys(entry.file for entry in entries))
    assert files[:2] == ["storage/batches/batch.py", "storage/batches/format.py"]
    assert entries[0].function == "Batches.parse"
    assert len(recorder.entries) == len(entries), "what happens after `stop` is not noted"


def mark(name: str, *callers: str) -> Entry:
    files = (*(f"{caller}.py" for caller in callers), f"{name}.py")
    return Entry(files[-1], f"{name}.run", files[-2] if callers else "", files)


def test_a_mark_has_the_files_of_its_callers() -> None:
    recorder = Recorder(marks=frozenset({"walk_headers"}))
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=1, values=[b"x"])
    recorder.install()
    try:
        recorder.start()
        Batches.parse(data)
        entries = recorder.stop()
    finally:
        recorder.remove()
    stacks = {entry.function: entry.stack for entry in entries}
    assert stacks["Batches.parse"] == ()
    assert stacks["walk_headers"] == ("storage/batches/batch.py", "storage/batches/format.py")


def test_a_way_goes_from_its_first_mark_to_its_last() -> None:
    calls = [entry("before"), entry("door"), entry("inside"), entry("answer"), entry("after")]
    assert along(calls, ["door.run", "answer.run"]) == calls[1:4]
    with pytest.raises(ValueError, match=r"answer\.run was not called"):
        along(calls[:3], ["door.run", "answer.run"])
    with pytest.raises(ValueError, match=r"door\.run was not called, or not behind"):
        along(calls, ["answer.run", "door.run"])


def test_the_way_leads_to_the_marks_and_the_rest_is_asked() -> None:
    run = [
        mark("door"),
        entry("loop", "door"),
        entry("rule", "loop"),
        entry("value", "rule"),
        mark("write", "loop", "core", "loop"),
        entry("lines", "loop"),
        mark("answer", "loop"),
    ]
    run.insert(4, entry("core", "loop"))
    run.insert(5, entry("loop", "core"))
    other = [*run[:2], entry("chance", "loop"), entry("value", "chance"), *run[2:]]
    found = passed([other, run], ["door.run", "write.run", "answer.run"])
    assert [step.file for step in found.way] == ["door.py", "loop.py", "core.py", "write.py", "answer.py"]
    assert found.again == ("loop.py",), "the core calls the loop that called it"
    assert found.asked == ("rule.py",), "values, helpers and what happened beside one run are left out"


def test_a_file_is_printed_with_the_functions_that_a_reader_can_search_for() -> None:
    step = Step("storage/types.py", ("LogPosition.key", "LogPosition.__lt__", "f.<locals>.run", "<lambda>"))
    assert called(step) == ["LogPosition.key", "run"]
