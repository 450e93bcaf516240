"""Writes `messages.pyi`, the types of all requests, responses and stored records, from the table.

Run `python -m metaquorum.wire.stubs > wire/messages.pyi` after a change of the table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.platforms import end_without_reader
from metaquorum.wire.schema import Field, StructSchema
from metaquorum.wire.stored import stored_structures
from metaquorum.wire.table import APIS, request_type, response_type

_HEAD = '''"""The classes of the messages and stored records, made by `python -m metaquorum.wire.stubs`."""

import msgspec

from metaquorum.wire.primitives import Buffer, Tags
'''
_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
    "uuid": "bytes",
}


def _type_of(field: Field, message: str) -> str:
    name = _TYPES.get(field.element_type, "int")
    if field.struct is not None:
        name = f"{message}.{field.struct.name}"
    name = f"tuple[{name}, ...]" if field.is_array else name
    return f"{name} | None" if field.nullable else name


def _structures(schema: StructSchema) -> dict[str, StructSchema]:
    structures: dict[str, StructSchema] = {}
    for field in schema.fields:
        if field.struct is not None:
            structures |= _structures(field.struct)
            structures[field.struct.name] = field.struct
    return structures


def _class(schema: StructSchema, message: str, indent: str = "") -> Iterator[str]:
    yield f"{indent}class {schema.name}(msgspec.Struct, frozen=True, kw_only=True):"
    if not indent:
        for structure in _structures(schema).values():
            yield from _class(structure, message, "    ")
    for field in schema.fields:
        yield f"{indent}    {field.name}: {_type_of(field, message)} = ..."
    yield f"{indent}    unknown_tags: Tags = ..."


def stub_text() -> str:
    """The whole stub file."""
    lines = [_HEAD]
    for key in APIS:
        for kind in (request_type(key), response_type(key)):
            lines += [*_class(kind.schema, kind.name), ""]
    for name, schema in stored_structures().items():
        lines += [*_class(schema, name), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    end_without_reader()
    print(stub_text(), end="")
