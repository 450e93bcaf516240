"""Turns the table in `schema` into decode and encode functions, one pair per structure and version.

Owns the generated source and nothing else: no record is named here. A metadata log is decoded one record at a
time, millions of times, so the interpretation of the table happens once, when the codec is imported, and what
remains is straight-line code with the short forms of varints inline.

A decoder is `f(buf, position, end) -> (record, position after it)`. It may read past `end` and says so by the
position that it returns; the caller compares. An encoder is `f(record) -> bytes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.records import primitives as wire
from metaquorum.metadata.records.schema import Field, StructSchema

Decoder = Callable[[wire.Buffer, int, int], tuple[Any, int]]
Encoder = Callable[[Any], bytes]

_FIXED = {
    "bool": "B",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


class _Writer:
    """Lines of a function under construction, the objects that they name, and fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Malformed": wire.Malformed,
            "UnsupportedVersionError": UnsupportedVersionError,
            "uvarint": wire.uvarint,
            "read_uvarint": wire.read_uvarint,
            "read_unknown_tags": wire.read_unknown_tags,
            "read_tag_head": wire.read_tag_head,
            "read_ints": wire.read_ints,
            "read_uuids": wire.read_uuids,
            "SMALL_INTS": wire.SMALL_INTS,
            "SMALL_UUIDS": wire.SMALL_UUIDS,
            "write_tags": wire.write_tags,
            "write_ints": wire.write_ints,
            "write_uuids": wire.write_uuids,
            "write_strings": wire.write_strings,
            "write_string": wire.write_string,
            "write_bytes": wire.write_bytes,
        }
        self._depth = 0

    def line(self, text: str, depth: int = 0) -> None:
        self.lines.append("    " * (self._depth + depth) + text)

    def indent(self, by: int) -> None:
        self._depth += by

    def bind(self, prefix: str, value: Any) -> str:
        """A name under which the generated code finds `value`."""
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, name: str) -> Any:
        """Compile the lines and return the function called `name`."""
        source = "\n".join(self.lines)
        exec(compile(source, f"<{name}>", "exec"), self.names)  # the source is made of the table only
        return self.names[name]


def compile_decoder(schema: StructSchema, version: int) -> Decoder:
    """The decoder of one structure at one version."""
    out = _Writer()
    name = f"decode_{schema.name}_v{version}"
    out.line(f"def {name}(buf, p, end):")
    out.indent(1)
    run: list[Field] = []
    for field in schema.fields_at(version):
        if field.type in _FIXED:
            run.append(field)
            continue
        _read_fixed(out, run)
        run = []
        _read_variable(out, field, version)
    _read_fixed(out, run)
    _read_tags(out, schema, version)
    _build(out, schema, version)
    decoder: Decoder = out.function(name)
    return decoder


def _var(field: Field) -> str:
    return f"v_{field.name}"


def _read_fixed(out: _Writer, run: list[Field]) -> None:
    """Neighbours of fixed width are unpacked by one call."""
    if not run:
        return
    layout = struct.Struct(">" + "".join(_FIXED[field.type] for field in run))
    unpack = out.bind("unpack", layout.unpack_from)
    out.line(f"{', '.join(_var(field) for field in run)}, = {unpack}(buf, p)")
    out.line(f"p += {layout.size}")
    for field in run:
        if field.type == "bool":
            _check_bool(out, field)


def _check_bool(out: _Writer, field: Field) -> None:
    var = _var(field)
    out.line(f"if {var} > 1:")
    out.line(f"raise Malformed('{field.kafka_name}: a boolean is 0 or 1')", 1)
    out.line(f"{var} = {var} == 1")


def _read_length(out: _Writer) -> None:
    out.line("n = buf[p]")
    out.line("p += 1")
    out.line("if n > 127:")
    out.line("n, p = read_uvarint(buf, p, n)", 1)


def _read_variable(out: _Writer, field: Field, version: int) -> None:
    """A string, bytes, an array or a nested structure."""
    var = _var(field)
    if field.type == "struct":
        if field.struct is None:
            raise TypeError(f"{field.name} has no structure")
        nested = out.bind("nested", compile_decoder(field.struct, version))
        out.line(f"{var}, p = {nested}(buf, p, end)")
        return
    _read_length(out)
    if field.type in ("[]int32", "[]uuid") and not field.nullable:
        _read_packed(out, field)
        return
    out.line("if n == 0:")
    if field.nullable:
        out.line(f"{var} = None", 1)
    else:
        out.line(f"raise Malformed('{field.kafka_name} may not be null')", 1)
    out.line("else:")
    out.indent(1)
    if field.type in ("[]int32", "[]uuid"):
        _read_packed(out, field)
    elif field.is_array:
        _read_items(out, field, version)
    else:
        out.line("n += p - 1")
        out.line("if n > end:")
        out.line(f"raise Malformed(f'{field.kafka_name} ends {{n - end}} bytes after the record')", 1)
        convert = "str(buf[p:n], 'utf-8')" if field.type == "string" else "bytes(buf[p:n])"
        out.line(f"{var} = {convert}")
        out.line("p = n")
    out.indent(-1)


def _read_packed(out: _Writer, field: Field) -> None:
    """An array of int32 or uuids whose compact length is in n."""
    var = _var(field)
    small, read, width = (
        ("SMALL_INTS", "read_ints", 4) if field.type == "[]int32" else ("SMALL_UUIDS", "read_uuids", 16)
    )
    out.line(f"{var} = {small}[n](buf, p) if n < {len(wire.SMALL_INTS)} else {read}(buf, p, n - 1, end)")
    out.line(f"p += {width} * n - {width}")


