"""The table of the keys of a node's file: names (Kafka's, where Kafka has the setting), ranges, meanings.

docs/configuration.md, the checks of a file and the values of the configuration classes come from it. Keys
that a broker's resource has too are in `metadata.settings.broker_keys`; the defaults of what a class holds
are in the class.
"""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.config.keys_of_brokers import COORDINATORS, DATA, GROUP_BOUNDS
from metaquorum.errors import ConfigError
from metaquorum.metadata.node_configs import (
    BrokerConfig,
    ControllerConfig,
    MetadataReplicaConfig,
    ReplicaConfig,
)
from metaquorum.metadata.settings.broker_keys import SHARED_KEYS, TOPIC_DEFAULTS
from metaquorum.metadata.settings.keys import (
    BOTH,
    BROKER,
    CONTROLLER,
    MAX_LONG,
    MIB,
    ConfigValueError,
    Key,
    Kind,
    Value,
    flag,
    number,
    parts,
    rows_of,
    words,
)
from metaquorum.raft.config import RaftConfig
from metaquorum.storage.log.config import LogConfig

PROTOCOL_KEY = "controller.quorum.protocol"
GRPC_PROTOCOL, KAFKA_PROTOCOL = "grpc", "kafka"

_controller = rows_of(ControllerConfig, CONTROLLER)
_of_both = rows_of(ControllerConfig)
_broker = rows_of(BrokerConfig, BROKER)
_following = rows_of(MetadataReplicaConfig)
_replicas = rows_of(ReplicaConfig, BROKER)
_raft = rows_of(RaftConfig, prefix="controller.quorum.")
_log = rows_of(LogConfig, prefix="metadata.log.")

_NODE = (
    parts("process.roles", None, "`controller`, `broker`, or both (a combined node).", required=True),
    number(
        "node.id",
        None,
        "Unique among controllers and brokers. Optional only for a broker with "
        "`broker.id.generation.enable=true`.",
        minimum=0,
    ),
    parts(
        "controller.quorum.voters",
        None,
        "Static voters as `id@host:port:directory-id`; without a directory id, any directory may "
        "vote. A controller must be one of them, a broker must not. Unused from kraft.version 1 on.",
    ),
    parts(
        "controller.quorum.bootstrap.servers",
        (),
        "Some controllers, as `host:port`, to ask for the leader. Required with dynamic voters "
        "(kraft.version 1); before, brokers and new controllers may use it instead of "
        "`controller.quorum.voters`.",
    ),
    flag(
        "controller.quorum.auto.join.enable",
        False,
        "Whether an observing controller asks to become a voter (kraft.version 1). First an entry of "
        "its id with another directory is removed, once silent for three times "
        "`controller.quorum.fetch.timeout.ms`. Stop such a controller before `quorum remove-voter`, "
        "or it comes back.",
        roles=(CONTROLLER,),
    ),
    SHARED_KEYS["listeners"],
    SHARED_KEYS["advertised.listeners"],
    parts(
        "controller.listener.names",
        ("CONTROLLER",),
        "Names of the controllers' listeners. Those that begin with GRPC speak gRPC, the others Kafka's "
        "protocol, by which controllers ask each other on the first of them.",
    ),
    words(
        PROTOCOL_KEY,
        None,
        "What a broker asks the controllers by: `grpc`, or `kafka`, where controllers of Apache Kafka "
        "answer, too. Its `controller.quorum.voters` names their listeners that speak it. Default: `grpc` if "
        "a name in `controller.listener.names` begins with GRPC, else what the controllers answer in at its "
        "start. Controllers ask by Kafka's protocol: with `grpc` they do not start.",
        choices=(GRPC_PROTOCOL, KAFKA_PROTOCOL),
        own=True,
    ),
    SHARED_KEYS["listener.security.protocol.map"],
    words(
        "inter.broker.listener.name",
        None,
        "Listener through which brokers follow each other. Default: by `security.inter.broker.protocol`.",
        roles=(BROKER,),
    ),
    words(
        "security.inter.broker.protocol",
        None,
        "Brokers follow each other through the listener of this name, else the first with this "
        "protocol. Default: PLAINTEXT, else the first Kafka listener, those with SASL last.",
        roles=(BROKER,),
    ),
    _broker("broker.rack", "Rack of the broker.", field="rack"),
    parts(
        "log.dirs",
        None,
        "Formatted directories of this node. The first holds the metadata log unless "
        "`metadata.log.dir` is set.",
        required=True,
    ),
    words("metadata.log.dir", None, "Directory of the metadata log. Default: the first of `log.dirs`."),
)

