"""docs/walkthrough.md: the files of each way and what they own, made from the code."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

from tests.walk.recorder import Step
from tests.walk.ways import Way

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = "docs/walkthrough.md"
SHOWN = 2
"""Functions that are named for a file."""
INTRODUCTION = """\
# Walkthrough: the files that a request passes

`make walk` prints these lists, and `make walk OPTIONS=--document` writes this page: a controller and brokers
run in one process, with real gRPC and real files, and a recorder notes every call from one file to another.

Each table leads from the entry point to the answer. Its files are the callers of the main steps, such as the
decision, the write to the file, the sync and the commit, in order; a file is described where it first
appears. `make walk` also lists the files that these ask, for example for deadlines and invariants, but not
values and helpers.
"""


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or path.stem
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".:") + "."


def line(number: int, step: Step, known: set[str]) -> str:
    """A row of the table. A file that is among the `known` is not described again."""
    plain = (name.rpartition("<locals>.")[2] for name in step.functions)
    names = [f"`{name}`" for name in dict.fromkeys(plain) if "<" not in name and "__" not in name]
    owns = "" if step.file in known else f" {first_sentence(REPOSITORY / step.file)}"
    known.add(step.file)
    return f"| {number} | `{step.file}` |{owns} | {', '.join(names[:SHOWN])} |"


def render(ways: list[Way]) -> str:
    parts = [INTRODUCTION]
    known: set[str] = set()
    for way in ways:
        lines = [line(number, step, known) for number, step in enumerate(way.passed.way, 1)]
        table = "\n".join(["| | file | what it owns | called here |", "|---|---|---|---|", *lines])
        parts.append(f"## {way.title}\n\n{table}\n")
        if way.passed.again:
            twice = ", ".join(f"`{file}`" for file in way.passed.again)
            told = f"One call chain enters {twice} twice."
            parts.append(textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False) + "\n")
    return "\n".join(parts)
