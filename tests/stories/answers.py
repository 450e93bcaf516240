"""How answers of the log tools are shown in a story: their JSON as `key=value`, so that a reviewer can read
every field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.unit.metadata.made_logs import START_MS

INLINE = 60
"""Longer objects get lines of their own."""
SAME_IN_EVERY_ANSWER = ("askedByText",)


def shown(line: str) -> list[str]:
    """One line of JSON as lines that a person can review, without what is null or empty."""
    try:
        return list(_lines(json.loads(line), ""))
    except ValueError:
        return [line]


def _lines(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{indent}{_flat(value)}"
        return
    plain, below = [], []
    for key, one in value.items():
        if one is None or one in ([], {}):
            continue
        text = _flat(one)
        if key in SAME_IN_EVERY_ANSWER:
            continue
        if len(text) <= INLINE or not _is_nested(one):
            plain.append(f"{key}={text}")
            continue
        parts = one if isinstance(one, list) else [one]
        below.append(f"{indent}  {key}:")
        for part in parts:
            below += _lines(part, f"{indent}    ")
    if plain:
        yield f"{indent}{' '.join(plain)}"
    yield from below


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict))


def _flat(value: Any) -> str:
    """A time of the story is shown as ms after its beginning."""
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() if abs(value - START_MS) < 10**10:
            return f"T{value - START_MS:+d}"
        case str():
            return value if re.fullmatch(r"[\w/.:+-]+", value) else f'"{value}"'
        case list():
            return "[" + ",".join(map(_flat, value)) + "]"
        case dict():
            return (
                "{" + " ".join(f"{key}={_flat(one)}" for key, one in value.items() if one is not None) + "}"
            )
    return str(value)
