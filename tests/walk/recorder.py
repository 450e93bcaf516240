"""Which files of the package are entered, in order, while something happens in this process.

A file is entered when one of its functions is called from another file. For the functions that mark where a
request must pass, the files of the callers are recorded too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parents[2] / "metaquorum"
_PREFIX = f"{PACKAGE}/"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file below the repository, the function that was called there, and the file of its caller. `stack`:
    for a mark, the files of all its callers and its own, outermost first, without calls inside a file."""

    file: str
    function: str
    caller: str
    stack: tuple[str, ...] = ()


def file_of(frame: FrameType | None) -> str:
    """The path below the repository; empty outside of the package."""
    name = "" if frame is None else frame.f_code.co_filename
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """The files of a call and its callers, outermost first."""
    files: list[str] = []
    while frame is not None:
        file = file_of(frame)
        if file and (not files or files[-1] != file):
            files.append(file)
        frame = frame.f_back
    return tuple(reversed(files))


@dataclass
class Recorder:
    """Records while `on`. Install it before the threads that it has to observe start. `marks`: the functions
    whose callers are recorded."""

    on: bool = False
    marks: frozenset[str] = frozenset()
    entries: list[Entry] = field(default_factory=list)

    def install(self) -> None:
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def remove(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def start(self) -> None:
        self.entries = []
        self.on = True

    def stop(self) -> list[Entry]:
        self.on = False
        return self.entries

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.on or event != "call":
            return
        file = file_of(frame)
        if file and "_pb2" not in file:
            function = frame.f_code.co_qualname
            stack = stack_of(frame) if function in self.marks else ()
            self.entries.append(Entry(file, function, file_of(frame.f_back), stack))


def along(entries: Sequence[Entry], marks: Sequence[str]) -> list[Entry]:
    """From the first call of the first mark to the first call of the last one after all others. Raises
    ValueError if a mark was not called after the one before it."""
    first = at = -1
    for mark in marks:
        at = next((place for place in range(at + 1, len(entries)) if entries[place].function == mark), -1)
        if at < 0:
            raise ValueError(f"{mark} was not called, or not behind the mark before it")
        first = at if first < 0 else first
    return list(entries[first : at + 1])


@dataclass(frozen=True, slots=True)
class Step:
    """One file that a request passed, and the functions through which it was entered."""

    file: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """`way`: the files that lead from the entry point to each mark, in order. `asked`: the files that they
    call on the way and that call others in turn. `again`: files of the way that one chain of calls enters
    twice."""

    way: tuple[Step, ...]
    asked: tuple[str, ...]
    again: tuple[str, ...]


def passed(runs: list[list[Entry]], marks: Sequence[str]) -> Passed:
    """What the run with the fewest files passed: in others, a second node may have reached a mark first.
    Leaves out concurrent calls that only some runs have, values, and helpers. `runs`: those of `along`."""
    common = set.intersection(*({entry.file for entry in run} for run in runs))
    shortest = min(runs, key=lambda run: len({file for stack in _stacks(run, marks) for file in stack}))
    stacks = list(_stacks(shortest, marks))
    way = dict.fromkeys(file for stack in stacks for file in stack)
    # A file that calls no other file is a value or a helper of the one before.
    common &= {entry.caller for run in runs for entry in run if entry.caller != entry.file}
    entered: dict[str, list[str]] = {}
    for entry in shortest:
        if entry.file != entry.caller:
            entered.setdefault(entry.file, []).append(entry.function)
    again = {file for stack in stacks for at, file in enumerate(stack) if file in stack[:at]}
    return Passed(
        way=tuple(Step(file, tuple(dict.fromkeys(entered.get(file, ())))) for file in way),
        asked=tuple(file for file in entered if file in common and file not in way),
        again=tuple(file for file in way if file in again),
    )


def _stacks(run: list[Entry], marks: Sequence[str]) -> Iterator[tuple[str, ...]]:
    rest = iter(run)
    for mark in marks:
        yield next(entry for entry in rest if entry.function == mark).stack
