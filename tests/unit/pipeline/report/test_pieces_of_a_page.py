"""Numbers, times, long names and charts of the page, at their bounds."""

from __future__ import annotations

import datetime
import re
from collections import Counter

import numpy as np
import pytest

from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet
from metaquorum.pipeline.audit.findings import seconds_text
from metaquorum.pipeline.report import charts, html
from metaquorum.pipeline.report.charts import LEFT, OFF, PLOT, ROW, UNSEEN, TimeScale
from metaquorum.pipeline.report.details import failovers

pytest.importorskip("pyarrow")


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (950.4, "950"),
        (9_999, "9,999"),
        (10_000, "10.0 k"),
        (99_949, "99.9 k"),
        (100_000, "100 k"),
        (999_499, "999 k"),
        (1e6, "1.0 M"),
        (4.56e6, "4.6 M"),
        (123e6, "123 M"),
        (1e9, "1.0 G"),
        (250e9, "250 G"),
    ],
)
def test_short_numbers(value: float, shown: str) -> None:
    assert html.short(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0004, "0.0004"),
        (0.04, "0.04"),
        (0.96, "1.0"),
        (7.46, "7.5"),
        (9.95, "10"),
        (12_345, "12.3 k"),
    ],
)
def test_the_highest_value_of_a_chart_is_never_shown_as_zero(value: float, shown: str) -> None:
    assert charts.number_text(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 s"), (0.0004, "0 s"), (0.04, "40 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (9.9, "9.9 s")],
)
def test_a_short_time_is_not_no_time(value: float, shown: str) -> None:
    assert seconds_text(value) == shown


def test_what_has_no_time_has_no_date() -> None:
    assert html.period(None, None).html == "–"
    assert html.moment(None).html == '<span class="id">–</span>'


def test_a_heat_map_is_empty_where_there_is_no_log() -> None:
    """A log of the second quarter of the time that is drawn."""
    row = ("a", "told", np.zeros(8), [], (DAY_MS / 4, DAY_MS / 2))
    drawn = charts.heat("t", TimeScale(0, DAY_MS), [row])
    assert re.findall(r'class="heat0" d="([^"]*)"', drawn) == [
        f"M{LEFT + PLOT / 4:.1f} 5.0h{PLOT / 4:.1f}v13.0h-{PLOT / 4:.1f}z"
    ]


@pytest.mark.parametrize(
    ("limit", "shown"), [(10, "abcdefghij"), (9, "abcd…ghij"), (8, "abc…ghij"), (3, "a…j"), (2, "…j")]
)
def test_a_long_name_loses_its_middle(limit: int, shown: str) -> None:
    assert html.cut("abcdefghij", limit) == shown
    assert len(shown) <= limit


@pytest.mark.parametrize(("form", "limit"), [(html.code, html.MAX_CODE), (html.name, html.MAX_ID)])
def test_what_is_cut_is_shown_whole_on_hovering(form: object, limit: int) -> None:
    assert callable(form)
    whole, long = "<" * limit, "<" * (limit + 1)
    for value, is_cut in ((whole, False), (long, True)):
        cell = form(value)
        assert (cell.sort, 'title="' in cell.html, "…" in cell.html) == (value, is_cut, is_cut)
        assert "<<" not in cell.html
        assert cell.html.count("&lt;") == (limit - 1 + len(value) if is_cut else limit)


def test_words_of_a_sentence_are_cut_one_by_one() -> None:
    fits, long = "a" * html.MAX_WORD, "b" * (html.MAX_WORD + 1)
    assert html.words(f"{fits} & c") == f"{fits} &amp; c"
    shown = html.cut(long, html.MAX_WORD)
    assert html.words(f"x {long} y") == f'x <span title="{long}">{shown}</span> y'
    assert html.text(None) == html.Cell("–")
    assert html.text(5) == html.Cell("5", sort="5")


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a/b", "a/b"), ("a/b/c", "a/b/c"), ("z/a/b/c", "…/a/b/c"), ("/a/b/c", "…/a/b/c")],
)
def test_the_last_parts_of_a_path(value: str, shown: str) -> None:
    title = "" if shown == value else f' title="{value}"'
    assert html.path(value) == html.Cell(f"<code{title}>{shown}</code>", sort=value)


