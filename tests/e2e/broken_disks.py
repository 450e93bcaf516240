"""Log directories that break under a running broker: for real if the machine allows it, or by the broker's
test hook.

`LoopDisk` puts an ext4 file system in a file under a directory, mounted in a mount namespace of the broker's
own process, and shuts the file system down (the ioctl that xfs_io's `shutdown` uses): from then on every
call, also on open descriptors, returns EIO, and only a new mount brings the directory back. Nothing is left
behind: the mount and its loop device disappear with the process. It needs root, mkfs.ext4 and loop devices.
`FaultFile` uses the broker's own test hook (broker/server/data/disk_faults.py): it works on any machine, and
can also make calls hang.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from metaquorum.broker.server.data.disk_faults import VARIABLE

IMAGE_MIB = 512
_EXT4_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = 2
_MOUNT = 'while [ "$1" != -- ]; do mount -o loop "$1" "$2" || exit 90; shift 2; done; shift; exec "$@"'


class LoopDisk:
    """A file system of its own under `directory`, which keeps its current contents. Pass `prefix_of` to
    `Process.start`; a broker that is restarted with it has the same files, on a file system that works."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.image = directory.with_name(f"{directory.name}.img")
        _make_image(self.image, directory)

    def shut_down(self, pid: int) -> None:
        """Breaks the disk for the process, at once and until the process ends."""
        descriptor = os.open(f"/proc/{pid}/root{self.directory}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(descriptor)


def prefix_of(disks: Sequence[LoopDisk]) -> tuple[str, ...]:
    """The command that runs a broker with these disks mounted only for it."""
    mounts = [text for disk in disks for text in (str(disk.image), str(disk.directory))]
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", *mounts, "--")


def _make_image(image: Path, directory: Path, mib: int = IMAGE_MIB) -> None:
    """An ext4 file system with a copy of the directory in it."""
    options = ("-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1")
    subprocess.run(
        ["mkfs.ext4", *options, "-d", str(directory), str(image), f"{mib}M"], check=True, capture_output=True
    )


@functools.cache
def why_no_loop_disks() -> str | None:
    """What this machine lacks for `LoopDisk`; None: nothing. Tried once, with a small file system."""
    if os.geteuid() != 0:
        return "mounting needs root"
    for tool in ("mkfs.ext4", "unshare", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "disk"
        directory.mkdir()
        try:
            _make_image(Path(name) / "disk.img", directory, 8)
        except subprocess.CalledProcessError as error:
            return f"mkfs.ext4: {error.stderr.decode().strip()}"
        disk = LoopDisk.__new__(LoopDisk)
        disk.directory, disk.image = directory, Path(name) / "disk.img"
        result = subprocess.run([*prefix_of([disk]), "true"], capture_output=True, check=False)
        return None if result.returncode == 0 else f"mount: {result.stderr.decode().strip()}"


class FaultFile:
    """The control file of the broker's own hook. Pass `environment` to `Process.start`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._faults: list[dict[str, object]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self._path)}

    def add(self, directory: Path, fault: str, operations: Sequence[str] = (), ms: int = 0) -> None:
        """`fault` as in broker/server/data/disk_faults.py; empty `operations`: every call."""
        one = {"directory": str(directory), "fault": fault, "operations": list(operations), "ms": ms}
        self._faults.append(one)
        self._write()

    def clear(self) -> None:
        self._faults = []
        self._write()

    def _write(self) -> None:
        """In one step: the broker may be reading the file."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._faults))
        temporary.replace(self._path)
