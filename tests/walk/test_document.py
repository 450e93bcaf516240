"""docs/walkthrough.md is what the code does and says today, and no way gets longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.walk.document import AGAIN, DOCUMENT, REPOSITORY, description, items, read, render
from tests.walk.recorder import Passed, Step
from tests.walk.ways import Way, walk

FILES = {
    "A topic is created": 23,
    "A heartbeat": 10,
    "A produce": 23,
    "A broker's death": 20,
    "A catch-up by snapshot": 12,
}
"""How many files are on each way. These numbers only shrink."""
CODEC_PASSES = {"A topic is created": 9}
"""Four of them are the broker's fetch of the log, which its answer to the client waits for."""
ATTEMPTS = 3
"""On a busy machine a session may end, or a second node be first, in the middle of a way."""


def files_of(way: Way) -> frozenset[tuple[object, bool]]:
    """The files on a way, and whether each is entered again; and how often the codec passes a message."""
    files = {(step.file, step.file in way.passed.again) for step in way.passed.way}
    return frozenset((*files, (way.codec_passes, False)))


def test_the_page_shows_the_files_that_are_passed(tmp_path: Path) -> None:
    page = {way.title: files_of(way) for way in read((REPOSITORY / DOCUMENT).read_text("utf-8"))}
    different = page
    for attempt in range(ATTEMPTS):
        (tmp_path / f"{attempt}").mkdir()
        try:
            ways = asyncio.run(walk(tmp_path / f"{attempt}"))
        except (AssertionError, TimeoutError, ValueError):
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        found = {way.title: files_of(way) for way in ways}
        assert found.keys() == page.keys()
        different = {
            title: found[title] ^ files for title, files in different.items() if found[title] != page[title]
        }
        if not different:
            return
    assert different == {}, "make walk OPTIONS=--document"


def test_the_page_says_what_the_docstrings_say() -> None:
    text = (REPOSITORY / DOCUMENT).read_text("utf-8")
    assert text == render(read(text)), "make walk OPTIONS=--document"


def test_no_way_gets_longer() -> None:
    ways = read((REPOSITORY / DOCUMENT).read_text("utf-8"))
    passes = {way.title: way.codec_passes for way in ways if way.codec_passes is not None}
    assert passes == CODEC_PASSES, "fewer: lower it; more: pass the bytes on"
    assert {way.title: len(way.passed.way) for way in ways} == FILES, (
        "shorter: lower it; longer: find another way"
    )


def passed(*files: str, again: str = "") -> Passed:
    return Passed(tuple(Step(file, ()) for file in files), (), (again,))


def test_a_file_is_described_where_it_first_appears() -> None:
    types, log, disk = "storage/types.py", "storage/log/log.py", "storage/disk/posix.py"
    known: set[str] = set()
    first, second = items(passed(types, log), known)
    assert first.startswith("1. `storage/types.py`: Value types that name positions in a log")
    assert second.startswith("2. `storage/log/log.py`: The segmented log: append, read, ")
    again = items(passed(types, log, disk, types, again=log), known)
    assert [again[0], again[2]] == [f"1. `{types}`, `{log}`{AGAIN}", f"3. `{types}`"]
    assert again[1].startswith(f"2. `{disk}`: The real disk")


def test_a_description_is_the_first_sentence(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""Lists (S1.2): of\nnames.\n\nPure. More."""')
    assert description(file) == "Lists: of names."
    file.write_text('"""Lists of names."""')
    assert description(file) == "Lists of names."