def test_numbers_and_severities() -> None:
    assert html.number(None) == html.Cell("–", True, -1)
    assert html.number(1234.6) == html.Cell("1,235", True, 1234.6)
    assert html.number(2, "<2>") == html.Cell("&lt;2&gt;", True, 2)
    assert html.seconds(None) == html.Cell("–", True, -1)
    assert [html.tag(each).sort for each in ("error", "warning", "info", "odd")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("time_ms", "shown"),
    [
        (None, "–"),
        (-1, "–"),
        (0, "1970-01-01 00:00:00"),
        (86_399_999, "1970-01-01 23:59:59"),
        (253_402_300_799_999, "9999-12-31 23:59:59"),
        (253_402_300_800_000, "–"),
    ],
)
def test_times(time_ms: int | None, shown: str) -> None:
    assert html.utc(time_ms) == shown
    assert html.utc(time_ms, "minutes") == (shown if shown == "–" else shown[:-3])
    assert html.moment(time_ms) == html.Cell(f'<span class="id">{shown}</span>', sort=time_ms or 0)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "parts"),
    [
        (0, None, ["1970-01-01 00:00:00", "– lasts"]),
        (0, 0, ["1970-01-01 00:00:00"]),
        (0, 5_000, ["1970-01-01 00:00:00", "– 00:00:05"]),
        (0, DAY_MS, ["1970-01-01 00:00:00", "– 1970-01-02 00:00:00"]),
        (None, None, []),
        (None, 0, ["–", "– 1970-01-01 00:00:00"]),
    ],
)
def test_periods(start_ms: int | None, end_ms: int | None, parts: list[str]) -> None:
    cell = html.period(start_ms, end_ms)
    assert re.findall(r'<span class="id">(.*?)</span>', cell.html) == parts
    assert cell.sort == (start_ms or 0)


def test_tables_and_lists() -> None:
    assert html.table("a<b", ("x",), []) == '<p class="note">a&lt;b: none.</p>'
    row = (html.text("t"), html.number(3), html.code("c"))
    plain = html.table("k", ("x", "n"), [row[:2]])
    assert "data-h" not in plain and "cards" not in plain and '<td class=n data-v="3">3</td>' in plain
    cards = html.table("k", ("x", "n", "c"), [row], wide=0)
    assert '<table class="cards" data-sort>' in cards and '<td class=n data-v="3" data-h="n">' in cards
    assert '<td class=wide data-v="t">' in cards and '<td class=c data-v="c">' in cards
    assert html.left_out(3, 3, "x", "y") == "" and html.left_out(3, 2, "x", "y") == ""
    assert html.left_out(3, 4, "x", "y") == '<p class="note">3 of 4 x are shown; y</p>'


# ---- scales


def at(text: str) -> int:
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def labels(start: str, end: str) -> list[str]:
    return [label for _, label in TimeScale(at(start), at(end)).ticks()]


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("2026-01-01T00:00:00", "2026-01-01T00:01:59", ["01 Jan 2026 00:00:00", "00:01:59"]),
        ("2026-01-01T00:00:00", "2026-01-01T00:02:00", ["01 Jan 2026 00:00", "00:01", "00:02"]),
        (
            "2026-01-01T23:30:30",
            "2026-01-02T00:20:00",
            ["01 Jan 2026 23:40", "23:50", "02 Jan 00:00", "00:10", "00:20"],
        ),
        (
            "2025-12-31T18:00:00",
            "2026-01-01T10:00:00",
            [
                *("31 Dec 2025 18:00", "20:00", "22:00", "01 Jan 2026 00:00"),
                *("02:00", "04:00", "06:00", "08:00", "10:00"),
            ],
        ),
        (
            "2026-03-01T00:00:00",
            "2026-03-05T00:00:00",
            [
                *("01 Mar 2026 00:00", "12:00", "02 Mar 00:00", "12:00", "03 Mar 00:00", "12:00"),
                *("04 Mar 00:00", "12:00", "05 Mar 00:00"),
            ],
        ),
        (
            "2026-03-01T00:00:00",
            "2026-03-09T00:00:00",
            ["01 Mar 2026", *(f"{day:02} Mar" for day in range(2, 10))],
        ),
        (
            "2026-03-01T00:00:00.001",
            "2026-03-08T23:59:59.999",
            ["02 Mar 2026", *(f"{day:02} Mar" for day in range(3, 9))],
        ),
        (
            "2025-12-30T00:00:00",
            "2026-01-03T12:00:00",
            ["30 Dec 2025", "31 Dec 2025", "01 Jan 2026", "02 Jan 2026", "03 Jan 2026"],
        ),
        (
            "2026-01-15T00:00:00",
            "2026-08-01T00:00:00",
            ["Feb 2026", "Mar 2026", "Apr 2026", "May 2026", "Jun 2026", "Jul 2026", "Aug 2026"],
        ),
        ("2019-12-01T00:00:00", "2026-02-01T00:00:00", [f"Jan {year}" for year in range(2020, 2027)]),
        ("1970-01-01T00:00:00", "2026-01-01T00:00:00", [f"Jan {year}" for year in range(1970, 2027, 10)]),
    ],
)
def test_ticks(start: str, end: str, shown: list[str]) -> None:
    assert labels(start, end) == shown


