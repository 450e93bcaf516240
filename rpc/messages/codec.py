"""A codec between a class of values and a class of protobuf messages, derived from their fields.

When it is compiled: at the first use, so that a command only compiles codecs of messages that it sends.
"""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import metadata_pb2 as common
from metaquorum.rpc.messages.errors import (
    NO_HINTS,
    Hints,
    error_field,
    error_from_pb,
    error_to_pb,
    refusal_of,
)

# Which field of a value belongs to which field of a protobuf message, by name and annotation.
#
# A field that fits no rule and has no deviation raises `TypeError`: a bug in the program, never an error in a
# message.
#
# | Field of the value | Field of the message |
# | --- | --- |
# | a number, text or bytes; an enum | the same; its number or text |
# | a value | a message, by the same rules |
# | `tuple[X, ...]` | `repeated` |
# | `X | None` | `optional`; without presence, what is empty is None |
# | never None, though the message's field is `optional` | absent stands for the value's default |
# | `error` and `message` | one `Error`, absent for ErrorCode.NONE |

Fields = Mapping[str, "FieldRule | str"]
"""Deviations by the value's field; a string is the path in the message."""

_ERROR = common.Error.DESCRIPTOR
UNSET: Any = object()
"""Marks an absent value where None is a valid one."""


class FieldRule(msgspec.Struct, frozen=True, kw_only=True):
    """How one field deviates from the rules.

    `path`: what the message calls it, with dots through nested messages.
    `spread`: its parts are in these fields of the message around it; `()`: under their own names.
    `check` takes each of its bytes (ids), and returns or refuses them.
    `nested`: deviations of the value inside.
    `local`: the message does not have it; decoding leaves the default.
    `decode` makes it of the whole message.
    """

    path: str = ""
    spread: tuple[str, ...] | None = None
    check: Callable[[bytes], bytes] | None = None
    nested: Fields = {}
    local: bool = False
    decode: Callable[[Any], Any] | None = None


class PartKind(Enum):
    """How the generated code converts a part."""

    SCALAR = auto()
    SCALARS = auto()
    MESSAGE = auto()
    MESSAGES = auto()
    SPREAD = auto()
    ERROR = auto()
    NOWHERE = auto()


class Part(msgspec.Struct, kw_only=True):
    """One field of a value, and its place in the message.

    `get` follows the value in an expression, `put` precedes the part in a constructor. `type` is its
    annotation without None (`optional`). `absent`: what an absent field stands for, UNSET: nothing.
    `has_presence` and `path` are those of the message's field, `shape` that of the message inside.
    """

    name: str
    type: Any
    default: Any
    rule: FieldRule
    optional: bool = False
    kind: PartKind = PartKind.NOWHERE
    path: tuple[str, ...] = ()
    has_presence: bool = False
    absent: Any = UNSET
    shape: Shape | None = None

    @property
    def inner(self) -> Shape:
        assert self.shape is not None, f"{self.name} has no inner shape"
        return self.shape

    @property
    def is_plain_enum(self) -> bool:
        """True for an enum whose members are not numbers themselves."""
        return self.is_enum and not issubclass(self.type, int)

    @property
    def is_enum(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, Enum)


class Shape(msgspec.Struct, kw_only=True):
    """A value and its message. `make` is the value's class."""

    make: Any
    descriptor: Any
    parts: list[Part]


def shape_of(annotation: Any, descriptor: Any, fields: Fields) -> Shape:
    """The shape of a class in a message. Raises TypeError."""
    class_fields = _class_fields(annotation, descriptor)
    strange = set(fields) - {name for name, _, _ in class_fields}
    if strange:
        raise TypeError(f"{annotation.__name__} has no fields {sorted(strange)}: correct the table")
    shape = Shape(make=annotation, descriptor=descriptor, parts=[])
    for name, hint, default in class_fields:
        rule = fields.get(name, "")
        rule = FieldRule(path=rule) if isinstance(rule, str) else rule
        part = Part(name=name, type=hint, default=default, rule=rule)
        shape.parts.append(_placed(part, descriptor))
    return shape


