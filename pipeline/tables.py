"""The tables that the pipeline writes: names, columns, types and the meaning of each column.

A table is a set of Parquet files by `cluster` and `date`, which `read_tables` opens. Times are UTC with
microseconds (the logs have milliseconds). An interval holds from `from_offset` (the record that made the
state; of a metadata transaction, its last one) until `to_offset` (the record that made the next state).
`to_offset` and `to_time` are null while the state lasts. `from_known` is false if the state existed before
the log's first record (it comes from a snapshot), so that it may have begun earlier. `to_known` is false if
the log breaks off at `to_offset`, so that it may have lasted longer (see `coverage`). `date` is the UTC day
of `from_time`, `time` or `timestamp`; of damage and files, of the record before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from metaquorum.metadata.inspect.log.coverage import MISSING, NOT_IN_LOG, STATE_UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa


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


BROKER_OUT, DIRECTORY_LOST = "broker-out", "directory-lost"
QUORUM_SILENT, LEADER_CHANGED = "quorum-silent", "leader-changed"
RETURNED, UNREGISTERED = "returned", "unregistered"

INCIDENTS = make_table(
    "incidents",
    "what went wrong: one row for each broker that could not serve, each lost log directory, each change of "
    "the quorum's leader, each silence of the quorum",
    ("from_offset", "what", "who"),
    Column(
        "what",
        STRING,
        f"{BROKER_OUT} (from the record that took an active broker out of service to the one that brought it "
        f"back), {DIRECTORY_LOST} (to the next registration of the broker), {LEADER_CHANGED} (another "
        f"controller leads the quorum: from the last record of the one before), {QUORUM_SILENT} (nothing was "
        "written, although an idle quorum writes)",
    ),
    Column("who", STRING, "entity path: broker/3, controller/3000, quorum"),
    Column(
        "cause",
        STRING,
        "rule by which the cause is derived, as `metaquorum log why` names it (--rules lists them); null: it "
        "began before the log, or no rule is about it",
    ),
    Column("ended_by", STRING, f"of a broker: {RETURNED}, {UNREGISTERED}; null: ongoing, or another kind"),
    Column("partitions", INT, "partitions in which it lost the leadership or left the ISR because of it"),
    Column("leaders", INT, "of them, those that it led"),
    Column("leaderless", INT, "of those, the ones that then had no leader"),
    Column(
        "leaderless_ms",
        LONG,
        "longest time that one of them had no leader before the incident ended, without time in which the "
        "cluster was off or its quorum silent; null: all had one",
    ),
    *CAUSED,
)
UPGRADES = make_table(
    "upgrades",
    "feature levels of the cluster, and software levels of its nodes, over time",
    ("what", "name", "from_offset"),
    Column("what", STRING, "feature (finalized), broker or controller (what the software supports)"),
    Column("name", STRING, "name of the feature, or entity path: broker/3, controller/3000"),
    Column("level", INT, "level; of a node the highest metadata.version that it supports"),
    Column(
        "level_name", STRING, "metadata.version by name, as in 3.7-IV4; null: unknown, or a feature without"
    ),
    Column("level_before", INT, "level of the row before; null: there is none"),
    *CAUSED,
)
PLACEMENT = make_table(
    "placement",
    "where replicas and leaders were at the end of each UTC day (on the last day: of the log): one row for "
    "each broker that is registered or holds a replica",
    ("date", "broker_id"),
    Column("offset", LONG, "offset of the last batch of that day"),
    Column("time", TIME, "its time, by a clock that never runs backwards"),
    Column("broker_id", INT, "broker"),
    Column("rack", STRING, "its rack; null: none, or it is not registered"),
    Column("state", STRING, "fenced, active or controlled_shutdown; null: it is not registered"),
    Column("leaders", INT, "partitions that it leads"),
    Column("preferred", INT, "partitions that it should lead: it is their first replica"),
    Column("replicas", INT, "replicas assigned to it"),
    Column("in_sync", INT, "of them, those in an ISR"),
    Column("directories", STRINGS, "log directories that are registered or hold a replica, sorted"),
    Column("directory_replicas", INTS, "replicas in each of `directories`, in their order"),
    Column("leaders_to_mean", DOUBLE, "leaders divided by the mean over the rows of that day; null: mean 0"),
    Column("replicas_to_mean", DOUBLE, "the same of replicas: 1.0 is even"),
)
IDS = make_table(
    "ids",
    "where each broker id ran: a row for each period in which it registered with the same hosts, rack and "
    "log directories",
    ("broker_id", "from_offset"),
    Column("broker_id", INT, "broker"),
    Column("hosts", STRINGS, "hosts of its listeners, sorted"),
    Column("rack", STRING, "its rack; null: none"),
    Column("directories", STRINGS, "log directories that it registered with, sorted"),
    Column(
        "moved",
        STRING,
        "what differs from the row before: of hosts rack directories, joined by commas; null: no row before",
    ),
    Column(
        "processes", INT, "processes (incarnations) that registered with these values, one after the other"
    ),
    *CAUSED,
)
DERIVED = (INCIDENTS, UPGRADES, PLACEMENT, IDS)

NODE = Column("node_id", INT, "node whose log it was read from; null where nothing names it")
PARTITION = (
    Column("topic", STRING, "topic name"),
    Column("topic_id", STRING, "topic id"),
    Column("partition", INT, "partition index"),
)
RECORDS = make_table(
    "records",
    "every record once, even if several nodes' logs have it",
    ("offset", "epoch"),
    NODE,
    Column("file", STRING, "segment or checkpoint that it was read from"),
    Column("offset", LONG, "offset in the log; in a checkpoint its place in the file"),
    Column("epoch", INT, "leader epoch of its batch"),
    Column("timestamp", TIME, "its timestamp"),
    Column("type", STRING, "record type, as in PARTITION_CHANGE_RECORD or LEADER_CHANGE"),
    Column("version", INT, "schema version that it was written in"),
    Column("control", BOOLEAN, "true for records of the quorum itself"),
    Column("payload", STRING, "JSON, as `metaquorum log dump --json` prints it"),
)
DAMAGE = make_table(
    "damage",
    "what was unreadable or untrusted, and left out: nothing is skipped silently",
    ("file", "position", "offset", "kind", "reason"),
    NODE,
    Column("file", STRING, "the file"),
    Column("position", LONG, "first byte that is wrong"),
    Column("offset", LONG, "offset that was expected there"),
    Column(
        "kind",
        STRING,
        "tail (bytes after the last whole batch), corrupt (a batch or gap in the middle), undecodable, "
        "unknown (record type or version), superseded (another node's log has another leader epoch there), "
        "mismatch (two nodes' logs differ at one offset and epoch), unreadable (it cannot be opened), "
        "missing (records or a snapshot that no log holds), seam (a snapshot differs from the log up to it), "
        "shared-id (another cluster has this id too)",
    ),
    Column("reason", STRING, "what was expected and what was found"),
)
FILES = make_table(
    "files",
    "the files that the tables were built from",
    ("file",),
    NODE,
    Column("file", STRING, "segment or checkpoint"),
    Column("bytes", LONG, "its size when it was read"),
    Column("start_offset", LONG, "first offset in it"),
    Column("end_offset", LONG, "offset after its last record that was read"),
    Column("used", BOOLEAN, "false: none of it is in the other tables"),
    Column("reason", STRING, "why it was not used; null: it was"),
)
KNOWN = "known"
UNOBSERVED, OFF = "unobserved", "off"
"""States of `coverage` that are sections of time, beside those of offsets."""
COVERAGE = make_table(
    "coverage",
    "what is known about each part of the history: every offset from 0 to the end, once; and (unobserved, "
    "off) periods in which no broker had to serve, or in which it is unknown whether one did",
    ("from_offset", "state"),
    Column(
        "state",
        STRING,
        f"{KNOWN}; as in `metaquorum log`: {STATE_UNKNOWN} (the records are there, and no snapshot says "
        f"what the state was: the other tables have what single records show), {MISSING} (in no log, "
        f"between two that are there), {NOT_IN_LOG} (before the first log); {UNOBSERVED} (nothing was "
        f"written before the record at from_offset, although an idle quorum writes: it was down); {OFF} "
        "(the last broker had shut down cleanly, and none was back)",
    ),
    Column("from_offset", LONG, "first offset"),
    Column("from_time", TIME, "time of the previous record, or of the first if none precedes it"),
    Column("to_offset", LONG, "offset after the last"),
    Column("to_time", TIME, "time of the last record, or of the first after it"),
    Column("records", LONG, "records that were read in it"),
    Column("left_out", LONG, "of them, those that change something unknown"),
    Column("reason", STRING, "why it is not known; null: it is"),
)
QUORUM_EPOCHS = make_table(
    "quorum_epochs",
    "leader epochs of the quorum",
    ("from_offset",),
    Column("epoch", INT, "leader epoch"),
    Column("leader_id", INT, "leader; null if the log does not say (it has no LEADER_CHANGE)"),
    Column("voters", INTS, "voter ids of the LEADER_CHANGE record"),
    Column("granting_voters", INTS, "voters that elected it"),
    Column("last_voters", INTS, "voters at its end: from kraft.version 1 on, a leader may change them"),
    Column("kraft_version", INT, "finalized kraft.version at its end; null: unknown"),
    Column("records", LONG, "records that it wrote, including the LEADER_CHANGE"),
    Column(
        "skipped_epochs",
        INT,
        "epochs between the previous one and this one: elections without a winner; null: unknown",
    ),
    *INTERVAL,
)
VOTER_SETS = make_table(
    "voter_sets",
    "voters of the quorum: one row for each period in which the set did not change",
    ("from_offset",),
    Column("voters", INTS, "their node ids"),
    Column(
        "voter_set",
        STRINGS,
        "from kraft.version 1 on, as `storage format` takes them: id@host:port:directory-id; else null",
    ),
    Column("kraft_version", INT, "finalized kraft.version; null: unknown"),
    Column("changed", STRING, "what differs from the row before, in words; null: no row before, or a gap"),
    Column("epoch", INT, "epoch of the leader that wrote it; null: it comes from a snapshot"),
    Column("leader_id", INT, "that leader; null: unknown"),
    *INTERVAL,
)
BROKER_SESSIONS = make_table(
    "broker_sessions",
    "broker states: one row for each period of one registration in one state",
    ("broker_id", "from_offset"),
    Column("broker_id", INT, "broker"),
    Column("broker_epoch", LONG, "its registration: the offset of the record"),
    Column("incarnation_id", STRING, "the process; null: its registration is in no log"),
    Column("rack", STRING, "its rack; null: none, or unknown like the process"),
    Column("state", STRING, "fenced, active or controlled_shutdown"),
    Column("directories", STRINGS, "online log directories, sorted; null: unknown"),
    Column("began_by", STRING, "type of the record that made the state; null: it comes from a snapshot"),
    Column("ended_by", STRING, "type of the record that ended it; null: ongoing"),
    *CAUSED,
)
PARTITION_STATES = make_table(
    "partition_states",
    "partition states: one row for each period without a change",
    ("topic_id", "partition", "from_offset"),
    *PARTITION,
    Column("leader", INT, "broker that leads; -1: none"),
    Column("leader_epoch", INT, "the partition's leader epoch"),
    Column("partition_epoch", INT, "the partition's epoch"),
    Column("replicas", INTS, "brokers that hold it, preferred leader first"),
    Column("isr", INTS, "brokers in sync"),
    Column("directories", STRINGS, "log directory of each replica, in the order of `replicas`"),
    Column("adding", INTS, "replicas that a reassignment adds"),
    Column("removing", INTS, "replicas that a reassignment removes"),
    Column("recovering", BOOLEAN, "the leader was elected uncleanly and has not recovered yet"),
    Column("unclean", BOOLEAN, "this state began with an unclean election"),
    Column(
        "changed",
        STRING,
        "what differs from the state before: created, or of leader isr replicas "
        "directories reassignment recovery elr epoch, joined by commas; null: comes from a snapshot",
    ),
    Column("removed", BOOLEAN, "true: the state ended because the topic was deleted"),
    *CAUSED,
)
TOPICS = make_table(
    "topics",
    "lifetimes of topics",
    ("topic_id",),
    Column("topic", STRING, "name"),
    Column("topic_id", STRING, "id; a topic that is created again has another"),
    Column("partitions", INT, "partitions at the end of its lifetime or of the log"),
    *CAUSED,
)
CONFIGS = make_table(
    "configs",
    "configuration values; a key without a row is at its default",
    ("resource_type", "resource", "name", "from_offset"),
    Column("resource_type", STRING, "topic, broker, broker-logger, client-metrics, group"),
    Column("resource", STRING, "topic name or broker id; <default>: every broker"),
    Column("name", STRING, "the key"),
    Column("value", STRING, "the value"),
    *CAUSED,
)
LOG_DIR_EVENTS = make_table(
    "log_dir_events",
    "log directories of brokers: found, lost, and replicas that moved between them",
    ("offset", "broker_id", "event", "directory_id", "from_directory_id"),
    *EVENT,
    Column("broker_id", INT, "broker"),
    Column("directory_id", STRING, "the directory (of a move: the target)"),
    Column(
        "event",
        STRING,
        "online (registered with it), offline (it is no longer among those online), "
        "assigned (to it, replicas that had none) or moved (replicas that had another)",
    ),
    Column("from_directory_id", STRING, "of a move: the directory before; else null"),
    Column(
        "replicas", INT, "replicas assigned or moved by that batch; for online and offline: replicas in it"
    ),
)
VIOLATIONS = make_table(
    "violations",
    "broken invariants (docs/invariants.md) and records that the replay refused",
    ("rule", "where", "from_offset", "found"),
    Column("rule", STRING, "name of the invariant; `replay` for a refused record"),
    Column("severity", STRING, "error: a bug in the program that wrote the log; warning: a state to check"),
    Column("where", STRING, "entity path, as in topic/orders/7"),
    Column("found", STRING, "what was found"),
    *CAUSED,
)
FAILOVERS = make_table(
    "failovers",
    "a partition's leader was replaced because it could no longer lead",
    ("topic_id", "partition", "from_offset"),
    *PARTITION,
    Column("old_leader", INT, "broker that led"),
    Column("old_rack", STRING, "its rack; null: none or unknown"),
    Column("new_leader", INT, "next leader; null: none yet, or the topic was deleted"),
    Column(
        "cause",
        STRING,
        "rule by which the cause is derived, as `metaquorum log why` names it for the loss of the leadership",
    ),
    Column("unclean", BOOLEAN, "the new leader was not in sync"),
    Column("duration_ms", LONG, "time without a leader, 0 when one batch did both; null: no end seen"),
    *CAUSED,
)
AVAILABILITY = make_table(
    "availability",
    "availability per day: one row for the cluster, for each broker and for each rack",
    ("date", "scope", "id"),
    Column("scope", STRING, "cluster, broker or rack"),
    Column("id", STRING, "cluster id, broker id or rack name"),
    Column("observed_seconds", DOUBLE, "seconds of that day in which the state is known"),
    Column("unobserved_seconds", DOUBLE, "seconds without a write: the quorum was down"),
    Column("off_seconds", DOUBLE, "seconds after the last broker shut down cleanly, until one returned"),
    Column(
        "partition_seconds", DOUBLE, "cluster: partitions times seconds; broker and rack: seconds of leading"
    ),
    Column(
        "leaderless_seconds",
        DOUBLE,
        "partition-seconds without a leader; for broker and rack: of partitions that it led last",
    ),
    Column(
        "under_min_isr_seconds",
        DOUBLE,
        "partition-seconds with fewer in sync than min.insync.replicas (topic's, else the brokers' default, "
        "else 1), also while there is no leader; for broker and rack: where it holds a missing replica",
    ),
    Column("leader_changes", LONG, "changes of leader; for broker and rack: leaderships that it lost"),
    Column("unclean_elections", LONG, "for broker and rack: by the broker that was elected"),
    Column(
        "isr_shrinks", LONG, "changes that took a broker out of an ISR; for broker and rack: it was the one"
    ),
    Column("isr_expands", LONG, "changes that put a broker back; for broker and rack: it was the one"),
    Column("fences", LONG, "times that a broker was fenced"),
    Column(
        "fence_storms",
        LONG,
        "cluster: times that 3 brokers or more that had not shut down cleanly were fenced "
        "within 60 seconds; else 0",
    ),
    Column("failovers", LONG, "rows of `failovers` that began on that day (old leader's broker and rack)"),
    Column("failovers_open", LONG, "of them, those that have not ended, or whose end is unknown"),
    Column("failover_ms_p50", DOUBLE, "median of their durations; null without any"),
    Column("failover_ms_p95", DOUBLE, "95th percentile, linear between neighbours; null without any"),
    Column("failover_ms_max", DOUBLE, "longest; null without any"),
    Column(
        "failover_ms_histogram",
        LONGS,
        "how many lasted up to each bound of FAILOVER_BOUNDS_MS, then the rest",
    ),
)
FAILOVER_BOUNDS_MS = (0, 10, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Upper bounds (inclusive) of the buckets of `failover_ms_histogram`; the last bucket has none."""
FENCE_STORM_BROKERS = 3
FENCE_STORM_WINDOW_MS = 60_000

