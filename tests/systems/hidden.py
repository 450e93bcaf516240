"""Takes away what CPython does not have on macOS, or on Windows, by its own documentation.

For child processes: `environment` makes each of them, and their children, hide it before anything is
imported (`site/sitecustomize.py`). What a name alone does not show is imitated: Unix sockets that keep
messages apart, fork, /proc, the limit of open files, F_FULLFSYNC.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import fcntl
import importlib
import importlib.machinery
import multiprocessing.connection
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import psutil

__all__ = ["FILES_MAX", "NOT_MACOS", "NOT_WINDOWS", "environment", "hide"]

SYSTEM = "METAQUORUM_TEST_SYSTEM"
SITE = Path(__file__).parent / "site"
FILES_MAX = 256
FULL_SYNC = 51

NOT_MACOS: Mapping[str, tuple[str, ...]] = {
    "os": (
        *(
            "fdatasync eventfd eventfd_read eventfd_write EFD_CLOEXEC EFD_NONBLOCK posix_fadvise "
            "posix_fallocate POSIX_FADV_DONTNEED POSIX_FADV_SEQUENTIAL pipe2 sched_getaffinity "
            "sched_setaffinity sched_setscheduler sched_getscheduler sched_getparam memfd_create "
            "getrandom copy_file_range splice pidfd_open waitid O_DIRECT O_TMPFILE O_NOATIME O_PATH "
            "O_LARGEFILE O_RSYNC getxattr setxattr listxattr removexattr setresuid setresgid getresuid "
            "getresgid RWF_DSYNC RWF_SYNC RWF_NOWAIT RWF_HIPRI RTLD_DEEPBIND CLD_DUMPED P_PIDFD "
            "getlogin_r MFD_CLOEXEC GRND_NONBLOCK SPLICE_F_MOVE"
        ).split(),
    ),
    "select": (*("epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLRDHUP EPOLL_CLOEXEC").split(),),
    "socket": (
        *(
            "AF_NETLINK AF_PACKET AF_ALG AF_VSOCK AF_CAN AF_TIPC AF_RDS AF_QIPCRTR SOCK_CLOEXEC "
            "SOCK_NONBLOCK TCP_CORK TCP_QUICKACK TCP_USER_TIMEOUT TCP_DEFER_ACCEPT TCP_LINGER2 TCP_SYNCNT "
            "TCP_WINDOW_CLAMP TCP_INFO TCP_KEEPIDLE TCP_CONGESTION SO_BINDTODEVICE SO_DOMAIN SO_PASSCRED "
            "SO_PEERCRED SO_PRIORITY SO_PROTOCOL SO_MARK MSG_CMSG_CLOEXEC MSG_CONFIRM MSG_ERRQUEUE "
            "MSG_FASTOPEN MSG_MORE MSG_NOSIGNAL SCM_CREDENTIALS SO_INCOMING_CPU NETLINK_ROUTE"
        ).split(),
    ),
    "signal": (
        *(
            "sigwaitinfo sigtimedwait SIGSTKFLT SIGPWR SIGPOLL SIGRTMIN SIGRTMAX SIGCLD pidfd_send_signal"
        ).split(),
    ),
    "time": (*("CLOCK_BOOTTIME CLOCK_TAI clock_settime clock_settime_ns pthread_getcpuclockid").split(),),
    "fcntl": (
        *(
            "F_SETPIPE_SZ F_GETPIPE_SZ F_NOTIFY F_SETSIG F_GETSIG F_ADD_SEALS F_GET_SEALS F_SETLEASE "
            "F_GETLEASE F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK LOCK_MAND LOCK_READ"
        ).split(),
    ),
    "resource": (
        *(
            "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING "
            "RLIMIT_OFILE RUSAGE_THREAD"
        ).split(),
    ),
    "mmap": (*("MAP_POPULATE MAP_STACK MAP_DENYWRITE MAP_EXECUTABLE MADV_HUGEPAGE MADV_DONTFORK").split(),),
}
"""Marked "not macOS", "Linux" or another system in the documentation of 3.11 to 3.13, where Linux has it."""

NOT_WINDOWS: Mapping[str, tuple[str, ...]] = {
    "os": (
        *NOT_MACOS["os"],
        *(
            "fork forkpty pread pwrite preadv pwritev readv writev sendfile statvfs fstatvfs uname getuid "
            "geteuid getgid getegid getgroups setuid setgid setsid getpgid setpgid getpgrp getsid killpg "
            "nice getpriority setpriority wait wait3 chown lchown fchown fchmod fchdir chroot mkfifo "
            "mknod openpty ttyname sync sysconf pathconf confstr getloadavg O_CLOEXEC O_DIRECTORY "
            "O_NOFOLLOW O_NONBLOCK O_SYNC O_DSYNC O_NOCTTY WNOHANG lockf posix_spawn ctermid tcgetpgrp "
            "tcsetpgrp sched_yield sched_get_priority_max sched_get_priority_min initgroups getgrouplist"
        ).split(),
    ),
    "select": (
        *NOT_MACOS["select"],
        *("poll POLLERR POLLHUP POLLIN POLLNVAL POLLOUT POLLPRI").split(),
    ),
    "socket": (
        *NOT_MACOS["socket"],
        *("AF_UNIX socketpair_ send_fds recv_fds SO_REUSEPORT sethostname").split(),
    ),
    "signal": (
        *NOT_MACOS["signal"],
        *(
            "SIGKILL SIGHUP SIGPIPE SIGCHLD SIGUSR1 SIGUSR2 SIGALRM SIGQUIT SIGCONT SIGSTOP SIGTSTP "
            "SIGWINCH alarm pause setitimer siginterrupt pthread_kill pthread_sigmask sigpending sigwait"
        ).split(),
    ),
    "time": (
        *NOT_MACOS["time"],
        *(
            "clock_gettime clock_gettime_ns clock_getres CLOCK_MONOTONIC CLOCK_REALTIME tzset "
            "CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC_RAW"
        ).split(),
    ),
    "fcntl": NOT_MACOS["fcntl"],
    "resource": NOT_MACOS["resource"],
    "mmap": (
        *NOT_MACOS["mmap"],
        *("MAP_SHARED MAP_PRIVATE MAP_ANON MAP_ANONYMOUS PROT_READ PROT_WRITE").split(),
    ),
}
"""Marked "Unix" there."""
MODULES_NOT_ON_WINDOWS = (
    "fcntl",
    "resource",
    "termios",
    "tty",
    "pty",
    "pwd",
    "grp",
    "readline",
    "uvloop",
    "syslog",
)
USE_THEM = (asyncio, multiprocessing.connection, shutil, subprocess, tempfile, numpy, psutil)
"""Modules that have other code on other systems: imported before anything is hidden."""


def environment(system: str) -> dict[str, str]:
    """What a child needs in its environment. `system`: macos or windows."""
    path = os.pathsep.join([str(SITE), str(SITE.parents[2]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), SYSTEM: system}


def hide(system: str) -> None:
    """In this process, for good."""
    for name, hidden in (NOT_MACOS if system == "macos" else NOT_WINDOWS).items():
        module = importlib.import_module(name)
        for each in hidden:
            if hasattr(module, each):
                delattr(module, each)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on; it asks for the affinity where there is one
        os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined]
    if system == "macos":
        _be_macos()
    else:
        # Both have decided at import that they use what is hidden now; these are their own switches.
        subprocess._USE_POSIX_SPAWN = False  # type: ignore[attr-defined]
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        for name in MODULES_NOT_ON_WINDOWS:
            sys.modules[name] = None  # type: ignore[assignment]
    sys.meta_path.insert(0, _Named("darwin" if system == "macos" else "win32"))


class _Named(importlib.machinery.PathFinder):
    """While `platforms` is imported, the system has its name: other packages would look for its libraries."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # type: ignore[override]
        if fullname != "metaquorum.platforms":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            before, sys.platform = sys.platform, self._name
            try:
                run(module)
            finally:
                sys.platform = before

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _be_macos() -> None:
    import resource

    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_MAX, limits[1]), min(FILES_MAX, limits[1])))
    fcntl.F_FULLFSYNC = FULL_SYNC  # type: ignore[attr-defined]
    control, pair, plain_open = fcntl.fcntl, socket.socketpair, builtins.open

    def controlled(descriptor: Any, command: int, *arguments: Any) -> Any:
        if command != FULL_SYNC:
            return control(descriptor, command, *arguments)
        os.fsync(descriptor)
        return 0

    def paired(family: Any = None, kind: Any = socket.SOCK_STREAM, *arguments: Any) -> Any:
        if kind == socket.SOCK_SEQPACKET:
            raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
        return pair(family, kind, *arguments)

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(file, str | bytes | os.PathLike) and os.fspath(file)[:6] in ("/proc/", b"/proc/"):
            # psutil asks the kernel of macOS, and here /proc.
            if not asks.startswith("psutil"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return plain_open(file, *arguments, **named)

    def refused(*_: Any) -> int:
        raise OSError("no fork here: it is unsafe on macOS")

    fcntl.fcntl, socket.socketpair, builtins.open, os.fork = controlled, paired, opened, refused
