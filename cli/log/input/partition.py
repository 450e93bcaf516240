"""`log dump` of a topic partition's log: segments on this machine's disk, in the form of kafka-dump-log.

Owns which files those are, and the reading of one batch at a time. The lines are `partition_text`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click

from metaquorum.metadata.text.partition_text import batch_lines
from metaquorum.storage.batches.batch import BatchHeader, batch_problem, parse_header
from metaquorum.storage.batches.format import HEADER_BYTES, LENGTH_OVERHEAD_BYTES
from metaquorum.storage.errors import BatchError, CompressedBatchError
from metaquorum.storage.log.config import METADATA_DIRECTORY

_DIRECTORY = re.compile(r"(?P<topic>[\w.-]+)-\d+")
_SEGMENT = re.compile(r"\d{20}\.log")


def partition_segments(path: str) -> list[Path]:
    """The segments of a partition's log that a path names, as a file or as their directory; none: it names
    something else."""
    found = Path(path)
    directory = found.absolute() if found.is_dir() else found.absolute().parent
    if _DIRECTORY.fullmatch(directory.name) is None or directory.name == METADATA_DIRECTORY:
        return []
    if found.is_dir():
        return sorted(each for each in found.iterdir() if _SEGMENT.fullmatch(each.name))
    return [found] if _SEGMENT.fullmatch(found.name) and found.is_file() else []


def dump_segment(
    segment: Path, chosen: Callable[[BatchHeader], bool], complain: Callable[[str], None]
) -> None:
    """Prints the batches of a segment that are chosen; `complain` takes a line about damage."""
    named = _DIRECTORY.fullmatch(segment.absolute().parent.name)
    topic = "" if named is None else named["topic"]
    click.echo(f"Dumping {segment}")
    click.echo(f"Log starting offset: {int(segment.stem)}")
    position = 0
    with segment.open("rb") as file:
        while head := file.read(HEADER_BYTES):
            try:
                header = parse_header(head)
            except BatchError as error:
                complain(f"{segment}: byte {position}: {error}; nothing behind it is shown")
                return
            rest = max(0, header.batch_length + LENGTH_OVERHEAD_BYTES - HEADER_BYTES)
            if not chosen(header):
                file.seek(rest, 1)
            elif not _dump_batch(segment, topic, header, head + file.read(rest), position, complain):
                return
            position += HEADER_BYTES + rest


def _dump_batch(
    segment: Path,
    topic: str,
    header: BatchHeader,
    data: bytes,
    position: int,
    complain: Callable[[str], None],
) -> bool:
    """Whether the log can be read on behind the batch."""
    if len(data) < header.size_bytes:
        left = header.size_bytes - len(data)
        complain(f"{segment}: byte {position}: the last batch is torn, {left} of its bytes are missing")
        return False
    problem = batch_problem(data, 0, check_count=False)
    if problem is not None:
        complain(f"{segment}: byte {position}: {problem}")
    try:
        for line in batch_lines(topic, header, data, position):
            click.echo(line)
    except (BatchError, CompressedBatchError) as error:
        complain(f"{segment}: byte {position}: {error}")
    return True
