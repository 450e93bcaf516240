"""The shell without a terminal: takes the text of a command and gives lines.

After an error, one `ShellError`, the session is where it was.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Iterator

import msgspec

from metaquorum.cli.log.shell.cursor import Cursor
from metaquorum.cli.log.shell.places import KINDS, Places, resolve
from metaquorum.metadata.inspect.log.entities import KINDS as ENTITY_KINDS
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point, parse_point
from metaquorum.metadata.inspect.walk.states import OnProblem

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
        at: Point = END,
        past_corruption: bool = False,
        refresh: Callable[[], str] | None = None,
    ) -> None:
        """Starts at `at`. `refresh` brings the copy of a running quorum's log up to date and says what it
        holds. Raises InspectError if the place is outside the log."""
        self.log = log
        self.cursor = Cursor(log, on_problem, past_corruption=past_corruption)
        self.cursor.seek(at)
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
        found = resolve(self.here, text)
        # Also unchanged: the name of a user or feature may contain slashes.
        for path in (found, resolve("", text), text):
            if places.exists(path):
                return path
        raise ShellError(f"no {found} at offset {self.cursor.offset}; ls shows what there is")

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
        found: list[str] = []
        for parent in parents:
            for name in places.children(parent):
                if name.startswith(beginning):
                    path = f"{parent}/{name}" if parent else name
                    more = "/" if places.children(path) else " "
                    found.append(f"{above}{slash}{name}{more}")
                    if len(found) == COMPLETIONS_MAX:
                        return found
            if found:
                break
        return found
