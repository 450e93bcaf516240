"""`log timeline --follow`: events as they are committed, of a running quorum and of files that grow."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run_log as run
from tests.unit.kafka.kafka_controller import KafkaController, on_a_thread
from tests.waiting import LIMIT_S

LOG = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"
FIRST = 100


def batches() -> list[tuple[LogPosition, int, bytes]]:
    read = LogReader(PosixDisk(), str(LOG)).batches()
    return [
        (LogPosition(one.header.leader_epoch, one.header.next_offset), one.header.base_offset, one.data)
        for one in read
    ]


def wait_for(what: str, reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < ends, f"waited {LIMIT_S:g} s for {what}"
        time.sleep(0.005)


def test_events_are_told_as_they_are_committed_and_are_those_of_the_whole() -> None:
    node, rest = KafkaController(LOG), batches()
    quorum, end = node.quorum, node.quorum.high_watermark
    known = [one for one in rest if one[0].offset <= FIRST]
    quorum.log, quorum.high_watermark = list(known), known[-1][0].offset
    quorum.snapshots = set()

    def asked_from(offset: int) -> bool:
        return any(each.fetch_offset == offset for each in list(node.fetched))

    def grow() -> None:
        for one in rest[len(known) :]:
            wait_for(f"a fetch from offset {one[1]}", partial(asked_from, one[1]))
            quorum.log.append(one)
            quorum.commit()

    arguments = ("--to", end - 1, "--severity", "detail", "--json")
    with on_a_thread(node):
        growth = threading.Thread(target=grow, daemon=True)
        growth.start()
        found = run("timeline", "--bootstrap", f"127.0.0.1:{node.port}", "--follow", *arguments)
        growth.join(LIMIT_S)
    whole = run("timeline", LOG, *arguments)
    told, expected = ([json.loads(line) for line in each.stdout.splitlines()] for each in (found, whole))
    assert found.exit_code == whole.exit_code, found.stderr
    assert told == expected and len(told) > 50


def test_files_that_grow_are_followed(tmp_path: Path) -> None:
    rest = batches()
    segment = tmp_path / segment_name(0)
    shutil.copy(LOG / "00000000000000000082-0000000001.checkpoint", tmp_path)
    segment.write_bytes(b"".join(one[2] for one in rest if one[0].offset <= FIRST))
    end = rest[-1][1]

    def grow() -> None:
        for one in rest:
            if one[0].offset > FIRST:
                with segment.open("ab") as file:
                    file.write(one[2])

    growth = threading.Timer(0.3, grow)
    growth.start()
    found = run("timeline", tmp_path, "--follow", "--from", FIRST, "--to", end)
    growth.join(LIMIT_S)
    whole = run("timeline", LOG, "--from", FIRST, "--to", end)
    assert (found.stdout, found.exit_code) == (whole.stdout, whole.exit_code), found.stderr


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        ((LOG, LOG.parent), "--follow takes exactly one PATH"),
        ((next(LOG.glob("*.checkpoint")),), "does not grow; leave out --follow"),
    ],
)
def test_what_does_not_grow_is_not_followed(paths: tuple[Path, ...], problem: str) -> None:
    found = run("timeline", *paths, "--follow")
    assert found.exit_code == 2 and problem in found.stderr.splitlines()[-1]
