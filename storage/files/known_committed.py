"""The `known-committed` file: up to where a replica has known its log to be committed, a durable lower bound.

With it, how far the directories of voters have acknowledged that, to those who led: a directory that holds
less than it acknowledged is an older copy of itself. Owns the file's format and how it is written. A replica
that is asked to give up what is below the bound, or finds its own log ending before it, knows that committed
records were lost somewhere. Knows no roles.

It is a file of our own beside the segments, as `recovery-point` is: Kafka's log loader passes over names
without its own endings. One line a note, the last whole one counts: a note is appended without a sync, so
that it survives a kill at the price of one write(2), and now and then the file is replaced durably. A power
loss can so take back the newest notes, and never invents one: each line has a checksum, and is written when
the log below it is synced.
"""

from __future__ import annotations

import zlib

import msgspec

from metaquorum.storage.disk.interface import Disk, DiskFile, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.types import LogPosition

FILE_NAME = "known-committed"
_VERSION = b"0"
_DIRECTORY = b"d"
"""What a line of an acknowledgement begins with."""
_ADVICE = (
    "only a failing disk or another program can damage it: check the disk; remove the file to start "
    "without knowing what was committed"
)
NOTHING = LogPosition(0, 0)
WHERE = "see 'Committed records were lost' in docs/operations.md"


class CommittedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Replica `node_id` knows everything below `known_offset` to be committed, and the leader's log agrees
    with the replica's below `common_offset` at most."""

    node_id: int
    known_offset: int
    common_offset: int

    def __str__(self) -> str:
        return (
            f"committed records were lost: node {self.node_id} knows that everything below offset"
            f" {self.known_offset} was committed, but the leader's log agrees only below offset"
            f" {self.common_offset}; stop all nodes, keep every directory, and compare them with"
            f" `metaquorum log salvage`; {WHERE}"
        )


class Acknowledged(msgspec.Struct, frozen=True):
    """A directory has acknowledged everything below `offset`, all committed, to the leader of `epoch`."""

    directory_id: bytes
    offset: int
    epoch: int


class Known(msgspec.Struct, frozen=True):
    """All that the file says."""

    position: LogPosition
    acknowledged: tuple[Acknowledged, ...] = ()

    def encode(self) -> bytes:
        """A note, and a line for each directory."""
        lines = [
            _line(b"%b %d %d %b" % (_DIRECTORY, one.offset, one.epoch, one.directory_id.hex().encode()))
            for one in self.acknowledged
        ]
        return b"".join([encode(self.position), *lines])


def encode(position: LogPosition) -> bytes:
    """One line: version, offset, epoch of the record before it, CRC-32 of these."""
    return _line(b"%b %d %d" % (_VERSION, position.offset, position.epoch))


def _line(fields: bytes) -> bytes:
    return b"%b %08x\n" % (fields, zlib.crc32(fields))


def decode(content: bytes, file: str = FILE_NAME) -> LogPosition:
    """The newest note. Raises as `decode_known`."""
    return decode_known(content, file).position


def decode_known(content: bytes, file: str = FILE_NAME) -> Known:
    """All that the file says; what follows a line that is not whole is what a power loss left. Raises
    CorruptFileError where not even the first line is whole, or is of a later release."""
    newest: LogPosition | None = None
    acknowledged: list[Acknowledged] = []
    for line in content.split(b"\n")[:-1]:
        fields, _, checksum = line.rpartition(b" ")
        words = fields.split(b" ")
        if checksum != b"%08x" % zlib.crc32(fields) or len(words) < 3:
            break
        if words[0] == _DIRECTORY:
            acknowledged.append(Acknowledged(bytes.fromhex(words[3].decode()), int(words[1]), int(words[2])))
            continue
        if words[0] != _VERSION:
            raise CorruptFileError(
                file,
                f"has version {words[0].decode(errors='replace')}, this release reads {_VERSION.decode()}",
                "start the newer release that wrote it",
            )
        newest = LogPosition(int(words[2]), int(words[1]))
    if newest is None:
        raise CorruptFileError(file, "does not say what is committed", _ADVICE)
    return Known(newest, tuple(acknowledged))


def load_known_committed(disk: Disk, directory: str) -> LogPosition:
    """The bound of a replica's directory. Raises as `load_known`."""
    return load_known(disk, directory).position


def load_known(disk: Disk, directory: str) -> Known:
    """What a replica's directory says; `NOTHING` where there is no file (a new directory, or Kafka's). Raises
    CorruptFileError or DiskError."""
    path = join(directory, FILE_NAME)
    try:
        return decode_known(read_file(disk, path), path)
    except FileMissingError:
        return Known(NOTHING)


class KnownCommitted:
    """The file of an open replica. `write` is for the disk thread, everything else for the loop's: between
    `begin_write` and `end_write` notes wait in memory."""

    def __init__(self, disk: Disk, directory: str, known: Known) -> None:
        """Makes the file, durably, or shortens it to what it says."""
        self.position = known.position
        self.acknowledged = known.acknowledged
        self._disk = disk
        self._path = join(directory, FILE_NAME)
        self._file: DiskFile | None = None
        self._written = known
        content = known.encode()
        if not disk.exists(self._path) or disk.file_size(self._path) != len(content):
            write_atomically(disk, self._path, content)
        self._file = disk.open_append(self._path)

    @property
    def known(self) -> Known:
        """The newest of both."""
        return Known(self.position, self.acknowledged)

    def note(self, position: LogPosition) -> None:
        """The log below `position` is committed, and synced here. In the page cache on return."""
        self.position = position
        if self._file is not None:
            self._file.append(encode(position))

    def begin_write(self) -> Known:
        """What `write` is to make durable."""
        if self._file is not None:
            self._file.close()
            self._file = None
        return self.known

    def write(self, known: Known) -> None:
        """Replaces the file; durable when it returns. Raises DiskError."""
        write_atomically(self._disk, self._path, known.encode())

    def end_write(self, known: Known) -> None:
        """`write(known)` has returned: notes are appended again."""
        self._written = known
        if self._file is not None:
            self._file.close()
        self._file = self._disk.open_append(self._path)
        if self.position != known.position:
            self._file.append(encode(self.position))

    def close(self, *, clean: bool) -> None:
        """Gives the file back; a clean end leaves its newest note durable."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if clean and self.known != self._written:
            self.write(self.known)
