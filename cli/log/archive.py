"""`metaquorum log archive`: packs the logs of a quorum into one checked file, and unpacks it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import click

from metaquorum.cli.errors import EXIT_FAILED, Failure, as_failure, print_problem
from metaquorum.cli.interrupts import terminated_in_order
from metaquorum.cli.log.input.live import LiveCommand
from metaquorum.cli.log.input.options import PATH
from metaquorum.cli.log.input.source import open_paths
from metaquorum.cli.log.repair import refuse_inside
from metaquorum.cli.text.output import echo_json, echo_table, table_options, utc_text
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.nodes.nodes import home_of, log_end, require_one_quorum, short_names
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.platforms import process_runs, slashed
from metaquorum.storage.archive import SUFFIX, VERSION, ArchivedFile, ArchiveIndex, LogArchive
from metaquorum.storage.archive_writer import (
    ArchiveSource,
    Packed,
    extract_archive,
    leftovers,
    pack,
    refuse_existing,
    write_archive,
)
from metaquorum.storage.disk.interface import join, name_of, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, parse_snapshot_name
from metaquorum.storage.log.segment import parse_segment_name

_LOCK = ".lock"


class _Archive(LiveCommand):
    def refuse_live(self, ctx: click.Context) -> None:
        if ctx.params["verify"] or ctx.params["directory"] is not None:
            raise click.UsageError("--verify and --extract read an archive; leave out --bootstrap", ctx)


@click.command(cls=_Archive)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--to", "target", type=PATH, help=f"The new archive, NAME{SUFFIX}, or a directory for it.")
@click.option("--verify", is_flag=True, help="Read each archive PATH to its end and compare all checksums.")
@click.option("--extract", "directory", type=PATH, help="New directory for the files of the archive PATH.")
@click.option("--dry-run", is_flag=True, help="Show what would be archived, without writing it.")
@table_options
def archive(
    paths: tuple[str, ...],
    target: str | None,
    verify: bool,
    directory: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Pack the metadata logs of a quorum into one file. What its nodes have in common is stored once.

    Each PATH is a node's directory, or one with those of several nodes; they stay unchanged. Every file of
    the logs is kept byte for byte, with meta.properties and bootstrap.checkpoint. The other log commands
    read the archive as they read the directories. With --bootstrap, packs what the leader has.
    """
    if (target is not None) + verify + (directory is not None) + (dry_run and target is None) != 1:
        raise click.UsageError(f"give one of --to NAME{SUFFIX}, --dry-run, --verify and --extract DIRECTORY")
    if verify:
        return _verify(paths, as_json)
    if directory is not None:
        if len(paths) != 1:
            raise click.UsageError("--extract takes exactly one PATH")
        return _extract(paths[0], directory, as_json)
    if target is not None:
        target = slashed(os.path.abspath(target))
        _refuse_target(target)
    logs = open_paths([slashed(os.path.abspath(path)) for path in paths])
    require_one_quorum(logs, ", ".join(paths))
    sources = list(_sources(logs))
    if target is not None:
        target = _target(target, logs)
        for log in logs:
            refuse_inside(target, home_of(log))
    packed = _dry(sources) if dry_run or target is None else _write(target, sources)
    for path in packed.gone:
        print_problem(f"{path} was removed in the meantime: left out")
    _show({"target": None if dry_run else target}, packed.holds, packed.stored_bytes, as_json)
    return 0


def _sources(logs: Sequence[MetadataLog]) -> Iterator[ArchiveSource]:
    """Every file of the logs, under the short name of its node, with the identity beside it."""
    for log, name in zip(logs, _names(logs), strict=True):
        if not log.is_directory:
            raise InspectError(f"{log.path} is a single file; give the directory that holds it")
        disk, home = log.disk, home_of(log)
        beside = [join(parent_of(log.directory), one) for one in (META_PROPERTIES, BOOTSTRAP_FILE)]
        inside = [join(log.directory, one) for one in disk.list_directory(log.directory) if one != _LOCK]
        if home == log.directory:
            beside = []
        for path in chain(inside, beside):
            if not _is_text(path):
                raise InspectError(
                    f"{os.fsencode(path)!r} is not UTF-8 text, which names in an archive are; rename it"
                )
            if disk.exists(path) and not disk.is_directory(path):
                yield ArchiveSource(disk, path, name + path[len(home) :])