_QUORUM = (
    _raft(
        "controller.quorum.election.timeout.ms",
        "How long a candidate waits for votes, and a voter without a leader before its pre-vote; "
        "random, up to 1.5 times this. It doubles with every candidacy that elects no one, up to "
        "`controller.quorum.request.timeout.ms`.",
    ),
    _raft("controller.quorum.election.backoff.max.ms", "Maximum wait after a lost election."),
    _raft(
        "controller.quorum.fetch.timeout.ms",
        "A follower that has not fetched for this long (random, up to 1.5 times this) stands for "
        "election. A leader without fetches from a majority for 1.5 times this resigns.",
    ),
    _raft("controller.quorum.request.timeout.ms", "Timeout of a request between nodes."),
    _raft("controller.quorum.retry.backoff.ms", "Wait before a failed request is retried."),
    _raft(
        "controller.quorum.retry.backoff.max.ms",
        "Maximum of `controller.quorum.retry.backoff.ms`, which doubles with every failure.",
        own=True,
    ),
    _raft(
        "controller.quorum.fetch.max.wait.ms",
        "How long the leader holds a voter's fetch while there is nothing new.",
        own=True,
    ),
    # Not the library's default: a node has many clients, whose next records are a moment away.
    number(
        "controller.quorum.high.watermark.linger.ms",
        10,
        "How long a new high watermark waits for the next records before the leader sends it to voters.",
        minimum=0,
        maximum=1_000,
        own=True,
        fills=(RaftConfig, "high_watermark_linger_ms"),
    ),
    _raft(
        "controller.quorum.observer.fetch.max.wait.ms",
        "How long the leader holds a broker's fetch while there is nothing but NoOp records.",
        own=True,
    ),
    _raft(
        "controller.quorum.fetch.max.bytes",
        "Maximum size of records in a fetch answer; at least one batch is sent.",
        minimum=1_024,
        maximum=32 * MIB,
    ),
    _raft(
        "controller.quorum.fetch.snapshot.max.bytes",
        "Chunk size of a snapshot fetch.",
        field="snapshot_chunk_bytes",
        minimum=1_024,
        maximum=32 * MIB,
    ),
)

_METADATA_LOG = (
    _log("metadata.log.segment.bytes", "Size at which a new segment starts.", minimum=MIB),
    _log("metadata.log.segment.ms", "Age at which a new segment starts.", maximum=MAX_LONG),
    number(
        "metadata.max.retention.bytes",
        100 * MIB,
        "Total size above which segments and snapshots that a newer snapshot covers are deleted. -1: "
        "no limit.",
        minimum=-1,
        maximum=MAX_LONG,
    ),
    number(
        "metadata.max.retention.ms",
        604_800_000,
        "Age at which segments and snapshots that a newer snapshot covers are deleted. -1: no limit.",
        minimum=-1,
        maximum=MAX_LONG,
    ),
    _controller(
        "metadata.max.idle.interval.ms",
        "Idle time after which the active controller writes a NoOp record. 0: never.",
        minimum=0,
    ),
    _controller(
        "metadata.log.causes.enable",
        "Whether each batch begins with who or what caused it, for `log why`.",
        own=True,
    ),
    _following(
        "metadata.log.max.record.bytes.between.snapshots",
        "Bytes of records after which a snapshot is written.",
        maximum=MAX_LONG,
        unit="bytes",
    ),
    _following(
        "metadata.log.max.snapshot.interval.ms",
        "Maximum time between snapshots while records arrive. 0: no limit.",
        minimum=0,
        maximum=MAX_LONG,
    ),
)

_CONTROLLER = (
    _of_both(
        "broker.session.timeout.ms",
        "A broker without a heartbeat for this long is fenced. In a broker's file it counts at controllers "
        "of Apache Kafka, which do not report theirs.",
    ),
    _controller(
        "broker.metadata.lag.timeout.ms",
        "A broker that is behind and makes no progress for this long is fenced.",
        own=True,
    ),
    _controller("reserved.broker.max.id", "Generated ids are above this one.", minimum=0),
    _controller(
        "broker.id.reuse.grace.ms",
        "Time after which an id without a broker may be taken over (`broker.id.reuse.missing`).",
        minimum=0,
        own=True,
    ),
    _controller(
        "broker.id.gc.interval.ms",
        "Interval between removals of obsolete broker id bindings. 0: never.",
        minimum=0,
        own=True,
    ),
    _controller(
        "delegation.token.secret.key",
        "Secret for delegation tokens, the same on all controllers, and on brokers where tokens log "
        "in. Unset: no tokens.",
        roles=BOTH,
        kind=Kind.PASSWORD,
    ),
    _controller(
        "delegation.token.max.lifetime.ms",
        "Maximum lifetime of a delegation token, with renewals.",
        maximum=MAX_LONG,
    ),
    _controller(
        "delegation.token.expiry.time.ms",
        "Lifetime of a delegation token until its next renewal.",
        maximum=MAX_LONG,
    ),
    _controller("delegation.token.expiry.check.interval.ms", "Interval between removals of expired tokens."),
    _controller(
        "auto.leader.rebalance.enable", "Whether leadership returns to preferred replicas automatically."
    ),
    _controller(
        "leader.imbalance.check.interval.seconds",
        "Interval between rebalances of leaders and checks of leaderless partitions. 0: never.",
        field="leader_imbalance_check_interval_ms",
        times=1_000,
        minimum=0,
        maximum=86_400,
    ),
    _controller(
        "num.partitions",
        "Default number of partitions of a new topic; in a broker's file (if not 1), of automatically"
        " created ones.",
        roles=BOTH,
    ),
    _controller(
        "default.replication.factor",
        "Default replication factor of a new topic; in a broker's file, of automatically created ones.",
        maximum=32_767,
        roles=BOTH,
    ),
)

