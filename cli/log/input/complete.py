"""Shell completion for the log commands: entities of the log that was typed before, checks, record types.

Must not fail or print: after a problem it offers nothing. Completion inside `log shell` is `shell.session`'s.
"""

from __future__ import annotations

from contextlib import suppress

import click

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.checks.checks import known_checks
from metaquorum.metadata.inspect.entities.suggest import continuations
from metaquorum.metadata.inspect.entities.targets import fields_of_target
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records.schema import TYPE_NAMES
from metaquorum.storage.archive import disk_for

MAX_REPLAYED_BYTES = 64 << 20
"""Of a larger log only the newest snapshot is read: Tab should answer at once."""


def entities(context: click.Context, beginning: str) -> list[str]:
    """Entities of the log at the PATH typed before."""
    image = _image(context)
    return continuations(beginning, image or MetadataImage()) if image or "/" not in beginning else []


def targets(context: click.Context, beginning: str) -> list[str]:
    """Entities, and their fields after a dot."""
    entity, dot, field = beginning.rpartition(".")
    if dot:
        found = [f"{entity}.{one}" for one in fields_of_target(entity) if one.startswith(field)]
        if found:
            return found
    return entities(context, beginning)


def checks(context: click.Context, beginning: str) -> list[str]:
    return [one for one in known_checks() if one.startswith(beginning)]


def types(context: click.Context, beginning: str) -> list[str]:
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
