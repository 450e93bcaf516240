"""docs/walkthrough.md: the files that each request passes and what they own, generated from the code."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from tests.walk.recorder import Passed, Step
from tests.walk.ways import Way

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = "docs/walkthrough.md"
AIM = 12
"""From door to answer no more files than this, and none entered twice."""
PASSES = " passes of the codec of Kafka's protocol, the client's included."
AGAIN = " (left and entered again)"
INTRODUCTION = """\
# Walkthrough: the files that a request passes

`make walk OPTIONS=--document` writes this page from running code and its docstrings; `make walk` also prints
functions, and the helpers that these files ask.

Each list leads from the entry point to the answer, along the callers of the main steps. A file is described
where it first appears. One controller and a few brokers run in one process here: no other voter takes part.
The files of `broker/` run in the broker, those of `controller/` in the controller, and shared ones in either.
"Left and entered again": one chain of calls enters the file twice. A pass of the codec is one encoding or
decoding of a message.
"""
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z`])")
_REQUIREMENTS = re.compile(r" \([SK]\d[^)]*\)")


def description(path: Path) -> str:
    """The first sentence of a module's docstring, without ids of requirements."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or f"{path.stem}.").split())
    return _SENTENCE.split(_REQUIREMENTS.sub("", text))[0].strip()


def items(passed: Passed, known: set[str]) -> list[str]:
    """One item per file; consecutive files that are among the `known`, which need no description, share
    one."""
    found: list[list[str]] = []
    shared = False
    for file in (step.file for step in passed.way):
        name = f"`{file}`{AGAIN if file in passed.again else ''}"
        if file not in known:
            found.append([f"{name}: {description(REPOSITORY / file)}"])
        elif shared:
            found[-1].append(name)
        else:
            found.append([name])
        shared = file in known
        known.add(file)
    return [filled(f"{number}. {', '.join(one)}") for number, one in enumerate(found, 1)]


def filled(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def measured(way: Way) -> str:
    files = f"{len(way.passed.way)} files; the aim is {AIM}."
    if way.codec_passes is None:
        return files
    return f"{files} {way.codec_passes}{PASSES}"


def render(ways: list[Way]) -> str:
    parts = [INTRODUCTION]
    known: set[str] = set()
    for way in ways:
        lines = "\n".join(items(way.passed, known))
        parts.append(f"## {way.title}\n\n{measured(way)}\n\n{lines}\n")
    return "\n".join(parts)


def read(text: str) -> list[Way]:
    """The ways of a page, as far as it shows them."""
    ways = []
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        counted = re.search(rf"(\d+){PASSES}", rest)
        found = re.findall(rf"`([\w/]+\.py)`({re.escape(AGAIN)})?", " ".join(rest.split()))
        way = tuple(Step(file, ()) for file, _ in found)
        again = tuple(file for file, again in found if again)
        ways.append(Way(title, Passed(way, (), again), int(counted[1]) if counted else None))
    return ways
