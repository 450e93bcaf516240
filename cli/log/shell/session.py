"""The shell without a terminal: takes the text of a command and gives lines.

After an error, one `ShellError`, the session is where it was.
"""

from __future__ import annotations

import difflib
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.entities.diff import sort_key
from metaquorum.metadata.inspect.entities.views import Fields, entities_of, fields_of
from metaquorum.metadata.inspect.log.entities import KINDS as ENTITY_KINDS
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point, parse_point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    OnProblem,
    WalkStep,
    earliest,
    state_at,
    steps_from,
    with_quorum,
)

COMPLETIONS_MAX = 2000
"""Limit of the names that completion offers: a cluster may have a million partitions."""


class ShellError(Exception):
    """A command that cannot be done. The text is one line: the reason, and what to type instead."""


Handler = Callable[["ShellSession", list[str]], Iterable[str]]


class ShellCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command. `usage`: its syntax. `help`: one line. `raw`: it gets its arguments as one text. `paths`:
    its arguments are paths, for completion."""

    name: str
    usage: str
    help: str
    handler: Handler
    raw: bool = False
    paths: bool = False


class ShellSession:
    """One log, one place in it, one path in the state there."""

    def __init__(
        self,
        log: MetadataLog,
        commands: Iterable[ShellCommand],
        on_problem: OnProblem,
        *,
        point: Point = END,
        past_corruption: bool = False,
        refresh: Callable[[], str] | None = None,
    ) -> None:
        """Starts at `point`. `refresh` brings the copy of a running quorum's log up to date and says what it
        holds. Raises InspectError if the place is outside the log."""
        self.log = log
        self.cursor = Cursor(log, on_problem, past_corruption=past_corruption)
        self.cursor.seek(point)
        self.past_corruption = past_corruption
        self.refresh = refresh
        self.on_problem = on_problem
        self.here = ""
        self.ended = False
        self.commands = {command.name: command for command in commands}

    @property
    def places(self) -> Places:
        """The state here as directories."""
        return Places(self.cursor.image, self.cursor.quorum)

    @property
    def prompt(self) -> str:
        """The offset, and the path."""
        return f"{self.cursor.offset} /{self.here}> "

    def execute(self, line: str) -> Iterator[str]:
        """The output lines of a command, as they are made. Raises ShellError, and
        what reading a log raises."""
        words = line.strip()
        if not words or words.startswith("#"):
            return
        name, _, rest = words.partition(" ")
        command = self._command(name)
        if command.raw:
            yield from command.handler(self, [rest.strip()] if rest.strip() else [])
            return
        try:
            arguments = shlex.split(rest)
        except ValueError as error:
            raise ShellError(f"{error} in {rest.strip()!r}; close the quote") from None
        yield from command.handler(self, arguments)

    def _command(self, name: str) -> ShellCommand:
        found = self.commands.get(name)
        if found is not None:
            return found
        beginning = [one for one in self.commands if one.startswith(name)]
        if len(beginning) == 1:
            return self.commands[beginning[0]]
        close = beginning or difflib.get_close_matches(name, self.commands, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else "help lists the commands"
        raise ShellError(f"there is no command {name}; {hint}")

    # --- what arguments mean

    def path(self, text: str | None) -> str:
        """The path of an argument; without one, the current path. Relative to `here` or, if there is nothing
        of that name, to the root: `cat broker/3` works everywhere. Raises ShellError."""
        if text is None:
            return self.here
        places = self.places
        resolved = resolve(self.here, text)
        # Also unchanged: the name of a user or feature may contain slashes.
        for path in (resolved, resolve("", text), text):
            if places.exists(path):
                return path
        raise ShellError(f"no {resolved} at offset {self.cursor.offset}; ls shows what there is")

    def named(self, text: str) -> str:
        """The path of an entity that need not exist here (it may be gone, or not created yet)."""
        try:
            return self.path(text)
        except ShellError:
            kind = text.lstrip("/").partition("/")[0]
            return resolve("" if kind in KINDS or kind in ENTITY_KINDS else self.here, text)

    def point(self, text: str) -> Point:
        """A place in the log: an offset, N+ (after record N), a time, `start`, `end`, `here`, or +N and -N
        relative to here. Raises ShellError."""
        if text in ("start", "end", "here"):
            known = {"start": self.cursor.start(), "end": END, "here": Point(offset=self.cursor.offset)}
            return known[text]
        if text[:1] in "+-" and text[1:].isascii() and text[1:].isdigit():
            return Point(offset=max(0, self.cursor.offset + int(text)))
        try:
            return parse_point(text)
        except ValueError as error:
            raise ShellError(f"{error}; or start, end, here, +N, -N") from None

    def is_point(self, text: str) -> bool:
        """Whether an argument is a place in the log rather than an entity."""
        try:
            self.point(text)
        except ShellError:
            return False
        return True

    # --- completion

    def complete(self, line: str, word: str) -> list[str]:
        """The completions of `word`, the last word of `line`: commands first, then paths."""
        before = line[: len(line) - len(word)].strip()
        if not before:
            return sorted(f"{name} " for name in self.commands if name.startswith(word))
        command = self.commands.get(before.split()[0])
        if command is None:
            return []
        if command.name == "help":
            return sorted(name for name in self.commands if name.startswith(word))
        return self._complete_path(word) if command.paths else []

    def _complete_path(self, word: str) -> list[str]:
        above, slash, beginning = word.rpartition("/")
        places = self.places
        parents = dict.fromkeys((resolve(self.here, above + slash), resolve("", above + slash)))
        paths: list[str] = []
        for parent in parents:
            for name in places.children(parent):
                if name.startswith(beginning):
                    path = f"{parent}/{name}" if parent else name
                    more = "/" if places.children(path) else " "
                    paths.append(f"{above}{slash}{name}{more}")
                    if len(paths) == COMPLETIONS_MAX:
                        return paths
            if paths:
                break
        return paths


KEPT_STEPS = 1000
KEPT_BYTES = 32 * 1024 * 1024
"""Steps kept for moving back, and the bytes of batches in them."""
BACK_OFFSETS = 2000
"""How many offsets before the place to start when steps must be made again."""


class Cursor:
    """A place in a log and the state there."""

    def __init__(self, log: MetadataLog, on_problem: OnProblem, *, past_corruption: bool = False) -> None:
        """Is at no place before the first `seek`."""
        self.log = log
        self.last: WalkStep | None = None
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._state: FoundState | None = None
        self._ahead: Iterator[WalkStep] | None = None
        self._behind: deque[WalkStep] = deque()
        self._behind_bytes = 0

    @property
    def found(self) -> FoundState:
        """The state here, as `state_at` gives it."""
        if self._state is None:
            raise RuntimeError("the cursor has no position yet; seek first")
        return self._state

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self.found.end_offset

    @property
    def image(self) -> MetadataImage:
        """The image here."""
        return self.found.image

    @property
    def quorum(self) -> QuorumView:
        """The quorum here."""
        return self.found.quorum

    @property
    def time_ms(self) -> int:
        """The time of the newest record here, in Unix ms; -1 before the first."""
        return self.found.state.newest.provenance.timestamp_ms

    def seek(self, point: Point) -> FoundState:
        """Moves to `point`. Raises InspectError, without a move, if it is outside the log."""
        state = state_at(self.log, point, self._on_problem, past_corruption=self._past_corruption)
        self._know_quorum(state)
        self._state, self._ahead, self.last = state, None, None
        self._behind.clear()
        self._behind_bytes = 0
        return state

    def start(self) -> Point:
        """The first place whose state can be known."""
        return END if self.log.is_checkpoint else earliest(self.log)

    def next(self) -> WalkStep | None:
        """Moves one batch forward. None: at the end, which a growing log moves."""
        if self.log.is_checkpoint:
            raise InspectError(
                f"{self.log.path} is a single state, not a history; open the directory of its log"
            )
        if self._ahead is None:
            self._ahead = steps_from(
                self.log, self.found, END, self._on_problem, past_corruption=self._past_corruption
            )
        step = next(self._ahead, None)
        if step is None:
            self._ahead = None
            return None
        self._keep(step)
        self._state = FoundState(state=step.state_after, snapshot="", quorum=step.quorum_after)
        self.last = step
        return step

    def previous(self) -> WalkStep | None:
        """Moves one batch back. Returns the batch that was undone, None at the start."""
        if self.log.is_checkpoint:
            raise InspectError(
                f"{self.log.path} is a single state, not a history; open the directory of its log"
            )
        if not self._behind:
            self._refill()
        if not self._behind:
            return None
        step = self._behind.pop()
        self._behind_bytes -= len(step.batch.data)
        self._state = FoundState(state=step.state_before, snapshot="", quorum=step.quorum_before)
        self._ahead, self.last = None, None
        return step

    def search(self, wanted: Callable[[WalkStep], bool]) -> WalkStep | None:
        """Moves behind the first batch for which `wanted` is true. None, without a move, if there is none."""
        origin = (self._state, self.last, tuple(self._behind), self._behind_bytes)
        match: WalkStep | None = None
        try:
            while match is None and (step := self.next()) is not None:
                match = step if wanted(step) else None
        finally:
            if match is None:  # also after an interrupt or an error in `wanted`
                self._state, self.last, behind, self._behind_bytes = origin
                self._behind = deque(behind)
                self._ahead = None
        return match

    def _know_quorum(self, state: FoundState) -> None:
        """Finds the leader. Snapshots do not name it: its election may be before the loaded one."""
        if not self.log.is_checkpoint:
            with_quorum(self.log, state)

    def _keep(self, step: WalkStep) -> None:
        self._behind.append(step)
        self._behind_bytes += len(step.batch.data)
        while len(self._behind) > KEPT_STEPS or (self._behind_bytes > KEPT_BYTES and len(self._behind) > 1):
            self._behind_bytes -= len(self._behind.popleft().batch.data)

    def _refill(self) -> None:
        """Makes the newest steps up to here again."""
        first = self.start().offset or 0
        if self.offset <= first:
            return
        begin = Point(offset=max(first, self.offset - BACK_OFFSETS))
        found = state_at(self.log, begin, past_corruption=self._past_corruption)
        self._know_quorum(found)
        end = Point(offset=self.offset)
        for step in steps_from(self.log, found, end, past_corruption=self._past_corruption):
            self._keep(step)


KINDS = (
    "quorum",
    "feature",
    "broker",
    "controller",
    "topic",
    "config",
    "quota",
    "producer-ids",
    "acl",
    "scram",
    "token",
    "migration",
)
"""The order of the kinds; others follow."""


class Places(msgspec.Struct, frozen=True):
    """One image as a tree: what `ls` lists and where `cd` can go. The root is the empty path."""

    image: MetadataImage
    quorum: QuorumView

    def fields(self, path: str) -> Fields | None:
        """The fields of the entity at `path`. None: not an entity, but maybe a directory."""
        return fields_of(self.image, path, self.quorum) if path else None

    def children(self, path: str) -> list[str]:
        """The sorted names below `path`; empty if there are none or no such path."""
        kind, _, rest = path.partition("/")
        if not kind:
            return self._kinds()
        if kind == "topic":
            return self._topic_children(rest)
        is_nested = kind in ("config", "scram")
        if rest and not is_nested:
            return []
        below = (one.removeprefix(f"{path}/") for one in self._paths() if one.startswith(f"{path}/"))
        if not is_nested:
            return list(below)
        return _ordered({one if rest else one.partition("/")[0] for one in below})

    def exists(self, path: str) -> bool:
        """Whether there is an entity or a directory."""
        return not path or self.fields(path) is not None or bool(self.children(path))

    def _topic_children(self, rest: str) -> list[str]:
        if not rest:
            return [topic.name for topic in self.image.topics.all()]
        topic = self.image.topics.topic_named(rest)
        if topic is None:
            return []
        return [str(partition.index) for partition in self.image.topics.partitions_of(topic.topic_id)]

    def _paths(self) -> Iterator[str]:
        """Every entity but those of topics, of which there may be millions."""
        return entities_of(self.image, self.quorum, with_topics=False)

    def _kinds(self) -> list[str]:
        there = {path.partition("/")[0] for path in self._paths()}
        if self._topic_children(""):
            there.add("topic")
        return [one for one in (*KINDS, *sorted(there - {*KINDS})) if one in there]


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(names, key=sort_key)


def resolve(here: str, text: str) -> str:
    """The path that `text` means from `here`: absolute if it starts with a slash; `..` is
    the parent, as in any shell."""
    parts = [] if text.startswith("/") else [part for part in here.split("/") if part]
    for part in text.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
