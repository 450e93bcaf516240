"""Turns a shape into two functions: value to protobuf, and back.

A broker converts every fetch and heartbeat, so the rules are interpreted once, and the remaining code is what
one would write by hand. Repeated messages are created in place, because protobuf copies a message that is
assigned into another one, with all its records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from metaquorum.metadata.errors import ErrorCode
from metaquorum.rpc.messages.errors import error_field, refusal_of
from metaquorum.rpc.messages.shapes import UNSET, Part, PartKind, Shape

_Tree = dict[str, Any]
"""Constructor arguments of a message by field; those of a nested message are a tree themselves."""


class _Source:
    """Lines of a function under construction, the objects that they refer to, and unused names."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._depth = 1
        self._count = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def assign(self, prefix: str, expression: str) -> str:
        """Assigns an expression to a new variable; returns its name."""
        name = self.fresh(prefix)
        self.line(f"{name} = {expression}")
        return name

    def bind(self, value: Any) -> str:
        """The name by which the generated code refers to `value`."""
        name = self.fresh("the")
        self._names[name] = value
        return name

    def function(self, title: str, argument: str, result: str) -> Callable[[Any], Any]:
        lines = [f"def convert({argument}):", *self._lines, f"    return {result}"]
        # The source contains only text from the tables and the descriptors.
        exec(compile("\n".join(lines), f"<{title}>", "exec"), self._names)
        function: Callable[[Any], Any] = self._names["convert"]
        return function


def compile_encoder(shape: Shape) -> Callable[[Any], Any]:
    """The function from a value to its message."""
    out = _Encoder()
    result = out.message(shape, "value", out.bind(GetMessageClass(shape.descriptor)))
    return out.function(f"{shape.make.__name__} to protobuf", "value", result)


def compile_decoder(shape: Shape) -> Callable[[Any], Any]:
    """The function from a message to its value."""
    out = _Decoder()
    result = out.value(shape, "message")
    return out.function(f"{shape.make.__name__} from protobuf", "message", result)


class _Encoder(_Source):
    def message(self, shape: Shape, value: str, make: str) -> str:
        """Calls `make` with everything except repeated messages, then adds those. Returns the message's
        variable."""
        tree: _Tree = {}
        repeated: list[tuple[Part, str]] = []
        self._parts(shape, value, tree, repeated)
        made = self.assign("m", f"{make}({self._arguments(shape.descriptor, tree)})")
        for part, elements in repeated:
            add = self.assign("add", f"{made}.{'.'.join(part.path)}.add")
            each = self.fresh("each")
            with self.block(f"for {each} in {elements}:"):
                self.message(part.inner, each, add)
        return made

    def _parts(self, shape: Shape, value: str, tree: _Tree, repeated: list[tuple[Part, str]]) -> None:
        for part in shape.parts:
            whole = f"{value}.{part.name}"
            match part.kind:
                case PartKind.NOWHERE:
                    pass
                case PartKind.SPREAD:
                    self._parts(part.inner, self.assign("v", whole), tree, repeated)
                case PartKind.MESSAGES:
                    repeated.append((part, f"{whole} or ()" if part.optional else whole))
                case PartKind.ERROR:
                    _put_at(tree, part.path, self._error(value, whole))
                case PartKind.MESSAGE:
                    _put_at(tree, part.path, self._nested(part, whole))
                case _:
                    _put_at(tree, part.path, self._plain(part, whole))

    def _arguments(self, descriptor: Any, tree: _Tree) -> str:
        arguments = []
        for name, expression in tree.items():
            if isinstance(expression, dict):
                nested = descriptor.fields_by_name[name].message_type
                make = self.bind(GetMessageClass(nested))
                arguments.append(f"{name}={make}({self._arguments(nested, expression)})")
            else:
                arguments.append(f"{name}={expression}")
        return ", ".join(arguments)

    def _error(self, value: str, code: str) -> str:
        name = self.assign("v", code)
        none, make = self.bind(ErrorCode.NONE), self.bind(error_field)
        return f"None if {name} is {none} else {make}({name}, {value}.message)"

    def _nested(self, part: Part, whole: str) -> str:
        make = self.bind(GetMessageClass(part.inner.descriptor))
        name = self.assign("v", whole)
        if not part.optional:
            return self.message(part.inner, name, make)
        found = self.assign("n", "None")
        with self.block(f"if {name} is not None:"):
            self.line(f"{found} = {self.message(part.inner, name, make)}")
        return found

    def _plain(self, part: Part, whole: str) -> str:
        if part.kind is PartKind.SCALARS:
            return f"{whole} or ()" if part.optional else whole
        if part.is_plain_enum and part.optional:
            name = self.assign("v", whole)
            return f"None if {name} is None else {name}.value"
        if part.is_plain_enum:
            return f"{whole}.value"
        if part.absent is not UNSET:
            name = self.assign("v", whole)
            return f"None if {name} == {self.bind(part.absent)} else {name}"
        return whole


