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
AGAIN = " (left and entered again)"
INTRODUCTION = """\
# Walkthrough: the files that a request passes

`make walk OPTIONS=--document` writes this page from running code and its docstrings; `make walk` also prints
functions, and the helpers that these files ask.

Each list leads from the entry point to the answer, along the callers of the main steps. A file is described
where it first appears: what it is, and what it owns.
"""
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z`])")
_REQUIREMENTS = re.compile(r" \([SK]\d[^)]*\)")
_ASIDE = re.compile(r" \([^()]*\)")
_DETAIL = re.compile(r":|;|, (?:because|so that|in which|from which) ")
FEWEST_WORDS = 4
"""Of a second sentence that is cut where its detail begins; a shorter one is kept whole."""


def description(path: Path) -> str:
    """Two sentences of a module's docstring, without ids of requirements: the first one, and the one that
    says what the module owns, without asides and up to its detail."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or f"{path.stem}.").split())
    first, *rest = _SENTENCE.split(_REQUIREMENTS.sub("", text))
    owns = _ASIDE.sub("", next((sentence for sentence in rest if sentence.startswith("Owns ")), ""))
    short = _DETAIL.split(owns)[0]
    return (
        f"{first} {f'{short}.' if FEWEST_WORDS <= len(short.split()) < len(owns.split()) else owns}".strip()
    )


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


def render(ways: list[Way]) -> str:
    parts = [INTRODUCTION]
    known: set[str] = set()
    for way in ways:
        lines = "\n".join(items(way.passed, known))
        parts.append(f"## {way.title}\n\n{len(way.passed.way)} files; the aim is {AIM}.\n\n{lines}\n")
    return "\n".join(parts)


def read(text: str) -> list[Way]:
    """The ways of a page, as far as it shows them."""
    ways = []
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        found = re.findall(rf"`([\w/]+\.py)`({re.escape(AGAIN)})?", " ".join(rest.split()))
        way = tuple(Step(file, ()) for file, _ in found)
        ways.append(Way(title, Passed(way, (), tuple(file for file, again in found if again))))
    return ways
