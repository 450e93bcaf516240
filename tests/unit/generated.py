"""Pages of docs/ with a part that is generated from a table."""

from __future__ import annotations

import os

from tests.unit.sources import REPOSITORY


def keep_generated(page: str, generated: str) -> None:
    """The part between the marks is `generated`; METAQUORUM_REWRITE_DOCS=1 writes it instead."""
    path = REPOSITORY / "docs" / page
    begin, end = "<!-- generated: begin -->\n", "<!-- generated: end -->"
    before, rest = path.read_text(encoding="utf-8").split(begin, 1)
    written, after = rest.split(end, 1)
    if os.environ.get("METAQUORUM_REWRITE_DOCS") == "1":
        path.write_text(before + begin + generated + end + after, encoding="utf-8")
        return
    assert written == generated, (
        f"docs/{page} is out of date: run this test with METAQUORUM_REWRITE_DOCS=1, review"
    )
