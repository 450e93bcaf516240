"""Work that waits for the end of a step is done there, once."""

from __future__ import annotations

from metaquorum.node.scheduler import StepEnd


class Gathered:
    """Work that notes whether a step was still on when it was done."""

    def __init__(self, end: StepEnd) -> None:
        self.done: list[bool] = []
        self._end = end

    def flush(self) -> None:
        self.done.append(self._end.gathers)


def test_work_is_done_once_at_the_end_of_its_step() -> None:
    end = StepEnd()
    one, other = Gathered(end), Gathered(end)
    end.begin()
    assert end.gathers
    end.add(one)
    assert one.done == []
    end.flush()
    assert one.done == [False], "what it does is of no step"
    end.begin()
    end.add(other)
    end.flush()
    assert one.done == other.done == [False]


class Grows(Gathered):
    """Work that leaves some for the next step."""

    def flush(self) -> None:
        super().flush()
        self._end.add(self)


def test_work_that_is_added_by_other_work_waits_for_the_next_end() -> None:
    end = StepEnd()
    grows = Grows(end)
    end.add(grows)
    for steps in range(1, 4):
        end.begin()
        end.flush()
        assert len(grows.done) == steps
