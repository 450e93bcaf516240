"""One configuration key: its type, its range, its default, and how its values are parsed (Kafka's ConfigDef).

Owns the parsing of one value, and of a whole number in any text that others wrote. Knows no key by name:
these are in `topic_keys`, `broker_keys` and `metrics_keys`.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
JAVA_MAX_DOUBLE = "1.7976931348623157E308"

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


_LARGEST = {Kind.SHORT: 2**15 - 1, Kind.INT: MAX_INT, Kind.LONG: MAX_LONG}

Value = bool | int | float | str | tuple[str, ...]


class ConfigValueError(ValueError):
    """A value that its key cannot have; the text names the key and the valid values."""


class ConfigKey(msgspec.Struct, frozen=True):
    """`default` is the text that Kafka 3.7 shows; None without a default. Bounds are inclusive.

    `synonyms` are the broker keys that provide a topic key's default, the strongest first. `per_broker`:
    cannot be set for all brokers at once.
    """

    name: str
    kind: Kind
    default: str | None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    per_broker: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Value:
        """The value of `text`. Raises ConfigValueError."""
        match self.kind:
            case Kind.BOOLEAN:
                lowered = text.strip().lower()
                if lowered not in {"true", "false"}:
                    raise self._refusal(text, "write true or false")
                return lowered == "true"
            case Kind.SHORT | Kind.INT | Kind.LONG:
                return self._integer(text.strip())
            case Kind.DOUBLE:
                if not _DOUBLE.match(text.strip()):
                    raise self._refusal(text, "write a number")
                number = float(text)
                self._check_range(number, text)
                return number
            case Kind.LIST:
                parts = tuple(_SEPARATOR.split(text.strip())) if text.strip() else ()
                for part in parts:
                    self._check_choice(part, text)
                return parts
            case Kind.STRING | Kind.CLASS:
                self._check_choice(text.strip(), text)
                return text.strip()
            case Kind.PASSWORD:
                return text

    def _integer(self, text: str) -> int:
        largest = _LARGEST[self.kind]
        sign = text[:1] if text[:1] in ("+", "-") else ""
        size = whole_number(text.removeprefix(sign), largest + 1)
        value = size if size is None or sign != "-" else -size
        if value is None or value > largest:
            raise self._refusal(text, f"write a whole number of at most {largest}")
        self._check_range(value, text)
        return value

    def _check_range(self, value: float, text: str) -> None:
        if self.minimum is not None and value < self.minimum:
            raise self._refusal(text, f"write at least {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise self._refusal(text, f"write at most {self.maximum:g}")

    def _check_choice(self, part: str, text: str) -> None:
        if self.choices and part not in self.choices:
            raise self._refusal(text, f"choose from {', '.join(self.choices)}")

    def _refusal(self, text: str, advice: str) -> ConfigValueError:
        shown = "the value given" if self.sensitive else repr(text)
        return ConfigValueError(f"{self.name} cannot be {shown}: {advice}")


def split_parts(text: str | None) -> list[str]:
    """The parts of a list's text for append and subtract: not trimmed, without empty parts."""
    return [part for part in (text or "").split(",") if part]
