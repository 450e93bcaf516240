"""The tables that combine several others: incidents, upgrades, placement and moved ids.

Owns their schemas and the words in their columns. Does not compute rows (`pipeline.intervals.tables` does);
all other schemas are in `tables`.
"""

from __future__ import annotations

from metaquorum.pipeline.columns import CAUSED, DOUBLE, INT, INTS, LONG, STRING, STRINGS, TIME, Column
from metaquorum.pipeline.columns import make_table as _table

BROKER_OUT, DIRECTORY_LOST = "broker-out", "directory-lost"
QUORUM_SILENT, LEADER_CHANGED = "quorum-silent", "leader-changed"
RETURNED, UNREGISTERED = "returned", "unregistered"

INCIDENTS = _table(
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
        "longest time that one of them had no leader before the incident ended; null: all had one",
    ),
    *CAUSED,
)
UPGRADES = _table(
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
PLACEMENT = _table(
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
IDS = _table(
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
