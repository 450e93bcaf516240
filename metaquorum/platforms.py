"""What differs between operating systems: calls that Linux, macOS or Windows lacks or means differently.

Nothing else asks which system this is. A call is looked for when it is needed rather than concluded from a
name: a container may lack what its system has. Stands on nothing of metaquorum.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import importlib
import io
import logging
import ntpath
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ON_LINUX = sys.platform == "linux"

OLDEST_PYTHON = (3, 11)
SUPPORTED = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}


class Difference(NamedTuple):
    """One row. A cell says what is called; `promised` says what a caller may rely on everywhere."""

    what: str
    linux: str
    macos: str
    windows: str
    promised: str


DIFFERENCES = (
    Difference(
        "a file's sync",
        "`fdatasync`",
        "`fcntl(F_FULLFSYNC)`; `fsync` if the file system refuses it, logged once",
        "`FlushFileBuffers`",
        "what was written survives a power loss, if the drive keeps its word; with macOS's `fsync` only a"
        " crash of the system",
    ),
    Difference(
        "a directory's sync",
        "`fsync`",
        "like a file's",
        "none",
        "names survive a power loss, except on Windows",
    ),
    Difference(
        "a sync in the background",
        "`io_submit` with an `eventfd`",
        "a thread",
        "a thread",
        "the loop never waits for a disk",
    ),
    Difference(
        "many files at once",
        "`syncfs` (Linux 5.8 and later)",
        "one by one",
        "one by one",
        "the same durability",
    ),
    Difference(
        "rename onto a file",
        "`rename`",
        "`rename`",
        "`MoveFileEx`; fails while another process has the target open",
        "a reader sees the old file or the new one",
    ),
    Difference(
        "the lock of a directory",
        "`flock`",
        "`flock`",
        "`LockFile`",
        "one writer; released when its process ends, however it ends",
    ),
    Difference(
        "names that differ in case",
        "distinct, by default",
        "one file, by default",
        "one file",
        "each log directory is probed at start; the second such topic gets no replica there",
    ),
    Difference(
        "long paths",
        "4096 bytes",
        "1024 bytes",
        "with the prefix `\\\\?\\`",
        "log tools read any path that the system can hold",
    ),
    Difference(
        "the limit of open files",
        "the soft limit is raised to the hard one",
        "the same; if that is unlimited, to 1,000,000 or what the system takes",
        "no such limit",
        "a node shares what there is, and never ends because it is used up",
    ),
    Difference(
        "connections to a gRPC port",
        "found in `/proc/self/fd`; `TCP_DEFER_ACCEPT` keeps silent ones away",
        "found in `/dev/fd`",
        "not bounded",
        "no more than their share of the open files",
    ),
    Difference(
        "start of local nodes",
        "`fork` of a process that has imported everything",
        "new processes: `fork` is unsafe beside the system's libraries",
        "refused: use WSL",
        "a node has its own session and outlives the command",
    ),
    Difference(
        "a broker's compacting process ends with it",
        "`prctl(PR_SET_PDEATHSIG)`, and a pipe",
        "a pipe",
        "no nodes",
        "two processes never compact one directory",
    ),
    Difference(
        "event loop",
        "uvloop",
        "uvloop",
        "asyncio's",
        "the same behavior",
    ),
    Difference(
        "time that deadlines use",
        "`CLOCK_BOOTTIME`",
        "`CLOCK_MONOTONIC`",
        "`GetTickCount64`",
        "includes the time that a laptop sleeps: leases and sessions end during it",
    ),
    Difference(
        "output",
        "the locale's encoding",
        "the locale's encoding",
        "the console's encoding; UTF-8 and `\\n` to a file or a pipe",
        "a character that the encoding lacks is printed as `\\uXXXX`",
    ),
    Difference(
        "memory limit of a test cluster's node",
        "`prlimit` (`RLIMIT_DATA`)",
        "refused",
        "no nodes",
        "all other faults of nodes",
    ),
    Difference(
        "signals",
        "SIGTERM, SIGINT, SIGHUP",
        "SIGTERM, SIGINT, SIGHUP",
        "SIGINT (Ctrl-C)",
        "a command that is ended leaves nothing behind",
    ),
    Difference(
        "clients without HTTP/2 on a plaintext port",
        "logged (`sock_diag`)",
        "not logged",
        "no nodes",
        "they are refused",
    ),
    Difference(
        "a browser for the console",
        "opened where `DISPLAY` or `WAYLAND_DISPLAY` is set",
        "opened",
        "opened",
        "the address is printed in any case",
    ),
    Difference(
        "freed memory",
        "kept by `mallopt` (glibc)",
        "the system's default",
        "the system's default",
        "speed only",
    ),
    Difference(
        "`process_...` metrics",
        "from /proc",
        "absent",
        "no nodes",
        "all others are there",
    ),
)


def differences_table() -> str:
    """The table of docs/operations.md."""
    rows = [("", "Linux", "macOS", "Windows", "Promised"), ("---",) * 5, *DIFFERENCES]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


class UnsupportedError(Exception):
    """This system, or this Python, cannot do it; the text is one line that says what can."""


def _optional(module: Any, name: str) -> Any:
    """A function or constant that some systems lack; None there."""
    return getattr(module, name, None)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _flags(*names: str) -> int:
    """Flags of open(2) that exist here."""
    found = 0
    for name in names:
        found |= _optional(os, name) or 0
    return found


def c_call(name: str, *arguments: Any) -> Any:
    """A function of the C library that returns an int and sets errno (`ctypes.get_errno`); None if there is
    none. `arguments`: their ctypes."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes, call.restype = arguments, ctypes.c_int
    return call