AUDIT_TRAIL = make_table(
    "audit_trail",
    "who changed what, when and from where: one row for each batch that records its cause",
    ("offset",),
    *EVENT,
    Column("last_offset", LONG, "offset of the batch's last record"),
    Column("request", STRING, "API that was called, as in CreateTopics; null: no one asked"),
    Column("rule", STRING, "why the controller acted, where the request does not say so (log why --rules)"),
    Column("principal", STRING, "who asked, as in User:alice; null: the controller itself"),
    Column("client_id", STRING, "client id that the client sent"),
    Column("address", STRING, "its address"),
    Column("forwarded_by", INT, "broker that received the request; null: the controller"),
    Column("entities", STRINGS, "entity paths that it changes, the first 100; partitions as their topic"),
    Column("types", STRINGS, "types of its records"),
    Column("records", INT, "number of records, without the one that has the cause"),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        RECORDS,
        DAMAGE,
        FILES,
        COVERAGE,
        QUORUM_EPOCHS,
        VOTER_SETS,
        BROKER_SESSIONS,
        PARTITION_STATES,
        TOPICS,
        CONFIGS,
        LOG_DIR_EVENTS,
        VIOLATIONS,
        FAILOVERS,
        AVAILABILITY,
        AUDIT_TRAIL,
        *DERIVED,
    )
}
PARTITION_COLUMNS = ("cluster", "date")


