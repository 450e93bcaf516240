"""The parts of an archive at their bounds: what its bytes may say, how files are cut, what was seen."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from metaquorum.storage import archive as archive_format
from metaquorum.storage import archive as archive_opened
from metaquorum.storage import archive_writer as archive_pieces
from metaquorum.storage.archive import (
    HEAD,
    HEAD_MAGIC,
    MAX_BLOCK_BYTES,
    MAX_INDEX_BYTES,
    TAIL,
    TAIL_MAGIC,
    VERSION,
    ArchivedFile,
    ArchiveIndex,
    Block,
    Extent,
    IndexedPart,
    LogArchive,
    check_head,
    decode_block,
    decode_index,
    decode_tail,
    encode_block,
    encode_end,
    encode_head,
)
from metaquorum.storage.archive_writer import FilePiece, Packer, SeenPieces, pieces
from metaquorum.storage.batches.batch import encode_batch, parse_header, seal_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import CorruptFileError, DiskError, FileMissingError
from metaquorum.storage.log import recovery
from metaquorum.testing.faulty_disk import FaultyDisk


def batch(base: int, size: int = 20) -> bytes:
    return encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=100 + base, values=[b"r" * size])


@dataclass
class Bytes:
    """A file for reading, which counts what is read of it."""

    data: bytes
    reads: int = 0
    path: str = "/f"

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        assert position >= 0 and length >= 0
        self.reads += 1
        return self.data[position : position + length]

    def close(self) -> None:
        self.path = "closed"


# ---- the bytes of an archive ------------------------------------------------------------------


def test_a_head_is_of_a_version_that_is_known() -> None:
    head = encode_head()
    assert head == HEAD_MAGIC + struct.pack(">I", VERSION)
    check_head("f", head)
    for wrong in (
        b"",
        head[:-1],
        head[1:] + b"\0",
        HEAD_MAGIC + struct.pack(">I", 0),
        HEAD_MAGIC + struct.pack(">I", VERSION + 1),
    ):
        with pytest.raises(CorruptFileError):
            check_head("f", wrong)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_block_has_its_checksum_and_its_size(more: int) -> None:
    block, stored = encode_block(b"content" * 9)
    assert block == Block(len(stored), 63, block.crc)
    for crc in (-1, 0, 1):
        wrong = block._replace(content_bytes=63 + more, crc=block.crc + crc)
        if more or crc:
            with pytest.raises(CorruptFileError, match="byte 12 is damaged"):
                decode_block("f", 12, wrong, stored)
        else:
            assert decode_block("f", 12, wrong, stored) == b"content" * 9
    garbage = b"\0" * 40
    with pytest.raises(CorruptFileError, match="byte 12 is damaged"):
        decode_block("f", 12, Block(40, 63, archive_format.crc32c(garbage)), garbage)


def end_of(index: ArchiveIndex, position: int) -> tuple[bytes, bytes]:
    end = encode_end(index, position)
    return end[: -TAIL.size], end[-TAIL.size :]


EMPTY = ArchiveIndex(blocks=[], files=[])


def test_a_tail_says_where_the_index_is_up_to_the_last_byte() -> None:
    stored, tail = end_of(EMPTY, 12)
    size = 12 + len(stored) + TAIL.size
    found = decode_tail("f", size, tail)
    assert (found.position, found.stored_bytes, found.content_bytes) == (12, len(stored), 24)
    assert decode_index("f", found, stored) == EMPTY
    for wrong_size, wrong in (
        (size - 1, tail),
        (size + 1, tail),
        (size, tail[1:]),
        (size, tail[:-1] + b"x"),
        (size, b""),
        *((size, tail[:at] + bytes([tail[at] ^ 1]) + tail[at + 1 :]) for at in range(TAIL.size)),
    ):
        with pytest.raises(CorruptFileError):
            decode_tail("f", wrong_size, wrong)


@pytest.mark.parametrize(("content_bytes", "fits"), [(MAX_INDEX_BYTES, True), (MAX_INDEX_BYTES + 1, False)])
def test_an_index_has_a_bound(content_bytes: int, fits: bool) -> None:
    numbers = struct.pack(">QIII", 12, 5, content_bytes, 7)
    tail = numbers + struct.pack(">I8s", archive_format.crc32c(numbers), TAIL_MAGIC)
    if fits:
        assert decode_tail("f", 17 + TAIL.size, tail) == (12, 5, content_bytes, 7)
    else:
        with pytest.raises(CorruptFileError):
            decode_tail("f", 17 + TAIL.size, tail)


def test_an_index_that_is_not_whole_is_none() -> None:
    stored, tail = end_of(EMPTY, 12)
    found = decode_tail("f", 12 + len(stored) + TAIL.size, tail)
    for wrong in (found._replace(crc=found.crc ^ 1), found._replace(content_bytes=23)):
        with pytest.raises(CorruptFileError, match="index of the archive is damaged"):
            decode_index("f", wrong, stored)
    for content in (b"{}", b'{"blocks":[],"files":[{}]}', b"[]", b"\xff"):
        other = bytes(archive_format.cramjam.zstd.compress(content))
        right = found._replace(crc=archive_format.crc32c(other), content_bytes=len(content))
        with pytest.raises(CorruptFileError, match="cannot be read"):
            decode_index("f", right, other)


def archived(name: str, *extents: tuple[int, int], size: int | None = None) -> ArchivedFile:
    total = sum(length for _, length in extents) if size is None else size
    return ArchivedFile(name=name, size=total, sha256="", extents=[Extent(*each) for each in extents])


BLOCKS = [Block(30, 100, 1), Block(20, 50, 2)]


@pytest.mark.parametrize(
    ("files", "fits"),
    [
        ([archived("a"), archived("b/c.d", (0, 150))], True),
        ([archived("a", (149, 1)), archived("b", (0, 0), (150, 0))], True),
        ([archived("..a/.b/c..", (1, 5), (0, 5))], True),
        ([archived("a"), archived("a")], False),
        ([archived("")], False),
        ([archived("/a")], False),
        ([archived("a/")], False),
        ([archived("a//b")], False),
        ([archived(".")], False),
        ([archived("a/./b")], False),
        ([archived("..")], False),
        ([archived("a/../../b")], False),
        ([archived("a\0b")], False),
        ([archived("a", (149, 2))], False),
        ([archived("a", (151, 0))], False),
        ([archived("a", (-1, 2))], False),
        ([archived("a", (5, -1), (0, 2))], False),
        ([archived("a", (5, 5), size=4)], False),
        ([archived("a", (5, 5), size=6)], False),
        ([archived("b"), archived("a", size=1)], False),
    ],
)
def test_files_of_an_index_lie_in_the_archive_and_in_its_folders(
    files: list[ArchivedFile], fits: bool
) -> None:
    assert (archive_format._problem(ArchiveIndex(blocks=BLOCKS, files=files), HEAD.size + 50) is None) == fits


@pytest.mark.parametrize(
    ("blocks", "end", "fits"),
    [
        ([], HEAD.size, True),
        (BLOCKS, HEAD.size + 50, True),
        (BLOCKS, HEAD.size + 49, False),
        (BLOCKS, HEAD.size + 51, False),
        (BLOCKS, 50, False),
        ([Block(5, 1, 0)], HEAD.size + 5, True),
        ([Block(5, 0, 0)], HEAD.size + 5, False),
        ([Block(5, MAX_BLOCK_BYTES, 0)], HEAD.size + 5, True),
        ([Block(5, MAX_BLOCK_BYTES + 1, 0)], HEAD.size + 5, False),
        ([Block(5, 1, 0), Block(5, -1, 0)], HEAD.size + 10, False),
    ],
)
def test_blocks_of_an_index_fill_the_archive(blocks: list[Block], end: int, fits: bool) -> None:
    index = ArchiveIndex(blocks=blocks, files=[])
    assert (archive_format._problem(index, end) is None) == fits
    stored, tail = end_of(index, end)
    found = decode_tail("f", end + len(stored) + TAIL.size, tail)
    if fits:
        assert decode_index("f", found, stored) == index
    else:
        with pytest.raises(CorruptFileError, match="contradicts itself"):
            decode_index("f", found, stored)


# ---- how a file is cut ------------------------------------------------------------------------


def cut(data: bytes, size: int) -> Iterator[tuple[int, bytes, bool]]:
    """By definition: a piece for each whole batch, the rest in pieces of 50 bytes up to the next one."""
    at = 0
    while at < size:
        length = whole_at(data, at, size)
        if length:
            yield at, data[at : at + length], True
            at += length
            continue
        following = next((one for one in range(at + 1, size) if whole_at(data, one, len(data))), size)
        for start in range(at, following, 50):
            yield start, data[start : min(start + 50, following)], False
        at = following


def whole_at(data: bytes, at: int, size: int) -> int:
    if size - at < 61 or data[at + 16] != 2:
        return 0
    length = parse_header(data, at).size_bytes
    if not 61 <= length <= size - at:
        return 0
    return length if recovery.batch_problem(data[at : at + length], 0, check_count=False) is None else 0


def headless(base: int) -> bytes:
    """The smallest batch: a header and nothing else."""
    return seal_batch(parse_header(batch(base)), b"")


def cleaned(base: int) -> bytes:
    """A batch of three offsets in which a cleaner left two records."""
    two = encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=100, values=[b"a", b"b"])
    return seal_batch(parse_header(two)._replace(last_offset_delta=2), two[61:])


FILES: dict[str, bytes] = {
    "batches": b"".join(batch(at) for at in range(5)),
    "smallest": b"".join(headless(at) for at in range(4)),
    "cleaned": cleaned(0) + cleaned(3) + batch(6),
    "large": batch(0) + batch(1, 900) + batch(2) + batch(3, 400),
    "torn": batch(0) + batch(1)[:-1],
    "garbage": b"\2" * 130 + batch(0) + b"\2" * 7 + batch(1) + bytes(170),
    "wrong CRC": batch(0) + batch(1)[:-1] + b"x" + batch(2) + batch(3),
    "a length of 60": batch(0)[:8] + struct.pack(">i", 48) + batch(0)[12:] + batch(1),
    "a long length": batch(0)[:8] + struct.pack(">i", 1 << 30) + batch(0)[12:] + batch(1),
    "a negative length": batch(0)[:8] + struct.pack(">i", -1) + batch(0)[12:] + batch(1),
    "a byte": b"x" + batch(0) + b"x" + batch(1),
    "short": b"\2" * 60,
    "empty": b"",
}


@pytest.mark.parametrize("window", [61, 62, 87, 88, 89, 177, 300, 1 << 20])
@pytest.mark.parametrize("name", FILES)
def test_the_pieces_of_a_file_are_its_batches_and_what_is_between(
    monkeypatch: pytest.MonkeyPatch, name: str, window: int
) -> None:
    monkeypatch.setattr(archive_pieces, "WINDOW_BYTES", window)
    monkeypatch.setattr(archive_pieces, "RAW_BYTES", 50)
    data = FILES[name]
    for size in {len(data), max(0, len(data) - 1), max(0, len(data) - 88), len(data) // 2}:
        found = list(pieces(Bytes(data), size))
        assert [(one.position, one.data, one.header is not None) for one in found] == list(cut(data, size))
        for one in found:
            assert one.header is None or one.header == parse_header(one.data)


def test_a_batch_that_a_cleaner_thinned_out_is_one_piece() -> None:
    data = cleaned(0) + cleaned(3)
    assert [(one.position, one.header) for one in pieces(Bytes(data), len(data))] == [
        (0, parse_header(data)),
        (len(data) // 2, parse_header(data, len(data) // 2)),
    ]


def test_a_batch_is_as_long_as_a_batch_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch(0)
    for limit, whole in ((len(data) - 1, False), (len(data), True)):
        monkeypatch.setattr(archive_pieces, "MAX_READABLE_BATCH_BYTES", limit)
        found = list(pieces(Bytes(data), len(data)))
        assert [one.header is not None for one in found] == [whole]
        assert b"".join(one.data for one in found) == data


def test_a_window_is_read_once_for_all_the_batches_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_pieces, "WINDOW_BYTES", 10 * 88)
    file = Bytes(b"".join(batch(at) for at in range(30)))
    assert len(list(pieces(file, file.size()))) == 30
    assert file.reads == 3


# ---- what was seen before ---------------------------------------------------------------------


def raw(data: bytes) -> FilePiece:
    return FilePiece(0, data, None)


def piece(data: bytes) -> FilePiece:
    return FilePiece(0, data, parse_header(data))


def put(seen: SeenPieces, one: FilePiece, place: int) -> None:
    key, found = seen.find(one)
    assert found is None
    seen.note(one, key, place)


def test_a_piece_is_found_by_what_it_holds() -> None:
    seen = SeenPieces()
    data = batch(5)
    put(seen, raw(b"one"), 7)
    put(seen, raw(data), 10)
    put(seen, piece(data), 20)
    put(seen, piece(batch(5, 21)), 30)
    put(seen, piece(batch(6)), 40)
    found = [seen.find(one)[1] for one in (raw(b"one"), raw(data), piece(data), piece(batch(5, 21)))]
    assert found == [7, 10, 20, 30]
    assert seen.find(piece(batch(6)))[1] == 40
    for other in (raw(b"two"), piece(batch(4)), piece(batch(7)), piece(batch(5, 22)), piece(batch(6, 21))):
        assert seen.find(other)[1] is None


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_offsets_that_go_back_are_looked_up_so_often(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """The same offsets again begin a run, up to a bound; what has no room is stored again."""
    monkeypatch.setattr(archive_pieces, "MAX_RUNS", runs)
    seen = SeenPieces()
    rounds = [[batch(base, 20 + number) for base in (3, 4, 9)] for number in range(3)]
    for number, batches in enumerate(rounds):
        for at, data in enumerate(batches):
            put(seen, piece(data), 100 * number + at)
    for number, batches in enumerate(rounds):
        wanted = [100 * number + at if number < runs else None for at in range(3)]
        assert [seen.find(piece(data))[1] for data in batches] == wanted


# ---- making one, and reading it ---------------------------------------------------------------


def packed(files: dict[str, bytes], *, bases: dict[str, int] | None = None) -> bytes:
    made = bytearray()
    packer, seen = Packer(made.extend), SeenPieces()
    for name, data in files.items():
        packer.add(name, Bytes(data), seen, (bases or {}).get(name))
    packer.finish()
    assert packer.stored_bytes == len(made)
    return bytes(made)


def test_files_are_read_by_name_and_folders_have_their_names() -> None:
    log = FILES["batches"]
    file = Bytes(packed({"n/1.log": log, "n/m/2.log": log[88:] + b"tail", "x": b""}))
    archive = LogArchive(file)  # type: ignore[arg-type]
    assert archive.folders == {"": {"n", "x"}, "n": {"1.log", "m"}, "n/m": {"2.log"}}
    assert sum(block.content_bytes for block in archive.index.blocks) == len(log) + 4
    assert archive.stored_bytes == len(file.data)
    one = archive.open("n/m/2.log")
    assert (one.path, one.size()) == ("/f/n/m/2.log", 4 * 88 + 4)
    whole = log[88:] + b"tail"
    for start in range(0, len(whole) + 2, 11):
        for length in (0, 1, 87, 88, 89, 1000):
            assert one.read_at(start, length) == whole[start : start + length]
    archive.verify()
    with pytest.raises(FileMissingError, match="n/2"):
        archive.open("n/2.log")
    for refused in (lambda: one.append(b"x"), lambda: one.truncate(0), one.sync):
        with pytest.raises(DiskError, match="archives are only read"):
            refused()
    one.close()
    assert file.path == "/f"
    archive.close()
    assert file.path == "closed"


def test_a_few_blocks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used last."""
    monkeypatch.setattr(archive_opened, "CACHED_BLOCKS", 2)
    monkeypatch.setattr("metaquorum.storage.archive_writer.BLOCK_BYTES", 10)
    file = Bytes(packed({"f": random.Random(1).randbytes(45)}))
    archive = LogArchive(file)  # type: ignore[arg-type]
    one = archive.open("f")
    assert [block.content_bytes for block in archive.index.blocks] == [10, 10, 10, 10, 5]
    read = []
    for block in (0, 1, 0, 2, 0, 1, 3, 3, 1):
        before = file.reads
        one.read_at(10 * block + 2, 3)
        read.append(file.reads - before)
    assert read == [1, 1, 0, 1, 0, 1, 1, 0, 0]


