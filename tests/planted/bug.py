"""What a planted bug is, and which commands may be named as catching it. Contains no bug itself."""

from __future__ import annotations

from dataclasses import dataclass

SIMULATOR = "sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One deliberate mistake: `old` occurs exactly once in `file`, and `new` replaces it.

    `breaks` is the law, `source` where the law comes from. Every entry of `caught_by` must fail by itself:
    arguments of pytest, or `sim A..B`, the simulator over those seeds (B exclusive) until one fails.
    """

    name: str
    breaks: str
    source: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]


def is_simulator(command: str) -> bool:
    return command.split(maxsplit=1)[0] == SIMULATOR


def seeds_of(command: str) -> range:
    """The seeds of `sim A..B`."""
    first, _, end = command.split()[1].partition("..")
    return range(int(first), int(end))


def apply(bug: Bug, text: str) -> str:
    """`text`, the content of the bug's file, with the bug in it. Raises ValueError unless `old` occurs
    once."""
    count = text.count(bug.old)
    if count != 1:
        raise ValueError(
            f"{bug.name}: the old text stands {count} times in {bug.file}, it must stand there once: "
            "adapt the entry to the code as it is now"
        )
    return text.replace(bug.old, bug.new)
