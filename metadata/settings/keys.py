"""A configuration key, and the parser of its values (Kafka's ConfigDef).

The tables of keys are in `resource_keys` and `broker_keys`, and of the keys that only a node's file has in
`config.keys`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

import msgspec

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MIB = 1024 * 1024
MAX_DOUBLE = sys.float_info.max
JAVA_MAX_DOUBLE = "1.7976931348623157E308"

CONTROLLER = "controller"
BROKER = "broker"
BOTH = (CONTROLLER, BROKER)

_SEPARATOR = re.compile(r"\s*,\s*")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")


def whole_number(text: str, most: int) -> int | None:
    """The number that ASCII digits write; None for any other text, and for more than `most`. `int` takes
    digits of any script, and raises ValueError for thousands of digits."""
    digits = text.lstrip("0") or text[:1]
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)):
        return None
    found = int(digits)
    return found if found <= most else None


class Kind(Enum):
    """The types of Kafka's configuration keys."""

    BOOLEAN = "boolean"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"
    CLASS = "class"


class UpdateMode(Enum):
    """How a broker's key changes, in Kafka's words."""

    READ_ONLY = "read-only"
    """Only in the file: the node reads it at its start."""
    PER_BROKER = "per-broker"
    """On one broker while it runs, not on all at once."""
    CLUSTER_WIDE = "cluster-wide"
    """On one broker, or on all, while they run."""


_LARGEST = {Kind.SHORT: 2**15 - 1, Kind.INT: MAX_INT, Kind.LONG: MAX_LONG}

Value = bool | int | float | str | tuple[str, ...]


class ConfigValueError(ValueError):
    """A value that its key cannot have; the text names the key and the valid values."""


class Key(msgspec.Struct, frozen=True):
    """A configuration key of a node's file or of a resource: all that there is to say about it, once."""

    name: str
    kind: Kind
    default: Value | None = None
    text: str = ""
    """Its meaning, for docs/configuration.md and DescribeConfigs."""
    minimum: float | None = None
    maximum: float | None = None
    """Both inclusive."""
    also: tuple[int, ...] = ()
    """Numbers outside the range that are valid too."""
    choices: tuple[str, ...] = ()
    unit: str = ""
    synonyms: tuple[str, ...] = ()
    """Of a topic's or group's key: the broker keys that have its default, the strongest first."""
    mode: UpdateMode = UpdateMode.READ_ONLY
    roles: tuple[str, ...] = ()
    """The nodes whose files have it; empty: it is stored and shown, but no node reads it."""
    is_live: bool = False
    """A broker's key: what the cluster stores for it takes effect while brokers run."""
    required: bool = False
    own: bool = False
    """Kafka does not have the key."""
    fills: tuple[type, str] | None = None
    """The configuration class and its field that the value goes to; the key's default is the field's."""
    times: int = 1
    """The field's units in one of the key's."""

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.kind is Kind.PASSWORD

    @property
    def default_text(self) -> str | None:
        """The default as a file or DescribeConfigs writes it."""
        return None if self.default is None else value_text(self.default)

    def parse(self, text: str, *, any_case: bool = False) -> Value:
        """The value of a text. `any_case`: of words to choose from, the case does not count. Raises
        ConfigValueError."""
        stripped = text.strip()
        match self.kind:
            case Kind.BOOLEAN:
                if stripped.lower() not in {"true", "false"}:
                    raise self._refusal(text, "write true or false")
                return stripped.lower() == "true"
            case Kind.SHORT | Kind.INT | Kind.LONG:
                return self._integer(text)
            case Kind.DOUBLE:
                return self._double(text)
            case Kind.LIST:
                parts = _SEPARATOR.split(stripped) if stripped else []
                return tuple(self._choice(part, text, any_case) for part in parts)
            case Kind.STRING | Kind.CLASS:
                return self._choice(stripped, text, any_case)
            case Kind.PASSWORD:
                return stripped

    def _integer(self, text: str) -> int:
        digits = text.strip()
        largest = _LARGEST[self.kind]
        sign = digits[:1] if digits[:1] in ("+", "-") else ""
        size = whole_number(digits.removeprefix(sign), largest + 1)
        value = size if size is None or sign != "-" else -size
        least = -largest - 1 if self.minimum is None else int(self.minimum)
        most = largest if self.maximum is None else int(self.maximum)
        if value is None or not (least <= value <= most or value in self.also):
            unit = f" {self.unit}" if self.unit else ""
            others = "".join(f", or {number}" for number in self.also)
            raise self._refusal(text, f"write a whole number from {least} to {most}{unit}{others}")
        return value

    def _double(self, text: str) -> float:
        """A decimal number, also with an exponent as Kafka writes large ones (1.0E7)."""
        number = float(text) if _DOUBLE.match(text.strip()) else math.nan
        least = -MAX_DOUBLE if self.minimum is None else self.minimum
        most = MAX_DOUBLE if self.maximum is None else self.maximum
        if not least <= number <= most:
            bounds = [] if self.minimum is None else [f"at least {least:g}"]
            bounds += [] if self.maximum is None else [f"at most {most:g}"]
            raise self._refusal(text, f"write a number{' of ' if bounds else ''}{' and '.join(bounds)}")
        return number

    def _choice(self, part: str, text: str, any_case: bool) -> str:
        if not self.choices or part in self.choices:
            return part
        alike = [choice for choice in self.choices if any_case and choice.lower() == part.lower()]
        if not alike:
            raise self._refusal(text, f"choose from {', '.join(self.choices)}")
        return alike[0]

    def _refusal(self, text: str, advice: str) -> ConfigValueError:
        shown = "the value given" if self.sensitive else repr(text.strip())
        return ConfigValueError(f"{self.name} cannot be {shown}: {advice}")


