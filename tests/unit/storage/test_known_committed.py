"""The `known-committed` file: what survives a kill and a loss of power, and what is damage."""

from __future__ import annotations

import random
import zlib

import pytest

from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files.known_committed import (
    FILE_NAME,
    NOTHING,
    Acknowledged,
    Known,
    KnownCommitted,
    decode,
    encode,
    load_known,
    load_known_committed,
)
from metaquorum.storage.files.snapshots import parse_snapshot_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError

DIRECTORY = "/replica"
PATH = f"{DIRECTORY}/{FILE_NAME}"


def disk_of(seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def test_a_new_directory_knows_nothing_and_its_file_is_no_name_of_kafkas() -> None:
    disk = disk_of()
    assert load_known_committed(disk, DIRECTORY) == NOTHING
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    known.close(clean=True)
    assert decode(read_file(disk, PATH)) == NOTHING
    assert parse_snapshot_name(FILE_NAME) is None and "." not in FILE_NAME


def test_every_note_survives_a_kill() -> None:
    disk = disk_of()
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    for offset in (3, 9, 1 << 40):
        known.note(LogPosition(2, offset))
        assert load_known_committed(disk, DIRECTORY) == LogPosition(2, offset)
    assert load_known_committed(disk.kill(), DIRECTORY) == LogPosition(2, 1 << 40)


def test_the_file_is_one_line_again_after_a_start_and_after_a_durable_write() -> None:
    disk = disk_of()
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    for offset in range(1, 50):
        known.note(LogPosition(1, offset))
    due = known.begin_write()
    known.note(LogPosition(1, 50))
    known.write(due)
    assert read_file(disk, PATH) == encode(LogPosition(1, 49))
    known.end_write(due)
    assert read_file(disk, PATH) == encode(LogPosition(1, 49)) + encode(LogPosition(1, 50))
    again = KnownCommitted(disk.kill(), DIRECTORY, Known(LogPosition(1, 50)))
    assert read_file(again._disk, PATH) == encode(LogPosition(1, 50))


def test_a_clean_end_is_durable() -> None:
    disk = disk_of()
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    known.note(LogPosition(1, 7))
    known.close(clean=True)
    assert load_known_committed(disk.crash(), DIRECTORY) == LogPosition(1, 7)


def test_acknowledgements_are_as_durable_as_the_durable_note_before_them() -> None:
    disk = disk_of()
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    acknowledged = (Acknowledged(b"a" * 16, 1 << 40, 7), Acknowledged(bytes(15) + b"\n", 3, 0))
    known.acknowledged = acknowledged
    due = known.begin_write()
    known.write(due)
    known.end_write(due)
    known.note(LogPosition(2, 9))
    known.acknowledged = ()
    found = load_known(disk, DIRECTORY)
    assert found == Known(LogPosition(2, 9), acknowledged)
    disk = disk.kill()
    KnownCommitted(disk, DIRECTORY, found).close(clean=True)
    assert load_known(disk, DIRECTORY) == found


@pytest.mark.parametrize("seed", range(60))
def test_power_lost_at_any_operation_leaves_a_note_that_was_made_and_all_that_were_durable(seed: int) -> None:
    rng = random.Random(seed)
    disk = disk_of(seed)
    known = KnownCommitted(disk, DIRECTORY, Known(NOTHING))
    made, durable = {NOTHING}, 0
    disk.crash_after = rng.randrange(1, 40)
    offset = 0
    try:
        while True:
            offset += rng.randrange(1, 1_000)
            made.add(LogPosition(offset // 500, offset))
            known.note(LogPosition(offset // 500, offset))
            if rng.random() < 0.3:
                due = known.begin_write()
                known.write(due)
                durable = due.position.offset
                known.end_write(due)
    except PowerLossError:
        pass
    found = load_known_committed(disk.crash(), DIRECTORY)
    assert found in made and found.offset >= durable


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "does not say what is committed"),
        (b"\0" * 20, "does not say what is committed"),
        (encode(LogPosition(3, 4))[:-1], "does not say what is committed"),
        (encode(LogPosition(3, 4)).replace(b"4", b"5"), "does not say what is committed"),
        (b"1 4 3 9ae0daaf\n", "does not say what is committed"),
        (b"1 4 3 eab4ae3d\n", "has version 1, this release reads 0"),
    ],
)
def test_damage_is_refused_with_what_to_do(content: bytes, text: str) -> None:
    if text.startswith("has version"):
        content = b"1 4 3 %08x\n" % zlib.crc32(b"1 4 3")
    disk = disk_of()
    write_atomically(disk, PATH, content)
    with pytest.raises(CorruptFileError, match=text):
        load_known_committed(disk, DIRECTORY)


def test_what_follows_a_torn_note_does_not_count() -> None:
    first, torn, last = encode(LogPosition(1, 5)), encode(LogPosition(1, 6))[:7], encode(LogPosition(1, 7))
    assert decode(first + torn) == LogPosition(1, 5)
    assert decode(first + torn + last) == LogPosition(1, 5)


@pytest.mark.parametrize("kind", [b"1", b"00", b"c", b"e", b"dd", b"D", b"z", b""])
def test_a_line_of_another_kind_is_of_another_release(kind: bytes) -> None:
    """Its checksum is right, so nothing tore: to pass over it would be to forget what it says."""
    first = encode(LogPosition(1, 5))
    for rest in (b"4 3", b"4 3 " + b"61" * 16):
        line = b"%b %b" % (kind, rest)
        with pytest.raises(CorruptFileError, match="has version"):
            decode(first + b"%b %08x\n" % (line, zlib.crc32(line)))