def test_what_is_not_what_was_archived_is_told() -> None:
    data = packed({"a": b"content of one file"})
    index = LogArchive(Bytes(data)).index  # type: ignore[arg-type]
    other = msgspec.structs.replace(index.files[0], sha256="0" * 64)
    position = HEAD.size + index.blocks[0].stored_bytes
    wrong = data[:position] + encode_end(ArchiveIndex(blocks=index.blocks, files=[other]), position)
    with pytest.raises(CorruptFileError, match="is not what was archived"):
        LogArchive(Bytes(wrong)).verify()  # type: ignore[arg-type]
    at = HEAD.size + 3
    with pytest.raises(CorruptFileError, match=f"block at byte {HEAD.size} is damaged"):
        LogArchive(Bytes(data[:at] + b"\xff" + data[at + 1 :])).verify()  # type: ignore[arg-type]


PARTS: list[tuple[dict[str, Any], list[tuple[int, ...]], int, int | None]] = [
    ({}, [(0, 3, 0, 103, 104), (176, 5, 1, 105, 106), (352, 7, 1, 107, 107)], 5, 8),
    ({2: batch(6)}, [(0, 3, 0, 103, 104)], 2, 5),
    ({2: batch(4)}, [(0, 3, 0, 103, 104)], 2, 5),
    ({0: batch(4)}, [], 0, None),
    ({1: b"x" * 88}, [(0, 3, 0, 103, 103)], 1, 4),
]


