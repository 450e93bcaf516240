"""What a table and a column are, their Spark types, and the columns that most tables share.

Owns these definitions. Knows no table: those are in `tables` and `derived_tables`.
"""

from __future__ import annotations

import msgspec

STRING, INT, LONG, DOUBLE, BOOLEAN = "STRING", "INT", "BIGINT", "DOUBLE", "BOOLEAN"
TIME, DATE, INTS, STRINGS, LONGS = "TIMESTAMP", "DATE", "ARRAY<INT>", "ARRAY<STRING>", "ARRAY<BIGINT>"


class Column(msgspec.Struct, frozen=True):
    """One column: its name, its Spark type, its meaning."""

    name: str
    type: str
    meaning: str


class Table(msgspec.Struct, frozen=True):
    """One table. `key`: columns that order its rows within a cluster, unique there."""

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


CLUSTER = Column("cluster", STRING, "cluster id of meta.properties (partition column)")
DATE_COLUMN = Column("date", DATE, "UTC day (partition column)")
INTERVAL = (
    Column("from_offset", LONG, "offset of the record that made this state"),
    Column("from_time", TIME, "timestamp of its batch"),
    Column("to_offset", LONG, "offset of the record that made the next state; null: ongoing"),
    Column("to_time", TIME, "when the state ended; null: ongoing"),
    Column("from_known", BOOLEAN, "false: the state is older than the log and comes from a snapshot"),
    Column("to_known", BOOLEAN, "false: its end is unknown, the records from `to_offset` on are in no log"),
)
ACTOR = Column(
    "actor",
    STRING,
    "principal whose request caused the row, or the rule by which the controller acted "
    "(docs/log-tools.md); null: the log does not say",
)
CAUSED = (*INTERVAL, ACTOR)
"""The interval of a state, with its cause: a request, or a rule of the controller."""
EVENT = (
    Column("offset", LONG, "offset of that record"),
    Column("time", TIME, "timestamp of its batch"),
    Column("epoch", INT, "the quorum's leader epoch"),
)


def make_table(name: str, meaning: str, key: tuple[str, ...], *columns: Column) -> Table:
    """A table with the partition columns around its own."""
    return Table(name, meaning, key, (CLUSTER, *columns, DATE_COLUMN))