def value_text(value: Value) -> str:
    """A value as a file or DescribeConfigs writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float() if value == MAX_DOUBLE:
            return JAVA_MAX_DOUBLE
    return str(value)


def split_parts(text: str | None) -> list[str]:
    """The parts of a list's text for append and subtract: not trimmed, without empty parts."""
    return [part for part in (text or "").split(",") if part]


_UNITS = {"ms": "ms", "bytes": "bytes", "seconds": "s", "minutes": "minutes", "hours": "hours"}


def number(
    name: str,
    default: int | None,
    text: str,
    *,
    minimum: int = 1,
    maximum: int = MAX_INT,
    roles: tuple[str, ...] = BOTH,
    **more: Any,
) -> Key:
    """A whole number; its unit is the end of its name."""
    more.setdefault("unit", _UNITS.get(name.rpartition(".")[2], ""))
    kind = Kind.INT if maximum <= MAX_INT else Kind.LONG
    return Key(name, kind, default, text, minimum, maximum, roles=roles, **more)


def flag(name: str, default: bool | None, text: str, *, roles: tuple[str, ...] = BOTH, **more: Any) -> Key:
    """true or false."""
    return Key(name, Kind.BOOLEAN, default, text, roles=roles, **more)


def words(
    name: str,
    default: str | None,
    text: str,
    *,
    roles: tuple[str, ...] = BOTH,
    kind: Kind = Kind.STRING,
    **more: Any,
) -> Key:
    """A text; with `choices`, one of them."""
    return Key(name, kind, default, text, roles=roles, **more)


def parts(
    name: str, default: tuple[str, ...] | None, text: str, *, roles: tuple[str, ...] = BOTH, **more: Any
) -> Key:
    """Texts, separated by commas."""
    return Key(name, Kind.LIST, default, text, roles=roles, **more)


def rows_of(cls: type, *roles: str, prefix: str = "") -> Callable[..., Key]:
    """Makes the rows of a class's fields: `row(name, text)`. The field is `field`, or has the key's name
    without `prefix`; type and default are the field's. `times`: the field's units in one of the key's."""
    defaults = defaults_of(cls)

    def row(name: str, text: str, *, field: str = "", times: int = 1, **more: Any) -> Key:
        field = field or name.removeprefix(prefix).replace(".", "_")
        if field not in defaults:
            raise TypeError(f"{name}: {cls.__module__}.{cls.__name__} needs a field {field} with a default")
        default = defaults[field]
        more = {"fills": (cls, field), "times": times, "roles": roles or BOTH, **more}
        match default:
            case bool():
                return flag(name, default, text, **more)
            case int():
                return number(name, default // times, text, **more)
            case Enum():
                choices = tuple(choice.value for choice in type(default))
                return words(name, default.value, text, choices=choices, **more)
        return words(name, default, text, **more)

    return row


@cache
def defaults_of(cls: type) -> Mapping[str, Any]:
    """The values that a class's fields have by default, by name; without those that a factory makes."""
    if dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return {
        field.name: field.default
        for field in msgspec.structs.fields(cls)
        if field.default is not msgspec.NODEFAULT
    }