# --- what runs here


def check_supported() -> None:
    """Raises UnsupportedError on an old Python."""
    if sys.version_info < OLDEST_PYTHON:
        found, oldest = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, OLDEST_PYTHON))
        raise UnsupportedError(f"Python {found} is too old: install metaquorum with Python {oldest} or newer")


def check_nodes_run_here() -> None:
    """Raises UnsupportedError where no node may run as a process."""
    if sys.platform in ("linux", "darwin"):
        return
    system = SUPPORTED.get(sys.platform, sys.platform)
    hint = "run it in WSL (Windows Subsystem for Linux)" if sys.platform == "win32" else "use Linux or macOS"
    raise UnsupportedError(
        f"nodes do not run on {system}: {hint}; `metaquorum log` and the Python API work here"
    )


def linux_kernel() -> tuple[str, tuple[int, ...]] | None:
    """Its (machine, release), such as ("x86_64", (6, 1)), the release empty if unknown; None on another
    system."""
    uname = _optional(os, "uname")
    if not _ON_LINUX or uname is None:
        return None
    found = uname()
    numbers = found.release.split("-")[0].split(".")[:2]
    return found.machine, tuple(map(int, numbers)) if all(each.isdigit() for each in numbers) else ()


def line_editor() -> Any:
    """The readline module, with Tab for completion; None where Python has none."""
    editor = _module("readline")
    if editor is not None:
        is_libedit = "libedit" in (editor.__doc__ or "")  # macOS's own Python
        editor.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    return editor


# --- files

