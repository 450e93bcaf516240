"""One configuration key: kind, range and default, and the parsing of its value.

Owns what a single value must look like. Does not know any key (`keys`) or rules that span keys (`load`).
"""

from __future__ import annotations

import math
import sys
from typing import Literal

import msgspec

from metaquorum.runtime.errors import ConfigError

Kind = Literal["int", "double", "text", "list", "choice"]
Value = int | float | str | tuple[str, ...] | None

CONTROLLER = "controller"
BROKER = "broker"
BOTH = (CONTROLLER, BROKER)
COMBINED = "combined"
"""The role of a process that is both."""
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = sys.float_info.max
MIB = 1024 * 1024


class Key(msgspec.Struct, frozen=True):
    """One setting. `default` None: the key must be set if `required`, otherwise it is unset. `unit` is for
    documents.

    `own`: Kafka does not have the key. `also`: numbers outside the range that are valid too. `most`: the
    largest fraction.
    """

    name: str
    kind: Kind
    default: Value
    text: str
    minimum: int = 0
    maximum: int = MAX_INT
    unit: str = ""
    roles: tuple[str, ...] = BOTH
    choices: tuple[str, ...] = ()
    required: bool = False
    own: bool = False
    also: tuple[int, ...] = ()
    most: float = MAX_DOUBLE

    def parse(self, raw: str) -> Value:
        """Parses a value. Raises ConfigError, which says what is allowed."""
        raw = raw.strip()
        match self.kind:
            case "int":
                return self._parse_int(raw)
            case "double":
                return self._parse_double(raw)
            case "list":
                return tuple(part.strip() for part in raw.split(",") if part.strip())
            case "choice":
                for choice in self.choices:
                    if raw.lower() == choice.lower():
                        return choice
                raise ConfigError(f"{self.name}={raw} is not valid: choose one of {', '.join(self.choices)}")
            case "text":
                return raw

    def _parse_double(self, raw: str) -> float:
        """Parses a decimal number, also with an exponent as Kafka writes large ones (1.0E7)."""
        try:
            number = float(raw)
        except ValueError:
            number = math.nan
        if not self.minimum <= number <= self.most:
            most = "" if self.most == MAX_DOUBLE else f" and at most {self.most:g}"
            raise ConfigError(
                f"{self.name}={raw} is not valid: give a number of at least {self.minimum}{most}"
            )
        return number

    def _parse_int(self, raw: str) -> int:
        unit = f" {self.unit}" if self.unit else ""
        others = "".join(f", or {value}" for value in self.also)
        allowed = f"give a whole number from {self.minimum} to {self.maximum}{unit}{others}"
        try:
            value = int(raw)
        except ValueError:
            raise ConfigError(f"{self.name}={raw} is not a number: {allowed}") from None
        if not self.minimum <= value <= self.maximum and value not in self.also:
            raise ConfigError(f"{self.name}={value} is out of range: {allowed}")
        return value


def ms_key(name: str, default: int, text: str, *, minimum: int = 1, **more: object) -> Key:
    """A key for a duration; `more` are other fields of Key."""
    return Key(name, "int", default, text, minimum=minimum, unit="ms", **more)  # type: ignore[arg-type]


def bytes_key(
    name: str, default: int, text: str, *, minimum: int, maximum: int = MAX_INT, **more: object
) -> Key:
    """A key for a size; `more` are other fields of Key."""
    return Key(name, "int", default, text, minimum=minimum, maximum=maximum, unit="bytes", **more)  # type: ignore[arg-type]
