"""A fleet in a real browser: strips on one axis of time, incidents, the way to a cluster's log and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from tests.browser import Browser, needs_browser
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