_BROKER = (
    flag(
        "broker.id.generation.enable",
        False,
        "Whether a broker without `node.id` finds its id and formats empty directories; see broker-ids.md.",
        roles=(BROKER,),
    ),
    flag(
        "broker.id.reuse.missing",
        False,
        "Whether an unknown broker may take over the only id that partitions name and no broker has.",
        roles=(BROKER,),
        own=True,
    ),
    words(
        "broker.id.binding.key",
        "host",
        "What a broker's id is bound to: `host` (of the first advertised listener), or any stable "
        "text unique to the broker.",
        roles=(BROKER,),
        own=True,
    ),
    flag(
        "auto.create.topics.enable",
        True,
        "Whether to create a topic that a client asks for. Clients can forbid it.",
        roles=(BROKER,),
    ),
    _broker(
        "initial.broker.registration.timeout.ms",
        "A broker that could not register for this long exits with the reason.",
    ),
    _broker("broker.heartbeat.interval.ms", "Interval of a broker's heartbeats."),
    _broker(
        "registration.lease.timeout.ms",
        "A broker fences itself this long after its last answered heartbeat, or after the "
        "controller's session timeout if that is shorter.",
        own=True,
    ),
    _broker(
        "broker.self.fencing.enable",
        "Whether a broker whose lease has ended stops serving clients. `false`: it continues, as "
        "Kafka's brokers do, until a controller answers that it is fenced.",
        field="self_fencing_enable",
        own=True,
    ),
    _broker(
        "controller.request.timeout.ms",
        "Timeout of a registration or heartbeat; well below the session timeout.",
        own=True,
    ),
    _broker(
        "controlled.shutdown.timeout.ms",
        "How long a stopping broker waits for its leaderships to move.",
        own=True,
    ),
)

_CONNECTIONS = (
    SHARED_KEYS["max.connections"],
    SHARED_KEYS["max.connections.per.ip"],
    SHARED_KEYS["max.connections.per.ip.overrides"],
    number(
        "max.connections.unauthenticated",
        256,
        "Maximum number of connections whose client is not known yet, at most a quarter of all: "
        "before TLS and login or, at a listener without both, before the first request. Beyond it the"
        " oldest of the address with most of them is closed.",
        own=True,
    ),
    SHARED_KEYS["max.connection.creation.rate"],
    number(
        "socket.listen.backlog.size",
        50,
        "Connections that wait to be accepted, per listener.",
    ),
)

_TLS = (
    SHARED_KEYS["ssl.keystore.location"],
    SHARED_KEYS["ssl.keystore.type"],
    SHARED_KEYS["ssl.truststore.location"],
    SHARED_KEYS["ssl.truststore.type"],
    SHARED_KEYS["ssl.client.auth"],
    words(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How a certificate's distinguished name becomes the user: `RULE:pattern/replacement/`, then "
        "`L` or `U` for lower or upper case; or `DEFAULT`. The first match counts.",
    ),
)

