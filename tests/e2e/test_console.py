"""The console in a real browser: every view, the handle, two moments, sharing, a server that goes away."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum import testing
from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.metadata.records import types as r
from metaquorum.node.local_nodes import free_ports
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.segment import segment_name
from tests.browser import LEFT, RIGHT, SHIFT, Browser, needs_browser
from tests.console_pictures import night
from tests.e2e.axe import axe_source, violations
from tests.e2e.cluster import Cluster
from tests.e2e.served import Served
from tests.unit.metadata.made_logs import STORY, encoded, make_node, topic

TABLES = (
    "brokers",
    "racks",
    "topics",
    "partitions",
    "configs",
    "features",
    "acls",
    "users",
    "quotas",
    "tokens",
)
VIEWS = ("overview", "events", *TABLES, "producer-ids", "quorum", "groups", "records", "diff", "find")
NOTHING_IS_WIDER = (
    "return [document.querySelector('main'), ...document.querySelectorAll('main .sheet')]"
    ".every(each => each.scrollWidth <= each.clientWidth)"
)
CELLS_HOLD_ONE_THING = (  # on a narrow page a row is a card, where each child would be a column
    "return [...document.querySelectorAll('main table:not(.heat) tbody td')]"
    ".every(cell => cell.childNodes.length <= 1)"
)
PAGES = ("entity?path=broker/1", "entity?path=topic", "record?offset=20", "search?text=broker")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    console = Served(KAFKA_DATA)
    yield console
    if console.process.poll() is None:
        console.end()


@pytest.mark.parametrize("is_serving", [False, True])
def test_ctrl_c_ends_it_quietly(served: Served, is_serving: bool) -> None:
    """Also as soon as the URL is there, before the server runs."""
    if is_serving:
        served.log()
    errors = served.end()
    assert errors.strip() == ""
    assert served.process.returncode in (0, 130, -signal.SIGINT)


def test_ctrl_c_ends_it_quietly_also_if_a_page_is_open(served: Served) -> None:
    with contextlib.closing(served.stream()) as stream:
        assert b"endOffset" in stream.read1()
        assert served.end().strip() == ""


@needs_browser
def test_every_view_is_shown_and_the_page_reports_no_error(served: Served) -> None:
    with Browser(400, 800) as browser:
        browser.open(served.url)
        browser.settled()
        assert "token" not in browser.run("return location.href")
        browser.wait("document.querySelectorAll('#strip [class^=lane]').length > 1", "lane of a broker")
        for view in VIEWS:
            browser.go(f"#/{view}?at=150")
            assert not browser.text("main .error"), view
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), view
            assert len(browser.text("main")) > 20
            assert browser.run(NOTHING_IS_WIDER) and browser.run(CELLS_HOLD_ONE_THING), view
        for fragment in PAGES:
            browser.go(f"#/{fragment}&at=150")
            assert not browser.text("main .error"), fragment
            assert browser.run(NOTHING_IS_WIDER) and browser.run(CELLS_HOLD_ONE_THING), fragment
        browser.go("#/find?predicate=len(brokers)%20%3D%3D%200")
        found = browser.text("main section")
        assert "It turned false at" in found and "differences" in found and "snapshot" not in found
        browser.go("#/nothing")
        assert browser.text("main .error") == "There is no view nothing. Choose one above."
        browser.go("#/brokers?at=99999")
        assert "ends at offset" in browser.text("main .error")
        refused = "status of 400"  # the browser itself reports the refusal above
        assert [message for message in browser.messages() if refused not in message] == []


@needs_browser
def test_the_handle_moves_everything_and_keys_move_it(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/overview")
        browser.settled()
        browser.wait("document.querySelector('#strip [role=slider]')", "strip")
        browser.run("window.seen = document.querySelector('main').firstChild")
        browser.drag("#strip svg.time", (0.9, 0.1), (0.5, 0.1))
        browser.wait("location.hash.includes('at=')", "moment in the URL")
        at = "new URLSearchParams(location.hash.split('?')[1]).get('at')"
        browser.wait(
            f"document.querySelector('main .moment')?.textContent.includes(`offset ${{{at}}},`)",
            "the moment of the URL on the page",
        )
        offset = int(browser.run(f"return {at}"))
        assert 0 < offset < 200
        browser.run("document.querySelector('#strip svg.time').focus()")
        browser.press("d")
        browser.wait("location.hash.includes('since=')", "second moment")
        browser.press(RIGHT + RIGHT)
        browser.wait(f"!location.hash.includes('at={offset}&')", "next record")
        browser.wait("document.querySelector('main section[aria-label=Difference]')", "difference")
        browser.run("history.back()")
        browser.press("e")
        browser.wait("!location.hash.includes('at=')", "end of the log")
        browser.wait("document.querySelector('#strip .now').textContent.includes('followed')", "following")
        assert browser.messages() == []


@needs_browser
@pytest.mark.parametrize("width", [400, 1440])
def test_nothing_moves_under_the_pointer_when_a_second_moment_is_set(served: Served, width: int) -> None:
    place = (
        "const box = document.querySelector('#strip .controls').getBoundingClientRect();"
        "return [box.top, box.height]"
    )
    with Browser(width) as browser:
        browser.open(f"{served.url}#/overview?at=150")
        browser.settled()
        browser.wait("document.querySelector('#strip .now').textContent.includes('133')", "moment")
        before = browser.run(place)
        browser.run("document.querySelector('#strip svg.time').focus()")
        browser.press("d")
        browser.wait("document.querySelector('#strip .second').textContent.includes('compared')", "second")
        assert browser.run(place) == before


@needs_browser
def test_what_a_column_of_numbers_lacks_stands_below_the_numbers(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/overview")
        browser.settled()
        browser.run(
            "const page = { columns: ['group', 'lag'] };"
            "page.rows = [{ group: 'a', lag: null }, { group: 'b', lag: 5 }];"
            "import('/static/tables.js').then(({ sheet, sorter }) => { window.made = sheet('groups',"
            " page.columns.map((name) => sorter(name, page, {})),"
            " page.rows.map((row) => [row.group, String(row.lag)]), '') })"
        )
        browser.wait("Boolean(window.made)", "table")
        for number, kind in ((0, ""), (1, "number")):
            cells = f"[...made.querySelectorAll('tr')].map((row) => row.children[{number}].className)"
            assert browser.run(f"return {cells}") == [kind] * 3


@needs_browser
def test_the_last_changes_are_those_before_the_state_that_is_shown(served: Served) -> None:
    listed = 0
    with Browser() as browser:
        browser.open(served.url)
        browser.settled()
        for offset in range(10, 200, 30):
            browser.go(f"#/overview?at={offset}")
            shown = re.search(r"at offset (\d+)", browser.text("main .moment"))
            records = browser.run(
                "return [...document.querySelectorAll('main [aria-label=\"Last changes\"] tbody tr')]"
                ".map(row => Number(row.lastChild.textContent))"
            )
            assert shown is not None and all(record < int(shown[1]) <= offset for record in records)
            listed += len(records)
    assert listed > 5


@needs_browser
def test_a_change_that_no_broker_suffers_from_is_found_on_the_first_page(tmp_path: Path) -> None:
    with testing.Cluster(brokers=1, controllers=1) as cluster:
        cluster.create_topic("orders", configs={"min.insync.replicas": 3})
        cluster.create_topic("payments")
        cluster.delete_topic("payments")
        cluster.save(tmp_path)
        (controller,) = cluster.controllers
    console = Served(tmp_path / f"controller-{controller}" / "data")
    try:
        with Browser() as browser:
            browser.open(console.url)
            browser.settled()
            browser.wait("document.querySelector('main [aria-label=\"Last changes\"] td')", "last changes")
            newest = browser.text("main [aria-label='Last changes'] tbody tr")
            assert "topic deleted" in newest and "DeleteTopics by User:ANONYMOUS" in newest
            browser.go("#/events")
            browser.run(
                "window.seen = document.querySelector('main').firstChild;"
                "document.querySelector('main .empty a').click()"
            )
            browser.settled()
            assert "min.insync.replicas=3" in browser.text("main table")
            browser.go("#/configs")
            assert "CreateTopics by User:ANONYMOUS" in browser.text("main tbody tr")
            browser.go("#/features?text=metadata.version")
            assert re.search(r"\d+\s+\d\.\d-IV\d", browser.text("main tbody tr"))
            browser.go("#/search?text=payments")
            assert browser.run("return document.querySelector('main li a[href*=entity]').textContent") == (
                "topic/payments"
            )
            browser.go("#/entity?path=config/topic/orders")
            order = browser.text("main .columns")
            assert order.index("Asked: CreateTopics") < order.index("CONFIG_RECORD")
            assert browser.messages() == []
    finally:
        console.end()


@needs_browser
def test_a_rule_is_named_once_and_the_headings_of_a_narrow_table_say_that_they_sort(tmp_path: Path) -> None:
    story = night()
    make_node(PosixDisk(), story.batches, home=str(tmp_path / "night"), stamps=story.stamps)
    console = Served(tmp_path / "night")
    try:
        console.wait(lambda log: log["progress"] == 1, "whole log")
        with Browser(400, 800) as browser:
            browser.open(console.url)
            browser.settled()
            place = "getComputedStyle(document.querySelector('#strip .progress')).position"
            assert browser.run(f"return {place}") == "absolute", "when it goes, the page stays where it is"
            browser.go("#/events?text=broker%20fenced")
            fenced = browser.text("main tbody tr")
            assert fenced.count("session-expired") == 1
            browser.go("#/events?text=leaderless")
            row = browser.text("main tbody tr")
            assert "[broker-fenced] (the controller itself, by rule session-expired)" in row
            assert browser.run(CELLS_HOLD_ONE_THING)
            browser.go("#/brokers")
            heading = "getComputedStyle(document.querySelector('main .sheet thead tr'), '::before').content"
            assert browser.run(f"return {heading}") == '"sort by"'
            assert browser.run(NOTHING_IS_WIDER)
    finally:
        console.end()


OVERLAPS = """
const boxes = (all) => [...document.querySelectorAll(all)].map((one) => one.getBoundingClientRect());
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const texts = boxes("#strip .times text"), strip = boxes("#strip svg.time")[0];
return [texts.length, texts.some((one, number) => one.left < strip.left || one.right > strip.right
  || [...boxes("#strip .handle-knob"), ...texts.slice(number + 1)].some((other) => meet(one, other)))]
