"""A node deletes old segments while a tool reads its log: an answer about the end is the same whenever."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import STORY, add_snapshot, make_node

SNAPSHOT = 11
CALLS = ("open_read", "list_directory", "file_size")
IDLE: list[Any] = [(2, [r.NoOpRecord()]) for _ in range(8)]


WORDS = ("summary", "LOG", "--json", "--last", "4s")


def test_a_summary_of_the_end_does_not_depend_on_segments_that_are_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, cut_at, log = 0, 0, tmp_path / "log"

    def cut() -> None:
        segments = sorted(log.rglob("*.log"))
        for path, following in pairwise(segments):
            if int(following.stem) <= SNAPSHOT:
                path.unlink()

    def counted(name: str) -> Any:
        own = getattr(PosixDisk, name)

        def call(disk: PosixDisk, *given: Any) -> Any:
            nonlocal count
            count += 1
            if count == cut_at:
                cut()
            return own(disk, *given)

        return call

    def answer(at: int) -> tuple[int, str, str]:
        nonlocal count, cut_at, log
        log = tmp_path / f"cut-at-{at}"
        add_snapshot(make_node(PosixDisk(), [*STORY, *IDLE], home=str(log), per_segment=4), SNAPSHOT)
        count, cut_at = 0, at
        ended = run(*(str(log) if word == "LOG" else word for word in WORDS))
        return ended.exit_code, ended.stdout.replace(str(log), ""), ended.stderr.replace(str(log), "")

    for name in CALLS:
        monkeypatch.setattr(PosixDisk, name, counted(name))
    before = answer(0)
    calls = count
    cut()
    assert len(list(log.rglob("*.log"))) > 1
    count = 0
    ended = run(*(str(log) if word == "LOG" else word for word in WORDS))
    allowed = {
        before,
        (ended.exit_code, ended.stdout.replace(str(log), ""), ended.stderr.replace(str(log), "")),
    }
    assert calls > 5 and before[0] != 1, before
    odd = {at: found for at in range(1, calls + 1) if (found := answer(at)) not in allowed}
    assert not odd
