"""Places of a log are an epoch and an offset: files never take one for another of the same offset."""

from __future__ import annotations

import itertools
import random

import pytest

from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.errors import SnapshotError
from metaquorum.storage.files.known_committed import (
    FILE_NAME,
    Acknowledged,
    Known,
    KnownCommitted,
    load_known,
)
from metaquorum.storage.files.snapshots import (
    SnapshotChunk,
    SnapshotNotFoundError,
    SnapshotWriter,
    delete_snapshot,
    delete_snapshots_before,
    latest_snapshot,
    list_snapshots,
    parse_snapshot_name,
    read_chunk,
    snapshot_name,
)
from metaquorum.storage.partition.producers import AbortedTransaction, AbortedTransactions
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile

IDS = [LogPosition(epoch, offset) for offset in (0, 9, 10, 2**31) for epoch in (0, 1, 2**31 - 1)]


def disk_of(seed: int = 0, profile: FaultProfile | None = None) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed), profile)
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def content_of(one: LogPosition) -> bytes:
    return b"%d/%d" % (one.epoch, one.offset)


def directory_with(ids: list[LogPosition]) -> FaultyDisk:
    disk = disk_of()
    for one in ids:
        writer = SnapshotWriter(disk, "/d", one)
        writer.append(content_of(one))
        writer.freeze()
    return disk


SETS = [random.Random(seed).sample(IDS, seed % (len(IDS) + 1)) for seed in range(40)]


@pytest.mark.parametrize("ids", SETS, ids=len)
def test_snapshots_are_told_apart_by_offset_and_epoch(ids: list[LogPosition]) -> None:
    """Two may end at one offset: a leader that lost its epoch had written one, its successor another one."""
    disk = directory_with(ids)
    ordered = sorted(ids, key=lambda one: (one.offset, one.epoch))
    assert list_snapshots(disk, "/d") == ordered
    assert latest_snapshot(disk, "/d") == (ordered[-1] if ordered else None)
    for one in IDS:
        assert parse_snapshot_name(snapshot_name(one)) == one
        if one in ids:
            chunk = read_chunk(disk, "/d", one, 0, 100)
            assert (chunk.snapshot_id, chunk.data, chunk.is_last) == (one, content_of(one), True)
        else:
            with pytest.raises(SnapshotNotFoundError):
                read_chunk(disk, "/d", one, 0, 100)
    for bound in (0, 1, 9, 10, 11, 2**31, 2**31 + 1):
        disk = directory_with(ids)
        doomed = [one for one in ordered[:-1] if one.offset < bound]
        assert delete_snapshots_before(disk, "/d", bound) == doomed
        assert list_snapshots(disk.crash(), "/d") == [one for one in ordered if one not in doomed]


@pytest.mark.parametrize("gone", IDS[:6])
def test_one_snapshot_is_removed_durably_and_no_other(gone: LogPosition) -> None:
    disk = directory_with(IDS)
    assert delete_snapshot(disk, "/d", gone) and not delete_snapshot(disk, "/d", gone)
    assert sorted(list_snapshots(disk.crash(), "/d")) == sorted(set(IDS) - {gone})


def test_a_chunk_is_of_the_snapshot_that_is_received_or_refused() -> None:
    for mine, theirs in itertools.permutations(IDS[:6], 2):
        writer = SnapshotWriter(disk_of(), "/d", mine)
        with pytest.raises(SnapshotError, match="drop it"):
            writer.receive(SnapshotChunk(snapshot_id=theirs, position=0, size_bytes=9, data=b"123"))
        assert writer.receive(SnapshotChunk(snapshot_id=mine, position=0, size_bytes=9, data=b"123")) == 3


# --- what is known to be committed


def acknowledgement(rng: random.Random) -> tuple[Acknowledged, ...]:
    """Several directories, of which two may have acknowledged as much, in other epochs."""
    count = rng.randrange(4)
    return tuple(
        Acknowledged(bytes([at]) * 16, rng.choice((0, 5, 2**31, 2**40)), rng.randrange(3))
        for at in range(count)
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_known_of_commits_is_what_was_said_last(seed: int) -> None:
    """After a kill the newest note and the last acknowledgements that were written; after a clean end and a
    loss of power all of it, whichever part of it changed last."""
    rng = random.Random(seed)
    disk = disk_of(seed)
    known = KnownCommitted(disk, "/d", Known(LogPosition(0, 0)))
    written: tuple[Acknowledged, ...] = ()
    for _ in range(rng.randrange(1, 12)):
        match rng.randrange(5):
            case 0:
                known.note(LogPosition(known.position.epoch, known.position.offset + rng.randrange(1, 9)))
            case 1:
                known.note(LogPosition(known.position.epoch + 1, known.position.offset))
            case 2:
                known.acknowledged = acknowledgement(rng)
            case 3:
                due = known.begin_write()
                assert due == Known(known.position, known.acknowledged) == known.known
                if rng.random() < 0.5:
                    more = rng.choice((LogPosition(1, 0), LogPosition(0, 1), LogPosition(1, 1)))
                    known.note(
                        LogPosition(due.position.epoch + more.epoch, due.position.offset + more.offset)
                    )
                if rng.random() < 0.5:
                    known.acknowledged = acknowledgement(rng)
                known.write(due)
                known.end_write(due)
                written = due.acknowledged
            case _:
                assert load_known(disk.kill(), "/d").position == known.position
                disk = disk.kill()
                found = load_known(disk, "/d")
                assert found == Known(known.position, written)
                known = KnownCommitted(disk, "/d", found)
                assert read_file(disk, f"/d/{FILE_NAME}") == found.encode()
        assert load_known(disk, "/d") == Known(known.position, written)
    last = known.known
    known.close(clean=True)
    assert load_known(disk.crash(), "/d") == last


# --- aborted transactions


@pytest.mark.parametrize("seed", range(30))
def test_aborted_transactions_against_a_list_of_them(seed: int) -> None:
    """Transactions of several producers, some under way for long; cut and trimmed at every offset."""
    rng = random.Random(seed)
    opened: dict[int, int] = {}
    every: list[AbortedTransaction] = []
    for offset in range(40):
        producer = rng.randrange(4)
        if producer not in opened:
            opened[producer] = offset
        elif rng.random() < 0.6:
            first = opened.pop(producer)
            if rng.random() < 0.7:
                every.append(
                    AbortedTransaction(producer, first, offset, min(opened.values(), default=offset + 1))
                )
    kept = AbortedTransactions(every)
    assert (len(kept), list(kept)) == (len(every), every)
    for low in range(-1, 42):
        for high in range(low, 42):
            assert kept.ending_in(low, high) == [one for one in every if low <= one.last_offset < high]
            if low < high:
                inside = [one for one in every if one.last_offset >= low and one.first_offset < high]
                assert kept.overlapping(low, high) == inside
        cut, trimmed = kept.copy(), kept.copy()
        cut.cut(low)
        trimmed.trim(low)
        assert list(cut) == [one for one in every if one.last_offset < low]
        assert list(trimmed) == [one for one in every if one.last_offset >= low]
    assert list(kept) == every
