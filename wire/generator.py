"""Turns schemas into straight-line code, once per structure and version: functions that read and write it.

A metadata log is decoded one record at a time, millions of times, and a broker decodes every request: the
schema is interpreted once, when the decoder is compiled, and what remains is straight-line code with the
short forms of varints inline.

A decoder is `f(buf, position, end) -> (value, position after it)`. It may read past `end`, which the caller
detects from the returned position. It raises IndexError, struct.error, UnicodeDecodeError or Malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from metaquorum.wire import primitives as wire
from metaquorum.wire.errors import Malformed, TooManyValues, UnsupportedFieldError
from metaquorum.wire.primitives import SMALL_INTS, Buffer
from metaquorum.wire.schema import WIDTHS, Field, StructSchema

# Lines of a function under construction, and what decoders and encoders have in common.

FIXED = {
    "bool": "B",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
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
            "TooManyValues": TooManyValues,
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


Decoder = Callable[[Buffer, int, int], tuple[Any, int]]


class ValuesLeft:
    """How many more values the arrays and unknown tags of a message may have: the bound of what decoding
    costs in time and memory, which a few bytes per value would multiply. Set it before each message."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def compile_decoder(
    schema: StructSchema, version: int, flexible: bool = True, left: ValuesLeft | None = None
) -> Decoder:
    """The decoder of one structure at one version; `flexible` versions are those of KIP-482. With `left`, it
    takes every value of an array from there before reading one, and raises TooManyValues below 0."""
    out = _Source(version, flexible, left)
    name = f"decode_{schema.name}_v{version}"
    out.line(f"def {name}(buf, p, end):")
    out.indent(1)
    run: list[Field] = []
    for field in schema.fields_at(version):
        if field.type in FIXED:
            run.append(field)
            continue
        _read_fixed(out, run)
        run = []
        _read_variable(out, field)
    _read_fixed(out, run)
    if flexible:
        _read_tags(out, schema)
    else:
        out.line("tags = ()")
    _build(out, schema)
    decoder: Decoder = out.function(name)
    return decoder


class _Source(SourceWriter):
    """Also knows the counter of the values that its decoder reads, if there is one."""

    def __init__(self, version: int, flexible: bool, left: ValuesLeft | None) -> None:
        super().__init__(version, flexible)
        self.left = left
        self._left_name = "" if left is None else self.bind("left", left)

    def take(self, count: str) -> None:
        """Takes `count` values, an expression, from the counter."""
        if self.left is not None:
            name = self._left_name
            self.line(f"{name}.count -= {count}")
            self.line(f"if {name}.count < 0:")
            self.line("raise TooManyValues", 1)


def _var(field: Field) -> str:
    return f"v_{field.name}"


def _read_fixed(out: _Source, run: list[Field]) -> None:
    """Adjacent fields of fixed width are unpacked by one call."""
    if not run:
        return
    layout = struct.Struct(">" + "".join(FIXED[field.type] for field in run))
    unpack = out.bind("unpack", layout.unpack_from)
    out.line(f"{', '.join(_var(field) for field in run)}, = {unpack}(buf, p)")
    out.line(f"p += {layout.size}")
    for field in run:
        if field.type == "bool":
            _check_bool(out, field)


def _check_bool(out: _Source, field: Field) -> None:
    var = _var(field)
    out.line(f"if {var} > 1:")
    out.line(f"raise Malformed('{field.kafka_name}: a boolean is 0 or 1')", 1)
    out.line(f"{var} = {var} == 1")


def _read_length(out: _Source, kind: str) -> None:
    """Reads into n the length plus one, as compact lengths are written: 0 is null."""
    if out.flexible:
        out.line("n = buf[p]")
        out.line("p += 1")
        out.line("if n > 127:")
        out.line("n, p = read_uvarint(buf, p, n)", 1)
    elif kind == "string":
        out.line("n, p = read_short_length(buf, p)")
    else:
        out.line("n, p = read_long_length(buf, p)")


def _read_variable(out: _Source, field: Field) -> None:
    """A string, bytes, an array or a nested structure."""
    var = _var(field)
    nullable = field.nullable_at(out.version)
    if field.type == "struct":
        _read_struct(out, field, nullable)
        return
    _read_length(out, field.type)
    if field.type in ("[]int32", "[]uuid") and not nullable:
        _read_packed(out, field)
        return
    out.line("if n == 0:")
    if nullable:
        out.line(f"{var} = None", 1)
    else:
        out.line(f"raise Malformed('{field.kafka_name} may not be null')", 1)
    out.line("else:")
    out.indent(1)
    if field.type in ("[]int32", "[]uuid"):
        _read_packed(out, field)
    elif field.is_array:
        _read_items(out, field)
    else:
        _read_text_or_bytes(out, field)
    out.indent(-1)


