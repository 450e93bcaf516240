"""`metaquorum log`: the group of commands, and `dump`, which prints records.

The list of log commands, and dump's options, output and exit codes: 0 all was read, 1 something is damaged or
unreadable, 3 all was read but some records have a type or version that this release does not know.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from metaquorum.cli.errors import as_failure, log_exit_code, print_problem
from metaquorum.cli.log.archive import archive
from metaquorum.cli.log.bisect import bisect_command
from metaquorum.cli.log.check import check
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.follow import COPY_INTERVAL_S, INTERVAL_S
from metaquorum.cli.log.input.follow import follow as follow_log
from metaquorum.cli.log.input.live import FOLLOWED, LiveCommand
from metaquorum.cli.log.input.options import (
    ENTITY,
    PATH,
    TIME,
    TYPE,
    clear_progress,
    report_limits,
    report_unknown,
)
from metaquorum.cli.log.input.partition import Shown, dump_file, partition_files
from metaquorum.cli.log.input.select import SelectedRecords
from metaquorum.cli.log.input.source import Item, MetadataLog, ReadBatch
from metaquorum.cli.log.repair import repair
from metaquorum.cli.log.salvage import salvage
from metaquorum.cli.log.shell.commands import shell
from metaquorum.cli.log.summary import summary
from metaquorum.cli.log.time import diff, history, state
from metaquorum.cli.log.timeline import timeline
from metaquorum.cli.log.watch import watch
from metaquorum.cli.log.why import why
from metaquorum.cli.text.output import json_line, json_option, secrets_option, shows_secrets, utc_text
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.features import is_newer
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.entities.targets import suggestion
from metaquorum.metadata.inspect.log.coverage import Coverage, ShownAs, before_the_log, behind_the_log
from metaquorum.metadata.inspect.log.points import END
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.types import FeatureLevelRecord, UnknownRecord
from metaquorum.metadata.text.cause_text import asked_json, asked_text
from metaquorum.metadata.text.dump import batch_payloads, payload_json, payload_texter
from metaquorum.metadata.text.tree import plain_number
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage


@click.group()
def log() -> None:
    """Read any KRaft metadata log: its records and its state.

    The log may be metaquorum's or Apache Kafka's, and its node may run. Only `repair`, `salvage` and
    `archive` write, and only new files.
    """
    # Thousands of records come and go without cycles: the garbage collector need not run for each batch.
    gc.set_threshold(50_000, 20, 50)


log.add_command(state)
log.add_command(diff)
log.add_command(history)
log.add_command(shell)
log.add_command(repair)
log.add_command(salvage)
log.add_command(archive)
log.add_command(timeline)
log.add_command(watch)
log.add_command(summary)
log.add_command(why)
log.add_command(bisect_command)
log.add_command(check)


@log.command(cls=LiveCommand)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@json_option
@secrets_option
@click.option(
    "--type",
    "types",
    type=TYPE,
    multiple=True,
    help="Only records of this type (topic, partition-change...).",
)
@click.option(
    "--entity",
    "entities",
    type=ENTITY,
    multiple=True,
    help="Only records about this entity: broker/3, topic/orders/7...",
)
@click.option("--from-offset", metavar="OFFSET", type=click.IntRange(min=0), help="First offset to show.")
@click.option("--to-offset", metavar="OFFSET", type=click.IntRange(min=0), help="Last offset to show.")
@click.option(
    "--from-time", "from_ms", type=TIME, help="First time to show (ISO 8601, UTC, or ms since 1970)."
)
@click.option("--to-time", "to_ms", type=TIME, help="Last time to show.")
@click.option(
    "--topic",
    metavar="NAME",
    help="Read segments as the log of this topic, whatever their directory is called.",
)
@click.option("--causes", is_flag=True, help="Show with each record who or what caused its batch.")
@click.option("--follow", is_flag=True, help="Keep printing new records until Ctrl-C or --to-offset.")
def dump(
    paths: tuple[str, ...],
    as_json: bool,
    types: tuple[str, ...],
    entities: tuple[str, ...],
    topic: str | None,
    causes: bool,
    follow: bool,
    **bounds: Any,
) -> int:
    """Print the records of logs, segments and snapshots.

    PATH is a node's directory, a __cluster_metadata-0 directory, a segment or a checkpoint; or, as
    kafka-dump-log prints it, a topic partition's directory or segment, an index, a producer snapshot, a text
    file of a log directory (meta.properties, quorum-state, offset checkpoints).
    """
    if follow and len(paths) != 1:
        raise click.UsageError("--follow takes exactly one PATH")
    if follow and log_source.is_packed(paths[0]):
        raise click.UsageError("an archive does not grow; leave out --follow")
    files = {path: partition_files(path, topic) for path in paths}
    if any(files.values()) and (types or entities or causes or follow):
        raise click.UsageError("--type, --entity, --causes and --follow are only for metadata logs")
    selection = SelectedRecords(types=frozenset(types), entities=entities, **bounds)
    printer = _Printer(selection, as_json, shows_secrets(), causes)
    clusters: dict[str, str] = {}
    for path in paths:
        try:
            if files[path]:
                printer.dump_files(files[path], topic)
                continue
            log = log_source.open_path(path, progress=not follow and not sys.stdout.isatty())
            _report_clusters(log, clusters)
            printer.dump(log, follow)
        except Exception as error:
            failure = as_failure(error)
            if failure is None or isinstance(error, BrokenPipeError):
                raise
            printer.complain(failure.format_message())
    printer.report_nothing_shown()
    printer.report_limits()
    return printer.exit_code()


def _report_clusters(log: MetadataLog, clusters: dict[str, str]) -> None:
    """Prints a line if PATHs are of different clusters: their offsets are unrelated."""
    cluster_id = None if log.identity is None else log.identity.cluster_id
    if cluster_id is None or cluster_id in clusters:
        return
    clusters[cluster_id] = log.path
    if len(clusters) == 2:
        text = " and ".join(f"{path} ({known})" for known, path in clusters.items())
        print_problem(f"{text} belong to different clusters")


_CURE = (
    "; the next batch is shown as read. To correct a damaged base offset: metaquorum log state "
    "--past-corruption (in the answer), metaquorum log repair --past-corruption --to NEW (in a new log)"
)
_LINES_AT_ONCE = 1000
"""Most lines to write at once, except those of one batch."""


class _Printer:
    """Prints the selected records and remembers problems."""

    def __init__(self, selection: SelectedRecords, as_json: bool, secrets: bool, causes: bool) -> None:
        self._causes = causes
        self._asked = self._selection = selection
        self._places: list[ShownAs] = []
        self._coverage = Coverage()
        self._as_json = as_json
        self._secrets = secrets
        self._lines: list[str] = []
        self._shown = 0
        self._damaged = False
        self._unknown = 0

    def dump_files(self, files: Sequence[Path], topic: str | None) -> None:
        """Prints files of topic partitions and log directories."""
        how = Shown(self._asked, self._as_json, topic, self.complain)
        for path in files:
            self._shown += 1
            dump_file(path, how)

    def dump(self, log: MetadataLog, follow: bool) -> None:
        path = log.path
        self._selection, shown = self._asked.settled(log, grows=follow)
        self._places += shown
        self._coverage.add(before_the_log(log, None))
        if self._asked.is_everything and not follow:
            self._coverage.add(behind_the_log(log, END))
        selection = self._selection
        self._namer = log.namer()
        start = None if selection.needs_names else selection.from_offset
        if not follow:
            if self._as_json and selection.is_everything and not (log.is_checkpoint or self._causes):
                for found in log.batches(start):
                    self._take_whole(found)
            else:
                for item in log.items(start):
                    if self._take(item):
                        break
            clear_progress(log)
            self._flush()
            return
        reader = log_source.open_reader(path, start)
        try:
            check = click.get_current_context().meta.get(FOLLOWED)
            interval_s = INTERVAL_S if check is None else COPY_INTERVAL_S
            asyncio.run(follow_log(reader, path, self._take_raw, interval_s=interval_s, check=check))
        finally:
            reader.close()
            self._flush()

    def _take_whole(self, batch_or_damage: RecordBatch | Damage) -> None:
        """Prints all of a batch; most batches of partition records without an object per record."""
        try:
            made = (
                None
                if isinstance(batch_or_damage, Damage)
                else batch_payloads(batch_or_damage, secrets=self._secrets)
            )
        except RecordDecodeError:
            made = None  # the general path reports the problem
        if made is None or isinstance(batch_or_damage, Damage):
            for item in log_source.decode_item(batch_or_damage):
                self._take(item)
            return
        payloads, unknown = made
        before, time, batch = _around(batch_or_damage)
        between = f"{time}{batch_or_damage.header.max_timestamp_ms}{batch}"
        self._unknown += unknown
        self._shown += len(payloads)
        self._lines += [
            f"{before}{offset}{between}{text}}}"
            for offset, text in enumerate(payloads, batch_or_damage.header.base_offset)
        ]
        if len(self._lines) >= _LINES_AT_ONCE:
            self._flush()

    def _take_raw(self, batch_or_damage: RecordBatch | Damage) -> bool:
        ends = [self._take(item) for item in log_source.decode_item(batch_or_damage)]
        self._flush()
        return any(ends)

    def _take(self, item: Item) -> bool:
        """Takes one item. True if nothing after it can match."""
        selection = self._selection
        if not isinstance(item, ReadBatch):
            if selection.from_offset is None or item.offset >= selection.from_offset:
                cure = _CURE if item.reason.startswith("expected base offset") else ""
                self.complain(log_source.damage_line(item) + cure)
            return False
        records: Sequence[DecodedRecord] = item.records
        if not selection.is_everything:
            name = self._namer.entities
            records = [
                decoded
                for decoded in records
                if selection.wants(decoded, name(decoded.record) if selection.entities else ())
            ]
        self._show(item, records)
        return selection.past(item.batch.header.next_offset)

    def _show(self, item: ReadBatch, records: Sequence[DecodedRecord]) -> None:
        kinds: list[object] = [decoded[3].__class__ for decoded in records]
        unknown = sum(map(kinds.count, (UnknownRecord, UnknownControlRecord, FeatureLevelRecord)))
        self._unknown += unknown and sum(is_newer(decoded.record) for decoded in records)
        self._shown += len(records)
        lines = (
            _json_lines(item, records, self._secrets)
            if self._as_json
            else [_plain_text(item, decoded, self._secrets) for decoded in records]
        )
        asked = cause_in(item.records[0].record) if self._causes and item.records else None
        if asked is not None:
            lines = [_with_cause(line, asked, self._as_json) for line in lines]
        self._lines += lines
        if len(self._lines) >= _LINES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            click.echo("\n".join(self._lines))
            self._lines = []

    def complain(self, line: str) -> None:
        self._flush()
        self._damaged = True
        print_problem(line)

    def report_nothing_shown(self) -> None:
        """Says why there is no output, if the selection matched nothing."""
        if self._shown or self._damaged or self._selection.is_everything:
            return
        names = [f"topic/{name}" for name in self._namer.topic_names()]
        hints = "".join(
            suggestion(one, MetadataImage(), names) for one in self._selection.entities if one[:6] == "topic/"
        )
        text = self._selection.nothing_text()
        print_problem(f"no records shown: {text}{hints if names else ''}")

    def report_limits(self) -> None:
        """Reports records that are missing here, and times that were mapped to offsets
        because the log's clock jumps."""
        report_limits(self._coverage, self._places, json_lines=self._as_json)

    def exit_code(self) -> int:
        if self._unknown:
            report_unknown(self._unknown, "shown as read")
        return log_exit_code(
            damaged=self._damaged, uncovered=bool(self._coverage), unknown=bool(self._unknown)
        )


