"""Steps of a run by themselves: which bytes are kept, whose damage is listed, what a node that lags has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.fleet import files
from metaquorum.pipeline.ingest import replay, retained
from metaquorum.pipeline.ingest.retained import retain
from metaquorum.pipeline.logs.places import FACTS_FILE, ORIGINS_FILE
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition

# ---- what is kept


class Kept:
    """A folder that notes what is put there."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        self.names.append(name)


@pytest.mark.parametrize("low", range(4, 34))
def test_bytes_are_kept_from_the_batch_before(monkeypatch: pytest.MonkeyPatch, low: int) -> None:
    """Of every run that reaches `low`; a snapshot with its run, if it ends at `low` or later."""
    ends = (5, 8, 10, 15, 20, 30)
    runs = [
        SimpleNamespace(start=start, end=end, snapshots=[("log", at, 1) for at in ends if start <= at <= end])
        for start, end in ((5, 10), (20, 30))
    ]
    copied: list[tuple[int, int, str]] = []

    def copy_run(run: Any, start: int, folder: Any, name: str) -> dict[str, Any]:
        copied.append((run.start, start, name))
        return {}

    monkeypatch.setattr(retained, "_copy_run", copy_run)
    snapshots: list[tuple[str, str]] = []
    monkeypatch.setattr(
        retained, "_copy", lambda file, start, end, folder, name: snapshots.append((file, name))
    )
    folder: Any = Kept()
    monkeypatch.setattr(retained, "snapshot_file", lambda log, at: f"/x/{at.offset}")
    merged: Any = SimpleNamespace(runs=lambda: runs)
    facts: Any = {}
    retain(merged, low, {*ends} - {8}, facts, folder, "to")
    reached = [(at, run) for at, run in enumerate(runs) if run.end >= low]
    assert copied == [(run.start, max(run.start, low - 1), f"to/{at}") for at, run in reached]
    assert snapshots == [
        (f"/x/{end}", f"to/{at}/{end}")
        for at, run in reached
        for end in ends
        if run.start <= end <= run.end and end >= low and end != 8  # what was not learned is not kept
    ]
    wanted = [f"to/{at}/{name}" for at, _ in reached for name in (ORIGINS_FILE, FACTS_FILE)]
    assert folder.names == wanted


# ---- whose damage is listed


def log(path: str, *sizes: tuple[int, int], retained_bytes: bool = False) -> Any:
    place = SimpleNamespace(path=path, node_id=len(path), is_retained=retained_bytes)
    segments = [SimpleNamespace(readable_bytes=readable, size_bytes=size) for readable, size in sizes]
    return SimpleNamespace(location=place, segments=segments)


def test_damage_of_logs_that_were_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One damaged segment is enough; each log once, and none that was read or is kept by an earlier run."""
    monkeypatch.setattr(replay, "log_damage", lambda disk, place: [f"row of {place.path}"])
    sound, hurt = (7, 7), (3, 7)
    logs = [
        log("read", hurt),
        log("sound", sound, sound),
        log("hurt", hurt),
        log("partly", sound, hurt, sound),
        log("partly", hurt),
        log("kept", hurt, retained_bytes=True),
        log("without"),
        log("idle", hurt),
    ]
    conflict = {"offset": 9, "kind": "mismatch", "reason": "other bytes"}
    merged: Any = SimpleNamespace(
        sections=[
            SimpleNamespace(log=logs[0], start=0, end=5),
            SimpleNamespace(log=logs[7], start=5, end=5),
        ],
        logs=logs,
        conflicts=[SimpleNamespace(log=each, **conflict) for each in (logs[1], logs[5])],
    )
    rows: list[Any] = list(replay._other_damage(merged))
    told = rows.pop()
    assert [(row.log, row.row) for row in rows] == [
        (name, f"row of {name}") for name in ("hurt", "partly", "idle")
    ]
    assert (told.log, told.node_id) == ("sound", 5)
    assert (told.row.file, told.row.position, told.row.offset) == ("sound", 0, 9)
    assert (told.row.kind, told.row.reason) == ("mismatch", "other bytes")


@pytest.mark.parametrize("end", [0, 7])
def test_a_hole_between_logs_is_listed_where_it_begins(end: int) -> None:
    told: list[tuple[Any, ...]] = []
    feeder: Any = object.__new__(replay._Feeder)
    feeder._notes = SimpleNamespace(add=lambda *row: told.append(row))
    run: Any = SimpleNamespace(
        start=9, sections=[SimpleNamespace(log=log("there")), SimpleNamespace(log=log("x"))]
    )
    feeder._hole(end, run)
    reason = "offsets 7 to 8 are in none of the logs: what happened there is unknown"
    assert told == ([("missing", "there", 0, 7, reason)] if end else [])


# ---- a node that lags


@pytest.mark.parametrize(
    ("behind", "sizes", "end_offset"),
    [
        (0, [100, 80], 9),
        (1, [100, 50], 7),
        (2, [100, 20], 5),
        (3, [100], 3),
        (4, [60], 2),
        (5, [60], 2),
        (99, [60], 2),
    ],
)
def test_a_node_lacks_the_last_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, sizes: list[int], end_offset: int
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    copy.mkdir()
    paths = [source / "0.log", source / "3.log"]
    for path, size in zip(paths, (100, 80), strict=True):
        path.write_bytes(bytes(range(size)))
    snapshots = [LogPosition(1, end) for end in (2, 5, 9)]
    for position in snapshots:
        (source / snapshot_name(position)).write_bytes(b"s")
    ends = [(0, 60, 2), (0, 100, 3), (1, 20, 5), (1, 50, 7), (1, 80, 9)]
    writer: Any = SimpleNamespace(
        ends=ends, segments=list(zip((0, 3), paths, strict=True)), snapshots=snapshots, directory=source
    )
    states: list[Any] = []
    monkeypatch.setattr(files, "_state_files", lambda directory, known, end: states.append((directory, end)))
    files._follower(writer, copy, {}, behind)
    assert [path.read_bytes() for path in sorted(copy.glob("*.log"))] == [
        bytes(range(size)) for size in sizes
    ]
    assert sorted(path.name for path in copy.glob("*.checkpoint")) == sorted(
        snapshot_name(position) for position in snapshots if position.offset <= end_offset
    )
    assert states == [(copy, end_offset)]
