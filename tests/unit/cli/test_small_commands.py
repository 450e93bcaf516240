"""What commands do around what they call: the options they pass on, what they print, what they refuse."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow")

from metaquorum.cli.admin import voter_changes
from metaquorum.cli.errors import Failure
from metaquorum.cli.log import archive
from metaquorum.cli.log.input import live
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.main import main
from metaquorum.cli.pipeline import ingest as ingest_command
from metaquorum.clients.kafka.observer import LiveLog
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.pipeline.fleet import files
from metaquorum.pipeline.fleet.plan import KINDS
from metaquorum.pipeline.ingest import job
from metaquorum.pipeline.ingest.job import IngestReport
from metaquorum.pipeline.ingest.layout import LayoutError
from metaquorum.storage.archive import ArchivedFile, IndexedPart
from metaquorum.storage.types import LogPosition


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


# ---- pipeline generate


def told_of(count: int) -> dict[str, Any]:
    clusters = [
        {
            "name": f"cluster-{at}",
            "cluster_id": f"id-{at}",
            "records": 10 + at,
            "bytes": 1000 + at,
            "brokers": 4,
            "partitions": 9,
            "incidents": {"leaderless": 1, "fence_storm": at},
            "damage": "zeros" if at == 0 else None,
        }
        for at in range(count)
    ]
    return {"clusters": clusters, "records": 12345, "bytes": 678}


@pytest.mark.parametrize("count", [1, 20, 21])
def test_a_fleet_is_shown_up_to_twenty_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    asked: list[Any] = []

    def write(plan: Any, out: Path, **more: Any) -> dict[str, Any]:
        asked.append((plan, out, more["jobs"]))
        more["on_cluster"](None)
        return told_of(count)

    monkeypatch.setattr(files, "write_fleet", write)
    out = tmp_path / "a b"
    shown = run(
        "pipeline", "generate", "--out", out, "--jobs", "3", "--seed", "7", "--incident", "leaderless"
    )
    lines = shown.output.splitlines()
    assert lines[0].split() == "CLUSTER ID RECORDS BYTES BROKERS PARTITIONS INCIDENTS DAMAGE".split()
    assert lines[1].split() == ["cluster-0", "id-0", "10", "1000", "4", "9", "1", "zeros"]
    rows = [line.split()[0] for line in lines if line.startswith("cluster-")]
    assert rows == [f"cluster-{at}" for at in range(min(20, count))]
    more = [f"... and 1 more; all are in {out / 'truth' / 'fleet.json'}"] if count > 20 else []
    assert lines[1 + len(rows) :] == [
        *more,
        f"12345 records, 678 bytes of log in {count} clusters",
        f"next: metaquorum pipeline ingest '{out / 'clusters'}' --out TABLES",
    ]
    ((plan, where, jobs),) = asked
    assert (plan.seed, plan.kinds, where, jobs) == (7, ("leaderless",), out, 3)
    assert json.loads(run("pipeline", "generate", "--out", out, "--json").output) == told_of(count)
    assert asked[1][0].kinds == KINDS and asked[1][2] >= 1


def test_a_fleet_that_cannot_be_is_refused(tmp_path: Path) -> None:
    asked = ("pipeline", "generate", "--out", tmp_path / "out")
    assert run(*asked, "--records", "3").exit_code == 2
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    found = run(*asked, "--clusters", "1", "--records", "400", "--jobs", "1")
    assert found.exit_code == 1 and str(tmp_path / "out") in found.output


# ---- pipeline ingest


class Session:
    stopped = 0

    def stop(self) -> None:
        Session.stopped += 1


@pytest.fixture(name="session")
def fixture_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "stopped", 0)
    monkeypatch.setattr("metaquorum.pipeline.logs.places.find_logs", lambda *_: [])
    monkeypatch.setattr(ingest_command, "require_pyspark", lambda: None)
    monkeypatch.setattr(ingest_command, "spark_session", lambda master, light: Session())


def test_a_run_says_what_it_read_and_left_out(monkeypatch: pytest.MonkeyPatch, session: None) -> None:
    report = IngestReport(
        version=4,
        ingested=["a", "b"],
        unchanged=["c"],
        kept=["d", "e", "f"],
        records=12345,
        rows={"records": 12345, "damage": 1},
        unreadable=["one"],
        left_out=["two"],
    )
    monkeypatch.setattr(job, "ingest", lambda *_, **__: report)
    shown = run("pipeline", "ingest", "/x", "--out", "/tables")
    assert shown.exit_code == 0 and Session.stopped == 1
    assert [line for line in shown.stderr.splitlines() if line] == [
        "metaquorum: left out: one",
        "metaquorum: left out: two",
    ]
    lines = shown.stdout.splitlines()
    assert lines[0] == "6 clusters: 2 read, 1 unchanged, 12,345 records written, version 4 of /tables"
    assert [line.split() for line in lines[1:]] == [["TABLE", "ROWS"], ["damage", "1"], ["records", "12,345"]]
    told = json.loads(run("pipeline", "ingest", "/x", "--out", "/tables", "--json").stdout)
    assert (told["version"], told["records"], told["kept"]) == (4, 12345, ["d", "e", "f"])


def test_a_run_that_fails_stops_its_session(monkeypatch: pytest.MonkeyPatch, session: None) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LayoutError("these are no tables")

    monkeypatch.setattr(job, "ingest", fail)
    shown = run("pipeline", "ingest", "/x", "--out", "/tables")
    assert (shown.exit_code, Session.stopped) == (1, 1) and "these are no tables" in shown.stderr


# ---- log archive


@pytest.mark.parametrize(
    ("times", "first", "last"),
    [([], None, None), ([(-1, -1)], None, None), ([(0, 0)], 0, 0), ([(5, 9), (-1, -1), (0, 3)], 0, 9)],
)
def test_what_an_archive_says_of_a_log(
    times: list[tuple[int, int]], first: int | None, last: int | None
) -> None:
    """Also from the first millisecond of 1970 on."""
    parts = [IndexedPart(at, at, 1, *of) for at, of in enumerate(times)]
    made: dict[str, Any] = {"sha256": "", "extents": []}
    files = [
        ArchivedFile(name=f"d/{20:020d}.log", size=7, parts=parts, end_offset=31, **made),
        ArchivedFile(name=f"d/{9:020d}.log", size=5, end_offset=20, **made),
        ArchivedFile(name=f"d/{9:020d}-{3:010d}.checkpoint", size=2, **made),
        ArchivedFile(name="d/other", size=1, **made),
    ]
    assert archive._log("d", files) == {
        "path": "d",
        "startOffset": 9,
        "endOffset": 31,
        "firstTime": first,
        "lastTime": last,
        "segments": 2,
        "snapshots": [{"offset": 9, "epoch": 3}],
        "bytes": 15,
    }
    assert archive._log("d", files[3:]) is None


# ---- logs of a running quorum


@click.command(cls=live.LiveCommand)
@click.argument("path")
@click.argument("others", nargs=-1)
@click.option("--follow", is_flag=True)
@click.pass_context
def shown(ctx: click.Context, path: str, others: tuple[str, ...], follow: bool) -> None:
    log_source.fetch_first()
    log_source.fetch_first()  # a command that opens its log again reads the same copy
    click.echo(json.dumps([path, others, ctx.meta.get(live.BOOTSTRAP), live.REFRESH in ctx.meta]))


def copied(end_offset: int = 41, snapshot: LogPosition | None = None) -> LiveLog:
    return LiveLog(
        address=("h", 9),
        leader_id=3000,
        epoch=7,
        cluster_id="c",
        snapshot=snapshot,
        start_offset=30,
        end_offset=end_offset,
    )


def test_a_command_reads_the_copy_of_a_quorum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[live.Live] = []

    def copy(self: live.LiveCopy, following: Any) -> LiveLog:
        asked.append(self._live)
        return copied()

    monkeypatch.setattr(live.LiveCopy, "_run", copy)
    monkeypatch.setattr(live, "temporary_directory", lambda purpose: nullcontext("/copy"))
    for words in (["--bootstrap", "h:1"], ["--bootstrap=h:1"], ["-b", "h:1"]):
        found = CliRunner().invoke(shown, [*words, "--truststore", str(tmp_path), "more"])
        told = ["--bootstrap", "h:1", "--truststore", str(tmp_path)]
        assert json.loads(found.stdout) == ["/copy", ["more"], told, True]
    assert [(each.bootstrap, each.truststore, each.keystore) for each in asked] == [
        ("h:1", tmp_path, None)
    ] * 3
    assert json.loads(CliRunner().invoke(shown, ["/files"]).output) == ["/files", [], None, False]


@pytest.mark.parametrize("snapshot", [None, LogPosition(2, 30)])
def test_a_copy_is_private_is_told_and_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: LogPosition | None
) -> None:
    known: list[LiveLog | None] = []

    def copy(self: live.LiveCopy, following: Any) -> LiveLog:
        assert Path(self._directory).stat().st_mode & 0o777 == 0o700
        known.append(self._log)
        return copied(40 + len(known), snapshot)

    @click.command(cls=live.LiveCommand)
    @click.argument("path")
    @click.pass_context
    def twice(ctx: click.Context, path: str) -> None:
        log_source.fetch_first()
        click.echo(f"{path}\n{ctx.meta[live.REFRESH]()}")

    monkeypatch.setattr(live.LiveCopy, "_run", copy)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = CliRunner().invoke(twice, ["-b", "h:9"])
    directory, more = found.stdout.splitlines()
    where = ", with the snapshot at offset 30" if snapshot else ""
    said = f"{where}, of cluster c from controller 3000 at h:9, leader of epoch 7"
    assert found.stderr == f"metaquorum: read offsets 30 to 40{said}\n"
    assert more == f"read offsets 30 to 41{said}"
    assert Path(directory).parent.parent == tmp_path and [*tmp_path.iterdir()] == []
    assert [known[0], known[1] and known[1].end_offset] == [None, 41]


@pytest.mark.parametrize("problem", [Failure("nobody"), OSError("a disk")])
def test_a_copy_that_ends_while_it_is_followed_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def copy(self: live.LiveCopy, following: Any) -> LiveLog:
        following.on_complete(copied())
        following.on_trouble("no answer; still trying")
        following.on_return("there again")
        raise problem

    @click.command(cls=live.LiveCommand)
    @click.argument("path")
    @click.option("--follow", is_flag=True)
    @click.pass_context
    def followed(ctx: click.Context, path: str, follow: bool) -> None:
        log_source.fetch_first()
        while True:
            ctx.meta[live.FOLLOWED]()

    monkeypatch.setattr(live.LiveCopy, "_run", copy)
    found = CliRunner().invoke(followed, ["-b", "h:9", "--follow"])
    assert found.exit_code == 1 and str(problem) in found.stderr
    assert not isinstance(found.exception, AttributeError)


def test_progress_is_cleared_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    for offset in (0, 5, 10):
        live._progress(offset, 10)
    line = "\r\033[K"
    assert capsys.readouterr().err == f"{line}fetched 0 of 10 offsets{line}fetched 5 of 10 offsets{line}"


# ---- voters


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("names", [(), ("INTERNAL", "GRPC_OTHER")])
def test_listeners_are_named_by_their_node(
    monkeypatch: pytest.MonkeyPatch, node_id: int, static: bool, names: tuple[str, ...]
) -> None:
    endpoints = tuple(VoterEndpoint(name, "inside", 1) for name in names)
    status = SimpleNamespace(node_id=1, votes_by_configuration=static, endpoints=endpoints)

    async def answers(addresses: Any, **_: Any) -> Any:
        return [SimpleNamespace(report=SimpleNamespace(status=status), problem="") for _ in addresses]

    monkeypatch.setattr(voter_changes, "describe_nodes", answers)
    options: Any = SimpleNamespace(timeout_ms=1, tls=SimpleNamespace(material=lambda: None))
    cluster = voter_changes.ByGrpc(SimpleNamespace(), options)  # type: ignore[arg-type]
    if static and node_id == 1:
        with pytest.raises(ApiError, match="h:9"):
            cluster.listeners_at(("h", 9), node_id)
        return
    if not names:
        with pytest.raises(ApiError, match="advertises no listener of its own"):
            cluster.listeners_at(("h", 9), node_id)
        return
    found = cluster.listeners_at(("h", 9), node_id)
    assert found == (VoterEndpoint("INTERNAL", "inside", 1), VoterEndpoint("GRPC_OTHER", "h", 9))


def test_a_node_that_does_not_answer_has_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(addresses: Any, **_: Any) -> Any:
        return [SimpleNamespace(report=None, problem="refused")]

    monkeypatch.setattr(voter_changes, "describe_nodes", answers)
    options: Any = SimpleNamespace(timeout_ms=1, tls=SimpleNamespace(material=lambda: None))
    cluster = voter_changes.ByGrpc(SimpleNamespace(), options)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="h:9 does not answer: refused: correct --endpoint"):
        cluster.listeners_at(("h", 9), 1)