_ACCESS = (
    words(
        "authorizer.class.name",
        "",
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer`: Kafka listeners enforce access "
        "control entries, and gRPC listeners admit who may act on the cluster. Empty: everything is "
        "allowed.",
    ),
    words(
        "authorizer.log.path",
        "",
        "File for the authorizer's decisions, one JSON object per line; five full files are kept. "
        "Empty: the node's log.",
        own=True,
    ),
    flag("authorizer.log.allowed", False, "Whether allowed requests are logged too.", own=True),
    number("authorizer.log.max.bytes", 10 * MIB, "Size at which a new file begins.", minimum=4_096, own=True),
    words("super.users", "", "Principals with all rights: `User:alice;User:bob`."),
    flag(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether a resource without an applicable entry is open to everyone.",
    ),
    number(
        "quota.window.num",
        11,
        "Windows over which a client's rate is measured.",
        minimum=2,
        maximum=1_000,
    ),
    number("quota.window.size.seconds", 1, "Length of such a window.", maximum=3_600),
    _replicas("replication.quota.window.num", "Windows for throttled replication.", maximum=1_000),
    _replicas(
        "replication.quota.window.size.seconds",
        "Length of such a window.",
        field="replication_quota_window_ms",
        times=1_000,
        maximum=3_600,
    ),
    _controller(
        "controller.quota.window.num",
        "Number of windows of `controller_mutation_rate`; a client may use up their quotas at once.",
        maximum=1_000,
    ),
    _controller("controller.quota.window.size.seconds", "Length of such a window.", maximum=3_600),
    SHARED_KEYS["sasl.enabled.mechanisms"],
    SHARED_KEYS["sasl.mechanism.inter.broker.protocol"],
    words(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        "Mechanism with which voters log in to each other, and brokers to controllers, over Kafka's protocol "
        "on a listener with SASL.",
    ),
    number(
        "connections.max.reauth.ms",
        0,
        "Time after which a client that logged in with SASL must log in again, at the latest; a "
        "token's end comes first. 0: only when its token ends.",
        minimum=0,
    ),
    number(
        "connection.failed.authentication.delay.ms",
        100,
        "Delay of the answer to a failed login.",
        minimum=0,
        maximum=10_000,
    ),
    number(
        "connection.authentication.timeout.ms",
        30_000,
        "Maximum time for a connection's TLS handshake and login.",
        own=True,
    ),
    number(
        "sasl.server.max.receive.size",
        524_288,
        "Maximum size of a request before the login.",
        minimum=1_024,
        unit="bytes",
    ),
    words(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "File with the keys that sign tokens, as `file:///path`: a JWK set, read again when it "
        "changes. Other URLs are refused.",
    ),
    parts(
        "sasl.oauthbearer.expected.audience",
        (),
        "A token must have one of these audiences. Default: any.",
    ),
    words(
        "sasl.oauthbearer.expected.issuer",
        None,
        "Issuer that a token must have. Default: any.",
    ),
    number(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "Allowed difference between the clocks of issuer and broker.",
        minimum=0,
        maximum=600,
    ),
    words("sasl.oauthbearer.sub.claim.name", "sub", "Claim of a token that names the user."),
)

_PROCESS = (
    flag(
        "allow.insecure.listeners",
        None,
        "Whether a listener on another address than loopback may take clients without authentication "
        "(SASL or `ssl.client.auth=required`); with `false` the node refuses to start. Default: Kafka "
        "listeners may, with a warning, as in Kafka's own files; gRPC and metrics may not.",
        own=True,
    ),
    words(
        "metrics.listener",
        None,
        "Address for Prometheus, `http://host:port`, or `https://host:port` with the keys `ssl.*`; "
        "see metrics.md. Unset: no metrics.",
        own=True,
    ),
    number(
        "inbox.max.events",
        20_000,
        "Maximum number of waiting events; more requests are refused as retriable.",
        minimum=100,
        maximum=10_000_000,
        own=True,
    ),
    words("log.format", "text", "Format of log lines on standard error.", choices=("text", "json"), own=True),
    words(
        "log.level",
        "info",
        "Minimum severity of log lines.",
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
    ("Connections", _CONNECTIONS),
    ("Partition data on brokers", DATA),
    ("Topics that set nothing", TOPIC_DEFAULTS),
    ("Groups and internal topics", COORDINATORS),
    ("What may be set on a group", GROUP_BOUNDS),
    ("TLS", _TLS),
    ("Access", _ACCESS),
    ("The process", _PROCESS),
)
"""The table, in the order of the page."""

_FILLED_BY_SHARED = {
    "unclean.leader.election.enable": (ControllerConfig, "unclean_leader_election_enable"),
    "producer.id.expiration.ms": (ReplicaConfig, "producer_id_expiration_ms"),
    "min.insync.replicas": (BrokerConfig, "min_insync_replicas"),
}
"""The fields that shared keys fill: the classes take the defaults from there."""

KEYS: dict[str, Key] = {
    key.name: replace(key, fills=_FILLED_BY_SHARED[key.name]) if key.name in _FILLED_BY_SHARED else key
    for _, group in GROUPS
    for key in group
}


def parsed(name: str, text: str, prefix: str = "") -> Value | None:
    """The value of a key in a file. `prefix`: of the key's name there. Raises ConfigError."""
    key = KEYS[name]
    try:
        value = key.parse(text, any_case=True)
    except ConfigValueError as error:
        raise ConfigError(f"{prefix}{error}") from None
    if isinstance(value, tuple):
        return tuple(part for part in value if part)
    # An empty text is not a secret: delegation tokens are then disabled, as in Kafka.
    return value or None if key.kind is Kind.PASSWORD else value
