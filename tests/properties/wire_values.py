"""Random messages drawn from the table of requests and responses."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from metaquorum.wire.schema import INT_RANGES, Field, StructSchema

OWN_TAGS = 10_000
"""From here on, tagged fields are ours and not Kafka's."""
TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("x" * 200)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "string": TEXT,
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=40) | st.sampled_from([bytes(1023), bytes(1024), b"r" * 3000]),
    "uuid": st.binary(min_size=16, max_size=16),
    **{
        kind: st.integers(low, high) | st.sampled_from([low, high])
        for kind, (low, high) in INT_RANGES.items()
    },
}


def values(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """The possible values of `field` at `version`."""
    if not field.exists_at(version):
        return st.just(field.default)
    if field.struct is not None:
        value = messages(field.struct, version, flexible)
    else:
        value = SCALARS[field.element_type]
    if field.is_array:
        value = st.lists(value, max_size=3).map(tuple)
        if field.element_type == "int32":
            value |= st.lists(st.integers(0, 9), min_size=14, max_size=40).map(tuple)
    return st.none() | value if field.nullable_at(version) else value


def messages(schema: StructSchema, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """A message or structure with any content that `version` can carry."""
    known = {field.tag for field in schema.tagged_at(version)}
    tags = st.just(())
    if flexible:
        tags |= st.dictionaries(
            st.integers(0, 2**31 - 2).filter(lambda tag: tag not in known),
            st.binary(max_size=8) | st.just(bytes(130)),
            max_size=2,
        ).map(lambda drawn: tuple(sorted(drawn.items())))
    fields = {field.name: values(field, version, flexible) for field in schema.fields}
    return st.builds(schema.cls, unknown_tags=tags, **fields)


def kafkas_fields(schema: StructSchema, version: int) -> list[Field]:
    """All except ours, in the order of the wire."""
    tagged = [field for field in schema.tagged_at(version) if (field.tag or 0) < OWN_TAGS]
    return [*schema.fields_at(version), *tagged]


def filled(schema: StructSchema, version: int, rng: random.Random) -> Any:
    """A message or structure with a value in every field of Kafka's that `version` has; deterministic in
    `rng`."""
    made: dict[str, Any] = {}
    for field in kafkas_fields(schema, version):
        count = rng.randrange(1, 3 if field.struct else 20) if field.is_array else 1
        items = tuple(_filled_one(field, version, rng) for _ in range(count))
        made[field.name] = items if field.is_array else items[0]
    return schema.cls(**made)


def _filled_one(field: Field, version: int, rng: random.Random) -> Any:
    if field.struct is not None:
        return filled(field.struct, version, rng)
    match field.element_type:
        case "string":
            return "é" * rng.randrange(1, 100)
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(3000 if field.type == "records" else 200))
        case "uuid":
            return rng.randbytes(16)
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
    return rng.randrange(1, 100)