OPEN_READ = os.O_RDONLY | _flags("O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
NO_WAIT = _flags("O_NONBLOCK")
"""With it, to open a FIFO does not wait for a writer."""
OPEN_APPEND = os.O_RDWR | os.O_CREAT | _flags("O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
_OPEN_DIRECTORY = os.O_RDONLY | _flags("O_CLOEXEC", "O_DIRECTORY")
_REFUSED = frozenset(
    code
    for name in ("ENOTSUP", "EOPNOTSUPP", "ENOTTY", "EINVAL", "ENODEV", "ENOSYS")
    if (code := _optional(errno, name)) is not None
)
_fcntl = _module("fcntl")
_msvcrt = None if _fcntl is not None else _module("msvcrt")
_position_lock = threading.Lock()
_LOCK_AT = 1 << 30
"""Windows locks a range of bytes; this one is behind the contents."""
_LONG_PATH = 240
_refusals: list[str] = []
"""Why F_FULLFSYNC was refused, for one log line."""


def name_of_sync() -> str:
    """How `sync_file` makes a file durable, for people."""
    if _optional(os, "fdatasync") is not None:
        return "fdatasync"
    return "fsync" if _full_sync() is None else "F_FULLFSYNC"


def _full_sync() -> int | None:
    found: int | None = _optional(_fcntl, "F_FULLFSYNC")
    return found


def sync_file(descriptor: int) -> None:
    """Makes contents and size durable, beyond the drive's cache. Raises OSError."""
    fdatasync = _optional(os, "fdatasync")
    if fdatasync is not None:
        fdatasync(descriptor)
    else:
        _sync_fully(descriptor)


def _sync_fully(descriptor: int) -> None:
    """F_FULLFSYNC, which alone reaches the medium on macOS; fsync where it does not exist or the file system
    refuses it. An error of the device is raised, never hidden by the second call."""
    full_sync = _full_sync()
    if full_sync is not None:
        try:
            _fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            if not _refusals:
                _refusals.append(str(error.strerror))
                _log.warning(
                    "the file system refuses F_FULLFSYNC (%s): using fsync, which leaves data in the drive's"
                    " cache; a power loss may lose acknowledged records",
                    error.strerror,
                )
    os.fsync(descriptor)


def sync_directory(path: str) -> None:
    """Makes the names in a directory durable. Raises OSError. Windows cannot, and needs no call."""
    if _optional(os, "O_DIRECTORY") is None:
        os.stat(native_path(path))
        return
    descriptor = open_directory(path)
    try:
        if _optional(os, "fdatasync") is not None:
            os.fsync(descriptor)
        else:
            _sync_fully(descriptor)
    finally:
        os.close(descriptor)


def open_directory(path: str) -> int:
    """A descriptor of a directory. Raises OSError."""
    return os.open(path, _OPEN_DIRECTORY)


def syncfs() -> Any:
    """syncfs(2), called with a descriptor; None if it is missing, or does not report write-back errors."""
    kernel = linux_kernel()
    if kernel is None or kernel[1] < (5, 8):
        return None
    return c_call("syncfs", ctypes.c_int)


def new_eventfd() -> int:
    """Raises OSError where there is none."""
    made = _optional(os, "eventfd")
    if made is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return int(made(0, _flags("EFD_NONBLOCK", "EFD_CLOEXEC")))


def clear_eventfd(descriptor: int) -> None:
    """Makes it unreadable until the next event."""
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 8)


def read_at(descriptor: int, length: int, position: int) -> bytes:
    """pread(2). Raises OSError."""
    pread = _optional(os, "pread")
    if pread is not None:
        found: bytes = pread(descriptor, length, position)
        return found
    with _position_lock:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, length)


def write_at(descriptor: int, data: bytes | memoryview, position: int) -> int:
    """pwrite(2). Raises OSError."""
    pwrite = _optional(os, "pwrite")
    if pwrite is not None:
        return int(pwrite(descriptor, data, position))
    with _position_lock:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, data)