def _class_fields(cls: Any, descriptor: Any) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of each field of a Struct, except the text of an error."""
    hints = typing.get_type_hints(cls)
    defaults = {each.name: each.default for each in msgspec.structs.fields(cls)}
    refusal = descriptor.fields_by_name.get("error")
    if refusal is not None and refusal.message_type is _ERROR and hints.get("error") is ErrorCode:
        del defaults["message"]
    return [(name, hints[name], UNSET if at is msgspec.NODEFAULT else at) for name, at in defaults.items()]


def _placed(part: Part, descriptor: Any) -> Part:
    """The part with its place in the message and all that the rules determine."""
    rule = part.rule
    part.type, part.optional = _without_none(part.type)
    if rule.local:
        return part
    if rule.spread is not None:
        part.kind = PartKind.SPREAD
        part.shape = _spread(part.type, rule, descriptor)
        return part
    part.path = tuple((rule.path or part.name).split("."))
    field = _field_at(part, descriptor)
    part.has_presence = field.has_presence
    nested = field.message_type
    if nested is None:
        part.kind = PartKind.SCALARS if field.is_repeated else PartKind.SCALAR
        _settle_none(part, descriptor)
    elif nested is _ERROR and part.type is ErrorCode:
        part.kind = PartKind.ERROR
    else:
        part.kind = PartKind.MESSAGES if field.is_repeated else PartKind.MESSAGE
        element = typing.get_args(part.type)[0] if field.is_repeated else part.type
        part.shape = shape_of(element, nested, rule.nested)
    return part


def _settle_none(part: Part, descriptor: Any) -> None:
    """Determines the value of an absent field, and how None is sent."""
    if part.kind is PartKind.SCALARS:
        return
    if part.has_presence and not part.optional:
        part.absent = part.default
        if part.absent is UNSET:
            raise TypeError(f"{descriptor.full_name}.{part.name} may be absent: say what that stands for")
    if part.optional and not part.has_presence and part.type in (int, bool, float):
        raise TypeError(f"{descriptor.full_name}.{part.name} has no presence: None would read as 0")


def _spread(annotation: Any, rule: FieldRule, descriptor: Any) -> Shape:
    """The parts of a value whose fields are in the enclosing message."""
    paths = rule.spread or ()
    names = [name for name, _, _ in _class_fields(annotation, descriptor)] if paths else []
    return shape_of(annotation, descriptor, {**dict(zip(names, paths, strict=True)), **rule.nested})


def _field_at(part: Part, descriptor: Any) -> Any:
    """The descriptor of the field at the part's path."""
    for step in part.path[:-1]:
        descriptor = descriptor.fields_by_name[step].message_type
    field = descriptor.fields_by_name.get(part.path[-1])
    if field is None:
        text = f"{descriptor.full_name} has no field {part.name}: add it to the .proto, or say where it goes"
        raise TypeError(text)
    return field


def _without_none(hint: Any) -> tuple[Any, bool]:
    """An annotation without `None`, and whether it had `None`."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    return kinds[0] if len(kinds) == 1 else hint, len(kinds) < len(typing.get_args(hint))


# Turns a shape into two functions: value to protobuf, and back.
#
# A broker converts every fetch and heartbeat, so the rules are interpreted once, and the remaining code is
# what one would write by hand. Repeated messages are created in place, because protobuf copies a message that
# is assigned into another one, with all its records.

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


Value = TypeVar("Value")
Pb = TypeVar("Pb", bound=Message)


class MessageCodec(Generic[Value, Pb]):
    """`fields`: deviations from the rules in `shapes`, by the name of the value's field."""

    def __init__(self, value: type[Value], message: type[Pb], **fields: FieldRule | str) -> None:
        self.value = value
        self.message = message
        self.fields = fields

    @property
    def shape(self) -> Shape:
        return shape_of(self.value, self.message.DESCRIPTOR, self.fields)

    @cached_property
    def to_pb(self) -> Callable[[Value], Pb]:
        return compile_encoder(self.shape)

    @cached_property
    def from_pb(self) -> Callable[[Pb], Value]:
        """The function from a message to a value. It raises the errors of a rule's `check` or `decode`, and
        ValueError for a value that an enum does not have (ErrorCode has a member for every code)."""
        return compile_decoder(self.shape)

    def answer_to_pb(self, answer: Value | ApiError, hints: Hints = NO_HINTS) -> Pb:
        """A response message, with the refusal of the whole request in its `error` if there is one."""
        if isinstance(answer, ApiError):
            return self.message(error=error_to_pb(answer, hints))
        return self.to_pb(answer)

    def answer_from_pb(self, message: Any) -> Value | ApiError:
        """The response, or the refusal of the whole request. Raises the errors of `from_pb`."""
        if message.HasField("error"):
            return error_from_pb(message.error)
        return self.from_pb(message)
