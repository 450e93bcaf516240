"""The `known-committed` file: a durable lower bound of the offset up to which a replica knows its log to be
committed.

It also records how far the directories of voters have acknowledged committed records to their leaders: a
directory that holds less than it acknowledged is an older copy of itself. A replica that would have to give
up records below the bound, or whose own log ends before it, knows that committed records were lost somewhere.

Like `recovery-point`, the file is specific to metaquorum and is beside the segments: Kafka's log loader
ignores names without its own endings. There is one line per note, and the last complete line counts: a note
is appended without a sync, so that it survives a kill at the cost of one write(2), and from time to time the
file is replaced durably. So a power loss can take back the newest notes but never invents one: each line has
a checksum, and is written once the log below it is synced.
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
"""Start of an acknowledgement line."""
_ADVICE = (
    "only a failing disk or another program can damage it: check the disk; remove the file to start "
    "without knowing what was committed"
)
NOTHING = LogPosition(0, 0)
WHERE = "see 'Committed records were lost' in docs/operations.md"


class CommittedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Replica `node_id` knows everything below `known_offset` to be committed, but the leader's log
    matches the replica's below `common_offset` at most."""

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
    """The contents of the file."""

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
    """The newest note. Raises the errors of `decode_known`."""
    return decode_known(content, file).position


def decode_known(content: bytes, file: str = FILE_NAME) -> Known:
    """The contents of the file; what follows an incomplete line is left over from a power loss. Raises
    CorruptFileError if even the first line is incomplete, or if it was written by a later release."""
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
    """The bound of a replica's directory. Raises the errors of `load_known`."""
    return load_known(disk, directory).position


def load_known(disk: Disk, directory: str) -> Known:
    """The contents of the file in a replica's directory; `NOTHING` if there is no file (a new directory,
    or Kafka's). Raises CorruptFileError or DiskError."""
    path = join(directory, FILE_NAME)
    try:
        return decode_known(read_file(disk, path), path)
    except FileMissingError:
        return Known(NOTHING)


class KnownCommitted:
    """The file of an open replica. `write` is for the disk thread, everything else for the loop's: between
    `begin_write` and `end_write`, notes wait in memory."""

    def __init__(self, disk: Disk, directory: str, contents: Known) -> None:
        """Creates the file durably, or compacts it to its contents."""
        self.position = contents.position
        self.acknowledged = contents.acknowledged
        self._disk = disk
        self._path = join(directory, FILE_NAME)
        self._file: DiskFile | None = None
        self._written = contents
        content = contents.encode()
        if not disk.exists(self._path) or disk.file_size(self._path) != len(content):
            write_atomically(disk, self._path, content)
        self._file = disk.open_append(self._path)

    @property
    def known(self) -> Known:
        """The newest note, written or waiting."""
        return Known(self.position, self.acknowledged)

    def note(self, position: LogPosition) -> None:
        """The log below `position` is committed, and synced here. In the page cache on return."""
        self.position = position
        if self._file is not None:
            self._file.append(encode(position))

    def begin_write(self) -> Known:
        """What `write` must make durable."""
        if self._file is not None:
            self._file.close()
            self._file = None
        return self.known

    def write(self, contents: Known) -> None:
        """Replaces the file; durable on return. Raises DiskError."""
        write_atomically(self._disk, self._path, contents.encode())

    def end_write(self, contents: Known) -> None:
        """`write(contents)` has returned: notes are appended again."""
        self._written = contents
        if self._file is not None:
            self._file.close()
        self._file = self._disk.open_append(self._path)
        if self.position != contents.position:
            self._file.append(encode(self.position))

    def close(self, *, clean: bool) -> None:
        """Closes the file; a clean close makes its newest note durable."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if clean and self.known != self._written:
            self.write(self.known)