def lock_file(descriptor: int) -> bool:
    """Locks a file against other processes; False if another one has it. Raises OSError, also if the file
    system has no locks (`lacks_locks`)."""
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            os.lseek(descriptor, _LOCK_AT, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def lacks_locks(error: OSError) -> bool:
    """Whether `lock_file` failed because the file system has no locks, as some network drives."""
    return error.errno in _REFUSED or error.errno == errno.ENOLCK


def space_of(path: str) -> tuple[int, int]:
    """(bytes free for this user, bytes of the file system). Raises OSError."""
    statvfs = _optional(os, "statvfs")
    if statvfs is None:
        found = shutil.disk_usage(native_path(path))
        return found.free, found.total
    status = statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def native_path(path: str) -> str:
    """A path with "/" as the system opens it."""
    return path if os.sep == "/" else windows_path(path)


def windows_path(path: str) -> str:
    """The same for Windows. A bare drive (`C:`) means its root; a long path needs a prefix."""
    native = path.replace("/", "\\")
    if native.endswith(":"):
        return native + "\\"
    if len(native) < _LONG_PATH or native.startswith("\\\\?\\"):
        return native
    native = ntpath.abspath(native)
    return "\\\\?\\UNC" + native[1:] if native.startswith("\\\\") else "\\\\?\\" + native


def slashed(path: str) -> str:
    """A path as a person or the system gave it, with "/" between names, as storage expects it."""
    return path if os.sep == "/" else path.replace("\\", "/")


# --- processes and signals

KILL = signal.Signals(_optional(signal, "SIGKILL") or signal.SIGTERM)
ENDING_SIGNALS = tuple(
    signal.Signals(each) for name in ("SIGTERM", "SIGHUP") if (each := _optional(signal, name)) is not None
)
"""What ends a command from outside, beside Ctrl-C."""
_PR_SET_PDEATHSIG = 1


def forks_are_safe() -> bool:
    """Whether a process that has imported everything may fork. On macOS the system's libraries, which numpy
    and gRPC load, end a fork that uses them."""
    return _ON_LINUX and _optional(os, "fork") is not None


def end_with_parent(parent_pid: int, pipe: int) -> None:
    """Ends this process when its parent does, however that ends. `pipe`: the reading end of a pipe of which
    only the parent has the other. A thread waits for its end, since only Linux has a signal for this."""
    prctl = c_call("prctl", ctypes.c_int, ctypes.c_ulong)
    if prctl is not None and _ON_LINUX:
        prctl(_PR_SET_PDEATHSIG, KILL)
    if os.getppid() != parent_pid:
        os._exit(0)
    end_with_pipe(pipe)


def end_with_pipe(pipe: int) -> None:
    """Ends this process when no other one has the writing end of a pipe any longer."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(pipe, 1):
                pass
        os._exit(0)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def call_in_forks(call: Callable[[], object]) -> None:
    """Calls it at the start of every fork of this process, where there are forks."""
    register = _optional(os, "register_at_fork")
    if register is not None:
        register(after_in_child=call)


def pause_signals() -> tuple[signal.Signals, signal.Signals] | None:
    """What stops a process and has it go on; None where there is nothing."""
    stop, resume = _optional(signal, "SIGSTOP"), _optional(signal, "SIGCONT")
    return None if stop is None or resume is None else (signal.Signals(stop), signal.Signals(resume))


def limit_memory(pid: int, more_bytes: int | None) -> bool:
    """Lets a process allocate so much more than it has now; None: without a limit. False where the system
    cannot limit another process. Raises psutil.Error."""
    import psutil

    process, resource = psutil.Process(pid), _module("resource")
    limit = _optional(process, "rlimit")
    if limit is None or resource is None:
        return False
    unlimited = resource.RLIM_INFINITY
    size = unlimited if more_bytes is None else process.memory_info().data + more_bytes
    limit(resource.RLIMIT_DATA, (size, unlimited))
    return True


MANY_FILES = 1_000_000
"""What counts as a system without a limit of open files."""
_TRIED_FILES = (MANY_FILES, 65_536, 24_576, 10_240, 4_096)


def raise_open_files() -> int:
    """Raises the soft limit of open files to the hard one, or as far as the system lets it; returns it."""
    resource = _module("resource")
    if resource is None:
        return MANY_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for wanted in (hard, *_TRIED_FILES):
        if soft != unlimited and (wanted == unlimited or wanted > soft):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (ValueError, OSError):
                continue
            soft = wanted
    return MANY_FILES if soft == unlimited else min(soft, MANY_FILES)


def folder_of_descriptors() -> str | None:
    """Where the system lists the descriptors of this process; None if it does not."""
    return next((each for each in ("/proc/self/fd", "/dev/fd") if os.path.isdir(each)), None)


def keep_silent_ones_away(listening: socket.socket, for_s: int) -> None:
    """Where the system can: a connection that sends nothing is not accepted before this time."""
    option = _optional(socket, "TCP_DEFER_ACCEPT")
    if option is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, for_s)


def lower_priority(by: int) -> None:
    """nice(2), where there is one."""
    nice = _optional(os, "nice")
    if nice is not None:
        nice(by)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C back from this thread and from the processes that it starts, where a thread can."""
    mask = _optional(signal, "pthread_sigmask")
    if mask is None:
        yield
        return
    before = mask(signal.SIG_BLOCK, {signal.SIGINT})  # type: ignore[attr-defined,unused-ignore]
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)  # type: ignore[attr-defined,unused-ignore]


