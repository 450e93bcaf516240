"""Renders `docs/planted-bugs.md` from the table. A test compares the file with the result."""

from __future__ import annotations

from pathlib import Path

from tests.planted.bug import is_simulator
from tests.planted.bugs import BUGS

DOCUMENT = Path("docs/planted-bugs.md")

INTRODUCTION = """\
# Planted bugs

A planted bug is a deliberate mistake of a line or two that breaks a law: the program would lose data, elect
two leaders, or serve what it must not. `python -m tests.planted` copies the working tree, runs every command
of the table on the sound copy (all must pass), and plants one bug after the other: each command named for a
bug must fail.

```
python -m tests.planted                      # all {count}: {minutes} minutes on two busy cores
python -m tests.planted vote-not-written     # one by name
python -m tests.planted --list               # names, laws and their sources, and what catches each
```

The simulator alone catches {simulated}. The table is in `tests/planted/`.
"""

MINUTES = 26


def render() -> str:
    """The whole page."""
    simulated = [bug for bug in BUGS if any(map(is_simulator, bug.caught_by))]
    return INTRODUCTION.format(count=len(BUGS), simulated=len(simulated), minutes=MINUTES)
