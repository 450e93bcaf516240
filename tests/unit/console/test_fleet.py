"""A fleet's page shows what the pipeline's tables say, and leads to the logs that were given."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow")

from metaquorum.cli.main import main
from metaquorum.console.fleet import COLUMNS, FleetViews, is_hurting
from metaquorum.console.fleet_app import fleet_application
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Strip
from metaquorum.console.views import Views
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.pipeline.audit.facts import Fleet
from metaquorum.pipeline.audit.findings import AuditLimits, findings
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.tables import BROKER_OUT, DIRECTORY_LOST, LEADER_CHANGED, QUORUM_SILENT
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.console.asked import MEMORY_BYTES, PORT, TOKEN, AskedPage
from tests.unit.pipeline.local_tables import write_tables


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fleet")
    write_fleet(FleetPlan(clusters=3, records=3000, seed=9, damaged_every=0), out / "fleet")
    write_tables(nodes_of(out), out / "tables")
    return out


def nodes_of(home: Path) -> list[Path]:
    return sorted(path / "controller-3000" for path in (home / "fleet" / CLUSTERS).iterdir())


@pytest.fixture(scope="module")
def facts(home: Path) -> Fleet:
    return gather(TableSource(home / "tables"))


def opened(node: Path) -> Views:
    log = open_log(PosixDisk(), str(node))
    strip = Strip(Moments(log, MEMORY_BYTES))
    strip.follow(None)
    return Views(strip, (str(node),))


@pytest.fixture(scope="module")
def page(home: Path) -> AskedPage:
    """The fleet's page, with the log of its first cluster within reach."""
    node = nodes_of(home)[0]
    identity = open_log(PosixDisk(), str(node)).identity
    assert identity is not None and identity.cluster_id is not None
    logs: dict[str, Callable[[], Views]] = {identity.cluster_id: partial(opened, node)}
    return AskedPage(fleet_application(FleetViews(str(home / "tables"), logs), logs, token=TOKEN, port=PORT))


def test_each_cluster_has_its_strip_on_one_axis(page: AskedPage, facts: Fleet) -> None:
    shown = page.view("fleet")
    assert [one["cluster"] for one in shown["clusters"]] == [one.cluster for one in facts.clusters]
    assert shown["fromMs"] == min(one["fromMs"] for one in shown["clusters"])
    assert shown["toMs"] == max(one["toMs"] for one in shown["clusters"])
    for number, (strip, one) in enumerate(zip(shown["clusters"], facts.clusters, strict=True)):
        assert strip["leaderless"] == pytest.approx(facts.leaderless[number].tolist(), abs=0.001)
        assert [leader[1] for leader in strip["leaders"]] == [row["leader_id"] for row in one.elections]
        assert [incident[2] for incident in strip["incidents"]] == [
            row["from_offset"] for row in one.incidents
        ]
        lanes = page.view("lanes", cluster=one.cluster)["brokers"]
        assert {lane["id"]: len(lane["turns"]) for lane in lanes} == {
            broker_id: len(listed) for broker_id, listed in one.sessions.items()
        }
    assert any(strip["incidents"] for strip in shown["clusters"])


