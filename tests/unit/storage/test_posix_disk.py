"""What only the real disk can show: errno texts, threads, locks between processes, and a log on it."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaquorum import platforms
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk import kernel_sync
from metaquorum.storage.disk.descriptors import Descriptors
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, LogDirectoryLockedError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
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


class Scripted:
    """The kernel's answers, one for each call, and what was asked. A result goes where results go."""

    def __init__(self) -> None:
        self.answers: list[int | OSError] = []
        self.asked: list[tuple[str, bool]] = []
        self.context: object = None
        self.result = 0

    def call(self, name: str, *arguments: object, waits: bool = False) -> int:
        if name == "io_setup":
            assert arguments[0] == 1
            assert arguments[1]._obj.value == 0  # type: ignore[attr-defined]
            return 0
        self.context = self.context or arguments[0]
        assert arguments[0] is self.context
        self.asked.append((name, waits))
        if name == "io_getevents":
            _, least, most, events, timeout = arguments
            assert (least.value, most.value, timeout) == (int(waits), 1, None)  # type: ignore[attr-defined]
            events[0].result = self.result  # type: ignore[index]
        answer = self.answers.pop(0) if self.answers else 1
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[tuple[Scripted, kernel_sync.KernelSync, DiskFile]]:
    kernel = Scripted()
    sync = kernel_sync.KernelSync(kernel)  # type: ignore[arg-type]
    file = DISK.open_append(str(tmp_path / "a"))
    yield kernel, sync, file
    file.close()
    sync.close()
    sync.close()
    assert kernel.asked[-1] == ("io_destroy", True) and kernel.asked.count(("io_destroy", True)) == 1


Parts = tuple[Scripted, kernel_sync.KernelSync, DiskFile]


@pytest.mark.parametrize("answer", [0, OSError(errno.EAGAIN, "full"), OSError(errno.EIO, "broken")])
def test_a_sync_that_the_kernel_did_not_take_is_not_under_way(scripted: Parts, answer: int | OSError) -> None:
    kernel, sync, file = scripted
    kernel.answers = [answer]
    if getattr(answer, "errno", errno.EAGAIN) == errno.EAGAIN:
        assert sync.begin(file) is False
    else:
        with pytest.raises(OSError, match="broken"):
            sync.begin(file)
    assert sync.ended()
    sync.wait()
    assert kernel.asked == [("io_submit", False)]
    assert sync.begin(file) is True
    sync.wait()


def test_a_sync_has_ended_when_the_kernel_says_so(scripted: Parts) -> None:
    kernel, sync, file = scripted
    submit, look, wait = ("io_submit", False), ("io_getevents", False), ("io_getevents", True)
    assert sync.begin(file)
    kernel.answers = [0, 0, 1]
    assert [sync.ended() for _ in range(4)] == [False, False, True, True]
    assert kernel.asked == [submit, look, look, look]
    sync.wait()
    assert sync.begin(file)
    sync.wait()
    sync.wait()
    assert sync.ended() and kernel.asked[4:] == [submit, wait]


@pytest.mark.parametrize("waits", [True, False])
def test_the_result_of_a_sync_is_that_of_its_file(tmp_path: Path, scripted: Parts, waits: bool) -> None:
    kernel, sync, file = scripted
    kernel.result = -errno.EIO
    assert sync.begin(file)
    assert waits or sync.ended()
    for _ in range(2):
        with pytest.raises(DiskError, match=r"sync of .*I/O error"):
            sync.wait()
    with pytest.raises(DiskError, match="earlier sync failed"):
        sync.begin(file)
    other = DISK.open_append(str(tmp_path / "b"))
    kernel.result = 5
    assert sync.begin(other)
    sync.wait()
    other.close()


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_the_numbers_of_the_calls_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: str, system: str
) -> None:
    """Of asm/unistd_64.h and asm-generic/unistd.h."""
    monkeypatch.setattr(platforms, "linux_kernel", lambda: (machine, (6, 1)) if system == "Linux" else None)
    if system != "Linux" or machine == "riscv64":
        with pytest.raises(OSError, match="not implemented"):
            kernel_sync._Aio()
        return
    names = ("io_setup", "io_destroy", "io_submit", "io_getevents")
    wanted = (206, 207, 209, 208) if machine == "x86_64" else (0, 1, 2, 4)
    asked: list[tuple[bool, int, int]] = []
    aio = kernel_sync._Aio()
    codes = [errno.EINTR, errno.EINTR, 0, errno.EPERM]

    def answer(waits: bool) -> Callable[..., int]:
        def call(number: ctypes.c_long, *arguments: int) -> int:
            asked.append((waits, number.value, arguments[0]))
            ctypes.set_errno(codes[0])
            return -1 if codes.pop(0) else 3

        return call

    monkeypatch.setattr(aio, "_quick", answer(False))
    monkeypatch.setattr(aio, "_waiting", answer(True))
    assert aio.call("io_submit", 7, waits=True) == 3
    with pytest.raises(PermissionError):
        aio.call("io_submit", 8)
    assert asked == [(True, wanted[2], 7)] * 3 + [(False, wanted[2], 8)]
    assert tuple(aio._numbers[name] for name in names) == wanted
    for word_bytes in (4, 16):
        with monkeypatch.context() as patched:
            patched.setattr(ctypes, "sizeof", lambda kind, word_bytes=word_bytes: word_bytes)
            with pytest.raises(OSError, match="not implemented"):
                kernel_sync._Aio()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As some network drives. A node there would not notice a second one."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(platforms._fcntl, "flock", refuse)
    with pytest.raises(DiskError, match=f"{tmp_path}.*the file system has no locks.*use a local disk"):
        PosixDisk().lock(str(tmp_path))


# The reserve of file descriptors helps where none is free, and hides no other error.


def failing(*codes: int) -> Callable[[], str]:
    """A call that fails once with each of these errors, and then opens a file."""
    left = list(codes)

    def call() -> str:
        if left:
            raise OSError(left.pop(0), "scripted")
        return "opened"

    return call


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE])
def test_only_a_shortage_is_tried_again(shortage: int) -> None:
    reserve = Descriptors()
    for codes, code in (([errno.ENOENT], errno.ENOENT), ([shortage, errno.EIO], errno.EIO)):
        with pytest.raises(OSError) as caught:
            reserve.use(failing(*codes))
        assert caught.value.errno == code
    assert reserve.used == 1
    assert reserve.use(failing(shortage)) == "opened"
    assert reserve.used == 2
