"""Listing, reading and writing of a store, which is a directory here; every request is counted."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from metaquorum.pipeline.logs.pieces import Piece, read_piece
from metaquorum.pipeline.stores import disk, folder, remote
from metaquorum.pipeline.stores import disk as disk_module
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.stores.remote import RemoteFile
from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.errors import DiskError, FileMissingError


class Store:
    """A directory as a store of pyarrow's that counts what it is asked for."""

    type_name = "s3"

    def __init__(self, root: Path) -> None:
        self._inner = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self.asked: list[str] = []

    def get_file_info(self, what: Any) -> Any:
        self.asked.append(
            what if isinstance(what, str) else f"{what.base_dir}{'/**' if what.recursive else '/'}"
        )
        return self._inner.get_file_info(what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture(name="store")
def fixture_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    root = tmp_path / "store"
    (root / "bucket" / "a" / "empty").mkdir(parents=True)
    (root / "bucket" / "a" / "one.log").write_bytes(b"0123456789")
    (root / "bucket" / "a" / "two.log.gz").write_bytes(gzip.compress(b"unpacked"))
    (root / "bucket" / "b").write_bytes(b"b")
    store = Store(root)
    for module in (disk_module, remote, folder, disk, remote):
        monkeypatch.setattr(module, "opened", lambda place: (store, place.partition("://")[2]), raising=False)
    yield store


def test_a_listing_is_asked_for_once(store: Store) -> None:
    disk = StoreDisk()
    for _ in range(2):
        assert disk.list_directory("s3://bucket/a/") == ["empty", "one.log", "two.log"]
        assert disk.file_size("s3://bucket/a/one.log") == 10
        assert disk.is_directory("s3://bucket/a/empty") and not disk.is_directory("s3://bucket/a/one.log")
        assert disk.exists("s3://bucket/a/one.log") and not disk.exists("s3://bucket/a/three.log")
        assert disk.exists("s3://bucket/a/two.log")
    assert store.asked == ["bucket/a/"]
    with pytest.raises(FileMissingError):
        disk.file_size("s3://bucket/a/empty")
    assert StoreDisk().list_directory("s3://bucket/a") == ["empty", "one.log", "two.log"]


def test_a_whole_tree_is_listed_at_once(store: Store) -> None:
    disk = StoreDisk()
    disk.look_below("s3://bucket/")
    disk.look_below("/nowhere")
    assert disk.list_directory("s3://bucket") == ["a", "b"]
    assert disk.list_directory("s3://bucket/a") == ["empty", "one.log", "two.log"]
    assert disk.list_directory("s3://bucket/a/empty") == []
    assert disk.is_directory("s3://bucket") and disk.is_directory("s3://bucket/a")
    assert disk.file_size("s3://bucket/b") == 1 and not disk.exists("s3://bucket/c")
    assert store.asked == ["bucket/**"]


def test_what_was_not_listed_is_looked_for(store: Store) -> None:
    disk = StoreDisk()
    assert disk.exists("s3://bucket/b") and disk.exists("s3://bucket/b/")
    assert store.asked == ["bucket/b"]
    assert not disk.exists("s3://bucket/c")
    assert disk.stamp("s3://bucket/c") is None
    with pytest.raises(DiskError, match="there is no bucket other; check its name"):
        disk.exists("s3://other/c")
    with pytest.raises(DiskError):
        disk.list_directory("s3://bucket/b")


def test_stamps_are_those_of_what_holds_the_file(store: Store, tmp_path: Path) -> None:
    at = tmp_path / "store" / "bucket" / "a"
    for name, held in (("one.log", "one.log"), ("two.log", "two.log.gz")):
        found = os.stat(at / held)
        assert StoreDisk().stamp(f"s3://bucket/a/{name}") == (found.st_size, found.st_mtime_ns)
        assert StoreDisk().stamp(str(at / name)) == (found.st_size, found.st_mtime_ns)
    assert StoreDisk().stamp(str(at / "three.log")) is None


def test_an_object_is_read_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "READ_AHEAD_BYTES", 4)
    disk = StoreDisk()
    with_size = disk.open_read("s3://bucket/a/one.log")
    assert (with_size.size(), with_size.path) == (10, "s3://bucket/a/one.log")
    for position in range(12):
        for length in range(12):
            assert with_size.read_at(position, length) == b"0123456789"[position : position + length]
    with_size.close()
    unpacked = disk.open_read("s3://bucket/a/two.log")
    assert (unpacked.read_at(2, 100), disk.file_size("s3://bucket/a/two.log")) == (b"packed", 8)
    for change, given in (("append", (b"x",)), ("truncate", (1,)), ("sync", ())):
        with pytest.raises(DiskError, match="logs in a store or an archive are only read"):
            getattr(with_size, change)(*given)
    for name in ("a", "c"):
        with pytest.raises(FileMissingError):
            RemoteFile(f"s3://bucket/{name}")