def _put_at(tree: _Tree, path: tuple[str, ...], expression: str) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = expression


class _Decoder(_Source):
    def value(self, shape: Shape, message: str) -> str:
        """Writes the statements that a message's value needs; returns the expression that creates it."""
        arguments: list[str] = []
        around: dict[tuple[str, ...], str] = {(): message}
        for part in shape.parts:
            if not part.rule.local:
                found = self._part(part, message, around)
                arguments.append(f"{part.name}={found}")
                if part.kind is PartKind.ERROR:
                    arguments.append(f"message={found}_text")
        return f"{self.bind(shape.make)}({', '.join(arguments)})"

    def _part(self, part: Part, message: str, around: dict[tuple[str, ...], str]) -> str:
        if part.rule.decode is not None:
            return f"{self.bind(part.rule.decode)}({message})"
        if part.kind is PartKind.SPREAD:
            return self.value(part.inner, message)
        holder = part.path[:-1]
        if holder not in around:
            around[holder] = self.assign("in_", f"{message}.{'.'.join(holder)}")
        name = part.path[-1]
        return self._field(part, f"{around[holder]}.{name}", f"{around[holder]}.HasField({name!r})")

    def _field(self, part: Part, whole: str, present: str) -> str:
        match part.kind:
            case PartKind.ERROR:
                return self._error(whole, present)
            case PartKind.MESSAGE:
                return self._nested(part, whole, present)
            case PartKind.MESSAGES:
                return self._elements(part, whole)
            case PartKind.SCALARS:
                return self._scalars(part, whole)
            case _:
                return self._scalar(part, whole, present)

    def _error(self, whole: str, present: str) -> str:
        code = self.assign("error", self.bind(ErrorCode.NONE))
        text = f"{code}_text"
        self.line(f"{text} = None")
        with self.block(f"if {present}:"):
            self.line(f"{code}, {text} = {self.bind(refusal_of)}({whole})")
        return code

    def _nested(self, part: Part, whole: str, present: str) -> str:
        if not part.optional:
            return self.value(part.inner, self.assign("p", whole))
        found = self.assign("n", "None")
        with self.block(f"if {present}:"):
            self.line(f"{found} = {self.value(part.inner, self.assign('p', whole))}")
        return found

    def _elements(self, part: Part, whole: str) -> str:
        found, each = self.assign("all", "[]"), self.fresh("each")
        with self.block(f"for {each} in {whole}:"):
            self.line(f"{found}.append({self.value(part.inner, each)})")
        return f"tuple({found}) or None" if part.optional else f"tuple({found})"

    def _scalars(self, part: Part, whole: str) -> str:
        if part.rule.check is not None:
            whole = f"[{self.bind(part.rule.check)}(one) for one in {whole}]"
        return f"tuple({whole}) or None" if part.optional else f"tuple({whole})"

    def _scalar(self, part: Part, whole: str, present: str) -> str:
        converted = whole
        if part.rule.check is not None and part.type is bytes:
            converted = f"{self.bind(part.rule.check)}({whole})"
        elif part.is_enum:
            converted = f"{self.bind(part.type)}({whole})"
        if part.absent is not UNSET:
            return f"{converted} if {present} else {self.bind(part.absent)}"
        if not part.optional:
            return converted
        if part.has_presence:
            return f"{converted} if {present} else None"
        return f"{whole} or None" if converted == whole else f"{converted} if {whole} else None"
