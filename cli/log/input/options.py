"""Options and arguments that the log commands share, and their messages about problems and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from metaquorum.cli.errors import print_problem
from metaquorum.cli.given import GivenPath
from metaquorum.cli.log.input.select import entity_path, record_type
from metaquorum.cli.log.input.source import MetadataLog, ReadBatch, ReadProgress
from metaquorum.cli.text.output import json_line
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.checks.checks import known_checks
from metaquorum.metadata.inspect.entities.targets import (
    continuations,
    fields_of_target,
    parse_target,
    suggestion,
)
from metaquorum.metadata.inspect.log.coverage import Coverage, ShownAs, offsets_text
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import Point, parse_point, parse_time_ms
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records.schema import TYPE_NAMES
from metaquorum.metadata.records.types import TopicRecord
from metaquorum.platforms import slashed
from metaquorum.storage.archive import disk_for

# Shell completion must not fail or print: after a problem it offers nothing.
MAX_REPLAYED_BYTES = 64 << 20
"""Of a larger log only the newest snapshot is read: Tab should answer at once."""


def complete_entities(context: click.Context, beginning: str) -> list[str]:
    """Entities of the log at the PATH typed before."""
    image = _image(context)
    return continuations(beginning, image or MetadataImage()) if image or "/" not in beginning else []


def complete_targets(context: click.Context, beginning: str) -> list[str]:
    """Entities, and their fields after a dot."""
    entity, dot, field = beginning.rpartition(".")
    if dot:
        found = [f"{entity}.{one}" for one in fields_of_target(entity) if one.startswith(field)]
        if found:
            return found
    return complete_entities(context, beginning)


def complete_checks(context: click.Context, beginning: str) -> list[str]:
    return [one for one in known_checks() if one.startswith(beginning)]


def complete_types(context: click.Context, beginning: str) -> list[str]:
    """Record types as people type them (`partition-change`) or by their full names."""
    if beginning.isupper():
        return [one for one in TYPE_NAMES if one.startswith(beginning)]
    short = (one.removesuffix("_RECORD").lower().replace("_", "-") for one in TYPE_NAMES)
    return [one for one in short if one.startswith(beginning.lower())]


def _image(context: click.Context) -> MetadataImage | None:
    paths = context.params.get("paths") or context.args  # args: while an option waits for its value
    path = context.params.get("path") or next(iter(paths), None)
    if not isinstance(path, str):
        return None
    with suppress(Exception):
        log = _log(path)
        snapshots = log.snapshots()
        if log.size_bytes() > MAX_REPLAYED_BYTES and snapshots:
            log = log.snapshot(snapshots[-1])
        return state_at(log, past_corruption=not log.is_checkpoint).image
    return None


def _log(path: str) -> MetadataLog:
    disk = disk_for(path)
    with suppress(Exception):
        return open_log(disk, path)
    return most_complete(find_logs(disk, path))


__all__ = [
    "ENTITY",
    "PATH",
    "POINT",
    "TARGET",
    "TIME",
    "TYPE",
    "Checked",
    "Complaints",
    "clear_progress",
    "limits_json",
    "offsets_text",
    "past_corruption_option",
    "report_limits",
    "report_unknown",
]

CHANGED_NOTHING = "what is not known changed nothing here"

Complete = Callable[[click.Context, str], list[str]]


class Checked(click.ParamType):  # type: ignore[type-arg]
    """An option whose value a function checks. The text of its ValueError is the message."""

    def __init__(self, name: str, check: Callable[[str], Any], complete: Complete | None = None) -> None:
        """`complete`: gives completions of an incomplete value."""
        self.name = name
        self._check = check
        self._complete = complete

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._check(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = [] if self._complete is None else self._complete(ctx, incomplete)
        return [CompletionItem(one) for one in found]


TYPE = Checked("type", record_type, complete_types)
ENTITY = Checked("entity", entity_path, complete_entities)
TARGET = Checked("entity", parse_target, complete_targets)
TIME = Checked("time", parse_time_ms)
POINT = Checked("offset|time", parse_point)


class SlashedPath(GivenPath):
    """A path with "/" between names, as storage expects it, also on Windows."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return slashed(str(super().convert(value, param, ctx)))


PATH = SlashedPath(path_type=str)

past_corruption_option = click.option(
    "--past-corruption", is_flag=True, help="Continue past missing or damaged records."
)


class Complaints:
    """Prints lines about problems on standard error, each once, and remembers whether there were any."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.count = 0

    def __call__(self, line: str) -> None:
        if line in self._seen:
            return
        self._seen.add(line)
        self.count += 1
        print_problem(line)


def suggestion_from(log: MetadataLog, entity: str) -> str:
    """A suggestion for an entity that a log never has: from the state at its end and, if the log is small,
    from all topics that it ever had. Empty if no name is close."""
    with suppress(InspectError):
        image = state_at(log, past_corruption=True).image
        names = log.namer()
        if log.size_bytes() <= MAX_REPLAYED_BYTES:
            for item in log.items():
                for decoded in item.records if isinstance(item, ReadBatch) else ():
                    if isinstance(decoded.record, TopicRecord):
                        names.entities(decoded.record)
        return suggestion(entity, image, (f"topic/{name}" for name in names.topic_names()))
    return ""


def clear_progress(log: MetadataLog) -> None:
    """Removes the progress line from the terminal before other output."""
    if isinstance(log.on_read, ReadProgress):
        log.on_read.clear()


def report_unknown(unknown: int, what: str = CHANGED_NOTHING) -> None:
    """Reports on standard error that there were records of a newer release (`features.is_newer`), and `what`
    happened to them."""
    for line in unknown_lines(unknown, what):
        print_problem(line)


def unknown_lines(unknown: int, what: str = CHANGED_NOTHING) -> Iterator[str]:
    """The line for that, if there were any."""
    if unknown:
        yield (
            f"{count(unknown, 'record')} of a newer release (of a type, a version or a metadata.version that"
            f" this release does not know): {what}"
        )


def refuse_swapped(start: Point | None, end: Point | None) -> None:
    """Raises UsageError for a range that ends before it starts."""
    if start is None or end is None:
        return
    swapped = None not in (start.offset, end.offset) and (start.offset or 0) > (end.offset or 0)
    if swapped or (None not in (start.time_ms, end.time_ms) and (start.time_ms or 0) > (end.time_ms or 0)):
        raise click.UsageError("--from is past --to; swap them")


def report_limits(
    coverage: Coverage, shown: Iterable[ShownAs | None] = (), *, json_lines: bool = False
) -> None:
    """Names on standard error every range that the answer does not cover, and every place that is shown
    as another one. `json_lines`: for commands with one JSON object per line, also prints an object of kind
    `limits` as the last line."""
    for text in dict.fromkeys(place.text for place in shown if place is not None):
        print_problem(text)
    for one in coverage:
        print_problem(f"not covered: {one.line}")
    limits = limits_json(coverage, shown)
    if json_lines and limits:
        click.echo(json_line({"kind": "limits", **limits}))


def limits_json(coverage: Coverage, shown: Iterable[ShownAs | None] = ()) -> dict[str, Any]:
    """`shownAs` and `uncovered`, each only if not empty."""
    places = [one.tree() for one in shown if one is not None]
    limits: dict[str, Any] = {"shownAs": places} if places else {}
    return {**limits, "uncovered": coverage.tree()} if coverage else limits
