"""What only the real disk can show: errno texts, threads, locks between processes, and a log on it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.disk import kernel_sync
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, LogDirectoryLockedError
from metaquorum.storage.log.log import LogConfig, SegmentedLog
from metaquorum.storage.log.reader import LogReader
from tests.unit.storage.whole_log import whole

DISK = PosixDisk()


def test_a_full_device() -> None:
    file = DISK.open_append("/dev/full")
    with pytest.raises(DiskError) as caught:
        file.append(b"x")
    assert caught.value.directory == "/dev" and "no space left on the device" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EIO, "I/O error; check or replace the disk"),
        (errno.EROFS, "read-only; remount"),
        (errno.EACCES, "permission denied; give this user"),
        (errno.EDQUOT, "quota"),
        (errno.EBUSY, "check the directory and the disk"),
    ],
)
def test_errno_becomes_an_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    file = DISK.open_append(str(tmp_path / "a"))
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DiskError, match=says) as caught:
        file.append(b"x")
    assert caught.value.directory == str(tmp_path) and "\n" not in str(caught.value)


def test_a_failed_sync_is_never_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "input/output error")

    log = SegmentedLog.open(DISK, str(tmp_path / "log"))
    log.append(Batches.parse(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=0, values=[b"x"])))
    ticket = log.prepare_sync()
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskError):
        ticket.run()
    monkeypatch.undo()
    with pytest.raises(DiskError, match="earlier sync failed"):
        ticket.segment.file.sync()
    assert len(calls) == 1 and log.synced_offset == 0


def test_a_part_of_the_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for operation in (
        lambda: DISK.open_read(f"{tmp_path}/file/x"),
        lambda: DISK.list_directory(f"{tmp_path}/file"),
    ):
        with pytest.raises(DiskError, match="not a directory"):
            operation()


def test_the_lock_holds_between_processes_and_dies_with_them(tmp_path: Path) -> None:
    script = (
        "import sys; from metaquorum.storage.disk.posix import PosixDisk; "
        f"lock = PosixDisk().lock({str(tmp_path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(LogDirectoryLockedError):
        DISK.lock(str(tmp_path))
    process.kill()
    process.communicate()
    DISK.lock(str(tmp_path)).release()


def test_syncs_beside_appends_reads_and_cuts(tmp_path: Path) -> None:
    """The disk thread against the loop thread: nothing may be pointed at that a cut removed."""
    directory = str(tmp_path / "log")
    config = LogConfig(segment_bytes=4000, recovery_point_interval_bytes=300)
    log = SegmentedLog.open(DISK, directory, config)
    for step in range(120):
        base = log.end_offset
        log.append(
            Batches.parse(
                encode_batch(base_offset=base, leader_epoch=step, timestamp_ms=0, values=[b"v" * 100])
            )
        )
        ticket = log.prepare_sync()
        thread = threading.Thread(target=ticket.run)
        thread.start()
        if step % 7 == 6:
            log.truncate_to(log.end_offset - 3)
        thread.join()
        log.sync_completed(ticket)
        assert log.recovery_point.offset <= log.end_offset and log.synced_offset <= log.end_offset
    expected = [one.data for one in whole(log)]
    assert [one.data for one in LogReader(DISK, directory).batches()] == expected
    log.close()
    warnings: list[str] = []
    log = SegmentedLog.open(DISK, directory, config, warnings.append)
    assert [one.data for one in whole(log)] == expected and warnings == []


def test_what_is_made_is_the_users_alone_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)
    (theirs / "old").write_bytes(b"x")
    (theirs / "old").chmod(0o644)
    before = os.umask(0)
    try:
        DISK.make_directory(str(theirs / "a" / "b"))
        DISK.make_directory(str(theirs / "a" / "b"))
        for name in ("old", "a/b/new"):
            DISK.open_append(str(theirs / name)).close()
        DISK.lock(str(theirs / "a")).release()
    finally:
        os.umask(before)
    modes = {
        name: (theirs / name).stat().st_mode & 0o777 for name in ("", "old", "a", "a/b", "a/b/new", "a/.lock")
    }
    assert modes == {"": 0o755, "old": 0o644, "a": 0o700, "a/b": 0o700, "a/b/new": 0o600, "a/.lock": 0o600}
    with pytest.raises(DiskError):
        DISK.make_directory(str(theirs / "old" / "below"))
    with pytest.raises(DiskError):
        DISK.make_directory(str(theirs / "old"))


@pytest.mark.parametrize("refused", ["io_setup", "io_submit"])
def test_a_system_without_linux_aio_has_no_syncs_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    numbers = kernel_sync._SYSTEM_CALLS.get(os.uname().machine, {})
    missing = {name: 1 << 20 if name == refused else number for name, number in numbers.items()}
    monkeypatch.setitem(kernel_sync._SYSTEM_CALLS, os.uname().machine, missing)
    assert DISK.background_sync(str(tmp_path)) is None
