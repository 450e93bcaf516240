"""docs/security.md has the table of bounds that the code makes."""

from __future__ import annotations

import pytest

from tests.bounds import BEGIN, BOUNDS, END, PAGE, table, with_table


def test_the_page_has_the_bounds_of_the_code(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    if request.config.getoption("--rewrite"):
        PAGE.write_text(with_table(page), "utf-8")
    assert with_table(PAGE.read_text("utf-8")) == PAGE.read_text("utf-8"), (
        "another table: pytest --rewrite tests/unit/test_bounds.py"
    )


def test_every_bound_has_a_key_a_constant_or_a_text() -> None:
    for bound in BOUNDS:
        assert bool(bound.key) + bool(bound.constant) + bool(bound.default) >= 1, bound
    assert "`max.connections.per.ip`" in table()
