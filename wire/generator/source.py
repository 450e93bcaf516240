"""Lines of a function under construction, and what decoders and encoders have in common.

Owns compiling, and the names that generated code may use. Does not know messages.
"""

from __future__ import annotations

from typing import Any

from metaquorum.wire import primitives as wire
from metaquorum.wire.errors import Malformed, UnsupportedFieldError
from metaquorum.wire.schema import Field

FIXED = {
    "bool": "B",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The struct format letter of every type of fixed width."""


class SourceWriter:
    """Lines of a function under construction, the objects that they refer to, and unused names."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Malformed": Malformed,
            "UnsupportedFieldError": UnsupportedFieldError,
            **{name: getattr(wire, name) for name in wire.GENERATED_CODE_CALLS},
        }
        self._depth = 0

    def line(self, text: str, depth: int = 0) -> None:
        self.lines.append("    " * (self._depth + depth) + text)

    def indent(self, by: int) -> None:
        self._depth += by

    def bind(self, prefix: str, value: Any) -> str:
        """The name by which the generated code refers to `value`."""
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def default(self, field: Field) -> str:
        """An expression for the default of `field`."""
        if field.default is None or isinstance(field.default, bool | int) or field.default == ():
            return repr(field.default)
        return self.bind("default", field.default)

    def function(self, name: str) -> Any:
        """Compile the lines and return the function called `name`."""
        source = "\n".join(self.lines)
        exec(compile(source, f"<{name}>", "exec"), self.names)  # the source comes only from the table
        return self.names[name]
