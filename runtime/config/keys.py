"""The table of configuration keys: names (Kafka's, where Kafka has the setting), kinds, ranges, defaults.

Owns the table, from which docs/configuration.md is made. What a key is, is `config_key`'s; rules that span
keys are in `config`.
"""

from __future__ import annotations

from metaquorum.raft.config import RaftConfig
from metaquorum.runtime.config.key import BROKER, CONTROLLER, MAX_LONG, MIB, Key, bytes_key, ms_key
from metaquorum.runtime.config.keys_data import DATA
from metaquorum.runtime.config.keys_topics import TOPICS

_NODE = (
    Key(
        "process.roles",
        "list",
        None,
        "What this process is: `controller` or `broker`. A process has one role.",
        required=True,
    ),
    Key(
        "node.id",
        "int",
        None,
        "The id of this node, unique among controllers and brokers. Only a broker with "
        "`broker.id.generation.enable=true` may leave it out.",
    ),
    Key(
        "controller.quorum.voters",
        "list",
        None,
        "The voters as `id@host:port:directory-id`, separated by commas; `id@host:port` does not pin the "
        "directory. A controller must be among them, a broker must not.",
        required=True,
    ),
    Key(
        "listeners",
        "list",
        None,
        "Where this process listens, as `NAME://host:port`; without a host on every interface, so that "
        "whoever reaches this machine reaches it. A controller has one listener.",
        required=True,
    ),
    Key(
        "advertised.listeners",
        "list",
        (),
        "What a broker registers instead of `listeners`, by the same names; without a host: the name of "
        "this machine.",
        roles=(BROKER,),
    ),
    Key("controller.listener.names", "list", ("CONTROLLER",), "The name of the controllers' listener."),
    Key(
        "listener.security.protocol.map",
        "list",
        (),
        "The protocol of each listener name, `NAME:PLAINTEXT` or `NAME:SSL`. A listener that is called `SSL` "
        "is SSL, every other one PLAINTEXT unless it is mapped.",
    ),
    Key("broker.rack", "text", None, "The rack that a broker registers.", roles=(BROKER,)),
    Key(
        "log.dirs",
        "list",
        None,
        "Directories of this node, each formatted. The first one holds the metadata log unless "
        "`metadata.log.dir` names another.",
        required=True,
    ),
    Key(
        "metadata.log.dir",
        "text",
        None,
        "The directory of the metadata log; default: the first of `log.dirs`.",
    ),
)

_RAFT = RaftConfig()

_QUORUM = (
    ms_key(
        "controller.quorum.election.timeout.ms",
        _RAFT.election_timeout_ms,
        "How long a candidate waits for votes, and a voter without a leader before it asks for pre-votes; "
        "each wait is drawn from one to one and a half times this.",
    ),
    ms_key(
        "controller.quorum.election.backoff.max.ms",
        _RAFT.election_backoff_max_ms,
        "The longest wait after an election that was lost before the next one.",
    ),
    ms_key(
        "controller.quorum.fetch.timeout.ms",
        _RAFT.fetch_timeout_ms,
        "A follower that has not fetched from the leader for so long (drawn from one to one and a half "
        "times this) stands for election; a leader that has not heard from a majority for one and a half "
        "times this resigns.",
    ),
    ms_key(
        "controller.quorum.request.timeout.ms",
        _RAFT.request_timeout_ms,
        "How long a request between nodes may take.",
    ),
    ms_key(
        "controller.quorum.retry.backoff.ms",
        _RAFT.retry_backoff_ms,
        "The wait before a request that failed is sent again; it doubles with every failure.",
    ),
    ms_key(
        "controller.quorum.retry.backoff.max.ms",
        _RAFT.retry_backoff_max_ms,
        "The longest such wait.",
        own=True,
    ),
    ms_key(
        "controller.quorum.fetch.max.wait.ms",
        _RAFT.fetch_max_wait_ms,
        "How long the leader holds a voter's fetch that finds nothing new.",
        own=True,
    ),
    ms_key(
        "controller.quorum.high.watermark.linger.ms",
        10,
        "How long the leader keeps the high watermark from the other voters when nothing else is new: under "
        "load it then travels with the next records. Brokers are told at once, and so are all with 0.",
        minimum=0,
        maximum=1000,
        own=True,
    ),
    ms_key(
        "controller.quorum.observer.fetch.max.wait.ms",
        _RAFT.observer_fetch_max_wait_ms,
        "How long the leader holds a broker's fetch that finds nothing new (NoOp records do not count).",
        own=True,
    ),
    bytes_key(
        "controller.quorum.fetch.max.bytes",
        _RAFT.fetch_max_bytes,
        "The most records in one answer to a fetch; one whole batch is always sent.",
        minimum=1024,
        maximum=32 * MIB,
        own=True,
    ),
    bytes_key(
        "controller.quorum.fetch.snapshot.max.bytes",
        _RAFT.snapshot_chunk_bytes,
        "The size of a chunk in which a snapshot is fetched.",
        minimum=1024,
        maximum=32 * MIB,
        own=True,
    ),
)