def _json_lines(item: ReadBatch, records: Sequence[DecodedRecord], secrets: bool) -> list[str]:
    """Each record with its place, as `json_line` writes it. What a batch's records share is encoded once."""
    before, time, batch = _around(item.batch)
    lines: list[str] = []
    last: tuple[type, int] | None = None
    for offset, timestamp_ms, version, record in records:
        kind = (record.__class__, version)
        if kind != last:
            last, text = kind, payload_texter(*kind, secrets)
        lines.append(f"{before}{offset}{time}{timestamp_ms}{batch}{text(record)}}}")
    return lines


def _with_cause(line: str, asked: BatchCause, as_json: bool) -> str:
    """The line of a record, followed by the cause of its batch."""
    if as_json:
        return f'{line[:-1]},"askedBy":{json_line(asked_json(asked))}}}'
    return f"{line}  asked: {asked_text(asked)}"


def _around(batch: RecordBatch) -> tuple[str, str, str]:
    """The text before the offset, between offset and time, and after the time of a batch's records."""
    header = batch.header
    return (
        f'{{"file":{json_line(batch.file)},"offset":',
        f',"leaderEpoch":{header.leader_epoch},"createTime":',
        f',"batchBaseOffset":{header.base_offset},',
    )


def _plain_text(item: ReadBatch, decoded: DecodedRecord, secrets: bool) -> str:
    payload = payload_json(decoded.record, decoded.version, secrets=secrets)
    fields = " ".join(f"{name}={_field_text(value)}" for name, value in payload["data"].items())
    place = f"{decoded.offset:>8}  {utc_text(decoded.timestamp_ms)}  epoch {item.batch.header.leader_epoch}"
    return f"{place}  {payload['type']} v{payload['version']}  {fields}".rstrip()


def _field_text(value: object) -> str:
    value = plain_number(value) if isinstance(value, float) else value
    return value if isinstance(value, str) and value and " " not in value else json_line(value)
