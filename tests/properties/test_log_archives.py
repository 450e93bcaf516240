"""Whatever the logs of a quorum's nodes look like: an archive restores every byte, keeps what they share
once, and tools read the same from it as from the directories.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage import archive as opened
from metaquorum.storage import archive_writer as packer
from metaquorum.storage.archive import LogArchive, archive_in, disk_for
from metaquorum.storage.archive_writer import ArchiveSource, extract_archive, leftovers, pack, write_archive
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError, StorageError
from metaquorum.storage.log.reader import LogReader
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError
from tests.unit.metadata.made_logs import write

LOG = "__cluster_metadata-0"
FOLDER = "/archives"
TARGET = f"{FOLDER}/q.mqa"


def batches(rng: random.Random, count: int, *, start: int = 0, epoch: int = 1) -> list[bytes]:
    made, offset = [], start
    for number in range(count):
        epoch += rng.random() < 0.1
        values = [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.randint(1, 3))]
        stamp = -1 if rng.random() < 0.05 else 1_000_000 + 10 * number - rng.randint(0, 30)
        made.append(encode_batch(base_offset=offset, leader_epoch=epoch, timestamp_ms=stamp, values=values))
        offset += len(values)
    return made


def base_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def segments(rng: random.Random, log: list[bytes]) -> dict[str, bytes]:
    """A node's own division of a log into segments; sometimes without its beginning, sometimes damaged."""
    files: dict[str, bytes] = {}
    at = rng.randint(0, len(log) // 3) if rng.random() < 0.3 else 0
    while at < len(log):
        end = at + rng.randint(1, len(log))
        held = log[at:end]
        if rng.random() < 0.2:
            del held[rng.randrange(len(held))]  # missing offsets
        if rng.random() < 0.1 and held:
            held.append(rng.choice(held))  # offsets that go back
        files[f"{base_of(log[at]):020}.log"] = b"".join(held)
        at = end
    last = max(files)
    match rng.randint(0, 5):
        case 0:
            files[last] = files[last][: -rng.randint(1, 40)]  # half a batch
        case 1:
            files[last] += bytes(rng.randint(1, 300))  # preallocated space
        case 2:
            hurt = bytearray(files[last] or b"x")
            hurt[rng.randrange(len(hurt))] ^= 1 << rng.randint(0, 7)
            files[last] = bytes(hurt)
        case 3:
            files[last] += rng.randbytes(rng.randint(1, 200))
    return files


def quorum(rng: random.Random, nodes: int) -> dict[str, bytes]:
    """Files of several nodes by their paths."""
    whole = batches(rng, rng.randint(1, 60))
    snapshot = b"".join(batches(rng, 5))
    files: dict[str, bytes] = {}
    for node in range(nodes):
        kept = rng.randint(1, len(whole))
        own = batches(rng, rng.randint(0, 5), start=base_of(whole[kept - 1]) + 3, epoch=50 + node)
        held = whole[:kept] + own if rng.random() < 0.3 else whole[: rng.randint(kept, len(whole))]
        home = f"controller-{node}"
        files |= {f"{home}/{LOG}/{name}": content for name, content in segments(rng, held).items()}
        files[f"{home}/meta.properties"] = b"node.id=%d\n" % node
        files[f"{home}/{LOG}/{7:020}-{3:010}.checkpoint"] = snapshot + bytes(rng.randint(0, 1))
        files[f"{home}/{LOG}/empty"] = b""
    return files


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """Files span several blocks, and more than are cached."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packer, "BLOCK_BYTES", 300)
        patched.setattr(opened, "CACHED_BLOCKS", 2)
        yield


def laid_out(disk: Disk, root: str, files: dict[str, bytes]) -> list[ArchiveSource]:
    for name, content in files.items():
        disk.make_directory(join(root, name).rpartition("/")[0])
        write(disk, join(root, name), content)
    return [ArchiveSource(disk, join(root, name), name) for name in files]


def in_memory(seed: int = 1) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed))
    disk.make_directory(FOLDER)
    disk.sync_directory("/")
    return disk


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_an_archive_gives_every_byte_back(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    disk = in_memory()
    files = quorum(rng, nodes)
    write_archive(disk, TARGET, laid_out(disk, "/nodes", files), "1")
    archive = LogArchive(disk.open_read(TARGET))
    archive.verify()
    assert set(archive.files) == set(files)
    for name, content in files.items():
        extents = archive.files[name].extents
        assert all(one.start + one.length != following.start for one, following in pairwise(extents)), (
            "two that touch are one"
        )
        file = archive.open(name)
        assert file.size() == len(content)
        assert file.read_at(0, len(content) + 1) == content
        start = rng.randint(0, len(content))
        length = rng.randint(0, 400)
        assert file.read_at(start, length) == content[start : start + length]
    extract_archive(archive, disk, f"{FOLDER}/out", "1")
    assert {name: read_file(disk, f"{FOLDER}/out/{name}") for name in files} == files
    assert disk.list_directory(FOLDER) == ["out", "q.mqa"]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_nodes_share_is_kept_once_wherever_their_segments_end(seed: int) -> None:
    rng = random.Random(seed)
    log = batches(rng, 40)
    cuts = [[0, *sorted(rng.sample(range(1, 40), 3)), 40] for _ in range(3)]
    files = {
        f"n{node}/{LOG}/{base_of(log[low]):020}.log": b"".join(log[low:high])
        for node, cut in enumerate(cuts)
        for low, high in pairwise(cut)
    }
    other = encode_batch(base_offset=base_of(log[20]), leader_epoch=60, timestamp_ms=5, values=[b"other"])
    files[f"n3/{LOG}/{0:020}.log"] = b"".join([*log[:20], other])
    disk = in_memory()
    packed = pack(lambda data: None, laid_out(disk, "/nodes", files))
    assert sum(one.content_bytes for one in packed.holds.blocks) == sum(map(len, log)) + len(other)


def test_snapshots_of_one_name_are_kept_once_whatever_is_between_them() -> None:
    """Their batches have offsets of their own: they are compared with each other."""
    rng = random.Random(1)
    snapshots = {f"{end:020}-{3:010}.checkpoint": b"".join(batches(rng, 5)) for end in (7, 8, 9)}
    files = {f"n{node}/{LOG}/{name}": data for node in range(3) for name, data in snapshots.items()}
    disk = in_memory()
    packed = pack(lambda data: None, laid_out(disk, "/nodes", files))
    assert sum(one.content_bytes for one in packed.holds.blocks) == sum(map(len, snapshots.values()))
    assert [one.name for one in packed.holds.files] == sorted(files, key=lambda name: (name[3:], name))


def test_a_file_that_goes_meanwhile_is_told_and_the_rest_is_kept() -> None:
    disk = in_memory()
    listed = laid_out(disk, "/nodes", {"a": b"1", "b": b"2", "c": b"3"})
    disk.remove("/nodes/b")
    packed = write_archive(disk, TARGET, listed, "1")
    assert packed.gone == ["/nodes/b"] and [one.name for one in packed.holds.files] == ["a", "c"]


def test_an_archive_is_taken_apart_where_nothing_is() -> None:
    disk = in_memory()
    write_archive(disk, TARGET, laid_out(disk, "/nodes", {"x/a": b"1"}), "1")
    archive = LogArchive(disk.open_read(TARGET))
    disk.make_directory(f"{FOLDER}/empty")
    extract_archive(archive, disk, f"{FOLDER}/empty", "1")
    assert read_file(disk, f"{FOLDER}/empty/x/a") == b"1"
    for taken in (f"{FOLDER}/empty", TARGET):
        with pytest.raises(StorageError, match="already exists and is not empty"):
            extract_archive(archive, disk, taken, "1")
    with pytest.raises(StorageError, match="already exists; give the name of a new file"):
        write_archive(disk, TARGET, [], "1")
    assert disk.list_directory(FOLDER) == ["empty", "q.mqa"]


def test_what_writers_that_were_killed_left_is_found_by_their_names() -> None:
    disk = in_memory()
    for name in ("q.mqa.7.new", "q.mqa.host-8.new", "q.mqa.7", "p.mqa.7.new", "q.mqa", "qq.mqa.1.new"):
        write(disk, f"{FOLDER}/{name}", b"half")
    disk.make_directory(f"{FOLDER}/q.mqa.9.new")
    found = [(f"{FOLDER}/q.mqa.7.new", "7"), (f"{FOLDER}/q.mqa.host-8.new", "host-8")]
    assert leftovers(disk, TARGET) == found


def test_an_archive_is_a_directory_and_what_is_beside_it_is_not_in_it(tmp_path: Path) -> None:
    plain, archive = PosixDisk(), f"{tmp_path}/q.mqa"
    write_archive(plain, archive, laid_out(plain, f"{tmp_path}/d", {"n/a": b"12", "b": b"345"}), "1")
    assert archive_in(str(tmp_path)) is archive_in(f"{tmp_path}/d/b") is None
    for path in (archive, f"{archive}/", f"{archive}/n/a", f"{archive}/absent"):
        assert archive_in(path) == archive
    disk = disk_for(f"{archive}/n")
    for path, is_there, is_directory in (
        (archive, True, True),
        (f"{archive}/", True, True),
        (f"{archive}/n", True, True),
        (f"{archive}/n/a", True, False),
        (f"{archive}/absent", False, False),
        (f"{tmp_path}/d", True, True),
        (f"{tmp_path}/d/b", True, False),
        (f"{tmp_path}/absent", False, False),
    ):
        assert (disk.exists(path), disk.is_directory(path)) == (is_there, is_directory), path
    assert disk.file_size(f"{archive}/n/a") == 2 and disk.file_size(f"{tmp_path}/d/b") == 3
    assert disk.list_directory(archive) == disk.list_directory(f"{archive}/") == ["b", "n"]
    assert disk.list_directory(f"{tmp_path}/d") == ["b", "n"]
    with pytest.raises(FileMissingError, match="absent"):
        disk.file_size(f"{archive}/absent")


def test_an_archive_does_not_replace_what_came_into_its_place_meanwhile() -> None:
    disk = in_memory()
    listed = laid_out(disk, "/nodes", quorum(random.Random(1), 1))

    def sources() -> Iterator[ArchiveSource]:
        yield from listed
        write(disk, TARGET, b"another's")

    with pytest.raises(StorageError, match="already exists"):
        write_archive(disk, TARGET, sources(), "1")
    assert read_file(disk, TARGET) == b"another's" and disk.list_directory(FOLDER) == ["q.mqa"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_readers_find_in_an_archive_what_they_find_in_the_directory(seed: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as made:
        patched.setattr(packer, "PART_BYTES", rng.choice((1, 150, 1000)))
        root = Path(made)
        files = quorum(rng, 2)
        write_archive(PosixDisk(), f"{root}/q.mqa", laid_out(PosixDisk(), f"{root}/d", files), "1")
        for node in ("controller-0", "controller-1"):
            there, here = f"{root}/d/{node}/{LOG}", f"{root}/q.mqa/{node}/{LOG}"
            assert disk_for(here).list_directory(here) == PosixDisk().list_directory(there)
            for start in (None, *rng.sample(range(120), 6)):
                wanted = found_by(PosixDisk(), there, start)
                assert found_by(disk_for(here), here, start) == wanted


def found_by(disk: Disk, path: str, start: int | None) -> list[tuple[object, ...]]:
    reader = LogReader(disk, path, tolerant=True, start_offset=start)
    try:
        return [
            (one.position, one.data) if hasattr(one, "data") else (one.position, one.offset, one.reason)
            for one in reader
        ]
    finally:
        reader.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_power_loss_leaves_no_half_archive_and_no_half_directory(seed: int) -> None:
    """At every operation of the disk: a file with the final name is complete, and what was reported is
    there."""
    files = quorum(random.Random(seed), 2)
    for making in (True, False):
        crash_after, done = 0, False
        while not done:
            disk = in_memory(crash_after)
            laid_out(disk, "/nodes", files)
            disk = disk.copy()  # all of it durable
            sources = [ArchiveSource(disk, f"/nodes/{name}", name) for name in files]
            if not making:
                write_archive(disk, TARGET, sources, "1")
            disk.crash_after = crash_after
            crash_after += 1
            try:
                if making:
                    write_archive(disk, TARGET, sources, "1")
                else:
                    extract_archive(LogArchive(disk.open_read(TARGET)), disk, f"{FOLDER}/out", "1")
                done = True
            except PowerLossError:
                pass
            left = disk.crash()
            if making:
                assert left.exists(TARGET) or not done
                if left.exists(TARGET):
                    LogArchive(left.open_read(TARGET)).verify()
            else:
                assert left.exists(f"{FOLDER}/out") or not done
                if left.exists(f"{FOLDER}/out"):
                    assert {name: read_file(left, f"{FOLDER}/out/{name}") for name in files} == files
            assert all(read_file(left, one.path) == files[one.name] for one in sources)


@pytest.mark.parametrize("operation", ["write", "sync", "open", "rename", "sync_directory", "read", "mkdir"])
def test_a_disk_that_fails_leaves_nothing_behind(operation: str) -> None:
    files = quorum(random.Random(3), 2)
    disk = in_memory()
    sources = laid_out(disk, "/nodes", files)
    for after in range(3):
        disk.inject(FOLDER, operation=operation, after=after, count=1)
        done = False
        try:
            write_archive(disk, TARGET, sources, "1")
            done = True
            extract_archive(LogArchive(disk.open_read(TARGET)), disk, f"{FOLDER}/out", "1")
        except StorageError as error:
            assert isinstance(error, DiskError)
        disk.heal()
        assert not [name for name in disk.list_directory(FOLDER) if name.endswith(".new")]
        if disk.exists(TARGET):
            LogArchive(disk.open_read(TARGET)).verify()
            disk.remove(TARGET)
        else:
            assert not done
        if disk.exists(f"{FOLDER}/out"):
            disk = disk.copy()
            break