def _read_items(out: _Writer, field: Field, version: int) -> None:
    """An array of strings or structures; every element has at least a byte, which bounds the count."""
    var = _var(field)
    out.line("n -= 1")
    out.line("if n > end - p:")
    out.line(f"raise Malformed(f'{field.kafka_name} has {{n}} elements in {{end - p}} bytes')", 1)
    out.line("items = []")
    out.line("for _ in range(n):")
    out.indent(1)
    if field.struct is not None:
        nested = out.bind("nested", compile_decoder(field.struct, version))
        out.line(f"item, p = {nested}(buf, p, end)")
    else:
        _read_length(out)
        out.line("n += p - 1")
        out.line("if n < p or n > end:")
        out.line(f"raise Malformed('{field.kafka_name}: an element is null or too long')", 1)
        out.line("item = str(buf[p:n], 'utf-8')")
        out.line("p = n")
    out.line("items.append(item)")
    out.indent(-1)
    out.line(f"{var} = tuple(items)")


def _default(out: _Writer, field: Field) -> str:
    if field.default is None or isinstance(field.default, bool | int) or field.default == ():
        return repr(field.default)
    return out.bind("default", field.default)


def _read_tags(out: _Writer, schema: StructSchema, version: int) -> None:
    tagged = schema.tagged_at(version)
    for field in tagged:
        out.line(f"{_var(field)} = {_default(out, field)}")
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
    # The heads of small fields are read here; everything else by read_tag_head, which also has the texts.
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
        if field.type in _FIXED:
            _read_fixed(out, [field])
        else:
            _read_variable(out, field, version)
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


def _build(out: _Writer, schema: StructSchema, version: int) -> None:
    fields = {field.name: field for field in schema.fields}
    if not fields:
        single = out.bind("single", schema.cls())
        out.line("if not tags:")
        out.line(f"return {single}, p", 1)
    arguments = []
    for name in schema.cls.__struct_fields__:
        if name == "unknown_tags":
            arguments.append("tags")
        elif fields[name].since > version:
            arguments.append(_default(out, fields[name]))
        else:
            arguments.append(f"v_{name}")
    cls = out.bind("cls", schema.cls)
    out.line(f"return {cls}({', '.join(arguments)}), p")


def compile_encoder(schema: StructSchema, version: int, prefix: bytes = b"") -> Encoder:
    """The encoder of one structure at one version; what it returns starts with `prefix`."""
    out = _Writer()
    name = f"encode_{schema.name}_v{version}"
    out.line(f"def {name}(record):")
    out.indent(1)
    for field in schema.absent_at(version):
        out.line(f"if record.{field.name} != {_default(out, field)}:")
        reason = f"{schema.name} version {version} cannot carry {field.name} (since version {field.since})"
        text = f"{reason}; leave it at its default, or raise the metadata.version"
        out.line(f"raise UnsupportedVersionError({text!r})", 1)
    out.line(f"out = bytearray({prefix!r})")
    run: list[Field] = []
    for field in schema.fields_at(version):
        if field.type in _FIXED:
            run.append(field)
            continue
        _write_fixed(out, run)
        run = []
        out.line(f"v = record.{field.name}")
        _write_variable(out, field, version)
    _write_fixed(out, run)
    _write_tags(out, schema, version)
    out.line("return bytes(out)")
    encoder: Encoder = out.function(name)
    return encoder


def _write_fixed(out: _Writer, run: list[Field]) -> None:
    if not run:
        return
    pack = out.bind("pack", struct.Struct(">" + "".join(_FIXED[field.type] for field in run)).pack)
    for field in run:
        if field.type == "uuid":
            # struct would silently pad or cut.
            out.line(f"if len(record.{field.name}) != 16:")
            out.line(f"raise Malformed('{field.name}: a uuid has 16 bytes')", 1)
    out.line(f"out += {pack}({', '.join(f'record.{field.name}' for field in run)})")


def _write_variable(out: _Writer, field: Field, version: int) -> None:
    """Append the value in `v`."""
    if field.nullable:
        out.line("if v is None:")
        out.line("out.append(0)", 1)
        out.line("else:")
        out.indent(1)
    if field.struct is not None:
        nested = out.bind("nested", compile_encoder(field.struct, version))
        if field.is_array:
            out.line("out += uvarint(len(v) + 1)")
            out.line("for item in v:")
            out.line(f"out += {nested}(item)", 1)
        else:
            out.line(f"out += {nested}(v)")
    else:
        out.line(f"out += {_value_expression(out, field)}")
    if field.nullable:
        out.indent(-1)


def _value_expression(out: _Writer, field: Field) -> str:
    writers = {
        "string": "write_string(v)",
        "bytes": "write_bytes(v)",
        "[]int32": "write_ints(v)",
        "[]uuid": "write_uuids(v)",
        "[]string": "write_strings(v)",
    }
    if field.type in writers:
        return writers[field.type]
    return f"{out.bind('pack', struct.Struct('>' + _FIXED[field.type]).pack)}(v)"


def _write_tags(out: _Writer, schema: StructSchema, version: int) -> None:
    tagged = schema.tagged_at(version)
    defined = out.bind("defined", frozenset(field.tag for field in tagged))
    if not tagged:
        out.line(f"out += write_tags([], record.unknown_tags, {defined}) if record.unknown_tags else b'\\0'")
        return
    out.line("known = []")
    for field in tagged:
        out.line(f"v = record.{field.name}")
        condition = f"v != {_default(out, field)}"
        if field.none_on_wire is not None:
            condition = f"v is not None and v != {field.none_on_wire!r}"
        out.line(f"if {condition}:")
        out.line(f"known.append(({field.tag}, {_value_expression(out, field)}))", 1)
    out.line("if known or record.unknown_tags:")
    out.line(f"out += write_tags(known, record.unknown_tags, {defined})", 1)
    out.line("else:")
    out.line("out.append(0)", 1)
