"""Long names, long times and unseen time on the page: nothing is squeezed, every axis says its year."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet, TimeSpan
from metaquorum.pipeline.report.charts import TimeScale, ticks
from metaquorum.pipeline.report.html import MAX_CODE, MAX_ID, MAX_WORD, code, name, path, period, text
from tests.unit.pipeline.report.browser import Browser
from tests.unit.pipeline.report.test_report import outline, rendered

DAY = 86_400_000
LONG = "a-name-of-two-hundred-letters-" * 7


def at(year: int, month: int = 1, day: int = 1, hour: int = 0) -> int:
    return int(datetime.datetime(year, month, day, hour, tzinfo=datetime.UTC).timestamp() * 1000)


def cluster(cluster_id: str, start_ms: int, end_ms: int) -> ClusterFacts:
    one = ClusterFacts(cluster_id, start_ms=start_ms, end_ms=end_ms)
    half = (start_ms + end_ms) // 2
    one.sessions[1] = [
        BrokerPeriod(1, "active", start_ms, half, 1, None),
        BrokerPeriod(1, "fenced", half, None, 2, None),
    ]
    one.sums.update({"partition_seconds": 1000.0})
    one.leaderless.add((LONG, "id", 7), half, end_ms, 2)
    one.trouble[LONG, "id", 7].leaderless_ms = end_ms - half
    row = {"cluster": cluster_id, "epoch": 1, "leader_id": 1, "from_offset": 0, "to_time": None}
    one.elections.append({**row, "from_time": start_ms, "skipped_epochs": 0})
    found = {"where": f"topic/{LONG}/7", "found": f"directory {LONG} is unknown", "count": 1, "open": 1}
    one.violations["error", "replay"] = {
        **found,
        "from_offset": 2,
        "from_time": half,
        "to_time": None,
        "to_offset": None,
    }
    place = {"file": f"/{LONG}/{LONG}/00000000000000000000.log", "position": 1, "offset": 2, "time": half}
    one.damage.append({"cluster": cluster_id, **place, "kind": "corrupt", "reason": f"{LONG} is no batch"})
    one.voters.append({"voters": [1, 2], "kraft_version": 1, "changed": None})
    change = {"changed": f"added 3 (directory {LONG}) at {LONG}:9093", "epoch": 1}
    one.voters.append(
        {"voters": [1, 2, 3], "kraft_version": 1, **change, "from_offset": 3, "from_time": half}
    )
    asked = {"times": 2, "offset": 9, "time": half, "address": LONG, "entities": [f"topic/{LONG}"] * 9}
    one.asked[f"User:{LONG}", "DeleteTopics"] = asked
    return one


@pytest.fixture
def long_names() -> Fleet:
    return Fleet([cluster(LONG, 0, DAY), cluster("short", 0, DAY)], 0, DAY)


# -- words and numbers -----------------------------------------------------------------------------------


def test_what_is_cut_shows_how_it_begins_and_ends_and_is_whole_on_hovering() -> None:
    for cell, limit in (
        (name(LONG), MAX_ID),
        (code(LONG), MAX_CODE),
        (path(f"/x/{LONG}/{LONG}"), MAX_CODE + 2),
        (text(LONG), MAX_WORD),
    ):
        (shown,) = re.findall(r">([^<]+)<", cell.html)
        assert len(shown) <= limit and shown.endswith(LONG[-10:]) and "…" in shown
        assert LONG in cell.html and LONG in str(cell.sort)
    assert "title" not in name("ycvx3IyUTJ2ANvCy7N_YyA").html + code("topic/orders/7").html
    usual = "/data/kraft/__cluster_metadata-0/00000000000000000000.log"
    assert path(usual).html.count("…") == 1


def test_a_period_says_the_day_of_its_end_only_where_it_is_another() -> None:
    def shown(start: int, end: int | None) -> str:
        return re.sub(r"<[^>]+>", "", period(start, end).html)

    noon = at(2026, 7, 1, 12)
    assert shown(noon, noon + 5_000) == "2026-07-01 12:00:00 – 12:00:05"
    assert shown(noon, noon + DAY) == "2026-07-01 12:00:00 – 2026-07-02 12:00:00"
    assert shown(noon, None) == "2026-07-01 12:00:00 – lasts"
    assert shown(noon, noon) == "2026-07-01 12:00:00"


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (at(2023, 4, 5), at(2026, 11, 22)),
        (at(2025, 12, 30), at(2026, 1, 4)),
        (at(2025, 12, 31, 20), at(2026, 1, 1, 6)),
        (at(1999), at(2061)),
        (at(2026, 1, 20), at(2026, 6, 3)),
    ],
)
def test_an_axis_over_a_turn_of_the_year_or_months_says_the_years(start: int, end: int) -> None:
    labels = [label for _, label in TimeScale(start, end).ticks()]
    assert 2 <= len(labels) <= 9 and len(set(labels)) == len(labels)
    dated = [label for label in labels if not re.fullmatch(r"\d\d:\d\d", label)]
    assert dated and all(re.search(r"\b\d{4}\b", label) for label in dated)


@pytest.mark.parametrize("length_ms", [5_000, 90_000, 600_000, 5 * 3_600_000, 3 * DAY, 40 * DAY])
def test_the_first_label_of_every_axis_says_the_date(length_ms: int) -> None:
    start = at(2026, 7, 3, 9)
    xs, labels = zip(*TimeScale(start, start + length_ms).ticks(), strict=True)
    assert re.search(r"^\d\d \w{3} 2026", labels[0])
    assert list(xs) == sorted(xs) and len(labels) <= 9


def test_no_label_of_an_axis_covers_the_next() -> None:
    for length_ms in (90_000, 3_600_000, 8 * 3_600_000, 2 * DAY, 30 * DAY, 800 * DAY, 9000 * DAY):
        start = at(2024, 12, 31, 1)
        listed = TimeScale(start, start + length_ms).ticks()
        for (x, label), (next_x, next_label) in pairwise(listed):
            assert next_x - x > 3.1 * (len(label) + len(next_label)), (label, next_label)


def test_the_head_has_the_worst_cluster_by_name_and_no_average() -> None:
    good, bad = ClusterFacts("fine"), ClusterFacts("poor")
    good.sums.update({"partition_seconds": 1000.0, "leaderless_seconds": 0.0})
    bad.sums.update({"partition_seconds": 10.0, "leaderless_seconds": 5.0})
    text = rendered(Fleet([good, bad], 0, DAY))
    head = text[: text.index("</header>")]
    assert "50.000 %" in head and "in poor, the worst cluster" in head
    assert len(re.findall(r"\d %", head)) == 1
    alone = rendered(Fleet([bad], 0, DAY))
    assert "worst" not in alone[: alone.index("</header>")]


def test_time_that_nobody_saw_is_hatched_and_time_switched_off_marked_with_a_legend() -> None:
    one, other = cluster("a", 0, DAY), cluster("b", 0, DAY)
    one.silences, one.offs = [TimeSpan(0, DAY // 2, 5)], [TimeSpan(DAY // 2, DAY, 9, True)]
    text = rendered(Fleet([one, other], 0, DAY))
    outline(text)
    for anchor in ("brokers", "availability", "quorum"):
        part = text[text.index(f'<section id="{anchor}"') :]
        part = part[: part.index("</section>")]
        assert all(f'<path class="{kind}"' in part for kind in ("unseen", "hatch", "off")), anchor
        assert (
            "unobserved: nothing was written" in part and "off: the last broker had shut down cleanly" in part
        )
    plain = rendered(Fleet([other], 0, DAY))
    assert 'class="hatch"' not in plain and "unobserved:" not in plain


def test_no_mark_hides_the_moment_of_an_election() -> None:
    marks = [("unseen", float(DAY), float(DAY + 1_000)), ("off", float(DAY), float(DAY + 1_000))]
    drawn = ticks("Elections", TimeScale(0, 1_000 * DAY), [("a", "said", [DAY], marks)])
    assert drawn.index('class="off"') < drawn.index('class="tick"') > drawn.index('class="unseen"')


# -- in a real browser -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1440])
def test_names_of_two_hundred_letters_squeeze_nothing(
    browser: Browser, long_names: Fleet, tmp_path: Path, width: int, dark: bool
) -> None:
    page = tmp_path / "long.html"
    page.write_text(rendered(long_names), encoding="utf-8")
    browser.open(page, width, dark=dark)
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    # No column of words is narrower than its longest word, and no cell is taller than six lines.
    broken = """[...document.querySelectorAll('td')].filter(cell => {
        const range = document.createRange();
        return [...cell.querySelectorAll('*'), cell].some(at => [...at.childNodes].some(node => {
            if (node.nodeType != 3 || at.closest('code')) return false;
            let from = 0;
            return node.data.split(' ').some(word => {
                range.setStart(node, from); range.setEnd(node, from + word.length);
                from += word.length + 1;
                const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
                return tops.size > 1 && !/[-…/]/.test(word);
            });
        }));
    }).map(cell => cell.textContent)"""
    assert browser.value(broken) == []
    tall = "Math.max(...[...document.querySelectorAll('td')].map(at => at.getBoundingClientRect().height))"
    assert browser.value(tall) < 6 * 24
    narrow = "Math.min(...[...document.querySelectorAll('td.c')].map(at => at.getBoundingClientRect().width))"
    assert browser.value(narrow) >= 120
    # What has words is read without scrolling sideways; only rows of clusters may be wider than the page.
    cut = """[...document.querySelectorAll('.scroll')].filter(at => at.scrollWidth > at.clientWidth)
        .map(at => at.closest('section').id)"""
    assert browser.value(cut) in ([], ["clusters"])
