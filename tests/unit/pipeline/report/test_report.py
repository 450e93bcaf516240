"""The report: what it says is what the tables say, it is bounded, and a real browser shows it in silence."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet
from metaquorum.pipeline.audit.findings import AuditLimits, findings, seconds_text
from metaquorum.pipeline.audit.gather import TableSource, _small_tables, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.report.clusters import MAX_CLUSTERS, MAX_DETAILED
from metaquorum.pipeline.report.page import MAX_BROKERS, page
from tests.unit.pipeline.asked import CLUSTER, write_node
from tests.unit.pipeline.intervals.telling import START_MS
from tests.unit.pipeline.local_tables import write_tables
from tests.unit.pipeline.report.browser import Browser

pytest.importorskip("pyarrow")


SECTIONS = {
    *("findings", "incidents", "clusters", "brokers", "churn", "availability", "partitions"),
    *("failovers", "quorum", "violations", "damage", "each"),
}
_VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Checks that every element is closed, and keeps what the tests ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.labelled: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.labelled += str(given.get("aria-labelledby") or "").split()
        self.addresses += [str(value) for key, value in attrs if key in ("src", "href", "action")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Elements that close themselves."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert not found.open
    return found


def rendered(fleet: Fleet) -> str:
    return page(fleet, findings(fleet, AuditLimits()), title="Fleet <of> tests", tables="tables")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_fleet(FleetPlan(clusters=3, records=6000, seed=9, damaged_every=1), out / "fleet")
    nodes = sorted(path / "controller-3000" for path in (out / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, out / "tables")
    return out / "tables"


@pytest.fixture(scope="module")
def html(tables: Path) -> Path:
    out = tables.parent / "report.html"
    told = CliRunner().invoke(main, ["pipeline", "report", str(tables), "--out", str(out)])
    assert told.exit_code == 0 and "3 clusters" in told.output
    return out


def many_clusters(count: int) -> Fleet:
    """A fleet of facts alone: many clusters of many brokers, each of which was fenced often."""
    clusters = []
    for number in range(count):
        one = ClusterFacts(f"cluster-{number}-of-a-long-name", start_ms=1, end_ms=86_400_000)
        one.sums.update({"partition_seconds": 1000.0, "leaderless_seconds": float(number)})
        for broker in range(40):
            for at in range(0, 86_400_000, 8_640_000):
                one.sessions[broker] += [
                    BrokerPeriod(broker, "active", at, at + 8_000_000, at, None),
                    BrokerPeriod(broker, "fenced", at + 8_000_000, at + 8_640_000, at, None),
                ]
        for at in range(100):
            one.trouble[f"topic-{at}", "id", 0].leaderless_ms = at
            one.elections.append(
                {
                    "cluster": one.cluster,
                    "epoch": at,
                    "leader_id": 1,
                    "from_offset": at,
                    "from_time": at * 840_000,
                    "to_time": None,
                    "skipped_epochs": 0,
                }
            )
        clusters.append(one)
    return Fleet(clusters, 0, 86_400_000)


def test_every_section_is_there_with_data(html: Path) -> None:
    text = html.read_text()
    found = outline(text)
    assert set(found.ids) >= SECTIONS
    assert len(found.ids) == len(set(found.ids))
    assert set(found.labelled) <= set(found.ids)
    for anchor in SECTIONS - {"violations"}:
        part = text[text.index(f'<section id="{anchor}"') :]
        part = part[: part.index("</section>")]
        assert "<tbody><tr>" in part or '<path class="' in part, anchor


def test_a_report_over_an_earlier_one_says_what_changed(tables: Path, html: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    fleet = gather(TableSource(tables))
    assert "Since the last report" not in html.read_text()
    found = findings(fleet, AuditLimits())
    lasting = next(one for one in found if one.end_ms is None)
    gone = msgspec.structs.replace(lasting, subject="topic/</script>/0")
    earlier = Fleet(fleet.clusters[1:], fleet.start_ms, fleet.end_ms - 60_000)
    out.write_text(page(earlier, [*found[2:], gone], title="before", tables="tables"))
    told = CliRunner().invoke(main, ["pipeline", "report", str(tables), "--out", str(out)])
    assert told.exit_code == 0, told.output
    text = out.read_text()
    outline(text)
    part = text[text.index('<section id="changes"') : text.index('<section id="availability"')]
    assert "New findings: 2<" in part
    assert "Ended findings: 1<" in part and "topic/&lt;/script&gt;/0" in part
    assert "New clusters: " in part and f"{fleet.clusters[0].records:,} more records" in part
    again = page(fleet, found, title="again", tables="tables", previous=text)
    assert "New findings: none." in again and "Ended findings: none." in again
    assert page(fleet, found, title="t", tables="t", previous="no report") == page(
        fleet, found, title="t", tables="t"
    )


def part_of(text: str, cluster: str) -> str:
    """What the page says of one cluster."""
    (part,) = re.findall(rf"<article id=[^>]+><h3>{re.escape(cluster)}</h3>.*?</article>", text)
    return str(part)


def plain(part: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def test_names_of_clusters_lead_to_their_parts(tables: Path) -> None:
    fleet = gather(TableSource(tables))
    for text, detailed in ((rendered(fleet), 3), (rendered(many_clusters(200)), MAX_DETAILED)):
        found = outline(text)
        linked = {one[1:] for one in found.addresses if one.startswith("#cluster-")}
        assert {one[1:] for one in found.addresses if one.startswith("#")} <= set(found.ids)
        assert linked == {one for one in found.ids if one.startswith("cluster-")}
        assert len(linked) == detailed
    text = rendered(fleet)
    for one in fleet.clusters:
        (anchor,) = re.findall(r'<article id="([^"]+)">', part_of(text, one.cluster))
        names = re.findall(rf'<code class="id">((?:<a[^>]*>)?{one.cluster}.*?)</code>', text)
        assert len(names) > 3 and set(names) == {f'<a href="#{anchor}">{one.cluster}</a>'}


def test_every_cluster_has_its_own_figures_and_none_is_of_all(tables: Path) -> None:
    fleet = gather(TableSource(tables))
    found = findings(fleet, AuditLimits())
    text = rendered(fleet)
    for one in fleet.clusters:
        said = plain(part_of(text, one.cluster))
        errors = sum(at.severity == "error" for at in found if at.cluster == one.cluster)
        assert one.availability is not None
        for figure in (
            f"{one.brokers} brokers",
            f"{100 * one.availability:.3f} % of time with a leader",
            f"{int(one.sums['unclean_elections'])} unclean elections",
            f"{seconds_text(one.durations().max() / 1000)} longest failover",
            f"{errors} errors",
        ):
            assert figure in said, (one.cluster, figure)
    assert "95th percentile" not in text
    assert "95th percentile" in rendered(Fleet(fleet.clusters[:1], fleet.start_ms, fleet.end_ms))


def test_a_cluster_says_who_its_voters_are_and_who_changed_what(tmp_path: Path) -> None:
    write_tables([write_node(tmp_path / "node")], tmp_path / "tables")
    said = plain(part_of(rendered(gather(TableSource(tmp_path / "tables"))), CLUSTER))
    assert "Voters: 3000, 3001, 3002, kraft.version 1." in said
    assert re.search(r"02:03:20 1 \d+ added 3002 .* 00:00:00 1 2 kraft.version 0 -&gt; 1", said)
    who = said[said.index("Who changed what") :]
    for row in (
        "User:alice IncrementalAlterConfigs 2 2024-10-04 01:01:00 10.0.9.7 "
        "topic/orders, config/topic/orders/segment.ms",
        "the controller itself session-expired 1 2024-10-04 02:00:00 – topic/orders, broker/1",
    ):
        assert row in who, who
    assert who.index("DeleteTopics") < who.index("session-expired") < who.index("CreateTopics")


def test_of_many_who_asked_the_rest_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaquorum.pipeline.audit.gather.MAX_ASKED", 2)
    write_tables([write_node(tmp_path / "node")], tmp_path / "tables")
    (one,) = gather(TableSource(tmp_path / "tables")).clusters
    assert len(one.asked) == 3 and sum(row["times"] for row in one.asked.values()) == 7
    assert one.asked["others", "other requests"]["entities"] == ["topic/payments"]


def test_nothing_is_fetched_and_what_tables_say_is_escaped(html: Path, tables: Path) -> None:
    addresses = outline(html.read_text()).addresses
    assert addresses and all(one.startswith("#") or one == "data:," for one in addresses)
    text = rendered(gather(TableSource(tables)))
    assert "Fleet &lt;of&gt; tests" in text and "Fleet <of>" not in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_the_same_tables_give_the_same_page(tables: Path) -> None:
    assert rendered(gather(TableSource(tables))) == rendered(gather(TableSource(tables)))


def test_two_hundred_clusters_give_a_bounded_page_that_says_what_is_left_out() -> None:
    text = rendered(many_clusters(200))
    outline(text)
    assert len(text) < 2_000_000
    for said in (
        f"{MAX_CLUSTERS} of 200 clusters are shown",
        f"{MAX_BROKERS} of 40 brokers are shown",
        "of 20000 affected partitions are shown",
        "of 20000 elections are shown",
    ):
        assert said in text
    assert len(rendered(many_clusters(1))) < 500_000


def test_a_fleet_without_anything_is_a_page_too() -> None:
    text = rendered(Fleet([], 0, 0))
    assert set(outline(text).ids) >= SECTIONS
    assert "No broker ever registered" in text


# -- in a real browser -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.close()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_a_browser_shows_it_without_errors_and_without_network(
    browser: Browser, html: Path, width: int, dark: bool
) -> None:
    browser.open(html, width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [html.as_uri()]
    assert browser.value("document.querySelectorAll('section').length") == len(SECTIONS)
    wide = browser.value("document.documentElement.scrollWidth")
    assert wide <= width, "the page itself must not scroll sideways"
    drawn = "[...document.querySelectorAll('svg')].every(at => at.getBoundingClientRect().height > 30)"
    assert browser.value(drawn) is True
    ink = browser.value("getComputedStyle(document.body).color")
    assert (min(map(int, re.findall(r"\d+", ink)[:3])) > 128) == dark, ink


def test_on_a_laptop_no_table_is_cut_off(browser: Browser, html: Path) -> None:
    browser.open(html, 1280)
    cut = "[...document.querySelectorAll('.scroll')].filter(at => at.scrollWidth > at.clientWidth).length"
    assert browser.value(cut) == 0


def test_tables_are_sorted_by_a_click(browser: Browser, html: Path) -> None:
    browser.open(html, 1280)
    column = "[...document.querySelector('#clusters tbody').rows].map(row => Number(row.cells[1].dataset.v))"
    click = "document.querySelector('#clusters thead').rows[0].cells[1].querySelector('button').click()"
    browser.value(click)
    falling: Any = browser.value(column)
    browser.value(click)
    rising: Any = browser.value(column)
    assert falling == sorted(falling, reverse=True) and rising == sorted(falling)


def test_it_prints(browser: Browser, html: Path) -> None:
    browser.open(html, 1280, dark=True)
    data = base64.b64decode(browser.call("Page.printToPDF", printBackground=False)["data"])
    assert data.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 15
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    # Chromium repeats no head of a table on the next page that has a button in it.
    assert browser.value("getComputedStyle(document.querySelector('th button')).display") == "contents"
    assert browser.complaints() == []


def test_two_hundred_clusters_are_shown_by_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(rendered(many_clusters(200)), encoding="utf-8")
    browser.open(path, 1280)
    assert browser.complaints() == []
    assert browser.value("document.querySelector('#clusters tbody').rows.length") == MAX_CLUSTERS


def test_the_first_picture_stands_above_the_rows_and_the_worst_cluster_above_the_others() -> None:
    """By errors, then warnings: one with much time without leaders comes after one with many warnings."""
    quiet, worst, many = ClusterFacts("quiet"), ClusterFacts("worst"), ClusterFacts("many")
    for one in (quiet, worst, many):
        one.start_ms, one.end_ms = START_MS, START_MS + 9_000_000
        one.sums["partition_seconds"] = 1e6
    quiet.sums.update(leaderless_seconds=5e5, off_seconds=7 * 86_400)
    place: dict[str, Any] = {"position": 1, "offset": 2, "time": None}
    worst.damage.append({**place, "cluster": "worst", "kind": "corrupt", "file": "/x", "reason": "bad CRC"})
    many.damage += [
        {**place, "cluster": "many", "kind": "tail", "file": f"/{n}", "reason": "torn"} for n in range(20)
    ]
    fleet = Fleet([quiet, worst, many], START_MS, START_MS + 9_000_000)
    text = rendered(fleet)
    assert text.index("<svg") < text.index("<table")
    assert "1970" not in text
    overview = text[text.index('<section id="clusters"') : text.index('<section id="findings"')]
    places = [overview.index(name) for name in ("worst", "many", "quiet")]
    assert places == sorted(places)
    assert "damage: corrupt at byte 1: bad CRC" in overview and "off for 7.0 days" in overview


def test_a_failover_without_a_known_end_is_not_one_that_waits() -> None:
    one = ClusterFacts("c", failovers_open=931, failovers_lost=2294)
    one.failover_causes["fence"] = 3966
    text = rendered(Fleet([one], 0, 1))
    assert "931 were not replaced by the end. The end of 2,294 is not known" in text


def test_the_nodes_of_a_cluster_are_counted_and_not_its_files() -> None:
    listed = [(1, "/a/1.log"), (1, "/a/2.log"), (2, "/b/1.log"), (None, "/c/1.log"), (None, "/c/2.log")]
    rows = [
        {"cluster": "c", "node_id": node, "file": file, "bytes": 1, "end_offset": 1, "used": True}
        for node, file in listed
    ]
    source: Any = SimpleNamespace(
        row_counts=lambda name: {}, rows=lambda name, columns: rows if name == "files" else []
    )
    clusters: dict[str, ClusterFacts] = {}
    _small_tables(source, lambda name: clusters.setdefault(name, ClusterFacts(name)))
    assert clusters["c"].nodes == 3


# A whole page, as it was recorded: every number, word, cell and path of a chart.
# `pytest tests/unit/pipeline/report --rewrite` writes it anew: review the difference like code.


pytest.importorskip("pyarrow")


RECORDED = Path(__file__).with_name("page.txt")
# The same in every page.
FIXED = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)


def lines_of(text: str, out: Path) -> str:
    """The page with a tag a line."""
    return re.sub(r">\s*<", ">\n<", FIXED.sub("", text).replace(str(out), "OUT")) + "\n"


def test_a_page_says_and_draws_what_was_recorded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_fleet(FleetPlan(clusters=2, records=2000, seed=9, damaged_every=1), tmp_path / "fleet")
    nodes = sorted(path / "controller-3000" for path in (tmp_path / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, tmp_path / "tables")
    fleet = gather(TableSource(str(tmp_path / "tables")))
    found = findings(fleet, AuditLimits())
    actual = lines_of(page(fleet, found, title="Fleet", tables="tables"), tmp_path)
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual)
    recorded = RECORDED.read_text()
    assert actual == recorded, "review with: pytest tests/unit/pipeline/report --rewrite && git diff"
