"""Finding out that a disk hangs or refuses: the clock of hangs, the probe, faults that tests ask for."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from metaquorum.broker.server.data import disk_faults
from metaquorum.broker.server.data.disk_faults import VARIABLE, configured_faults, read_faults
from metaquorum.broker.server.data.watched_disk import (
    DirectoryProbe,
    DiskWatch,
    HangClock,
    RunningCall,
    WatchedDisk,
    WatchedFile,
    WatchedFileSystem,
    probe,
)
from metaquorum.errors import StartError
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, StorageError


class Held:
    """A call that runs on a thread of its own until it is let go."""

    def __init__(self, watch: DiskWatch) -> None:
        self._go_on, running = threading.Event(), threading.Event()

        def call() -> None:
            running.set()
            assert self._go_on.wait(60)

        self._thread = threading.Thread(target=lambda: watch.run("write", "/d/log", call))
        self._thread.start()
        assert running.wait(20)

    def end(self) -> None:
        self._go_on.set()
        self._thread.join()


def test_a_call_that_runs_too_long_hangs_and_others_do_not() -> None:
    watch = DiskWatch()
    clock = HangClock(watch, timeout_s=3.0, look_max_s=1.0)
    assert clock.look(100.0) is None
    held = Held(watch)
    assert [clock.look(float(second)) for second in (101, 102, 103)] == [None, None, None]
    problem = clock.look(104.0)
    assert problem is not None
    assert "write of /d/log has not returned for 3000 ms" in problem
    assert "log.dir.hang.timeout.ms" in problem
    held.end()
    assert clock.look(105.0) is None
    another = Held(watch)
    assert clock.look(106.0) is None  # the time of the call before does not count
    another.end()


async def test_a_call_that_runs_at_the_end_hangs_only_after_its_time() -> None:
    watch = DiskWatch()
    clock = HangClock(watch, timeout_s=60.0, look_max_s=1.0)
    assert not await clock.running_call_hangs()
    held = Held(watch)
    asked = asyncio.ensure_future(clock.running_call_hangs())
    await asyncio.sleep(0)
    assert not asked.done()
    held.end()
    assert not await asyncio.wait_for(asked, 20)
    held = Held(watch)
    assert await asyncio.wait_for(HangClock(watch, timeout_s=0.05, look_max_s=0.02).running_call_hangs(), 20)
    held.end()


def test_a_process_that_was_stopped_proves_nothing_about_its_disks() -> None:
    watch = DiskWatch()
    clock = HangClock(watch, timeout_s=3.0, look_max_s=1.0)
    held = Held(watch)
    clock.look(10.0)
    assert clock.look(1_000.0) is None
    assert clock.look(1_001.0) is None
    assert clock.look(1_002.0) is not None
    held.end()


def test_calls_within_calls_and_calls_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = DiskWatch(observe=lambda operation, seconds: seen.append(operation))
    disk = WatchedDisk(PosixDisk(), watch)
    file = disk.open_append(join(str(tmp_path), "a"))
    file.append(b"x")
    disk.file_system(str(tmp_path)).sync([file], [])
    with pytest.raises(StorageError):
        disk.open_read(join(str(tmp_path), "absent"))
    assert watch.longest() is None
    assert seen == ["open", "write", "open", "sync", "open"]


class Inner:
    """In the place of a disk, a file or a file system: notes each call, and which one the watch sees."""

    path = "/d/file"

    def __init__(self) -> None:
        self.watch = DiskWatch(lambda operation, seconds: self.observed.append(operation))
        self.observed: list[str] = []
        self.calls: list[tuple[str, tuple[Any, ...], tuple[str, str] | None]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> str:
            running: RunningCall | None = self.watch.longest()
            seen = None if running is None else (running.operation, running.path)
            self.calls.append((name, arguments, seen))
            return f"of {name}"

        return call


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "seen"),
    [
        *(
            ("disk", name, ("/d/a",), ("open", "/d/a"))
            for name in ("open_read", "open_append", "file_system")
        ),
        *(("disk", name, ("/d/a",), ("stat", "/d/a")) for name in ("exists", "is_directory", "file_size")),
        ("disk", "list_directory", ("/d/a",), ("list", "/d/a")),
        ("disk", "make_directory", ("/d/a",), ("mkdir", "/d/a")),
        ("disk", "rename", ("/d/a", "/d/b"), ("rename", "/d/a")),
        *(("disk", name, ("/d/a",), ("remove", "/d/a")) for name in ("remove", "remove_directory")),
        ("disk", "sync_directory", ("/d/a",), ("sync", "/d/a")),
        ("disk", "lock", ("/d",), ("lock", "/d")),
        *(("disk", name, ("/d",), ("statvfs", "/d")) for name in ("free_bytes", "total_bytes")),
        ("disk", "mutex", (), None),
        ("file", "size", (), None),
        ("file", "read_at", (3, 4), ("read", "/d/file")),
        ("file", "append", (b"x",), ("write", "/d/file")),
        ("file", "truncate", (5,), ("truncate", "/d/file")),
        ("file", "sync", (), ("sync", "/d/file")),
        ("file", "close", (), ("close", "/d/file")),
        ("file system", "sync", (["f"], ["g"]), ("sync", "/d")),
        ("file system", "close", (), None),
    ],
)
def test_each_call_goes_to_the_disk_and_is_seen_while_it_runs(
    kind: str, name: str, arguments: tuple[Any, ...], seen: tuple[str, str] | None
) -> None:
    inner: Any = Inner()
    watched: Any = {
        "disk": WatchedDisk(inner, inner.watch),
        "file": WatchedFile(inner, inner.watch),
        "file system": WatchedFileSystem(inner, "/d", inner.watch),
    }[kind]
    found = getattr(watched, name)(*arguments)
    assert inner.calls == [(name, arguments, seen)]
    assert inner.observed == ([] if seen is None else [seen[0]])
    assert inner.watch.longest() is None
    returns_nothing = kind != "disk" and name not in ("size", "read_at")
    changes = ("make_directory", "rename", "remove", "remove_directory", "sync_directory")
    if isinstance(found, WatchedFile):
        assert found._file == f"of {name}"  # type: ignore[comparison-overlap]
    elif not isinstance(found, WatchedFileSystem):
        assert found == (None if returns_nothing or name in changes else f"of {name}")


def test_what_runs_on_no_thread_is_not_watched() -> None:
    inner: Any = Inner()
    assert WatchedDisk(inner, inner.watch).background_sync("/d") is None and inner.calls == []


def test_the_probe_finds_a_directory_that_was_taken_away(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    disk = PosixDisk()
    for _ in range(2):
        probe(disk, str(directory))
        assert [path.name for path in directory.iterdir()] == [".probe"]
        text = "metaquorum writes this file to see whether the directory can be used\n"
        assert (directory / ".probe").read_text() == text
    told: list[str] = []
    failed = threading.Event()

    def tell(reason: str) -> None:
        told.append(reason)
        failed.set()

    prober = DirectoryProbe(disk, str(directory), interval_s=0.01, failed=tell)
    (directory / ".probe").unlink()
    directory.rmdir()
    prober.start()
    assert failed.wait(20)
    assert told == [f"{directory} has disappeared: mount its disk, or restore it"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where permissions forbid it")
def test_the_probe_feels_permissions(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    open_file = PosixDisk().open_append(join(str(directory), "log"))
    directory.chmod(0o500)
    try:
        open_file.append(b"open files do not feel it")
        with pytest.raises(DiskError):
            probe(PosixDisk(), str(directory))
    finally:
        directory.chmod(0o700)


def test_faults_break_what_the_file_names(tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    bad, good = tmp_path / "bad", tmp_path / "good"
    for each in (bad, good, tmp_path / "bad2"):
        each.mkdir()
    assert configured_faults({}) is None
    faults = configured_faults({VARIABLE: str(control)})
    assert faults is not None
    disk = WatchedDisk(PosixDisk(), DiskWatch(None, faults))
    file = disk.open_append(join(str(bad), "a"))
    file.append(b"1")  # nothing is broken while there is no file
    control.write_text(json.dumps([{"directory": str(bad), "fault": "eio", "operations": ["write", "sync"]}]))
    with pytest.raises(DiskError, match="Input/output error"):
        file.append(b"2")
    with pytest.raises(DiskError):
        probe(disk, str(bad))
    assert read_file(disk, join(str(bad), "a")) == b"1"
    probe(disk, str(good))
    probe(disk, str(tmp_path / "bad2"))
    control.unlink()
    file.append(b"3")
    assert read_file(disk, join(str(bad), "a")) == b"13"


def test_a_fault_may_hang_until_it_is_taken_back(tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    control.write_text(json.dumps([{"directory": str(tmp_path), "fault": "hang"}]))
    faults = configured_faults({VARIABLE: str(control)})
    watch = DiskWatch(None, faults)
    disk = WatchedDisk(PosixDisk(), watch)
    thread = threading.Thread(target=probe, args=(disk, str(tmp_path)))
    thread.start()
    while watch.longest() is None:
        threading.Event().wait(0.001)
    call = watch.longest()
    assert call is not None
    assert (call.operation, call.path) == ("open", str(tmp_path / ".probe.tmp"))
    control.unlink()
    thread.join(20)
    assert not thread.is_alive()
    assert (tmp_path / ".probe").exists()


@pytest.mark.parametrize(
    "text", ["", "{}", '[{"directory": "/d"}]', '[{"directory": "/d", "fault": "fire"}]']
)
def test_a_wrong_control_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    control = tmp_path / "faults.json"
    control.write_text(text)
    with pytest.raises(StartError, match=r"faults\.json"):
        read_faults(str(control))


def test_a_control_file_is_read_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, read = tmp_path / "faults.json", []
    reading = disk_faults.read_faults
    monkeypatch.setattr(disk_faults, "read_faults", lambda path: read.append(path) or reading(path))
    faults = configured_faults({VARIABLE: str(control)})
    assert faults is not None
    faults.check("write", "/d/a")
    assert read == []
    for fault, directory in (("eio", "/d/"), ("enospc", "/e")):
        staged = tmp_path / "staged"
        staged.write_text(json.dumps([{"directory": directory, "fault": fault}]))
        staged.rename(control)
        for _ in range(3):
            faults.check("write", "/other/a")
        with pytest.raises(DiskError, match=VARIABLE) as caught:
            faults.check("write", f"{directory.rstrip('/')}/a")
        assert os.strerror({"eio": 5, "enospc": 28}[fault]) in str(caught.value)
        assert len(read) == (1 if fault == "eio" else 2)
    control.unlink()
    faults.check("write", "/e/a")
    control.write_text("[]")
    faults.check("write", "/e/a")
    assert len(read) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"directory": "/d", "fault": "eio"}', "it is not a list"),
        ('[{"directory": "/d", "fault": "fire"}]', "is not one of eio, enospc, erofs, eacces, hang"),
        ('[{"directory": "/d", "fault": "eio", "operations": "read"}]', "operations is not a list"),
        ('[{"fault": "eio"}]', "KeyError('directory')"),
    ],
)
def test_what_is_wrong_with_a_control_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    control = tmp_path / "faults.json"
    control.write_text(text)
    with pytest.raises(StartError) as caught:
        read_faults(str(control))
    assert reason in str(caught.value)
