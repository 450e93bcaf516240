"""Renders `docs/planted-bugs.md` from the table. A test holds the file to what this makes."""

from __future__ import annotations

from pathlib import Path

from tests.planted.bug import Bug, is_simulator
from tests.planted.bugs import BUGS, SECTIONS

DOCUMENT = Path("docs/planted-bugs.md")

INTRODUCTION = """\
# Planted bugs

A test suite is only as good as the mistakes that it finds.
Each line below is a deliberate mistake of one line, in a place where a correct-looking program would lose
data, elect two leaders, or serve what it must not.
`python -m tests.planted` copies the working tree to a temporary directory, checks that the copy's packages
are the ones that get imported, runs every named command once on the sound copy (they must pass), and then
plants one bug after the other and runs the commands that must catch it.
Each named command has to fail by itself.
It exits with 0 when every bug is caught, and with 1 when one is not, when a bug's place in the code is not
found any more, or when a command fails without a bug.

```
python -m tests.planted                      # all {count}, one after another
python -m tests.planted vote-not-written     # one by name
python -m tests.planted --list               # names, and what catches each
python -m tests.planted --document           # writes this page
```

Commands are arguments of `pytest`, or `sim A..B`: the simulator, `python -m tests.sim --seeds`, over those
seeds until one fails. Where `sim` stands in a line, the simulator alone, without any other test, catches the
bug: that is so for {simulated} of the {count}.
The whole run takes about {minutes} minutes on two cores that are busy with other work, one process at a time.

`make test` checks the table itself: every old text stands exactly once in its file, what takes its place
compiles, and this page is current.
The table is in `tests/planted/table_raft.py`, `table_storage.py`, `table_nodes.py`,
`table_partitions.py`, `table_eligible.py` and `table_data.py`.
"""

MINUTES = 26


def render() -> str:
    """The whole page."""
    simulated = [bug for bug in BUGS if any(map(is_simulator, bug.caught_by))]
    parts = [
        INTRODUCTION.format(
            count=len(BUGS),
            simulated=len(simulated),
            minutes=MINUTES,
        )
    ]
    for title, bugs in SECTIONS:
        parts += [f"## {title}\n", _table(bugs)]
    return "\n".join(parts)


def _table(bugs: tuple[Bug, ...]) -> str:
    lines = ["| bug | the law that it breaks | source | file | caught by |", "|---|---|---|---|---|"]
    for bug in bugs:
        caught_by = ", ".join(f"`{command}`" for command in bug.caught_by)
        lines.append(f"| {bug.name} | {bug.breaks} | {bug.source} | `{bug.file}` | {caught_by} |")
    return "\n".join(lines) + "\n"
