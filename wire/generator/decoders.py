"""Functions that read one structure at one version.

Owns the code that reads a value. Does not know headers, nor which field bytes fail at (`wire.explain`).

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

from metaquorum.wire.generator.source import FIXED, SourceWriter
from metaquorum.wire.primitives import SMALL_INTS, Buffer
from metaquorum.wire.schema import WIDTHS, Field, StructSchema

Decoder = Callable[[Buffer, int, int], tuple[Any, int]]


def compile_decoder(schema: StructSchema, version: int, flexible: bool = True) -> Decoder:
    """The decoder of one structure at one version; `flexible` versions are those of KIP-482."""
    out = SourceWriter(version, flexible)
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


def _var(field: Field) -> str:
    return f"v_{field.name}"


def _read_fixed(out: SourceWriter, run: list[Field]) -> None:
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


def _check_bool(out: SourceWriter, field: Field) -> None:
    var = _var(field)
    out.line(f"if {var} > 1:")
    out.line(f"raise Malformed('{field.kafka_name}: a boolean is 0 or 1')", 1)
    out.line(f"{var} = {var} == 1")


def _read_length(out: SourceWriter, kind: str) -> None:
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


def _read_variable(out: SourceWriter, field: Field) -> None:
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


def _read_text_or_bytes(out: SourceWriter, field: Field) -> None:
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


def _read_struct(out: SourceWriter, field: Field, nullable: bool) -> None:
    if field.struct is None:
        raise TypeError(f"{field.name} has no structure")
    nested = out.bind("nested", compile_decoder(field.struct, out.version, out.flexible))
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


def _read_packed(out: SourceWriter, field: Field) -> None:
    """An array of int32 or uuids whose length plus one is in n."""
    var = _var(field)
    small, read, width = (
        ("SMALL_INTS", "read_ints", 4) if field.type == "[]int32" else ("SMALL_UUIDS", "read_uuids", 16)
    )
    out.line(f"{var} = {small}[n](buf, p) if n < {len(SMALL_INTS)} else {read}(buf, p, n - 1, end)")
    out.line(f"p += {width} * n - {width}")


def _read_items(out: SourceWriter, field: Field) -> None:
    """An array whose length plus one is in n; the minimum size of an element bounds the count."""
    var = _var(field)
    out.line("n -= 1")
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
        nested = out.bind("nested", compile_decoder(field.struct, out.version, out.flexible))
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


def _read_tags(out: SourceWriter, schema: StructSchema) -> None:
    tagged = schema.tagged_at(out.version)
    for field in tagged:
        out.line(f"{_var(field)} = {out.default(field)}")
    out.line("tags = ()")
    out.line("n = buf[p]")
    out.line("p += 1")
    out.line("if n:")
    out.indent(1)
    if not tagged:
        out.line("tags, p = read_unknown_tags(buf, p, n, end)")
        out.indent(-1)
        return
    out.line("if n > 127:")
    out.line("n, p = read_uvarint(buf, p, n)", 1)
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


def _build(out: SourceWriter, schema: StructSchema) -> None:
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