def test_times_outside_a_scale_are_at_its_ends() -> None:
    scale = TimeScale(1_000, 2_000)
    assert [scale.x(each) for each in (0, 1_000, 1_500, 2_000, 9_000)] == [
        LEFT,
        LEFT,
        LEFT + PLOT / 2,
        LEFT + PLOT,
        LEFT + PLOT,
    ]
    assert TimeScale(5, 5).end_ms == 6 and TimeScale(5, 1).end_ms == 6


def test_labels_stay_inside_the_drawing() -> None:
    for label in ("x", "a longer label"):
        half = 3.1 * len(label)
        assert charts._inside(0, label) == LEFT - 30 + half
        assert charts._inside(charts.WIDTH, label) == charts.WIDTH - half
        assert charts._inside(500, label) == 500


def marked(kind: str, width: float, height: float = 2 * ROW) -> str:
    """A mark of so many units of width from the middle of a scale of one unit per ms."""
    scale = TimeScale(0, PLOT)
    return charts._marked(scale, [(kind, 100, 100 + width)], 4, height)


def test_time_that_no_one_saw_is_hatched() -> None:
    x = LEFT + 100
    assert marked(OFF, 50) == f'<path class="off" d="M{x:.1f} 4.0h50.0v30.0h-50.0z"/>'
    assert marked(OFF, 1) == marked(OFF, 0) == f'<path class="off" d="M{x:.1f} 4.0h1.5v30.0h-1.5z"/>'
    assert "hatch" not in marked(UNSEEN, 3) and marked(UNSEEN, 4).count("hatch") == 2
    first, *rows = marked(UNSEEN, 50, 2 * ROW + 7).split("<path ")[1:]
    assert first == f'class="unseen" d="M{x:.1f} 4.0h50.0v37.0h-50.0z"/>'
    assert rows == [
        f'class="hatch" stroke-width="{tall}" transform="translate({x + tall / 2:.1f} {top + tall / 2:.1f})'
        f' skewX(-45)" d="M0 0h{50 - tall:.1f}"/>'
        for top, tall in ((4, 15), (19, 15), (34, 7))
    ]
    assert 'd="M0 0h1.5"' in marked(UNSEEN, 10)


def test_bars_have_a_scale_each() -> None:
    series = [
        ("a", "first", np.array([0.0, 2.5, 5.0])),
        ("b", "second", np.array([20_000.0])),
        ("c", "none", np.array([])),
        ("d", "zero", np.array([0.0])),
    ]
    drawn = charts.bars("t", TimeScale(0, DAY_MS), series, " ms")
    wide = PLOT / 3
    path = "".join(
        f"M{LEFT + place * wide:.1f} {68 - size:.1f}h{wide - 0.6:.1f}v{size:.1f}h-{wide - 0.6:.1f}z"
        for place, size in ((1, 31), (2, 62))
    )
    assert f'<path class="a" d="{path}"/>' in drawn
    assert "first: at most 5.0 ms; second: at most 20.0 k ms; none: at most 0 ms; zero: at most 0 ms" in drawn
    # Beside the plot, not in it: the unit is on a line of its own.
    assert [drawn.count(f">{text}<") for text in ("up to 5.0", "up to 20.0 k", "up to 0", "ms")] == [
        1,
        1,
        2,
        4,
    ]
    assert '<path class="c" d=""/>' in drawn and '<path class="d" d=""/>' in drawn
    assert 'viewBox="0 0 1120 322"' in drawn


# What the report says of failovers, in words.


def facts(name: str, *durations_ms: int, still: int = 0, **causes: int) -> ClusterFacts:
    by_rule = Counter({name.replace("_", "-"): number for name, number in causes.items()})
    one = ClusterFacts(name, failovers_open=still, failover_causes=by_rule)
    if durations_ms:
        one.failover_ms.append(np.array(durations_ms, dtype=np.int64))
    return one


def text(*clusters: ClusterFacts) -> str:
    """The first paragraph."""
    return failovers(Fleet([*clusters], 0, 1_000_000)).partition("<p")[2].partition("</p>")[0]


def test_what_is_open_and_how_long_the_others_took() -> None:
    found = text(facts("a", 1_000, 3_000, 5_000, still=2, broker_fenced=4, controlled_shutdown=1))
    assert "5 leaders had to be replaced. Causes: fenced 4, controlled shutdown 1." in found
    assert " 2 were not replaced by the end." in found
    assert " Median 3.0 s, 95th percentile " in found and ", longest 5.0 s." in found


def test_nothing_is_said_of_what_did_not_happen() -> None:
    found = text(facts("a", 1_000, fenced=1), facts("b", 2_000, fenced=1))
    assert "2 leaders had to be replaced. Causes: fenced 2." in found
    assert "were not replaced" not in found and "Median" not in found, "of several clusters"
    assert "No leader had to be replaced." in text(facts("a"))


def test_all_that_are_open_count() -> None:
    found = text(facts("a", still=1, fenced=1), facts("b", still=2, fenced=2))
    assert " 3 were not replaced by the end." in found and "Median" not in found
