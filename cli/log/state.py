"""Loads the state at a place of a log for commands, and chooses their exit code."""

from __future__ import annotations

from metaquorum.cli.errors import EXIT_FAILED, EXIT_UNKNOWN_RECORDS
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.source import MetadataLog
from metaquorum.metadata.inspect.log.coverage import behind_the_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk import states
from metaquorum.metadata.inspect.walk.states import FoundState
from metaquorum.metadata.text.tree import Tree, image_tree

__all__ = ["FoundState", "Point", "exit_code", "load", "note_behind", "tree_of"]


def load(path: str | MetadataLog, point: Point = END, *, past_corruption: bool = False) -> FoundState:
    """The state at `point` of the log, segment or checkpoint at `path`. Raises what `open_log` raises, and
    InspectError for a place outside the log."""
    log = log_source.open_path(path) if isinstance(path, str) else path
    try:
        return states.state_at(log, point, past_corruption=past_corruption)
    finally:
        if isinstance(log.on_read, log_source.ReadProgress):
            log.on_read.clear()


def note_behind(log: MetadataLog, state: FoundState) -> None:
    """Notes what is lost between a log's end and a later snapshot, if the state comes from that."""
    if state.snapshot is not None and any(one.offset == state.end_offset for one in log.snapshots()):
        state.coverage.add(behind_the_log(log, Point(offset=state.end_offset)))


def exit_code(state: FoundState) -> int:
    """1 for damage or omissions, 3 for records that this release does not know, 0 otherwise."""
    if state.problems:
        return EXIT_FAILED
    return EXIT_UNKNOWN_RECORDS if state.unknown else 0


def tree_of(state: FoundState, *, secrets: bool = False) -> Tree:
    """The whole image as nested data."""
    return image_tree(state.image, secrets=secrets)