def test_the_tables_are_those_of_the_audit(page: AskedPage, facts: Fleet) -> None:
    found = page.view("table", kind="findings", size=1000)["rows"]
    expected = findings(facts, AuditLimits())
    assert [(row["kind"], row["cluster"], row["subject"], row["text"]) for row in found] == [
        (one.kind, one.cluster, one.subject, one.text) for one in expected
    ]
    incidents = page.view("table", kind="incidents", size=1000)
    assert incidents["total"] == sum(len(one.incidents) for one in facts.clusters)
    counts = [row["partitions"] for row in incidents["rows"]]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0
    one = incidents["rows"][0]["cluster"]
    of_one = page.view("table", kind="incidents", show=one, sort="offset", size=1000)["rows"]
    assert {row["cluster"] for row in of_one} == {one}
    assert [row["offset"] for row in of_one] == sorted(row["offset"] for row in of_one)
    times = sorted(row["fromTime"] for row in incidents["rows"] if row["fromTime"] is not None)
    low, high = times[len(times) // 4], times[len(times) // 2]
    between = page.view("table", kind="incidents", fromMs=low, toMs=high, size=1000)["rows"]
    assert sorted(row["fromTime"] for row in between) == [time for time in times if low <= time <= high]
    saved = page.get("/api/table?kind=clusters&format=csv")
    lines = list(csv.DictReader(io.StringIO(saved.body.decode())))
    assert [line["cluster"] for line in lines] == [one.cluster for one in facts.clusters]
    assert saved.headers["content-disposition"] == 'attachment; filename="fleet-clusters.csv"'


def test_a_log_that_was_given_opens_below_the_fleet_and_others_are_said(
    page: AskedPage, facts: Fleet
) -> None:
    (near,) = [one["cluster"] for one in page.view("fleet")["clusters"] if one["isWithinReach"]]
    incident = page.view("table", kind="incidents", show=near)["rows"][0]
    log = AskedPage(page.app, f"/log/{near}/")
    assert log.view("log")["clusterId"] == near
    assert log.view("overview", at=f"{incident['offset']}+")["offset"] > incident["offset"]
    assert b"/static/main.js" in page.get(f"/log/{near}/").body
    assert page.get(f"/log/{near}").headers["location"].endswith(f"/log/{near}/")
    far = next(one.cluster for one in facts.clusters if one.cluster != near)
    answer = page.get(f"/log/{far}/api/log")
    assert answer.status == 404 and answer.body.decode().startswith(f"The log of cluster {far} was not given")


@pytest.mark.parametrize(
    ("what", "cause", "hurts"),
    [
        (BROKER_OUT, "controlled-shutdown", False),
        (BROKER_OUT, "session-expired", True),
        (BROKER_OUT, None, True),
        (LEADER_CHANGED, None, False),
        (DIRECTORY_LOST, None, True),
        (QUORUM_SILENT, None, True),
    ],
)
def test_what_operators_do_on_purpose_hurts_only_where_it_leaves_a_partition_without_a_leader(
    what: str, cause: str | None, hurts: bool
) -> None:
    assert is_hurting({"what": what, "cause": cause, "leaderless_ms": 0}) is hurts
    assert is_hurting({"what": what, "cause": cause, "leaderless_ms": None}) is hurts
    assert is_hurting({"what": what, "cause": cause, "leaderless_ms": 1})


def test_newer_tables_are_read_again(home: Path, tmp_path: Path) -> None:
    nodes = nodes_of(home)
    write_tables(nodes[:1], tmp_path / "tables")
    views = FleetViews(str(tmp_path / "tables"))
    assert views.fleet()["numbers"]["clusters"] == 1
    write_tables(nodes, tmp_path / "tables")
    assert views.fleet()["numbers"]["clusters"] == 3


@pytest.mark.parametrize(
    ("view", "params", "sentence"),
    [
        ("table", {"kind": "nothing"}, f"there is no table 'nothing'; known are {', '.join(COLUMNS)}"),
        (
            "table",
            {"kind": "incidents", "sort": "nothing"},
            "there is no column 'nothing'; known are fromTime",
        ),
        ("table", {"kind": "incidents", "format": "xml"}, "there is no format 'xml'"),
        ("lanes", {"cluster": "nothing"}, "there is no cluster 'nothing' in"),
    ],
)
def test_what_is_mistyped_gets_one_sentence(
    page: AskedPage, view: str, params: dict[str, str], sentence: str
) -> None:
    assert sentence in page.refusal(view, **params)


def test_the_command_says_what_prevents_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(*words: object) -> str:
        done = CliRunner().invoke(main, ["console", "--no-browser", *map(str, words)])
        assert done.exit_code != 0 and done.stderr.count("\n") == 1, (done.stderr, done.exception)
        return done.stderr

    empty = tmp_path / "tables"
    for name in ("_data", "_versions"):
        (empty / name).mkdir(parents=True)
    assert "holds no pipeline tables; write them with: metaquorum pipeline ingest" in line(empty)
    assert "does not exist" in line(home / "tables", tmp_path / "nowhere")
    (tmp_path / "alone").mkdir()
    segment = next(nodes_of(home)[0].rglob("00000000000000000000.log"))
    alone = tmp_path / "alone" / segment.name
    alone.write_bytes(segment.read_bytes())
    assert "names its cluster; give the directory of its node" in line(home / "tables", alone)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pyarrow is not installed" in line(home / "tables")
