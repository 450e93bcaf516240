"""All Arrow tables of the data source, by the option `type`: their schemas and their rows.

Owns the choice between the wide view, typed tables and damage. Does not build columns: `wide` and `typed` do;
the interval tables are not here but in `pipeline.tables`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from metaquorum.pipeline.arrow.base import same
from metaquorum.pipeline.arrow.fields import typed_schema
from metaquorum.pipeline.arrow.typed import typed_batches
from metaquorum.pipeline.arrow.wide import WIDE_SCHEMA, wide_batches
from metaquorum.pipeline.logs.damage import Dialect, log_damage
from metaquorum.pipeline.logs.pieces import Piece, read_piece, undamaged
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.log.reader import Damage

ALL, DAMAGE = "all", "damage"
DAMAGE_SCHEMA = pa.schema(
    [
        ("cluster", pa.string()),
        ("node_id", pa.int32()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("offset", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
    ]
)


def arrow_schema_of(type_name: str) -> pa.Schema:
    """The columns of `all`, `damage` or a record type."""
    if type_name == ALL:
        return WIDE_SCHEMA
    return DAMAGE_SCHEMA if type_name == DAMAGE else typed_schema(type_name)


def record_batches(
    type_name: str, piece: Piece, selection: Selection, *, whole_to: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a piece, as the wide view or as one type's table. `whole_to`: raises DamagedError for
    damage before that offset, which is otherwise left out."""
    items = read_piece(StoreDisk(), piece)
    if whole_to is not None:
        items = undamaged(items, piece.from_offset or piece.offset or 0, whole_to)
    wanted = (item for item in items if isinstance(item, Damage) or selection.may_hold(item.header))
    bounded = _within(piece, selection)
    if type_name == ALL:
        yield from wide_batches(piece, wanted, bounded)
    else:
        yield from typed_batches(type_name, piece, wanted, bounded)


def _within(piece: Piece, selection: Selection) -> Selection:
    """The selection, limited to the piece's range of offsets."""
    low = [at for at in (selection.from_offset, piece.from_offset) if at is not None]
    high = [at for at in (selection.to_offset,) if at is not None]
    high += [piece.to_offset - 1] if piece.to_offset is not None else []
    return Selection(
        types=selection.types,
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        from_offset=max(low) if low else None,
        to_offset=min(high) if high else None,
        secrets=selection.secrets,
    )


def damage_batches(place: LogPlace, dialect: Dialect | None) -> Iterator[pa.RecordBatch]:
    """The damage of one log."""
    rows = list(log_damage(StoreDisk(), place, dialect))
    count = len(rows)
    if count:
        columns = [
            same(place.cluster, count, pa.string()),
            same(place.node_id, count, pa.int32()),
            pa.array([row.file for row in rows], pa.string()),
            pa.array([row.position for row in rows], pa.int64()),
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.kind for row in rows], pa.string()),
            pa.array([row.reason for row in rows], pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=DAMAGE_SCHEMA)
