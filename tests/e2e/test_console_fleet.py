"""A fleet in a real browser: strips on one axis of time, incidents, the way to a cluster's log and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from tests.browser import LEFT, RIGHT, SHIFT, Browser, needs_browser
from tests.e2e.axe import axe_source, violations
from tests.e2e.served import Served
from tests.unit.pipeline.local_tables import write_tables

VIEWS = ("overview", "incidents", "findings", "clusters")
STRIPS = "document.querySelectorAll('.cluster svg.time').length === 3"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("fleet")
    write_fleet(FleetPlan(clusters=3, records=3000, seed=9, damaged_every=0), home / "logs")
    nodes = sorted(path / "controller-3000" for path in (home / "logs" / CLUSTERS).iterdir())
    write_tables(nodes, home / "tables")
    console = Served(home / "tables", nodes[0])
    yield console
    assert "Traceback" not in console.end()


@needs_browser
@pytest.mark.parametrize("width", [400, 1440])
def test_every_view_is_shown_and_the_page_reports_no_error(served: Served, width: int) -> None:
    with Browser(width, 900) as browser:
        browser.open(served.url)
        browser.wait(STRIPS, "strip of each cluster")
        for view in VIEWS:
            browser.run("location.hash = arguments[0]", f"#/{view}")
            browser.wait(f"document.title.toLowerCase().startsWith({view!r})", view)
            assert browser.text("main .error") == ""
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), view
            if view == "overview":
                assert browser.run("return document.querySelectorAll('.axis text').length") > 1
            if view in ("incidents", "findings", "clusters"):
                browser.wait("document.querySelector('main .sheet')", "table")
                assert browser.run(
                    "return [...document.querySelectorAll('main .sheet')]"
                    ".every(each => each.scrollWidth <= each.clientWidth)"
                ), view
        assert browser.messages() == []


@needs_browser
def test_an_incident_leads_to_its_moment_in_all_clusters_and_to_the_log(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/incidents")
        browser.wait("document.querySelector('main tbody a')", "table of incidents")
        browser.run("document.querySelector('main tbody a').click()")
        browser.wait(f"{STRIPS} && document.querySelectorAll('.cluster .handle').length === 3", "mark")
        browser.wait("document.querySelector('.cluster .lane-active')", "lanes of the cluster")
        browser.run("document.querySelector('.cluster p a').click()")
        browser.settled()
        assert browser.run("return location.pathname").startswith("/log/")
        assert "The state at offset" in browser.text("main .moment")
        browser.wait("document.querySelectorAll('#strip .lane-active').length", "its own strip")
        browser.run("document.querySelector('#nav a').click()")
        browser.wait(STRIPS, "the fleet again")
        assert browser.messages() == []


@needs_browser
def test_keys_mark_a_moment_and_pan(served: Served) -> None:
    marked = "Number(new URLSearchParams(location.hash.split('?')[1]).get('t'))"
    with Browser() as browser:
        browser.open(f"{served.url}#/overview")
        browser.wait(STRIPS, "strip of each cluster")
        first, last = browser.run(
            "const axis = document.getElementById('moment'); axis.focus();"
            "return [Number(axis.getAttribute('aria-valuemin')), Number(axis.getAttribute('aria-valuemax'))]"
        )
        browser.press(RIGHT)
        assert browser.wait(marked, "mark") == first
        browser.press(RIGHT)
        step = browser.wait(f"{marked} > {first} && {marked}", "mark a step later") - first
        assert 0 < step < (last - first) / 50
        browser.press(LEFT)
        drawn = "document.querySelectorAll('.cluster .handle').length === 3"
        browser.wait(f"{marked} === {first} && {drawn}", "first mark")
        assert browser.run("return document.activeElement.id") == "moment", "it keeps the focus"
        assert browser.run("return document.activeElement.getAttribute('aria-valuenow')") == str(first)
        browser.press("+")
        browser.wait("location.hash.includes('to=')", "part of the time")
        shown = browser.run("return location.hash")
        browser.press(RIGHT, held=SHIFT)
        browser.wait(f"location.hash !== {shown!r} && {marked} === {first}", "later part of the time")


@needs_browser
def test_an_incident_is_saved_with_what_happened_around_it_as_one_file_that_needs_no_server(
    served: Served, tmp_path: Path
) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/incidents?sort=fromTime")
        browser.wait("document.querySelector('main tbody a')", "table of incidents")
        reach = browser.run(
            "const fleet = await (await fetch('/api/fleet')).json();"
            "return fleet.clusters.find((each) => each.isWithinReach).cluster"
        )
        browser.run("location.hash = arguments[0]", f"#/incidents?show={reach}")
        browser.wait(
            "[...document.querySelectorAll('main tbody td[data-column=cluster]')]"
            f".every(each => each.innerText === '{reach}')",
            "incidents of the cluster whose log was given",
        )
        browser.run("document.querySelector('main tbody td[data-column=what] a').click()")
        browser.wait(
            "document.querySelector('main section:not([aria-busy]) tbody tr')",
            "events of the log",
        )
        shown = browser.text("main")
        assert f"Cluster {reach}" in shown and "Incidents in all clusters meanwhile" in shown
        events = browser.text("main section table")
        saved = browser.run(
            "const made = [];"
            "URL.createObjectURL = (blob) => { made.push(blob); return '#'; };"
            "document.getElementById('save').click();"
            "return new Promise(async (done) => {"
            "  while (!made.length) await new Promise((next) => setTimeout(next, 20));"
            "  done(await made[0].text()); })"
        )
        page = tmp_path / "incident.html"
        page.write_text(saved)
        browser.open(page.as_uri())
        assert browser.text("main section table").split() == events.split()
        assert browser.text("main pre").startswith("metaquorum log timeline ")
        assert browser.run("return document.querySelectorAll('.cluster svg.time .lane-active').length") > 0
        assert browser.messages() == []
    assert re.findall(r"<script|https?://(?!www\.w3\.org)|href=", saved) == []


@needs_browser
def test_an_incident_that_is_not_there_and_a_log_that_was_not_given_are_said(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/incident?cluster=none&begun=1&what=x&who=y")
        browser.wait("document.querySelector('main .error')", "sentence")
        assert "no such incident" in browser.text("main .error")
        far = browser.run(
            "const fleet = await (await fetch('/api/fleet')).json();"
            "return fleet.clusters.find((each) => !each.isWithinReach && each.incidents.length).cluster"
        )
        browser.run("location.hash = arguments[0]", f"#/incidents?show={far}")
        browser.wait(
            "[...document.querySelectorAll('main tbody td[data-column=cluster]')]"
            f".some(each => each.innerText === '{far}')",
            "incidents of a cluster whose log was not given",
        )
        browser.run("document.querySelector('main tbody td[data-column=what] a').click()")
        browser.wait("document.querySelector('main section[aria-label=\"Events of its log\"]')", "section")
        assert "Its log was not given" in browser.text("main section")


@needs_browser
def test_axe_finds_nothing_in_any_view(served: Served) -> None:
    source = axe_source()
    with Browser() as browser:
        browser.open(served.url)
        browser.wait(STRIPS, "strip of each cluster")
        browser.run(source)
        for view in VIEWS:
            browser.run("location.hash = arguments[0]", f"#/{view}")
            browser.wait(f"document.title.toLowerCase().startsWith({view!r})", view)
            assert violations(browser) == [], view
        browser.run("location.hash = '#/incidents'")
        browser.wait("document.querySelector('main tbody td[data-column=what] a')", "incidents")
        browser.run("document.querySelector('main tbody td[data-column=what] a').click()")
        browser.wait("document.querySelector('main section:not([aria-busy])')", "incident")
        assert violations(browser) == [], "incident"