_METADATA_LOG = (
    bytes_key(
        "metadata.log.segment.bytes",
        1024 * MIB,
        "A segment that reaches this size is closed and a new one begun.",
        minimum=MIB,
    ),
    ms_key(
        "metadata.log.segment.ms",
        7 * 24 * 3_600_000,
        "A segment whose first record is older than this is closed.",
        maximum=MAX_LONG,
    ),
    Key(
        "metadata.max.retention.bytes",
        "int",
        100 * MIB,
        "Old segments and snapshots are removed, behind a newer snapshot only, while log and snapshots "
        "are larger than this; -1: never for their size.",
        minimum=-1,
        maximum=MAX_LONG,
        unit="bytes",
    ),
    Key(
        "metadata.max.retention.ms",
        "int",
        7 * 24 * 3_600_000,
        "Old segments and snapshots are removed, behind a newer snapshot only, once they are older than "
        "this; -1: never for their age.",
        minimum=-1,
        maximum=MAX_LONG,
        unit="ms",
    ),
    ms_key(
        "metadata.max.idle.interval.ms",
        500,
        "The active controller writes a NoOp record after so much silence; 0: never.",
        minimum=0,
        roles=(CONTROLLER,),
    ),
    bytes_key(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * MIB,
        "A snapshot is written after so many bytes of records.",
        minimum=1,
        maximum=MAX_LONG,
    ),
    ms_key(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "A snapshot is written at least so often while records arrive; 0: never for its age.",
        minimum=0,
        maximum=MAX_LONG,
    ),
)

_CONTROLLER = (
    ms_key(
        "broker.session.timeout.ms",
        9_000,
        "A broker is fenced when its heartbeats have been absent for so long.",
        roles=(CONTROLLER,),
    ),
    ms_key(
        "broker.metadata.lag.timeout.ms",
        30_000,
        "A broker that applies nothing for so long while it is behind is fenced.",
        roles=(CONTROLLER,),
        own=True,
    ),
    Key(
        "reserved.broker.max.id",
        "int",
        1_000,
        "Ids that are generated (`broker.id.generation.enable`) are above this one.",
        roles=(CONTROLLER,),
    ),
    ms_key(
        "broker.id.reuse.grace.ms",
        300_000,
        "A broker with `broker.id.reuse.missing` may take over an id that nobody has had for so long.",
        minimum=0,
        roles=(CONTROLLER,),
        own=True,
    ),
    ms_key(
        "broker.id.gc.interval.ms",
        60_000,
        "How often bindings of broker ids that are garbage are removed; 0: never.",
        minimum=0,
        roles=(CONTROLLER,),
        own=True,
    ),
    Key(
        "delegation.token.secret.key",
        "text",
        None,
        "The secret that delegation tokens are made with, the same on all controllers. Without it there are "
        "none.",
        roles=(CONTROLLER,),
    ),
    ms_key(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "No delegation token lives longer, however often it is renewed.",
        maximum=MAX_LONG,
        roles=(CONTROLLER,),
    ),
    ms_key(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "How long a delegation token lives without being renewed.",
        maximum=MAX_LONG,
        roles=(CONTROLLER,),
    ),
    ms_key(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "How often delegation tokens that are over are removed.",
        roles=(CONTROLLER,),
    ),
    Key(
        "auto.leader.rebalance.enable",
        "choice",
        "true",
        "`true`: leadership goes back to preferred replicas by itself, at most 1,000 elections in a batch.",
        roles=(CONTROLLER,),
        choices=("false", "true"),
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        "int",
        300,
        "How often leaders are balanced and leaderless partitions looked at again; 0: never.",
        maximum=86_400,
        unit="s",
        roles=(CONTROLLER,),
    ),
    Key(
        "num.partitions",
        "int",
        1,
        "The number of partitions of a topic that is created without one.",
        minimum=1,
        roles=(CONTROLLER,),
    ),
    Key(
        "default.replication.factor",
        "int",
        1,
        "The replication factor of a topic that is created without one.",
        minimum=1,
        maximum=32767,
        roles=(CONTROLLER,),
    ),
)

