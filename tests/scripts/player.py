"""Runs a script against a pure state machine, and shows values as one line of plain text each.

The form of scripts and of what they show: fields at their default are left out, ids of sixteen equal letters
are that letter, record batches are their offsets and epochs.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec

from metaquorum.metadata.errors import ApiError
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.format import hop_headers

BATCH_HEADER_BYTES = 61
MAGIC_AT, MAGIC = 16, 2


class Player:
    """One method a command, `do_<name>`. Arguments are words; `name=value` words are options."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[str, str] = {}

    def say(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def say_all(self, values: Iterable[object]) -> None:
        for each in values:
            self.say(show(each))

    def say_changed(self, facts: dict[str, str]) -> None:
        """What is other than it was when it was said last."""
        for name, fact in facts.items():
            if self._known.get(name) != fact:
                self.say(f". {name}: {fact}")
        for name in sorted(self._known.keys() - facts.keys()):
            self.say(f". {name}: no more")
        self._known = facts

    def run(self, command: str) -> list[str]:
        words = shlex.split(command)
        plain = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        method: Callable[..., None] = getattr(self, f"do_{words[0].replace('-', '_')}")
        self.lines = []
        method(*plain, **options)
        return self.lines


def play(text: str, run: Callable[[str], list[str]], left: Callable[[], list[str]] = list) -> str:
    """Comments and commands stay; what stands below each command is replaced by what it does now. `left`:
    what follows the last one."""
    output: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            output += [line, *run(line[2:])]
        elif line.startswith("#") or not line.strip():
            output.append(line)
    output += left()
    return "\n".join(output) + "\n"


# ---- what is shown -------------------------------------------------------------------------------


def show(value: object) -> str:
    """One line."""
    match value:
        case ApiError():
            hint = "" if value.leader_hint is None else f" hint={value.leader_hint}"
            return f"{value.code.name}{hint} {value.message!r}"
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Enum():
            return value.name
        case bytes():
            return _bytes(value)
        case Batches():
            return _bytes(value.data)
        case (bytes() as topic, int() as index) if len(topic) == 16:
            return f"{_bytes(topic)}-{index}"
        case tuple() | list():
            return f"[{', '.join(show(each) for each in value)}]"
        case frozenset() | set():
            return f"{{{', '.join(sorted(show(each) for each in value))}}}"
        case dict():
            return f"{{{', '.join(f'{show(name)}: {show(each)}' for name, each in value.items())}}}"
        case str():
            return repr(value)
    fields = _fields(value)
    if fields is None:
        return str(value)
    return " ".join([type(value).__name__, *(f"{name}={_inner(each)}" for name, each in fields)])


def _inner(value: object) -> str:
    text = show(value)
    return f"({text})" if _fields(value) or isinstance(value, ApiError) else text


def _bytes(value: bytes) -> str:
    if len(value) == 16:
        if not any(value[:-1]):
            return f"#{value[-1]}"
        text = value[:1] if len(set(value)) == 1 else value.rstrip(b".")
        return text.decode() if text.isalnum() and text.isascii() else value.hex()
    if len(value) < BATCH_HEADER_BYTES or value[MAGIC_AT] != MAGIC:
        return value.decode() if value.isascii() and value else value.hex() or "nothing"
    batches = [f"{base}..{end}@{epoch}" for _, base, end, epoch in hop_headers(value)]
    return "+".join(batches)


def _fields(value: object) -> list[tuple[str, object]] | None:
    """Those that are not at their default; None: it has no fields."""
    if isinstance(value, msgspec.Struct):
        defaults = {each.name: _default(each) for each in msgspec.structs.fields(value)}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        defaults = {each.name: _default(each) for each in dataclasses.fields(value)}
    else:
        return None
    return [(name, got) for name, default in defaults.items() if (got := getattr(value, name)) != default]


_NONE = object()


def _default(field: Any) -> object:
    factory = field.default_factory
    if callable(factory):
        return factory()
    unset = isinstance(field.default, dataclasses._MISSING_TYPE) or field.default is msgspec.NODEFAULT
    return _NONE if unset else field.default


# ---- what an object remembers --------------------------------------------------------------------

_OBJECT = re.compile(r"<[\w.]*?(\w+) object at 0x[0-9a-f]+>")
_EMPTY = frozenset({"-", "no", "0", "-1", "''", "[]", "{}", "deque([])", "array('q')"})


class Memory:
    """The attributes of state machines and of their parts, by their paths; those that are others than when
    they were told last. What is empty from the beginning is not told. `leaves_out`: names of attributes."""

    def __init__(self, *leaves_out: str) -> None:
        self._leaves_out = leaves_out
        self._known: dict[str, str] = {}

    def told(self, **machines: object) -> str:
        """`path=value` of what has changed."""
        found: dict[str, str] = {}
        seen = set(map(id, machines.values()))
        for name, machine in machines.items():
            self._look(machine, f"{name}." if len(machines) > 1 else "", found, seen)
        before, self._known = self._known, found
        return " ".join(
            f"{path}={text}"
            for path, text in found.items()
            if before.get(path) != text and (path in before or text not in _EMPTY)
        )

    def _look(self, value: object, at: str, found: dict[str, str], seen: set[int]) -> None:
        for name, one in _attributes(value):
            functions = isinstance(one, dict) and any(map(callable, one.values()))
            if name in self._leaves_out or callable(one) or functions:
                continue
            parts, path = _parts(one), f"{at}{name.lstrip('_')}"
            if parts is None:
                found[path] = _named(one)
                continue
            for key, part in parts:
                if id(part) not in seen:
                    seen.add(id(part))
                    self._look(part, f"{path}{key}.", found, seen)


def _parts(value: object) -> list[tuple[str, object]] | None:
    """The parts that a value is or has, with what names each; None: it is a plain value."""
    if _is_part(value):
        return [("", value)]
    if isinstance(value, dict) and any(map(_is_part, value.values())):
        return [(f"[{_named(key)}]", each) for key, each in value.items()]
    if isinstance(value, list | tuple) and any(map(_is_part, value)):
        return [(f"[{at}]", each) for at, each in enumerate(value)]
    return None


def _named(value: object) -> str:
    """As shown, objects without fields by the name of their class."""
    return _OBJECT.sub(r"\1", show(value))


def _is_part(value: object) -> bool:
    ours = type(value).__module__.startswith("metaquorum.") and not isinstance(value, Enum)
    return ours and _fields(value) is None and not isinstance(value, tuple)


def _attributes(value: object) -> list[tuple[str, object]]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(value, "__dict__", {})]
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