"""


@needs_browser
def test_no_time_of_the_strip_lies_under_a_handle_or_another_time(served: Served) -> None:
    with Browser(400, 800) as browser:
        browser.open(served.url)
        browser.settled()
        for at in (20, 60, 100, 150, 165, 176):
            browser.go(f"#/overview?at={at}&since={max(1, at - 50)}")
            number, is_over = browser.run(OVERLAPS)
            assert number and not is_over, at


@needs_browser
def test_a_history_shows_what_each_state_changed(tmp_path: Path) -> None:
    story = night()
    make_node(PosixDisk(), story.batches, home=str(tmp_path / "night"), stamps=story.stamps)
    console = Served(tmp_path / "night")
    try:
        with Browser() as browser:
            browser.open(f"{console.url}#/entity?path=broker/1")
            browser.settled()
            cells = browser.run(
                "return [...document.querySelectorAll('main td[data-column=state]')]"
                ".map(each => each.innerText)"
            )
            assert cells[0] == cells[-2] == "fenced=no" and "fenced=yes" in cells[-1]
            assert all("rack" not in cell for cell in cells[:-1])
            last = (
                "[...document.querySelectorAll('main .spark rect')].map(each => each.getAttribute('width'))"
            )
            assert browser.run(f"return Math.min(...{last}.map(Number))") > 1.5, "also the state that lasts"
            browser.go("#/entity?path=config/topic/orders")
            browser.run(
                "window.seen = document.querySelector('main').firstChild;"
                "[...document.querySelectorAll('main a')]"
                ".find(each => each.innerText.includes('defaults')).click()"
            )
            browser.settled()
            assert browser.text("main tbody tr").split()[:4] == [
                "topic/orders",
                "min.insync.replicas",
                "2",
                "1",
            ]
            browser.go("#/overview")
            said = browser.text("main .empty")
            assert "The newest warning before this moment" in said and "broker fenced: broker 2" in said
    finally:
        console.end()


@needs_browser
@pytest.mark.parametrize("missing", ["main.js", "keep.js"])
def test_a_browser_that_cannot_run_the_page_says_so(served: Served, missing: str) -> None:
    with Browser() as browser:
        browser.block(f"*{missing}")
        browser.open(served.url)
        browser.wait("document.querySelector('main .error')", "sentence")
        assert "use a current Firefox" in browser.text("main") and "Reading" not in browser.text("main")


@needs_browser
def test_a_url_gives_the_same_view_again_and_one_file_needs_no_server(served: Served, tmp_path: Path) -> None:
    fragment = "#/partitions?at=176&sort=leader&order=descending"
    with Browser() as browser:
        browser.open(served.url + fragment)
        browser.settled()
        table = browser.text("main table")
        address = browser.run("return location.href")
        saved = browser.run(
            "const made = [];"
            "URL.createObjectURL = (blob) => { made.push(blob); return '#'; };"
            "document.getElementById('save').click();"
            "return new Promise(async (done) => {"
            "  while (!made.length) await new Promise((next) => setTimeout(next, 20));"
            "  done(await made[0].text()); })"
        )
        browser.open(address)
        browser.settled()
        assert browser.text("main table") == table and "sort=leader" in address
        page = tmp_path / "saved.html"
        page.write_text(saved)
        served.end()
        browser.open(page.as_uri())
        assert table.split() == browser.text("main table").split()
        assert "metaquorum log state" in browser.text("main pre")
        assert browser.run(
            "return document.querySelector('#strip svg.time').getBoundingClientRect().height > 50"
        )
    assert re.findall(r"<script|https?://(?!www\.w3\.org)|href=", saved) == []


@needs_browser
def test_axe_finds_nothing_in_any_view(served: Served) -> None:
    """In light every view, in dark those that have every colour."""
    source = axe_source()
    every = [*(f"{view}?at=176" for view in VIEWS), *(f"{page}&at=176" for page in PAGES)]
    for fragments, dark in ((every, False), (["overview?at=176", "brokers?at=176&since=90"], True)):
        with Browser(dark=dark) as browser:
            browser.open(served.url)
            browser.settled()
            browser.run(source)
            for fragment in fragments:
                browser.go(f"#/{fragment}")
                assert violations(browser) == [], fragment


@needs_browser
def test_names_cannot_become_markup(tmp_path: Path) -> None:
    """Nor turn the text around them: what is invisible is shown as an escape."""
    html, shown = "<img src=x onerror=alert(1)>\u202e", r"<img src=x onerror=alert(1)>\u202e"
    batches = [*STORY, (2, [r.TopicRecord(html, b"x" * 16)]), (2, [r.ConfigRecord(2, html, "k", html)])]
    batches += [(2, topic("long" * 62, b"y" * 16)), (2, [r.ConfigRecord(2, "long" * 62, "k" * 200, html)])]
    make_node(PosixDisk(), batches, home=str(tmp_path / "node"))
    console = Served(tmp_path / "node")
    try:
        with Browser() as browser:
            browser.open(f"{console.url}#/topics")
            browser.settled()
            assert shown in browser.text("main")
            for view in ("configs?", "events?severity=info", "records?start=14", "search?text=img"):
                browser.go(f"#/{view}")
                assert shown in browser.text("main"), view
            between = "overview?since=3", "diff?since=3"
            for view in (*between, "entity?path=topic", "configs?", "search?text=long"):
                browser.go(f"#/{view}")
                assert "long" * 62 in browser.text("main") and browser.run(NOTHING_IS_WIDER), view
            assert browser.run("return document.images.length") == 0
            assert browser.messages() == []
    finally:
        console.end()


@needs_browser
def test_a_log_without_its_beginning_shows_its_events_and_records(tmp_path: Path) -> None:
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"), per_segment=5)
    (tmp_path / "node" / "__cluster_metadata-0" / segment_name(0)).unlink()
    console = Served(tmp_path / "node")
    try:
        with Browser() as browser:
            browser.open(f"{console.url}#/overview")
            browser.wait("document.querySelector('main .error')", "sentence")
            assert "Events and Records show" in browser.text("main .error")
            for view in ("events?severity=info", "records?", "records?at=12"):
                empty = "document.querySelector('main').replaceChildren();"
                browser.run(f"{empty} location.hash = arguments[0]", f"#/{view}")
                browser.wait("document.querySelector('main tbody tr')", view)
                browser.wait("!document.querySelector('main[aria-busy]')", view)
                assert browser.text("main .error") == "" and browser.text("main tbody"), view
    finally:
        console.end()


@needs_browser
def test_a_damaged_log_is_said_with_its_path_as_it_was_given(tmp_path: Path) -> None:
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    segment = tmp_path / "node" / "__cluster_metadata-0" / segment_name(0)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    console = Served(tmp_path / "node")
    try:
        with Browser() as browser:
            browser.open(console.url)
            browser.settled()
            assert browser.text("main .notes").startswith(f"{segment} at byte")
            notice = browser.wait("document.querySelector('#notice').innerText", "notice")
            assert "metaquorum log check" in notice
    finally:
        console.end()


@needs_browser
def test_a_page_of_a_server_that_ended_says_that_its_token_is_no_longer_right(tmp_path: Path) -> None:
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    (port,) = free_ports(1)
    console = Served(tmp_path / "node", "--port", str(port))
    try:
        with Browser() as browser:
            browser.open(console.url)
            browser.settled()
            console.end()
            notice = "document.querySelector('#notice').innerText"
            browser.wait(f"{notice}.includes('does not answer')", "sentence")
            console = Served(tmp_path / "node", "--port", str(port))
            browser.wait(f"{notice}.startsWith('The token is wrong: open the URL')", "other sentence")
    finally:
        console.end()


@needs_browser
def test_keys_pan_the_strip_and_a_moment_outside_its_window_moves_it(served: Served) -> None:
    low = "Number(/fromMs=(\\d+)/.exec(asked.at(-1))?.[1])"
    with Browser() as browser:
        browser.open(f"{served.url}#/overview?at=150")
        browser.settled()
        browser.run(
            "window.asked = []; const own = window.fetch; window.fetch = (address, ...words) => {"
            " if (address.includes('/api/strip')) asked.push(address); return own(address, ...words); };"
        )
        browser.press("+")
        zoomed = browser.wait(low, "window")
        browser.press(LEFT, held=SHIFT)
        panned = browser.wait(f"{low} < {zoomed} && {low}", "window before it")
        assert browser.run("return location.hash").endswith("at=150")
        browser.go("#/overview?at=10")
        browser.wait(f"{low} < {panned}", "window of the moment")
        drawn = "Number(document.querySelector('#strip .handle').getAttribute('x1'))"
        assert browser.wait(f"{drawn} > 70 && {drawn}", "handle in the middle") < 1400


@needs_browser
def test_arrow_keys_scroll_a_table_that_is_wider_than_its_place(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/brokers?at=150")
        browser.settled()
        sheet = "document.querySelector('main .sheet')"
        browser.run(f"{sheet}.style.width = '200px'; {sheet}.focus()")
        browser.press(RIGHT)
        browser.wait(f"{sheet}.scrollLeft > 0", "scrolling")
        assert browser.run("return location.hash").endswith("at=150")
        browser.run(f"{sheet}.style.width = ''")
        browser.press(RIGHT)
        browser.wait("!location.hash.endsWith('at=150')", "next record")


@needs_browser
def test_a_growing_log_is_followed_until_the_handle_is_touched_and_a_lost_server_is_said(
    tmp_path: Path,
) -> None:
    home = tmp_path / "node"
    make_node(PosixDisk(), STORY[:8], home=str(home))
    segment = home / "__cluster_metadata-0" / segment_name(0)
    (port,) = free_ports(1)
    console = Served(home, "--port", str(port))
    try:
        with Browser() as browser:
            browser.open(console.url)
            browser.settled()
            browser.wait("document.querySelector('main').innerText.includes('offset 12')", "the log's end")
            segment.write_bytes(b"".join(encoded(STORY)))
            browser.wait("document.querySelector('main').innerText.includes('offset 15')", "the new end")
            browser.wait("document.querySelector('#notice').innerText.startsWith('Critical')", "notice")
            browser.go("#/overview?at=5")
            console.end()
            browser.wait(
                "document.querySelector('#notice').innerText.includes('does not answer')", "a sentence"
            )
            assert "offset 4" in browser.text("main .moment"), "what was shown stays"
    finally:
        if console.process.poll() is None:
            console.end()


@needs_browser
def test_what_was_opened_typed_and_scrolled_to_stays_while_the_log_grows(tmp_path: Path) -> None:
    """Also on a page whose sections are read later: it never shows less than before."""
    story, home = night(), tmp_path / "node"
    until = next(number for number, (_, records) in enumerate(story.batches[::-1]) if len(records) > 3)
    first = len(story.batches) - until - 12
    make_node(PosixDisk(), story.batches[:first], home=str(home), stamps=story.stamps)
    segment = home / "__cluster_metadata-0" / segment_name(0)

    def grow(to: int) -> str:
        """Appends batches. Returns where the log ends then."""
        segment.write_bytes(b"".join(encoded(story.batches[:to], stamps=story.stamps)))
        return f"offset {sum(len(records) for _, records in story.batches[:to])},"

    console = Served(home)
    try:
        console.wait(lambda log: log["progress"] == 1, "whole log")
        with Browser(1000, 500) as browser:
            browser.open(console.url)
            browser.settled()
            browser.run("document.querySelector('.problems button').click()")
            why = "document.querySelector('.problems .why:not([hidden]) a')"
            browser.wait(why, "why")
            said = browser.text(".problems .why")
            assert re.search(r"\.leader is none since 20\d\d-\S+ \S+ \(record \d+\): broker 2", said)
            browser.run("document.querySelector('main').scrollTop = 140")
            end = grow(first + 1)
            browser.wait(f"document.querySelector('main .moment').innerText.includes('{end}')", "growth")
            assert browser.text(".problems .why") == said and browser.run(f"return Boolean({why})")
            assert browser.run("return document.querySelector('main').scrollTop") == 140
            browser.go("#/topics")
            browser.run("document.querySelector('#filter').focus()")
            browser.press("pay")
            end = grow(first + 2)
            browser.wait(f"document.querySelector('main .moment').innerText.includes('{end}')", "growth")
            assert browser.run("return document.activeElement.value") == "pay"
            browser.go("#/entity?path=topic/orders/1")
            browser.run(
                "window.emptied = 0; new MutationObserver(() => {"
                " if (document.querySelector('main').innerText.includes('Reading the log')) emptied++; })"
                ".observe(document.querySelector('main'), {childList: true, subtree: true});"
            )
            end = grow(first + 3)
            browser.wait(f"document.querySelector('main .moment').innerText.includes('{end}')", "growth")
            assert browser.run("return document.querySelectorAll('main .chain > li').length") > 1
            assert browser.run("return emptied") == 0
            assert browser.messages() == []
    finally:
        console.end()


@needs_browser
def test_a_view_that_must_be_waited_for_shows_its_title_or_what_was_there_and_that_it_is_read(
    served: Served,
) -> None:
    said = "getComputedStyle(document.querySelector('main'), '::before').content"
    with Browser() as browser:
        browser.open(f"{served.url}#/overview?at=150")
        browser.settled()
        assert browser.run(f"return {said}") == "none"
        browser.run(
            "const own = window.fetch; window.held = [];"
            "window.fetch = async (...words) => {"
            "  await new Promise((next) => held.push(next)); return own(...words); };"
            "window.release = () => { window.fetch = own; held.forEach((next) => next()); };"
        )
        browser.run("location.hash = '#/topics?at=150'")
        browser.wait("document.querySelector('main[aria-busy] h1')?.innerText === 'Topics'", "title")
        assert "Reading" in browser.run(f"return {said}")
        assert browser.run("return document.querySelector('main').children.length") == 1
        browser.run("release()")
        browser.settled()
        table = browser.text("main table")
        browser.run("window.fetch = () => new Promise(() => {}); location.hash = '#/topics?at=100'")
        browser.wait("document.querySelector('main[aria-busy]')", "sign that it is read")
        assert browser.text("main table") == table and "Reading" in browser.run(f"return {said}")


@needs_browser
def test_a_view_that_is_there_stays_while_the_handles_wait_for_their_moments(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/overview?at=150")
        browser.settled()
        browser.run(
            "const own = window.fetch; window.fetch = (address, ...words) =>"
            " address.includes('/api/moment') ? new Promise(() => {}) : own(address, ...words);"
            "location.hash = '#/record?offset=20&at=150&since=100'"
        )
        browser.wait(
            "document.querySelector('main .bytes') && document.querySelector('main[aria-busy]')", "bytes"
        )
        assert "Its batch" in browser.text("main")


@needs_browser
def test_two_tabs_each_keep_their_moment(served: Served) -> None:
    with Browser() as browser:
        browser.open(f"{served.url}#/overview?at=50")
        browser.settled()
        first = browser.text("main .moment")
        browser.run("window.open('/#/overview?at=150')")
        browser.use_window(1)
        browser.settled()
        assert browser.text("main .moment") != first
        browser.use_window(0)
        assert browser.text("main .moment") == first


def test_a_running_cluster_is_followed_said_to_be_gone_and_found_again(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", controllers=1, brokers=1) as cluster:
        cluster.start()
        console = Served("--bootstrap", cluster.bootstrap, "--timeout", "2")
        try:
            before = console.wait(lambda log: log["progress"] == 1, "whole strip")
            assert before["clusterId"] == cluster.cluster_id and before["trouble"] == ""
            cluster.create_topic("orders", 3)
            console.wait(lambda log: log["endOffset"] >= before["endOffset"] + 4, "record of the topic")
            cluster.stop()
            gone = console.wait(lambda log: bool(log["trouble"]), "sentence about the cluster")
            assert gone["endOffset"] > before["endOffset"], "what was read stays"
            cluster.start()
            console.wait(
                lambda log: not log["trouble"] and log["endOffset"] > gone["endOffset"], "new records"
            )
        finally:
            errors = console.end()
        assert "Traceback" not in errors, errors


@needs_browser
def test_the_quorum_says_which_controller_does_not_answer_and_since_when(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", controllers=3, brokers=0) as cluster:
        cluster.start()
        leader = cluster.leader()
        dead = next(node for node in cluster.controllers if node is not leader)
        console = Served("--bootstrap", cluster.bootstrap, "--timeout", "5")
        try:
            with Browser() as browser:
                browser.open(f"{console.url}#/quorum")
                follows = f"follows controller {leader.node_id}"
                found = f"document.querySelector('main').textContent.split({follows!r}).length"
                browser.wait(f"{found} === 3", "two controllers that follow")
                cluster.kill_all([dead])
                browser.wait(
                    "/does not answer since \\d/.test(document.querySelector('main').textContent)",
                    "dead controller",
                )
                assert str(dead.node_id) in browser.run(
                    "return [...document.querySelectorAll('main section tr')]"
                    ".find(row => row.textContent.includes('does not answer')).textContent"
                )
        finally:
            errors = console.end()
        assert "Traceback" not in errors, errors


def test_a_cluster_that_wants_a_login_is_shown_with_one_and_says_what_is_missing_without(
    tmp_path: Path,
) -> None:
    with testing.Cluster(brokers=1, controllers=1, sasl="scram") as cluster:

        def login(password: str) -> tuple[str, ...]:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
            file = tmp_path / f"{password}.properties"
            file.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
                f'sasl.jaas.config={module} username="{cluster.user}" password="{password}";\n'
            )
            return ("--bootstrap", cluster.bootstrap_servers, "--timeout", "5", "--command-config", str(file))

        refused = (
            (login("none")[:4], "may require a login (--command-config"),
            (login("wrong"), "it refuses the login"),
        )
        for words, sentence in refused:
            done = run("console", *words, "--no-browser")
            assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr
        assert cluster.password is not None
        console = Served(*login(cluster.password))
        try:
            before = console.wait(lambda log: log["progress"] == 1, "whole strip")
            assert before["name"] == cluster.bootstrap_servers
            cluster.create_topic("orders")
            console.wait(lambda log: log["endOffset"] > before["endOffset"], "records of the topic")
            command = console.ask("entity", path="topic/orders/0")["command"]
            printed = run(*shlex.split(command)[1:], "--json")
            assert json.loads(printed.stdout)["leader"] >= 0, printed
        finally:
            errors = console.end()
        assert "Traceback" not in errors, errors


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metaquorum.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