def _read_text_or_bytes(out: _Source, field: Field) -> None:
    """A value of n - 1 bytes. Records are a view of the buffer and are never copied."""
    convert = {
        "string": "str(buf[p:n], 'utf-8')",
        "bytes": "bytes(buf[p:n])",
        "records": "memoryview(buf)[p:n]",
    }[field.type]
    out.line("n += p - 1")
    out.line("if n > end:")
    out.line(f"raise Malformed(f'{field.kafka_name} ends {{n - end}} bytes after the end')", 1)
    out.line(f"{_var(field)} = {convert}")
    out.line("p = n")


def _read_struct(out: _Source, field: Field, nullable: bool) -> None:
    if field.struct is None:
        raise TypeError(f"{field.name} has no structure")
    nested = out.bind("nested", compile_decoder(field.struct, out.version, out.flexible, out.left))
    var = _var(field)
    if not nullable:
        out.line(f"{var}, p = {nested}(buf, p, end)")
        return
    out.line("n = buf[p]")
    out.line("p += 1")
    out.line("if n == 255:")
    out.line(f"{var} = None", 1)
    out.line("elif n == 1:")
    out.line(f"{var}, p = {nested}(buf, p, end)", 1)
    out.line("else:")
    out.line(f"raise Malformed('{field.kafka_name}: a structure that may be null begins with 1 or -1')", 1)


def _read_packed(out: _Source, field: Field) -> None:
    """An array of int32 or uuids whose length plus one is in n."""
    var = _var(field)
    small, read, width = (
        ("SMALL_INTS", "read_ints", 4) if field.type == "[]int32" else ("SMALL_UUIDS", "read_uuids", 16)
    )
    out.take("n")
    out.line(f"{var} = {small}[n](buf, p) if n < {len(SMALL_INTS)} else {read}(buf, p, n - 1, end)")
    out.line(f"p += {width} * n - {width}")


def _read_items(out: _Source, field: Field) -> None:
    """An array whose length plus one is in n; the minimum size of an element bounds the count."""
    var = _var(field)
    out.line("n -= 1")
    out.take("n")
    if field.element_type in WIDTHS:
        letter, width = FIXED[field.element_type], WIDTHS[field.element_type]
        out.line(f"{var} = read_fixed(buf, p, n, end, {letter!r}, {width})")
        out.line(f"p += {width} * n")
        return
    least = 1 if out.flexible else 2
    if field.struct is not None:
        least = max(field.struct.min_size(out.version, out.flexible), 1)
    out.line(f"if n * {least} > end - p:")
    out.line(f"raise Malformed(f'{field.kafka_name} has {{n}} elements in {{end - p}} bytes')", 1)
    out.line("items = []")
    out.line("for _ in range(n):")
    out.indent(1)
    if field.struct is not None:
        nested = out.bind("nested", compile_decoder(field.struct, out.version, out.flexible, out.left))
        out.line(f"item, p = {nested}(buf, p, end)")
    else:
        _read_length(out, "string")
        out.line("n += p - 1")
        out.line("if n < p or n > end:")
        out.line(f"raise Malformed('{field.kafka_name}: an element is null or too long')", 1)
        out.line("item = str(buf[p:n], 'utf-8')")
        out.line("p = n")
    out.line("items.append(item)")
    out.indent(-1)
    out.line(f"{var} = tuple(items)")


