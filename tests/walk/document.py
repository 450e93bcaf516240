"""docs/walkthrough.md: the files that each request passes and what they own, generated from the code."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from tests.walk.ways import Way

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = "docs/walkthrough.md"
INTRODUCTION = """\
# Walkthrough: the files that a request passes

`make walk` prints these lists with functions, `make walk OPTIONS=--document` writes this page: a recorder
notes every call between files in a cluster within one process.

Each list leads from the entry point to the answer, along the callers of the main steps. A file is described
where it first appears.
"""


def subject(path: Path) -> str:
    """The first sentence of a module's docstring up to a colon, without ids of requirements."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or path.stem
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = paragraph.partition(". ")[0].partition(": ")[0].rstrip(".:")
    return re.sub(r" \([SK]\d[^)]*\)$", "", sentence) + "."


def items(files: list[str], known: set[str]) -> list[str]:
    """One item per file; consecutive files that are among the `known`, which need no description, share
    one."""
    found: list[list[str]] = []
    for file in files:
        if file not in known:
            found.append([f"`{file}`: {subject(REPOSITORY / file)}"])
        elif found and found[-1][-1].endswith("`"):
            found[-1].append(f"`{file}`")
        else:
            found.append([f"`{file}`"])
        known.add(file)
    return [filled(f"{number}. {', '.join(one)}") for number, one in enumerate(found, 1)]


def filled(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def render(ways: list[Way]) -> str:
    parts = [INTRODUCTION]
    known: set[str] = set()
    for way in ways:
        lines = items([step.file for step in way.passed.way], known)
        parts.append(f"## {way.title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)
