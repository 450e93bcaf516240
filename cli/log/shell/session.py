"""The shell without a terminal: a command's text goes in, its lines come out.

Owns the commands' names and help, what a line means, where the user is (`here`, a path of the image) and
completion. Knows no terminal: who reads and prints is `terminal`. A mistake is one `ShellError`, after which
the session stands where it stood.
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
"""Names that a completion offers at most: no one reads more, and a cluster may have a million partitions."""


class ShellError(Exception):
    """A command that cannot be done; the text is one line that says why and what to type instead."""


Handler = Callable[["ShellSession", list[str]], Iterable[str]]


class ShellCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command: `usage` is how it is typed, `help` one line on what it does; `raw` gets its arguments as
    one text; `paths`: its arguments are paths, which completion knows."""

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
        """Goes to `at`. `refresh` brings a running quorum's log up to date and says what it holds. Raises
        InspectError where the log does not reach."""
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
        """The lines that a command answers with, as they come. Raises ShellError for a mistake, and what
        reading a log raises."""
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
        """The path that an argument means; the current one for none. From `here`, or, where there is nothing
        of that name, from the root: `cat broker/3` works everywhere. Raises ShellError."""
        if text is None:
            return self.here
        places = self.places
        found = resolve(self.here, text)
        # As it is, too: a user's or a feature's name may have slashes in it.
        for path in (found, resolve("", text), text):
            if places.exists(path):
                return path
        raise ShellError(f"no {found} at offset {self.cursor.offset}; ls shows what there is")

    def named(self, text: str) -> str:
        """The path of something that need not exist here (it may be gone, or not there yet)."""
        try:
            return self.path(text)
        except ShellError:
            kind = text.lstrip("/").partition("/")[0]
            return resolve("" if kind in KINDS or kind in ENTITY_KINDS else self.here, text)

    def point(self, text: str) -> Point:
        """A place in the log: an offset, N+ (after record N), a time, `start`, `end`, `here`, or +N and -N
        from here. Raises ShellError."""
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
        """Whether an argument names a place in the log rather than an entity."""
        try:
            self.point(text)
        except ShellError:
            return False
        return True

    # --- completion

    def complete(self, line: str, word: str) -> list[str]:
        """What `word`, the last of `line`, can become: commands first, then paths."""
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