@pytest.mark.parametrize(("changed", "parts", "linked", "end"), PARTS)
def test_parts_lead_through_a_segment_while_its_headers_do(
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[int, bytes],
    parts: list[tuple[int, ...]],
    linked: int,
    end: int | None,
) -> None:
    """Batches of 88 bytes, a part per 100."""
    monkeypatch.setattr("metaquorum.storage.archive_writer.PART_BYTES", 100)
    batches = [changed.get(at, batch(3 + at)) for at in range(5)]
    data = packed({"3.log": b"".join(batches), "other": batch(3)}, bases={"3.log": 3})
    archive = LogArchive(Bytes(data))  # type: ignore[arg-type]
    one = archive.files["3.log"]
    assert one.parts == [IndexedPart(*each) for each in parts]
    assert (one.linked_bytes, one.end_offset) == (88 * linked, end)
    opened = archive.open("3.log")
    for offset in range(10):
        places = [(each[0], each[1], each[2]) for each in parts if each[1] <= offset]
        assert opened.place_before(offset) == (places[-1] if places else None)
    assert opened.times() == ((103, 107) if linked == 5 else None)
    assert archive.files["other"].parts == [] and archive.open("other").times() is None


def test_a_damaged_file_on_a_disk_is_read_as_such() -> None:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    path = join("/d", "f")
    file = disk.open_append(path)
    file.append(b"no archive")
    with pytest.raises(CorruptFileError, match="not an archive"):
        LogArchive(disk.open_read(path))
