"""Functions that write one structure at one version.

Owns the code that writes a value. Does not know headers, nor why a value does not fit its field
(`wire.misfits`).

A writer is `f(value, out)`: it appends to a `bytearray`, or to `Chunks` if records are passed on without
copying. An encoder is `f(value) -> bytes`. Both raise struct.error, Malformed, UnsupportedFieldError and what
Python raises for a value of a wrong type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from metaquorum.wire.generator.source import FIXED, SourceWriter
from metaquorum.wire.schema import Field, StructSchema

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
        out.line("for item in v:")
        out.line(f"{nested}(item, {target})", 1)
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
