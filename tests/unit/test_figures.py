"""Every bound, interval, code and form that pure code keeps in a constant or a default, as recorded text.

Most of them are promises: to Kafka's formats, to clients that wait, to memory that is bounded. Who changes
one changes a line here (`pytest tests/unit/test_figures.py --rewrite`), which is reviewed like code.
Sentences and long tables are left to the tests of what shows them.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import struct
from enum import Enum
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from metaquorum.config.keys import KEYS
from metaquorum.metadata.settings.keys import BOTH, MAX_INT, Key, Kind

ROOT = Path(__file__).parent.parent.parent
FIGURES = Path(__file__).parent / "figures.txt"
LONGEST = 400
_NAME = r"[A-Z_][A-Z0-9_]*"
_ASSIGNED = re.compile(rf"^({_NAME}(?:, {_NAME})*)(?::[^=\n]+)? = ", re.MULTILINE)
FOLDERS = (
    *("storage", "broker", "controller/server", "combined", "metadata/inspect"),
    *("clients", "config", "listeners", "network", "node", "observability", "rpc"),
    *("metadata/node_configs", "metadata/requests/rates.py"),
)
SHELL = (
    "combined/process.py",
    "storage/disk/posix.py",
    "storage/disk/kernel_sync.py",
    "storage/disk/posix.py",
)


def constants(path: Path) -> list[str]:
    """The names in capitals that a module assigns itself."""
    found = _ASSIGNED.findall(path.read_text(encoding="utf-8"))
    return [name for names in found for name in names.split(", ")]


def told(value: object) -> str | None:
    """None: it is no plain value, or a sentence."""
    match value:
        case str() if " " in value:
            return None
        case Enum():
            return value.name
        case None:
            return "None"
        case bool() | int() | float() | str() | bytes():
            return repr(value)
        case struct.Struct():
            return f"struct {value.format}"
        case re.Pattern():
            return f"pattern {value.pattern}"
        case tuple() | list():
            parts = [told(each) for each in value]
            return None if None in parts else f"({', '.join(map(str, parts))})"
        case set() | frozenset():
            parts = [told(each) for each in value]
            return None if None in parts else f"{{{', '.join(sorted(map(str, parts)))}}}"
        case dict():
            pairs = [(told(key), told(each)) for key, each in value.items()]
            plain = all(None not in pair for pair in pairs)
            return f"{{{', '.join(f'{key}: {each}' for key, each in pairs)}}}" if plain else None
        case msgspec.Struct():
            fields = {name: told(each) for name, each in msgspec.structs.asdict(value).items()}
            return f"{{{', '.join(f'{name}: {text}' for name, text in fields.items() if text is not None)}}}"
    return None


def defaults(module: ModuleType) -> list[tuple[str, object]]:
    """What fields of a module's values are where nobody says it."""
    found = []
    for name, cls in vars(module).items():
        if not isinstance(cls, type) or cls.__module__ != module.__name__:
            continue
        if issubclass(cls, msgspec.Struct):
            last = cls.__struct_fields__[len(cls.__struct_fields__) - len(cls.__struct_defaults__) :]
            found += [
                (f"{name}.{each}", value) for each, value in zip(last, cls.__struct_defaults__, strict=True)
            ]
        elif dataclasses.is_dataclass(cls):
            found += [(f"{name}.{each.name}", each.default) for each in dataclasses.fields(cls)]
        else:
            named = getattr(cls, "_field_defaults", {})
            found += [(f"{name}.{each}", value) for each, value in named.items()]
    return found


def figures_of(folders: tuple[str, ...], without: tuple[str, ...] = SHELL) -> list[str]:
    """A line for each figure of the modules below the folders."""
    lines = []
    patterns = [one if one.endswith(".py") else f"{one}/**/*.py" for one in folders]
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        place = str(path.relative_to(ROOT))
        if place.startswith(without):
            continue
        module = importlib.import_module(f"metaquorum.{place.removesuffix('.py').replace('/', '.')}")
        every = [*[(name, getattr(module, name)) for name in constants(path)], *defaults(module)]
        found = [(name, told(value)) for name, value in every]
        lines += [f"{place} {name} = {text}" for name, text in found if text and len(text) <= LONGEST]
    return lines


def every_figure(folders: tuple[str, ...] = FOLDERS) -> str:
    return "\n".join([*figures_of(folders), *keys()]) + "\n"


def keys() -> list[str]:
    """What a configuration file may say, but for what is so of most keys; the meanings are on a page."""
    usual = msgspec.structs.asdict(Key("", Kind.INT, maximum=MAX_INT, roles=BOTH))
    found = []
    for key in KEYS.values():
        fields = msgspec.structs.asdict(key)
        fields["fills"] = key.fills and f"{key.fills[0].__name__}.{key.fills[1]}"
        unusual = [name for name in fields if fields[name] != usual[name] and name not in ("name", "text")]
        found.append(", ".join([key.name, *(f"{name}={told(fields[name])}" for name in unusual)]))
    return found


def test_every_figure_is_what_was_recorded(request: pytest.FixtureRequest) -> None:
    actual = every_figure()
    if request.config.getoption("--rewrite"):
        FIGURES.write_text(actual, encoding="utf-8")
    assert actual == FIGURES.read_text(encoding="utf-8"), (
        "review: pytest tests/unit/test_figures.py --rewrite"
    )


def test_a_changed_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaquorum.broker.coordinator.shard.RETRY_MS", 501)
    assert "broker/coordinator/shard.py RETRY_MS = 501" in every_figure(("broker/coordinator",))
