"""A cluster whose history is cut at its snapshots has the tables of one that is replayed in one piece."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import metaquorum.pipeline.ingest.job as job
import metaquorum.pipeline.ingest.parts as parts
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.pipeline.fleet.files import write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.layout import load_manifest
from metaquorum.pipeline.ingest.tasks import run_encoded
from metaquorum.pipeline.ingest.work import Task, TaskResult
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.test_ingest import table, unpublished

NOBODY: Any = None
SPAN = 400


class Joins:
    """Counts what was joined, and what had to be replayed again."""

    def __init__(self) -> None:
        self.joined = self.again = 0


@pytest.fixture(autouse=True)
def joins(monkeypatch: pytest.MonkeyPatch) -> Joins:
    counted, join = Joins(), parts.PartJoin._join

    def counting(*given: Any) -> bool:
        is_joined = join(*given)
        counted.joined += is_joined
        counted.again += not is_joined
        return is_joined

    def run_here(session: object, tasks: list[Task], *_: object) -> list[TaskResult]:
        done = [run_encoded(msgspec.msgpack.encode(task)) for task in tasks]  # as bytes, as Spark moves them
        return [msgspec.msgpack.decode(result, type=TaskResult) for result in done]

    monkeypatch.setattr(parts.PartJoin, "_join", counting)
    monkeypatch.setattr(job, "run_tasks", run_here)
    return counted


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clusters of several nodes, whose copies end at different places; the second has a damaged tail."""
    out = tmp_path_factory.mktemp("fleet") / "made"
    plan = FleetPlan(
        clusters=2, records=9_000, seed=3, nodes=2, snapshots=7, damaged_every=2, segment_bytes=32 * 1024
    )
    write_fleet(plan, out)
    return out / "clusters"


def run(logs: Path, out: Path, span: int = SPAN) -> None:
    job.ingest(NOBODY, [str(logs)], out, span_records=span)


def assert_same(cut: Path, whole: Path, but: tuple[str, ...] = ()) -> None:
    """`but`: kinds of damage that only the cut history has."""
    for name in TABLES:
        found = [row for row in table(cut, name) if name != "damage" or row["kind"] not in but]
        assert found == table(whole, name), name
    if load_manifest(cut).version == 1:  # else files of the version before are kept for its readers
        assert unpublished(cut) == []
    assert not list(cut.glob("_state/*.part"))


def test_parts_give_the_tables_of_one_replay(fleet: Path, tmp_path: Path, joins: Joins) -> None:
    run(fleet, tmp_path / "cut")
    assert joins.joined >= 4 > joins.again
    run(fleet, tmp_path / "whole", 1 << 60)
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_a_log_that_grew_is_cut_from_where_the_last_run_ended(
    fleet: Path, tmp_path: Path, joins: Joins
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "cut"
    shutil.copytree(fleet, logs)
    for log in logs.glob("*/*/__cluster_metadata-0"):
        kept, *later = sorted(log.glob("*.log"))[2:]
        for path in [*later, *(at for at in log.glob("*.checkpoint") if at.stem[:20] > kept.stem)]:
            path.unlink()
    run(logs, out)
    before = joins.joined
    shutil.rmtree(logs)
    shutil.copytree(fleet, logs)
    run(logs, out)
    assert joins.joined > before
    run(logs, tmp_path / "whole", 1 << 60)
    assert_same(out, tmp_path / "whole")


def snapshots(logs: Path) -> list[Path]:
    """Those of the first cluster, at whatever node, in order."""
    return sorted(next(iter(sorted(logs.iterdir()))).glob("*/*/*.checkpoint"), key=lambda path: path.name)


def spoil(path: Path) -> None:
    """A snapshot that says something else than the log."""
    end, epoch = (int(part) for part in path.stem.split("-"))
    position = LogPosition(epoch, end)
    image = load_snapshot([path.read_bytes()], position=position)
    engine = Replayer(ReplayState(image))
    engine.apply(ConfigRecord(4, "", "log.cleaner.threads", "7"), end, epoch, image.provenance.timestamp_ms)
    changed = engine.state().image.with_provenance(image.provenance)
    path.write_bytes(
        b"".join(
            snapshot_batches(changed, position=position, metadata_version=image.features.metadata_version)
        )
    )


def test_a_snapshot_that_differs_from_the_log_is_told_and_the_log_is_followed(
    fleet: Path, tmp_path: Path, joins: Joins
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(fleet, logs)
    spoilt = snapshots(logs)[3]
    for path in snapshots(logs):
        if path.name == spoilt.name:
            spoil(path)
    run(logs, tmp_path / "cut")
    run(logs, tmp_path / "whole", 1 << 60)
    assert joins.again >= 1
    (seam,) = [row for row in table(tmp_path / "cut", "damage") if row["kind"] == "seam"]
    assert seam["node_id"] is not None
    assert seam["offset"] == int(spoilt.name.split("-")[0])
    assert "differs from the records below" in seam["reason"] and "configs" in seam["reason"]
    for name in TABLES.keys() - {"damage", "files"}:
        assert table(tmp_path / "cut", name) == table(tmp_path / "whole", name), name


@pytest.mark.parametrize("what", ["no snapshot", "begins later", "hole", "flipped", "cut short"])
def test_logs_that_are_not_whole_are_read_as_before(what: str, fleet: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(fleet, logs)
    for log in logs.glob("*/*/__cluster_metadata-0"):
        segments = sorted(log.glob("*.log"))
        match what:
            case "no snapshot":
                for path in log.glob("*.checkpoint"):
                    path.write_bytes(b"nothing")
            case "begins later":
                segments[0].unlink()
            case "hole":
                segments[len(segments) // 2].unlink()
            case "flipped":
                data = bytearray(segments[len(segments) // 2].read_bytes())
                data[len(data) // 2] ^= 0xFF
                segments[len(segments) // 2].write_bytes(data)
            case _:
                for path in segments[-2:]:
                    path.write_bytes(path.read_bytes()[:-100])
    run(logs, tmp_path / "cut")
    run(logs, tmp_path / "whole", 1 << 60)
    assert_same(tmp_path / "cut", tmp_path / "whole", but=("seam",) if what == "flipped" else ())


@pytest.mark.shared_data
def test_recorded_logs_with_snapshots_are_cut_without_a_difference(
    shared_data: Path, tmp_path: Path, joins: Joins
) -> None:
    logs = sorted({path.parents[1] for path in shared_data.rglob("0*[1-9]*-*.checkpoint")})
    logs = [path for path in logs if (path / "meta.properties").exists()]
    if not logs:
        pytest.skip("the recorded data has no log with a snapshot")
    for number, path in enumerate(logs):
        run(path, tmp_path / f"cut{number}", 50)
        run(path, tmp_path / f"whole{number}", 1 << 60)
        assert_same(tmp_path / f"cut{number}", tmp_path / f"whole{number}")
    assert joins.joined > 0