def _read_tags(out: _Source, schema: StructSchema) -> None:
    tagged = schema.tagged_at(out.version)
    for field in tagged:
        out.line(f"{_var(field)} = {out.default(field)}")
    out.line("tags = ()")
    out.line("n = buf[p]")
    out.line("p += 1")
    out.line("if n:")
    out.indent(1)
    if not tagged and out.left is None:
        out.line("tags, p = read_unknown_tags(buf, p, n, end)")
        out.indent(-1)
        return
    out.line("if n > 127:")
    out.line("n, p = read_uvarint(buf, p, n)", 1)
    out.take("n")
    if not tagged:
        out.line("tags, p = read_counted_tags(buf, p, n, end)")
        out.indent(-1)
        return
    out.line("unknown = []")
    out.line("tag = -1")
    out.line("for _ in range(n):")
    out.indent(1)
    out.line("last = tag")
    # The heads of small fields are read here; all others by read_tag_head, which also has the error texts.
    out.line("tag = buf[p]")
    out.line("n = buf[p + 1]")
    out.line("stop = p + 2 + n")
    out.line("if tag > 127 or n > 127 or tag <= last or stop > end:")
    out.line("tag, stop, p = read_tag_head(buf, p, last, end)", 1)
    out.line("else:")
    out.line("p += 2", 1)
    for place, field in enumerate(tagged):
        out.line(f"{'elif' if place else 'if'} tag == {field.tag}:")
        out.indent(1)
        if field.type in FIXED:
            _read_fixed(out, [field])
        else:
            _read_variable(out, field)
        if field.none_on_wire is not None:
            out.line(f"if {_var(field)} == {field.none_on_wire!r}:")
            out.line(f"{_var(field)} = None", 1)
        out.indent(-1)
    out.line("else:")
    out.line("unknown.append((tag, bytes(buf[p:stop])))", 1)
    out.line("p = stop", 1)
    out.line("if p != stop:")
    out.line("raise Malformed(f'tagged field {tag} does not fill its size')", 1)
    out.indent(-1)
    out.line("tags = tuple(unknown)")
    out.indent(-1)


def _build(out: _Source, schema: StructSchema) -> None:
    fields = {field.name: field for field in schema.fields}
    if not fields:
        single = out.bind("single", schema.cls())
        out.line("if not tags:")
        out.line(f"return {single}, p", 1)
    arguments = []
    for name in schema.cls.__struct_fields__:
        if name == "unknown_tags":
            arguments.append("tags")
        elif not fields[name].exists_at(out.version):
            arguments.append(out.default(fields[name]))
        else:
            arguments.append(f"v_{name}")
    cls = out.bind("cls", schema.cls)
    out.line(f"return {cls}({', '.join(arguments)}), p")


# Functions that write one structure at one version.
# A writer is `f(value, out)`: it appends to a `bytearray`, or to `Chunks` if records are passed on
# without copying. An encoder is `f(value) -> bytes`. Both raise struct.error, Malformed,
# UnsupportedFieldError and what Python raises for a value of a wrong type.

Writer = Callable[[Any, bytearray], None]
Encoder = Callable[[Any], bytes]


def compile_encoder(schema: StructSchema, version: int, prefix: bytes = b"", hint: str = "") -> Encoder:
    """The encoder of one structure at one flexible version; its result starts with `prefix`.

    `hint` ends the error text for a field that the version cannot carry.
    """
    write = compile_writer(schema, version, hint=hint)

    def encode(value: Any) -> bytes:
        out = bytearray(prefix)
        write(value, out)
        return bytes(out)

    return encode


def compile_writer(schema: StructSchema, version: int, flexible: bool = True, hint: str = "") -> Writer:
    """The writer of one structure at one version; `flexible` versions are those of KIP-482."""
    out = SourceWriter(version, flexible)
    name = f"write_{schema.name}_v{version}"
    out.line(f"def {name}(record, out):")
    out.indent(1)
    for field in schema.absent_at(version):
        if not field.ignorable:
            _refuse(out, schema, field, hint)
    run: list[Field] = []
    for field in schema.fields_at(version):
        if field.type in FIXED:
            run.append(field)
            continue
        _write_fixed(out, run)
        run = []
        out.line(f"v = record.{field.name}")
        _write_variable(out, field, "out", hint)
    _write_fixed(out, run)
    if flexible:
        _write_tags(out, schema, hint)
    else:
        out.line("if record.unknown_tags:")
        text = f"{schema.name} version {version} has no tagged fields; leave unknown_tags empty"
        out.line(f"raise UnsupportedFieldError({text!r})", 1)
    writer: Writer = out.function(name)
    return writer


def _refuse(out: SourceWriter, schema: StructSchema, field: Field, hint: str) -> None:
    versions = f"since version {field.since}" if out.version < field.since else f"until {field.until}"
    reason = f"{schema.name} version {out.version} cannot carry {field.name} ({versions})"
    text = f"{reason}; leave it at its default{hint}"
    out.line(f"if record.{field.name} != {out.default(field)}:")
    out.line(f"raise UnsupportedFieldError({text!r})", 1)