@pytest.mark.parametrize("now", [b"0123456789+", b"012345678", b"9876543210"])
@pytest.mark.parametrize("later_ns", [-5_000_000_000, 5_000_000_000])
def test_an_object_that_changes_is_noticed(store: Store, tmp_path: Path, now: bytes, later_ns: int) -> None:
    """Longer or shorter, older or newer: whoever restores an earlier object changes it, too."""
    file = RemoteFile("s3://bucket/a/one.log")
    held = tmp_path / "store" / "bucket" / "a" / "one.log"
    before_ns = held.stat().st_mtime_ns
    held.write_bytes(now)
    os.utime(held, ns=(before_ns + later_ns, before_ns + later_ns))
    with pytest.raises(DiskError, match="the object changed while it was read; run again"):
        file.read_at(0, 4)


def test_an_archive_in_a_store(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "READ_AHEAD_BYTES", 100)
    (tmp_path / "inside").write_bytes(b"inside")
    with tarfile.open(tmp_path / "store" / "bucket" / "logs.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "inside", "node/inside.log")
    place = "s3://bucket/logs.tar.gz"
    disk = StoreDisk()
    assert disk.list_directory(f"{place}/node") == ["inside.log"]
    assert disk.open_read(f"{place}/node/inside.log").read_at(0, 99) == b"inside"
    held = os.stat(tmp_path / "store" / "bucket" / "logs.tar.gz")
    assert disk.stamp(f"{place}/node/inside.log") == (held.st_size, held.st_mtime_ns)
    assert disk.exists(f"{place}/node") and not disk.exists(f"{place}/other")
    assert disk.stamp(f"{place}/other") is None


@pytest.mark.parametrize("is_store", [True, False])
def test_a_folder(store: Store, tmp_path: Path, is_store: bool) -> None:
    """The same of a store and of a directory."""
    (tmp_path / "store" / "bucket" / "tables").mkdir()
    at = tmp_path / "store" / "bucket" / "tables"
    made = Folder("s3://bucket/tables" if is_store else str(at))
    assert made.names("none") == [] and made.children() == []
    if is_store:
        (at / "x" / "y").mkdir(parents=True)
    for name in ("x/1", "x/y/2", "z"):
        made.put(name, name.encode(), private=True)
        assert made.get(name) == name.encode() and made.exists(name)
        assert made.place(name) == f"{made.root}/{name}"
    assert made.children() == ["x", "z"] and made.place("") == made.root and made.exists("")
    assert [name for name, _ in made.names("")] == ["z"]
    assert [name for name, _ in made.names("x")] == ["x/1"]
    assert sorted(made.names("", deep=True)) == [
        (name, os.stat(at / name).st_mtime_ns) for name in ("x/1", "x/y/2", "z")
    ]
    assert is_store or (at / "z").stat().st_mode & 0o777 == 0o600
    made.remove("z")
    made.remove("z")
    made.remove_folder("x")
    made.remove_folder("none")
    assert made.names("", deep=True) == [] and not made.exists("z")
    with pytest.raises(FileMissingError):
        made.get("z")


def test_what_cannot_be_removed_is_an_error_while_it_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError("refused")

    monkeypatch.setattr(store, "delete_file", refuse, raising=False)
    made = Folder("s3://bucket")
    with pytest.raises(DiskError, match="refused"):
        made.remove("b")
    made.remove("gone")


# ---- pieces of a log

SIZES = (1, 3, 2, 4)
"""Records of the batches, from offset 0 on."""


@pytest.mark.parametrize("low", [None, *range(12)])
@pytest.mark.parametrize("high", [None, *range(12)])
def test_a_piece_has_the_batches_that_overlap_its_offsets(
    tmp_path: Path, low: int | None, high: int | None
) -> None:
    """Elsewhere kept, too: places are then those of the file that they are of."""
    batches, starts, base = [], [], 0
    for size in SIZES:
        values = [b"\x01\x14\x00\x00"] * size
        starts.append(base)
        batches.append(encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=5, values=values))
        base += size
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    wanted = [
        start
        for start, size in zip(starts, SIZES, strict=True)
        if (low is None or start + size > low) and (high is None or start < high)
    ]
    for read_from, shift, file in (("", 0, str(path)), (str(path), 700, "/elsewhere/x.log")):
        piece = Piece(
            cluster="c",
            node_id=1,
            file=file,
            from_offset=low,
            to_offset=high,
            read_from=read_from,
            shift=shift,
        )
        found = [item for item in read_piece(StoreDisk(), piece) if isinstance(item, RecordBatch)]
        assert [item.header.base_offset for item in found] == wanted
        places = [sum(map(len, batches[: starts.index(start)])) + shift for start in wanted]
        assert [(item.file, item.position) for item in found] == [(file, place) for place in places]


def test_a_piece_ends_before_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    one = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=[b"\x01\x14\x00\x00"])
    two = encode_batch(base_offset=1, leader_epoch=1, timestamp_ms=5, values=[b"\x01\x14\x00\x00"])
    path.write_bytes(one + two)
    for end, count in ((len(one), 1), (len(one) + 1, 2), (None, 2)):
        piece = Piece(cluster="c", node_id=1, file=str(path), end=end)
        assert len(list(read_piece(StoreDisk(), piece))) == count
    later = Piece(cluster="c", node_id=1, file=str(path), position=len(one), offset=1)
    assert [item.position for item in read_piece(StoreDisk(), later)] == [len(one)]
