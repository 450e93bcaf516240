"""What a connection sends in one step: once, in order, when the step has ended."""

from __future__ import annotations

from metaquorum.listeners.answers import Chunks
from metaquorum.listeners.connection import GATHERED_MAX_BYTES, StepResponses
from metaquorum.node.scheduler import StepEnd


def sent() -> tuple[StepEnd, StepResponses, list[bytes]]:
    step_end, found = StepEnd(), []

    def send(chunks: Chunks) -> None:
        found.append(b"".join(map(bytes, chunks)))

    return step_end, StepResponses(step_end, send), found


def test_outside_a_step_everything_leaves_at_once() -> None:
    step_end, departing, found = sent()
    departing.put([b"a", b"b"])
    step_end.begin()
    step_end.flush()
    departing.put([b"c"])
    assert found == [b"ab", b"c"]


def test_in_a_step_all_leaves_with_one_send_when_it_ends() -> None:
    step_end, departing, found = sent()
    for text in (b"123", b"45"):
        step_end.begin()
        for byte in text:
            departing.put([bytes([byte])])
        assert b"".join(found) < text
        step_end.flush()
    assert found == [b"123", b"45"]


def test_a_large_answer_leaves_at_once_behind_what_came_before_it() -> None:
    step_end, departing, found = sent()
    step_end.begin()
    departing.put([b"a"])
    departing.put([large := bytes(GATHERED_MAX_BYTES + 1)])
    assert found == [b"a" + large]
    departing.put([b"b"])
    step_end.flush()
    assert found == [b"a" + large, b"b"]


def test_what_waits_can_leave_before_the_step_ends() -> None:
    step_end, departing, found = sent()
    step_end.begin()
    departing.put([b"a"])
    departing.flush()
    departing.flush()
    assert found == [b"a"]
    step_end.flush()
    assert found == [b"a"]