def process_runs(pid: int) -> bool:
    """Whether there is such a process, anybody's. (On Windows, os.kill(pid, 0) would end it.)"""
    import psutil

    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:
        return True


def end_without_reader() -> None:
    """Where the reader of the output goes away (`| head`), the process ends without a traceback."""
    number = _optional(signal, "SIGPIPE")
    if number is not None:
        signal.signal(number, signal.SIG_DFL)


def reader_is_gone(descriptor: int) -> bool:
    """Whether nobody reads the pipe any longer, which otherwise only a write would show. False where the
    system cannot tell."""
    select = _module("select")
    if _optional(select, "poll") is None:
        return False
    watch = select.poll()
    watch.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in watch.poll(0))


# --- text


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""What an encoding lacks, as \uXXXX: JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    codes = (missing[at : at + 2].hex() for at in range(0, len(missing), 2))
    return "".join(f"\\u{code}" for code in codes), error.end


codecs.register_error("metaquorum.escape", _escaped)


def _open_standard_streams() -> None:
    """A stream that the caller has closed (`>&-`) reads and writes nothing. Otherwise Python has None in its
    place, and the next file that is opened has its number: what libraries write there is in that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def prepare_output() -> None:
    """A character that the console's encoding lacks is escaped, not an error. Output to a file or a pipe is
    the same on every system: UTF-8 and "\\n", unless PYTHONIOENCODING names another encoding."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.errors == "strict":
            stream.reconfigure(errors="metaquorum.escape")
        if os.linesep != "\n":
            stream.reconfigure(newline="\n")
            if not stream.isatty() and not os.environ.get("PYTHONIOENCODING"):
                stream.reconfigure(encoding="utf-8")


# --- the event loop, sockets, time


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end: on uvloop, which is twice as fast, or asyncio's own loop without it."""
    import asyncio  # commands that need no loop start without it

    uvloop = _module("uvloop")
    result: T = asyncio.run(main) if uvloop is None else uvloop.run(main)
    return result


def handle_signal(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, call: Callable[..., object], *arguments: Any
) -> Callable[[], object]:
    """Calls `call(*arguments)` on the loop for each such signal. Returns what ends this."""
    try:
        loop.add_signal_handler(number, call, *arguments)
        return lambda: loop.remove_signal_handler(number)
    except NotImplementedError:

        def arrived(_: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(call, *arguments)

        before = signal.signal(number, arrived)
        return lambda: signal.signal(number, before)


def may_bind_again(listening: socket.socket) -> None:
    """Lets a server take the port that its predecessor used a moment ago, and nobody else's."""
    alone = _optional(socket, "SO_EXCLUSIVEADDRUSE")
    # On Windows, SO_REUSEADDR would let two servers have one port.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if alone is None else alone, 1)


def idle_sockets_keep_ports() -> bool:
    """Whether a bound socket that does not listen keeps its port from other processes, and leaves it to a
    server of this one."""
    return _optional(socket, "SO_EXCLUSIVEADDRUSE") is None


def netlink_socket(protocol: int) -> socket.socket | None:
    """A socket of Linux's netlink(7); None on other systems. Raises OSError."""
    family = _optional(socket, "AF_NETLINK")
    return None if family is None else socket.socket(family, socket.SOCK_RAW, protocol)


def opens_windows() -> bool:
    """Whether programs that this process starts can show windows."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def clock_with_sleep() -> Callable[[], int]:
    """A monotonic clock in ns that does not stop while the machine sleeps."""
    number = _optional(time, "CLOCK_BOOTTIME") or _optional(time, "CLOCK_MONOTONIC")
    read = _optional(time, "clock_gettime_ns")
    if number is None or read is None:
        return time.monotonic_ns
    return lambda: int(read(number))


if __name__ == "__main__":
    end_without_reader()
    print(differences_table(), end="")
