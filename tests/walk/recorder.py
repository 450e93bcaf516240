"""Which files of the package are entered, in order, while something happens in this process.

Owns the hook and the list. A file is entered when one of its functions is called from another file.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parents[2] / "metaquorum"
_PREFIX = f"{PACKAGE}/"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file below the repository, the function that was called there, and the file of its caller."""

    file: str
    function: str
    caller: str


def file_of(frame: FrameType | None) -> str:
    """The path below the repository; empty outside of the package."""
    name = "" if frame is None else frame.f_code.co_filename
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


@dataclass
class Recorder:
    """Records while `on`. Install it before the threads begin that it is to see."""

    on: bool = False
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
            self.entries.append(Entry(file, frame.f_code.co_qualname, file_of(frame.f_back)))


def between(entries: Iterable[Entry], door: str, answer: str) -> list[Entry]:
    """From the first call of the function `door` to the first call of `answer` after it. Raises ValueError if
    one of them was not called."""
    found: list[Entry] = []
    inside = False
    for entry in entries:
        inside = inside or entry.function.endswith(door)
        if inside:
            found.append(entry)
            if entry.function.endswith(answer):
                return found
    raise ValueError(f"{answer if inside else door} was not called")


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a way, the functions through which it was entered, and how often."""

    file: str
    functions: tuple[str, ...]
    entered: int


def steps(runs: list[list[Entry]]) -> list[Step]:
    """The files that every run entered and left for another file, in the order of the last run. What happened
    to run beside one of them is left out, and so are values and helpers."""
    common = set.intersection(*({entry.file for entry in run} for run in runs))
    # A file that calls nothing further is a value or a helper of the one before.
    common &= {entry.caller for run in runs for entry in run if entry.caller != entry.file}
    found: dict[str, list[str]] = {}
    for entry in runs[-1]:
        if entry.file in common and entry.file != entry.caller:
            found.setdefault(entry.file, []).append(entry.function)
    return [Step(file, tuple(dict.fromkeys(names)), len(names)) for file, names in found.items()]
