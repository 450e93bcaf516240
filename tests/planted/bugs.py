"""All planted bugs, in the order in which they are applied and documented."""

from __future__ import annotations

from tests.planted.bug import Bug
from tests.planted.table_access import ACCESS_BUGS
from tests.planted.table_causes import CAUSE_BUGS
from tests.planted.table_channel import CHANNEL_BUGS
from tests.planted.table_cleaner import CLEANER_BUGS
from tests.planted.table_clusters import CLUSTER_BUGS
from tests.planted.table_data import SECTIONS as DATA_SECTIONS
from tests.planted.table_driver import SCHEDULER_BUGS
from tests.planted.table_eligible import ELIGIBLE_BUGS
from tests.planted.table_foreign import FOREIGN_BUGS
from tests.planted.table_groups import GROUP_BUGS
from tests.planted.table_kafka_brokers import KAFKA_BROKER_BUGS
from tests.planted.table_kafka_quorum import KAFKA_QUORUM_BUGS
from tests.planted.table_memory import MEMORY_BUGS
from tests.planted.table_nodes import (
    BROKER_BUGS,
    DECISION_BUGS,
    NODE_BUGS,
    REPLAY_BUGS,
    REPLICA_BUGS,
)
from tests.planted.table_partitions import SECTIONS as PARTITION_SECTIONS
from tests.planted.table_raft import RAFT_BUGS
from tests.planted.table_storage import STORAGE_BUGS
from tests.planted.table_transactions import TRANSACTION_BUGS
from tests.planted.table_voters import VOTER_BUGS

SECTIONS: tuple[tuple[str, tuple[Bug, ...]], ...] = (
    ("Raft", RAFT_BUGS),
    ("Voters that come and go", VOTER_BUGS),
    ("What voters remember of directories", MEMORY_BUGS),
    ("Storage", STORAGE_BUGS),
    ("Steps of a node's driver", SCHEDULER_BUGS),
    ("Controller node", NODE_BUGS),
    ("Decisions on brokers and partitions", DECISION_BUGS),
    *PARTITION_SECTIONS,
    ("Eligible leaders, clean stops and upgrades", ELIGIBLE_BUGS),
    ("Replica of the metadata log", REPLICA_BUGS),
    ("Replay", REPLAY_BUGS),
    ("Broker", BROKER_BUGS),
    ("Kafka's nodes at our controllers", FOREIGN_BUGS),
    ("Kafka's voters in our quorum", KAFKA_QUORUM_BUGS),
    ("Our brokers at controllers of Kafka's protocol", KAFKA_BROKER_BUGS),
    ("The way to the controller", CHANNEL_BUGS),
    *DATA_SECTIONS,
    ("Compaction and records", CLEANER_BUGS),
    ("Transactions", TRANSACTION_BUGS),
    ("Groups and coordinators", GROUP_BUGS),
    ("Access", ACCESS_BUGS),
    ("Who asked", CAUSE_BUGS),
    ("Clusters of tests", CLUSTER_BUGS),
)

BUGS: tuple[Bug, ...] = tuple(bug for _, bugs in SECTIONS for bug in bugs)