def _is_text(name: str) -> bool:
    """Whether a file name is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(logs: Sequence[MetadataLog]) -> list[str]:
    names = [name.strip("/") for name in short_names(logs)]
    return [name or "node" for name in names]


def _refuse_target(path: str) -> None:
    """Says what is wrong with `--to` before anything is read. Raises UsageError, Failure and StorageError."""
    disk = PosixDisk()
    if disk.is_directory(path):
        return
    if not path.endswith(SUFFIX):
        raise click.UsageError(f"--to: the archive's name must end in {SUFFIX}, or be that of a directory")
    if not disk.is_directory(parent_of(path)):
        raise Failure(f"{parent_of(path)} is not a directory; create it first")
    refuse_existing(disk, path)


def _target(path: str, logs: Sequence[MetadataLog]) -> str:
    """The file to write. For a directory, a file in it named after the cluster and the newest offset."""
    if os.path.isdir(path):
        identity = next((log.identity for log in logs if log.identity is not None), None)
        cluster = (identity.cluster_id if identity is not None else None) or "cluster"
        safe = "".join(one if one.isalnum() or one in "-_" else "_" for one in cluster)
        return join(path, f"{safe}-{max(map(log_end, logs)).offset:020d}{SUFFIX}")
    return path


def _dry(sources: list[ArchiveSource]) -> Packed:
    return pack(lambda data: None, sources)


def _write(target: str, sources: list[ArchiveSource]) -> Packed:
    disk = PosixDisk()
    for path, who in leftovers(disk, target):
        process = whole_number(who, MAX_INT)
        if process is not None and not process_runs(process):
            disk.remove(path)
    with terminated_in_order():
        return write_archive(disk, target, sources, str(os.getpid()))


def _verify(paths: Sequence[str], as_json: bool) -> int:
    worst = 0
    differences: list[dict[str, Any]] = []
    for path in paths:
        try:
            opened = LogArchive(PosixDisk().open_read(path))
            opened.verify()
        except StorageError as error:
            failure = as_failure(error)
            text = str(error) if failure is None else failure.format_message()
            differences.append({"archive": path, "problem": text})
            print_problem(text)
            worst = EXIT_FAILED
            continue
        differences.append({"archive": path, "problem": None})
        if not as_json:
            click.echo(f"{path}: {count(len(opened.files), 'file')}, all as they were archived")
    if as_json:
        for one in differences:
            echo_json(one)
    return worst


def _extract(path: str, directory: str, as_json: bool) -> int:
    disk = PosixDisk()
    opened = LogArchive(disk.open_read(path))
    directory = slashed(os.path.abspath(directory))
    if not disk.is_directory(parent_of(directory)):
        raise Failure(f"{parent_of(directory)} is not a directory; create it first")
    with terminated_in_order():
        extract_archive(opened, disk, directory, str(os.getpid()))
    _show({"directory": directory}, opened.index, opened.stored_bytes, as_json)
    return 0


def _show(written: dict[str, Any], holds: ArchiveIndex, stored_bytes: int, as_json: bool) -> None:
    """Shows the content of an archive. `written`: what was done with it."""
    logs = _logs(holds)
    sizes = {
        "bytes": sum(one.size for one in holds.files),
        "uniqueBytes": sum(block.content_bytes for block in holds.blocks),
        "archiveBytes": stored_bytes,
    }
    if as_json:
        echo_json({**written, "formatVersion": VERSION, "files": len(holds.files), **sizes, "logs": logs})
        return
    echo_table(_COLUMNS, map(_row, logs))
    click.echo(
        f"{count(len(holds.files), 'file')}, {sizes['bytes']} bytes; {sizes['uniqueBytes']} of them once; "
        f"{stored_bytes} in the archive"
    )
    done = [f"wrote {path}" for path in written.values() if path is not None]
    click.echo(done[0] if done else "nothing was written")


_COLUMNS = ("LOG", "START", "END", "FIRST", "LAST", "SEGMENTS", "SNAPSHOTS", "BYTES")


def _row(log: dict[str, Any]) -> tuple[object, ...]:
    times = (None if at is None else utc_text(at) for at in (log["firstTime"], log["lastTime"]))
    sizes = log["segments"], len(log["snapshots"]), log["bytes"]
    return (log["path"], log["startOffset"], log["endOffset"], *times, *sizes)


def _logs(holds: ArchiveIndex) -> list[dict[str, Any]]:
    """What the index says of each log, by directory."""
    listed: dict[str, list[ArchivedFile]] = {}
    for one in holds.files:
        listed.setdefault(parent_of(one.name), []).append(one)
    return [found for path, files in listed.items() if (found := _log(path, files)) is not None]


def _log(path: str, files: list[ArchivedFile]) -> dict[str, Any] | None:
    bases = {base: one for one in files if (base := parse_segment_name(name_of(one.name))) is not None}
    snapshots = sorted(
        position for one in files if (position := parse_snapshot_name(name_of(one.name))) is not None
    )
    if not bases and not snapshots:
        return None
    parts = [at for base in sorted(bases) for at in bases[base].parts]
    times = [at for at in parts if at.first_ms >= 0]
    ends = [one.end_offset for one in bases.values() if one.end_offset is not None]
    return {
        "path": path,
        "startOffset": min(bases, default=None),
        "endOffset": max(ends, default=None),
        "firstTime": min((at.first_ms for at in times), default=None),
        "lastTime": max((at.last_ms for at in times), default=None),
        "segments": len(bases),
        "snapshots": [{"offset": at.offset, "epoch": at.epoch} for at in snapshots],
        "bytes": sum(one.size for one in files),
    }