def spark_schema(table: Table) -> str:
    """The table's schema as Spark DDL, with comments; partition columns last, where Spark reads them."""
    plain = [column for column in table.columns if column.name not in PARTITION_COLUMNS]
    last = [column for column in table.columns if column.name in PARTITION_COLUMNS]
    return ", ".join(f"`{at.name}` {at.type} COMMENT '{quoted(at.meaning)}'" for at in [*plain, *last])


def quoted(text: str) -> str:
    """Escapes text for a quoted SQL string."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def file_comments(table: Table) -> dict[str, str]:
    """The metadata in a Parquet file of the table: the comment on the table, and those on columns where Spark
    looks for them (as the JSON of its schema)."""
    names = {STRING: "string", INT: "integer", LONG: "long", DOUBLE: "double", BOOLEAN: "boolean"}
    names |= {TIME: "timestamp", DATE: "date"}

    def kind(type_name: str) -> Any:
        inner = type_name.removeprefix("ARRAY<").removesuffix(">")
        if inner == type_name:
            return names[type_name]
        return {"type": "array", "elementType": names[inner], "containsNull": True}

    fields = [
        {"name": at.name, "type": kind(at.type), "nullable": True, "metadata": {"comment": at.meaning}}
        for at in table.columns
        if at.name not in PARTITION_COLUMNS
    ]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    return {"comment": table.meaning, "org.apache.spark.sql.parquet.row.metadata": schema}


def arrow_schema(table: Table) -> pa.Schema:
    """The table's schema for pyarrow, in column order."""
    import pyarrow as pa

    types = {
        STRING: pa.string(),
        INT: pa.int32(),
        LONG: pa.int64(),
        DOUBLE: pa.float64(),
        BOOLEAN: pa.bool_(),
        TIME: pa.timestamp("us", tz="UTC"),
        DATE: pa.date32(),
        INTS: pa.list_(pa.int32()),
        STRINGS: pa.list_(pa.string()),
        LONGS: pa.list_(pa.int64()),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in table.columns])
