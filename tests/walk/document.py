"""docs/walkthrough.md: the files of each way, with two sentences a file, made from the code."""

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

`make walk` prints these lists, and `make walk OPTIONS=--document` writes this page. A controller and brokers
run in one process, with real gRPC and real files, and every call from one file to another is noted.

A table has the files that lead from the door to the answer: for each place that the way must reach, such as
the decision, the write to the file, the sync and the commit, the files of all callers, in order. Each row has
the first sentence of the file's docstring and what is called there. `make walk` also lists the files that
these ask on the way, such as for deadlines and invariants; values and helpers are left out.
"""


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or path.stem
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".:") + "."


def line(number: int, step: Step) -> str:
    plain = (name.rpartition("<locals>.")[2] for name in step.functions)
    names = [f"`{name}`" for name in dict.fromkeys(plain) if "<" not in name]
    shown = ", ".join(names[:SHOWN]) or "its module code"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"| {number} | `{step.file}` | {first_sentence(REPOSITORY / step.file)} | {shown}{more} |"


def render(ways: list[Way]) -> str:
    parts = [INTRODUCTION]
    for way in ways:
        lines = [line(number, step) for number, step in enumerate(way.passed.way, 1)]
        table = "\n".join(["| | file | what it owns | called here |", "|---|---|---|---|", *lines])
        parts.append(f"## {way.title}\n\n{table}\n")
        if way.passed.again:
            twice = ", ".join(f"`{file}`" for file in way.passed.again)
            told = f"One chain of calls enters {twice} twice."
            parts.append(textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False) + "\n")
    return "\n".join(parts)
