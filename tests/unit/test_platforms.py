"""One place per difference between operating systems, and what that place does on each of them."""

from __future__ import annotations

import ast
import errno
import io
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil  # noqa: F401 (before a test pretends another system, on which its import fails)
import pytest

from metaquorum import platforms
from metaquorum.cli.main import main as metaquorum
from tests.unit.sources import REPOSITORY, files, name_of, tree_of

HOME = "metaquorum/platforms.py"
MODULES = {"os", "sys", "socket", "signal", "select", "time", "fcntl", "mmap", "asyncio", "threading"}
"""Modules whose contents depend on the system."""
ONLY_SOMEWHERE = set("fcntl msvcrt winreg termios pwd grp pty uvloop readline resource syslog".split())


def questions(tree: ast.AST) -> list[str]:
    """Where a module asks which system this is, as `line: how`."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="platform" | "getwindowsversion"):
                found.append(f"{node.lineno}: sys.{node.attr}")
            case ast.Attribute(value=ast.Name(id="os"), attr="name" | "uname" | "sep" | "linesep"):
                found.append(f"{node.lineno}: os.{node.attr}")
            case ast.Import(names=names):
                found += [
                    f"{node.lineno}: imports {each.name}"
                    for each in names
                    if each.name == "platform" or each.name in ONLY_SOMEWHERE
                ]
            case ast.ImportFrom(module="platform" | "sys" | "os", names=names, level=0):
                found += [
                    f"{node.lineno}: imports {each.name}"
                    for each in names
                    if node.module == "platform" or each.name in ("platform", "name", "uname")
                ]
            case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[ast.Name(id=module), *_]) if (
                module in MODULES
            ):
                found.append(f"{node.lineno}: asks what {module} has")
    return found


def test_nothing_else_asks_which_system_this_is() -> None:
    found = [
        f"{name_of(path)}:{each}"
        for path in files()
        if name_of(path) != HOME
        for each in questions(tree_of(path))
    ]
    assert found == [], f"put it into {HOME}, with a row of its table"


def test_no_test_or_example_asks_it_either() -> None:
    others = [*(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "examples").rglob("*.py")]
    found = [
        f"{name_of(path)}:{each}"
        for path in others
        if path != Path(__file__) and path.name not in SIMULATE_SYSTEMS
        for each in questions(ast.parse(path.read_text("utf-8")))
        if "sys.platform" in each or "os.name" in each
    ]
    assert found == []


SIMULATE_SYSTEMS = {"hidden.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nif sys.platform == 'darwin': pass",
        "import os\nx = os.name",
        "import platform",
        "from platform import system",
        "from sys import platform",
        "import os\nx = hasattr(os, 'fork')",
        "import socket\nx = getattr(socket, 'AF_UNIX', None)",
        "def f():\n    import fcntl",
        "import os\nx = os.uname()",
    ],
)
def test_the_search_finds_what_it_must(source: str) -> None:
    assert questions(ast.parse(source))


def test_the_page_has_the_table() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text("utf-8")
    assert platforms.differences_table() in page, "print it: .venv/bin/python -m metaquorum.platforms"
    assert len({row.what for row in platforms.DIFFERENCES}) == len(platforms.DIFFERENCES)
    assert all(all(row) for row in platforms.DIFFERENCES)


# --- sync


class FullSync:
    """fcntl of macOS, whose F_FULLFSYNC answers with `code`."""

    F_FULLFSYNC = 51

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, 0

    def fcntl(self, descriptor: int, command: int) -> int:
        assert command == self.F_FULLFSYNC and os.fstat(descriptor)
        self.asked += 1
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return 0


@pytest.fixture(name="macos")
def fixture_macos(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[FullSync, list[int]]]:
    """Takes fdatasync away; returns what F_FULLFSYNC is asked, and the descriptors that fsync gets."""

    def made(code: int) -> tuple[FullSync, list[int]]:
        full, synced = FullSync(code), list[int]()
        monkeypatch.delattr(os, "fdatasync")
        monkeypatch.setattr(platforms, "_fcntl", full)
        monkeypatch.setattr(platforms, "_refusals", [])
        monkeypatch.setattr(os, "fsync", synced.append)
        return full, synced

    return made


def test_linux_syncs_with_fdatasync(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    platforms.sync_file(7)
    assert synced == [7] and platforms.name_of_sync() == "fdatasync"


def test_macos_syncs_beyond_the_cache_of_the_drive(
    macos: Callable[[int], tuple[FullSync, list[int]]], tmp_path: Path
) -> None:
    full, synced = macos(0)
    with (tmp_path / "a").open("wb") as file:
        platforms.sync_file(file.fileno())
    platforms.sync_directory(str(tmp_path))
    assert (full.asked, synced) == (2, []) and platforms.name_of_sync() == "F_FULLFSYNC"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_that_refuses_it_gets_fsync_and_one_line(
    macos: Callable[[int], tuple[FullSync, list[int]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    full, synced = macos(code)
    caplog.set_level(logging.WARNING)
    with (tmp_path / "a").open("wb") as file:
        for _ in range(3):
            platforms.sync_file(file.fileno())
        assert synced == [file.fileno()] * 3
    assert full.asked == 3
    assert [each.getMessage().count("using fsync") for each in caplog.records] == [1]


def test_an_error_of_the_device_is_not_hidden_by_a_second_sync(
    macos: Callable[[int], tuple[FullSync, list[int]]], tmp_path: Path
) -> None:
    _, synced = macos(errno.EIO)
    with (tmp_path / "a").open("wb") as file, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        platforms.sync_file(file.fileno())
    assert synced == []


# --- files


def test_reading_and_writing_at_a_position_without_pread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("pread", "pwrite"):
        monkeypatch.delattr(os, name)
    descriptor = os.open(tmp_path / "a", platforms.OPEN_APPEND)
    assert platforms.write_at(descriptor, b"hello", 3) == 5
    assert platforms.read_at(descriptor, 100, 2) == b"\0hello"
    os.close(descriptor)


def test_a_file_is_locked_once(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "a", platforms.OPEN_APPEND) for _ in range(2))
    assert platforms.lock_file(first) and not platforms.lock_file(second)
    os.close(first)
    assert platforms.lock_file(second)
    os.close(second)


class Locks:
    """msvcrt of Windows, where other handles cannot lock the byte again."""

    LK_NBLCK = 2
    held: set[int]

    def __init__(self) -> None:
        self.held = set()

    def locking(self, descriptor: int, mode: int, length: int) -> None:
        assert (mode, length) == (self.LK_NBLCK, 1)
        if os.fstat(descriptor).st_ino in self.held:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        self.held.add(os.fstat(descriptor).st_ino)


def test_the_lock_of_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platforms, "_fcntl", None)
    monkeypatch.setattr(platforms, "_msvcrt", Locks())
    descriptor = os.open(tmp_path / "a", platforms.OPEN_APPEND)
    assert platforms.lock_file(descriptor) and not platforms.lock_file(descriptor)
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)


def test_space_without_statvfs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "statvfs")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=30, used=20, free=10))
    assert platforms.space_of(str(tmp_path)) == (10, 30)


@pytest.mark.parametrize(
    ("path", "native"),
    [
        ("C:/logs/a.log", "C:\\logs\\a.log"),
        ("C:", "C:\\"),
        ("logs/a", "logs\\a"),
        ("//server/share/a", "\\\\server\\share\\a"),
        ("C:/" + "d" * 250 + "/a", "\\\\?\\C:\\" + "d" * 250 + "\\a"),
        ("C:/x/../" + "d" * 250, "\\\\?\\C:\\" + "d" * 250),
        ("//server/share/" + "d" * 250, "\\\\?\\UNC\\server\\share\\" + "d" * 250),
        ("\\\\?\\C:\\" + "d" * 250, "\\\\?\\C:\\" + "d" * 250),
    ],
)
def test_paths_of_windows(path: str, native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert platforms.windows_path(path) == native
    assert platforms.native_path(path) == path == platforms.slashed(path)
    monkeypatch.setattr(os, "sep", "\\")
    assert platforms.native_path(path) == native
    assert platforms.slashed("C:\\logs\\a") == "C:/logs/a"


# --- output


@pytest.mark.parametrize(
    ("text", "encoding", "printed"),
    [
        ("d\u00e9but \u2192 \U0001f600", "ascii", b"d\\u00e9but \\u2192 \\ud83d\\ude00"),
        ("d\u00e9but \u2192", "cp437", b"d\x82but \\u2192"),
        ("d\u00e9but \udcff", "utf-8", "d\u00e9but \\udcff".encode()),
    ],
)
def test_what_an_encoding_lacks_is_escaped(
    text: str, encoding: str, printed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    platforms.prepare_output()
    print(text, end="", flush=True)
    assert raw.getvalue() == printed


def test_a_file_gets_the_same_bytes_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.setattr(os, "linesep", "\r\n")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252", newline="\r\n"))
    platforms.prepare_output()
    print("\u2192", flush=True)
    assert raw.getvalue() == "\u2192\n".encode()


# --- processes


def test_a_child_ends_with_its_parent_without_the_kernel() -> None:
    """kill -9 of the parent; the child computes, and never touches the pipe itself."""
    child = (
        "import os, sys; from metaquorum import platforms; platforms.c_call = lambda *_: None;"
        "platforms.end_with_parent(int(sys.argv[1]), 0); print(os.getpid(), flush=True)\n"
        "while True: pass"
    )
    parent = (
        "import os, subprocess, sys;"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())], stdin=subprocess.PIPE);"
        "c.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        assert platforms.process_runs(pid)
        started.kill()
        # The child has the other end of the output: it closes when the child has ended.
        assert select.select([started.stdout], [], [], 30)[0], "the child still runs after 30 s"
        assert started.stdout.read() == b""


def test_whether_a_process_runs() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not platforms.process_runs(ended.pid)
    assert platforms.process_runs(os.getpid()) and platforms.process_runs(1)


async def test_a_signal_reaches_a_loop_that_has_no_handlers() -> None:
    import asyncio

    loop, came = asyncio.get_running_loop(), asyncio.Event()
    without = SimpleNamespace(call_soon_threadsafe=loop.call_soon_threadsafe)

    def refused(*_: object) -> None:
        raise NotImplementedError

    without.add_signal_handler = refused
    end = platforms.handle_signal(without, signal.SIGUSR1, came.set)  # type: ignore[arg-type]
    signal.raise_signal(signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 30)
    end()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_deadlines_count_the_time_of_a_sleep() -> None:
    """CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC by the time that this machine slept."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before <= platforms.clock_with_sleep()() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_without_such_a_clock_there_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "clock_gettime_ns")
    assert platforms.clock_with_sleep() is time.monotonic_ns


def test_a_port_is_nobody_elses_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    platforms.may_bind_again(SimpleNamespace(setsockopt=lambda *each: asked.append(each)))  # type: ignore[arg-type]
    assert asked == [(socket.SOL_SOCKET, -5, 1)]


# --- refusals


@pytest.mark.parametrize(
    "command",
    [["controller", "run", "x"], ["broker", "run", "x"], ["node", "run", "x"], ["local", "up"], ["demo"]],
)
@pytest.mark.parametrize(("system", "advice"), [("win32", "WSL"), ("sunos5", "use Linux or macOS")])
def test_nodes_are_refused_where_they_do_not_run(
    command: list[str],
    system: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(SystemExit) as ended:
        metaquorum(command)
    said = capsys.readouterr()
    assert ended.value.code == 1 and said.out == ""
    assert said.err.count("\n") == 1 and advice in said.err and "do not run on" in said.err


def test_an_old_python_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from metaquorum.cli.__main__ import main

    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"^metaquorum: Python 3\.10\.4 is too old: .* 3\.11 or newer$"):
        main()