_BROKER = (
    Key(
        "broker.id.generation.enable",
        "choice",
        "false",
        "`true`: a broker without `node.id` takes it from `meta.properties` in any of its directories, or "
        "asks the controllers, and formats directories that are empty; see broker-ids.md.",
        roles=(BROKER,),
        choices=("false", "true"),
    ),
    Key(
        "broker.id.reuse.missing",
        "choice",
        "false",
        "`true`: a broker that nobody knows may take over the only id that partitions name and nobody has.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    Key(
        "broker.id.binding.key",
        "text",
        "host",
        "What the cluster remembers a broker's id by: `host`, the host of the first advertised listener, or "
        "any text that stays the same while the machine lives and that no other broker has.",
        roles=(BROKER,),
        own=True,
    ),
    ms_key(
        "initial.broker.registration.timeout.ms",
        60_000,
        "A broker that could not register for so long exits with the reason.",
        roles=(BROKER,),
    ),
    ms_key("broker.heartbeat.interval.ms", 2_000, "How often a broker sends a heartbeat.", roles=(BROKER,)),
    ms_key(
        "registration.lease.timeout.ms",
        18_000,
        "A broker fences itself when no heartbeat has been answered for so long; the session timeout that "
        "the controller tells counts if it is shorter.",
        roles=(BROKER,),
        own=True,
    ),
    Key(
        "broker.self.fencing.enable",
        "choice",
        "true",
        "`true`: a broker whose lease ends answers no client until it has reached the active controller "
        "again. `false`: it serves on with what it last knew, as Kafka's brokers do, until a controller "
        "tells it that it is fenced.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    ms_key(
        "controller.request.timeout.ms",
        1_000,
        "How long a registration or heartbeat may take; well below the session timeout.",
        roles=(BROKER,),
        own=True,
    ),
    ms_key(
        "controlled.shutdown.timeout.ms",
        30_000,
        "A broker that is told to stop waits so long for its leaderships to move.",
        roles=(BROKER,),
        own=True,
    ),
)

_ONLY_PEM = "Only PEM is read; Kafka's other types may stand here as long as no file is named."

_SECURITY = (
    Key(
        "ssl.keystore.location",
        "text",
        None,
        "A PEM file with the private key (not encrypted) and the certificate chain of this node. Needed by a "
        "listener whose protocol is SSL; a client shows it where it is asked to.",
    ),
    Key("ssl.keystore.type", "choice", "pem", _ONLY_PEM, choices=("pem", "jks", "pkcs12")),
    Key(
        "ssl.truststore.location",
        "text",
        None,
        "A PEM file with the CA certificates that the other side's certificate must be signed by.",
    ),
    Key("ssl.truststore.type", "choice", "pem", _ONLY_PEM, choices=("pem", "jks", "pkcs12")),
    Key(
        "ssl.client.auth",
        "choice",
        "none",
        "`required`: whoever connects must show a certificate of a CA in the truststore (mutual TLS).",
        choices=("none", "required"),
    ),
)

_PROCESS = (
    Key(
        "metrics.listener",
        "text",
        None,
        "Where this process shows its figures to Prometheus, as `http://host:port` (without a host: "
        "127.0.0.1); see metrics.md. Without it there are none.",
        own=True,
    ),
    Key(
        "inbox.max.events",
        "int",
        20_000,
        "Events that wait for the node; a request that finds it full is told to come back.",
        minimum=100,
        maximum=10_000_000,
        own=True,
    ),
    Key(
        "log.format",
        "choice",
        "text",
        "Lines on standard error for people (`text`) or programs (`json`).",
        choices=("text", "json"),
        own=True,
    ),
    Key(
        "log.level",
        "choice",
        "info",
        "The least severe line that is printed.",
        choices=("debug", "info", "warning", "error"),
        own=True,
    ),
)

GROUPS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    ("The node", _NODE),
    ("The quorum", _QUORUM),
    ("The metadata log", _METADATA_LOG),
    ("Controllers", _CONTROLLER),
    ("Brokers", _BROKER),
    ("Partition data", DATA),
    ("Topics that set nothing", TOPICS),
    ("TLS", _SECURITY),
    ("The process", _PROCESS),
)
KEYS: dict[str, Key] = {key.name: key for _, group in GROUPS for key in group}
