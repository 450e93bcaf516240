"""Record batches that travel together: their bytes, and their headers, parsed once.

Owns the step that turns bytes into batches of a log: from an append, a fetch response or a read. Nothing
parses a header's bytes again after that. Does not know files, logs or records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metaquorum.storage.batches.batch import ADVICE, RecordBatch, parse_header
from metaquorum.storage.batches.format import HEADER_BYTES, HEADER_STRUCT, MAGIC, BatchHeader, header_problems
from metaquorum.storage.batches.walk import HeaderWalk, Hop, walk_headers
from metaquorum.storage.errors import BatchError, CorruptLogError


class Batches(NamedTuple):
    """`data` is whole batches and nothing else, each with offsets that follow those of the one before (in
    a partition's log some may be missing); `headers` are theirs, in order. Create one with `parse`,
    `arrived`, `sealed` or `of_walk`."""

    data: bytes
    headers: tuple[BatchHeader, ...]

    @staticmethod
    def parse(data: bytes, *, file: str = "<bytes>") -> Batches:
        """Bytes from elsewhere. Runs the checks of `walk_headers`, CRCs included; raises CorruptLogError."""
        walk = walk_headers(data)
        if walk.problem is not None:
            offset = walk.headers[-1].next_offset if walk.headers else 0
            raise CorruptLogError(file, walk.end, offset, walk.problem, ADVICE)
        return Batches.of_walk(data, walk)

    @staticmethod
    def arrived(data: bytes) -> Batches:
        """What a producer sent as one batch: parsed, not checked. Without a header if the bytes, by magic and
        length, are not exactly one batch."""
        if len(data) >= HEADER_BYTES:
            header = BatchHeader._make(HEADER_STRUCT.unpack_from(data))
            if header.magic == MAGIC and header.size_bytes == len(data):
                return Batches(data, (header,))
        return Batches(data, ())

    @staticmethod
    def sealed(data: bytes) -> Batches:
        """Bytes that this process has encoded, or has checked before it stored them: parsed, not checked.
        Raises BatchError if they cannot be batches."""
        headers: list[BatchHeader] = []
        position = 0
        while position < len(data):
            headers.append(parse_header(data, position))
            position += headers[-1].size_bytes
        if position > len(data):
            raise BatchError(
                f"the last of these batches is {position - len(data)} bytes longer than the data"
            )
        return Batches(data, tuple(headers))

    @staticmethod
    def of_walk(data: bytes, walk: HeaderWalk) -> Batches:
        """The batches that `walk_headers` has just checked in these bytes."""
        return Batches(data[: walk.end], tuple(walk.headers))

    @staticmethod
    def joined(batches: Sequence[RecordBatch]) -> Batches:
        """Consecutive batches, at least one."""
        if len(batches) == 1:
            return Batches(batches[0].data, (batches[0].header,))
        return Batches(
            b"".join([batch.data for batch in batches]), tuple([batch.header for batch in batches])
        )

    @property
    def base_offset(self) -> int:
        """Offset of the first record. There must be a record."""
        return self.headers[0].base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the last record. There must be a record."""
        return self.headers[-1].next_offset

    def problem_after(self, end_offset: int, epoch: int, *, gaps: bool = False) -> str | None:
        """Why these cannot follow a log that ends at `end_offset` in `epoch`; None if they can. With
        `gaps`, offsets may be missing between them and the log."""
        if not self.headers:
            return "expected at least one batch"
        return next(iter(header_problems(self.headers[0], end_offset, epoch, gaps=gaps)), None)

    def after(self, count: int) -> Batches:
        """Without the first `count` batches."""
        if not count:
            return self
        start = sum([header.size_bytes for header in self.headers[:count]])
        return Batches(self.data[start:], self.headers[count:])

    def below(self, offset: int) -> Batches:
        """Without the batches that begin at or above `offset`."""
        headers = self.headers
        if not headers or headers[-1].base_offset < offset:
            return self
        kept = tuple([header for header in headers if header.base_offset < offset])
        return Batches(self.data[: sum([header.size_bytes for header in kept])], kept)

    def hops(self) -> list[Hop]:
        """The position of each batch, in the form that a walk over the bytes returns."""
        hops: list[Hop] = []
        position = 0
        for header in self.headers:
            hops.append((position, header.base_offset, header.next_offset, header.leader_epoch))
            position += header.size_bytes
        return hops

    def split(self) -> Iterator[RecordBatch]:
        """The batches one by one."""
        if len(self.headers) == 1:
            yield RecordBatch(self.headers[0], self.data)
            return
        position = 0
        for header in self.headers:
            end = position + header.size_bytes
            yield RecordBatch(header, self.data[position:end], position)
            position = end


NO_BATCHES = Batches(b"", ())
