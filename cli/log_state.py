"""The state at a place of a log, and the story up to there, for the terminal. Reads only.

Owns exit codes and where lines about problems go; finding the state is `metadata.inspect.states`'s.
"""

from __future__ import annotations

from cli import log_source
from cli.errors import EXIT_FAILED, EXIT_UNKNOWN_RECORDS
from cli.log_source import MetadataLog
from metadata.inspect import states
from metadata.inspect.points import END, Point
from metadata.inspect.states import FoundState
from metadata.tree import Tree, image_tree

__all__ = ["FoundState", "Point", "exit_code", "load", "tree_of"]


def load(path: str | MetadataLog, point: Point = END, *, past_corruption: bool = False) -> FoundState:
    """The state at `point` of the log, segment or checkpoint at `path`. Raises what `open_log` raises, and
    InspectError for a place that the log does not reach."""
    log = log_source.open_path(path) if isinstance(path, str) else path
    try:
        return states.state_at(log, point, past_corruption=past_corruption)
    finally:
        if isinstance(log.on_read, log_source.Progress):
            log.on_read.clear()


def exit_code(found: FoundState) -> int:
    """1 where something was damaged or left out, 3 where only records from the future were, 0 otherwise."""
    if found.problems:
        return EXIT_FAILED
    return EXIT_UNKNOWN_RECORDS if found.unknown else 0


def tree_of(found: FoundState, *, secrets: bool = False) -> Tree:
    """The whole image as nested data."""
    return image_tree(found.image, secrets=secrets)
