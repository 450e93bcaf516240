"""tests/requirements.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
DOCUMENT = TESTS / "requirements.md"


def lines_of(text: str, prefix: str, last: int, first: int = 0) -> list[str]:
    """The ids of a chapter that the tables name; `S1.18 to S1.20` stands for three."""
    found: set[int] = set()
    for row in re.findall(r"^\| ([^:|]+): ", text, re.M):
        for low, high in re.findall(rf"{prefix}(\d+)(?: to {prefix}(\d+))?", row):
            found.update(range(int(low), int(high or low) + 1))
    return [f"{prefix}{number}" for number in range(first, last + 1) if number not in found]


def test_every_test_that_the_document_names_is_there() -> None:
    named = re.findall(r"([\w/]+\.py)::(\w+)(\*?)", DOCUMENT.read_text())
    assert len(named) > 100
    missing = []
    for file, name, rest in named:
        path = TESTS / file
        source = path.read_text() if path.is_file() else ""
        if not re.search(rf"^(?:async )?def {name}{'' if rest else chr(92) + 'b'}", source, re.M):
            missing.append(f"{file}::{name}{rest}")
    assert missing == []


def test_a_line_without_a_list_has_tests_of_its_name() -> None:
    tests = " ".join(
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w*[sk]\d\w*)", path.read_text(), re.M)
    )
    rows = re.findall(r"^\| ([SK][^:|]+): [^|]+\| \|$", DOCUMENT.read_text(), re.M)
    assert len(rows) > 20
    numbers = [number for row in rows for number in re.findall(r"[SK]\d+(?:\.\d+)?", row)]
    assert [one for one in numbers if f"_{one.lower().replace('.', '_')}_" not in tests] == []


def test_every_line_of_these_chapters_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert lines_of(text, "S0.", 28, 1) == []
    assert lines_of(text, "S1.", 24, 1) == []
    assert lines_of(text, "S2.", 38, 1) == []
    assert lines_of(text, "S3.", 39, 1) == []
    assert lines_of(text, "S4.", 21, 1) == []
    assert lines_of(text, "K", 12, 7) == []
    assert lines_of(text, "K", 21, 20) == []
    assert lines_of(text, "K", 28, 28) == []
