"""A generated fleet, byte for byte as it was recorded: what others measure does not change unnoticed.

`pytest tests/unit/pipeline/fleet --rewrite` records it anew.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.fleet import files
from metaquorum.pipeline.fleet.files import write_fleet
from metaquorum.pipeline.fleet.plan import KINDS, FleetPlan

RECORDED = Path(__file__).with_name("fleet.txt")
PLANS: dict[str, dict[str, Any]] = {
    "every kind": {"clusters": len(KINDS), "records": 1_500 * len(KINDS), "seed": 3},
    "several nodes": {"clusters": 1, "records": 3_000, "seed": 4, "nodes": 3, "segment_bytes": 50_000},
    "closed and whole": {"clusters": 2, "records": 3_000, "seed": 5, "damaged_every": 0, "open_every": 0},
}


def digests(out: Path, **plan: Any) -> list[str]:
    """A line for each file: its name, bytes and digest."""
    write_fleet(FleetPlan(**plan), out)
    lines = []
    for path in sorted(out.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            lines.append(f"{path.relative_to(out)} {len(data)} {sha256(data).hexdigest()[:12]}")
    return lines


def test_a_fleet_is_what_was_recorded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    actual = ""
    for number, (name, plan) in enumerate(PLANS.items()):
        actual += "\n".join([f"---- {name}", *digests(tmp_path / str(number), **plan)]) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual)
    assert actual == RECORDED.read_text(), "record it with: pytest tests/unit/pipeline/fleet --rewrite"


@pytest.mark.parametrize("rows", [1, 3])
def test_the_size_of_its_batches_does_not_change_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    from metaquorum.metadata.inspect.log.log import open_log
    from metaquorum.metadata.inspect.log.points import END
    from metaquorum.metadata.inspect.walk.states import state_at
    from metaquorum.storage.disk.posix import PosixDisk

    plan: dict[str, Any] = {"clusters": 1, "records": 1_500, "seed": 6, "damaged_every": 0}
    images = []
    for size in (files._ROWS, rows):
        monkeypatch.setattr(files, "_ROWS", size)
        out = tmp_path / str(size)
        write_fleet(FleetPlan(**plan), out)
        (found,) = sorted(out.rglob("*.checkpoint"))[-1:]
        state = state_at(open_log(PosixDisk(), str(found)), END)
        assert state.problems == []
        counts = json.loads(next((out / files.TRUTH).glob("cluster-*.json")).read_text())
        images.append((state.image, counts["records"], found.stat().st_size))
    (whole, records, whole_size), (cut, again, cut_size) = images
    assert (whole, records) == (cut, again)
    assert cut_size > whole_size