def _write_fixed(out: SourceWriter, run: list[Field]) -> None:
    """Adjacent fields of fixed width are packed by one call."""
    if not run:
        return
    pack = out.bind("pack", struct.Struct(">" + "".join(FIXED[field.type] for field in run)).pack)
    for field in run:
        if field.type == "uuid":
            # struct would silently pad or truncate.
            out.line(f"if len(record.{field.name}) != 16:")
            out.line(f"raise Malformed('{field.name}: a uuid has 16 bytes')", 1)
    out.line(f"out += {pack}({', '.join(f'record.{field.name}' for field in run)})")


def _write_variable(out: SourceWriter, field: Field, target: str, hint: str) -> None:
    """Append the value in `v` to the buffer called `target`."""
    if field.nullable_at(out.version):
        out.line("if v is None:")
        out.line(f"{target} += {_null(out, field)!r}", 1)
        out.line("else:")
        out.indent(1)
    if field.struct is not None:
        _write_structs(out, field, target, hint)
    elif field.type == "records":
        _write_length(out, target)
        out.line(f"add_records({target}, v)")
    else:
        out.line(f"{target} += {_value_expression(out, field)}")
    if field.nullable_at(out.version):
        out.indent(-1)


def _null(out: SourceWriter, field: Field) -> bytes:
    if field.type == "struct":
        return b"\xff"
    if out.flexible:
        return b"\0"
    return b"\xff\xff" if field.type == "string" else b"\xff\xff\xff\xff"


def _write_structs(out: SourceWriter, field: Field, target: str, hint: str) -> None:
    """One structure, or an array of them."""
    if field.struct is None:
        raise TypeError(f"{field.name} has no structure")
    nested = out.bind("nested", compile_writer(field.struct, out.version, out.flexible, hint))
    if field.is_array:
        _write_length(out, target)
        out.line("if v.__class__ is Repeated:")
        out.line(f"{target} += v.written({nested})", 1)
        out.line("else:")
        out.line("for item in v:", 1)
        out.line(f"{nested}(item, {target})", 2)
        return
    if field.nullable_at(out.version):
        out.line(f"{target} += b'\\x01'")
    out.line(f"{nested}(v, {target})")


def _write_length(out: SourceWriter, target: str) -> None:
    """The length of the value in `v`. Short values, which are the most common, take one byte."""
    if not out.flexible:
        out.line(f"{target} += long_length(len(v))")
        return
    out.line("n = len(v) + 1")
    out.line("if n < 128:")
    out.line(f"{target}.append(n)", 1)
    out.line("else:")
    out.line(f"{target} += uvarint(n)", 1)


def _value_expression(out: SourceWriter, field: Field) -> str:
    """The bytes of the value in `v`."""
    compact = "" if out.flexible else "_classic"
    if field.type in ("string", "bytes", "[]int32", "[]uuid", "[]string"):
        name = {"[]int32": "ints", "[]uuid": "uuids", "[]string": "strings"}.get(field.type, field.type)
        return f"write_{name}{compact}(v)"
    if field.is_array:
        return f"write_fixed{compact}(v, {FIXED[field.element_type]!r})"
    return f"{out.bind('pack', struct.Struct('>' + FIXED[field.type]).pack)}(v)"


def _write_tags(out: SourceWriter, schema: StructSchema, hint: str) -> None:
    tagged = schema.tagged_at(out.version)
    defined = out.bind("defined", frozenset(field.tag for field in tagged))
    if not tagged:
        out.line(f"out += write_tags([], record.unknown_tags, {defined}) if record.unknown_tags else b'\\0'")
        return
    out.line("known = []")
    for field in tagged:
        out.line(f"v = record.{field.name}")
        condition = f"v != {out.default(field)}"
        if field.none_on_wire is not None:
            condition = f"v is not None and v != {field.none_on_wire!r}"
        out.line(f"if {condition}:")
        out.indent(1)
        if field.type in FIXED:
            if field.type == "uuid":
                out.line("if len(v) != 16:")
                out.line(f"raise Malformed('{field.name}: a uuid has 16 bytes')", 1)
            out.line(f"known.append(({field.tag}, {_value_expression(out, field)}))")
        else:
            out.line("part = bytearray()")
            _write_variable(out, field, "part", hint)
            out.line(f"known.append(({field.tag}, bytes(part)))")
        out.indent(-1)
    out.line("if known or record.unknown_tags:")
    out.line(f"out += write_tags(known, record.unknown_tags, {defined})", 1)
    out.line("else:")
    out.line("out.append(0)", 1)
