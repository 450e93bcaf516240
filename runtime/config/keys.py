"""The table of configuration keys: names (Kafka's, where Kafka has the setting), kinds, ranges, defaults.

Owns the table, from which docs/configuration.md is made. Does not parse values (`key`) and does not have
rules that span keys (`load`, `node`).
"""

from __future__ import annotations

from metaquorum.runtime.config.access.keys import ACCESS, TLS
from metaquorum.runtime.config.key import BROKER, CONTROLLER, MAX_LONG, Key, ms_key
from metaquorum.runtime.config.keys_data import DATA
from metaquorum.runtime.config.keys_groups import COORDINATORS, GROUP_BOUNDS
from metaquorum.runtime.config.keys_quorum import METADATA_LOG, QUORUM
from metaquorum.runtime.config.keys_topics import TOPICS

_NODE = (
    Key(
        "process.roles",
        "list",
        None,
        "`controller`, `broker`, or both (a combined node).",
        required=True,
    ),
    Key(
        "node.id",
        "int",
        None,
        "Unique among controllers and brokers. Optional only for a broker with "
        "`broker.id.generation.enable=true`.",
    ),
    Key(
        "controller.quorum.voters",
        "list",
        None,
        "Static voters as `id@host:port:directory-id`; without a directory id, any directory may vote. A "
        "controller must be one of them, a broker must not. Unused from kraft.version 1 on.",
    ),
    Key(
        "controller.quorum.bootstrap.servers",
        "list",
        (),
        "Some controllers, as `host:port`, to ask for the leader. Required with dynamic voters "
        "(kraft.version 1); before, brokers and new controllers may use it instead of "
        "`controller.quorum.voters`.",
    ),
    Key(
        "controller.quorum.auto.join.enable",
        "choice",
        "false",
        "Whether an observing controller asks to become a voter (kraft.version 1). First an entry of its "
        "id with another directory is removed, once silent for three times "
        "`controller.quorum.fetch.timeout.ms`. Stop such a controller before `quorum remove-voter`, or it "
        "comes back.",
        roles=(CONTROLLER,),
        choices=("false", "true"),
    ),
    Key(
        "listeners",
        "list",
        None,
        "Where this process listens, as `NAME://host:port`; without a host on every interface. Default of a "
        "broker: `PLAINTEXT://:9092`, which needs `allow.insecure.listeners`. A controller has one listener, "
        "a combined node that one and its broker's. A broker's listeners speak Kafka's protocol, or gRPC if "
        "their names begin with `GRPC` (for `metaquorum broker status` and `log-dirs mark-offline`).",
    ),
    Key(
        "advertised.listeners",
        "list",
        (),
        "What a node registers instead of `listeners`, by the same names; without a host: this machine's "
        "name. A combined node may omit its controller's.",
    ),
    Key("controller.listener.names", "list", ("CONTROLLER",), "Name of the controllers' listener."),
    Key(
        "listener.security.protocol.map",
        "list",
        (),
        "Protocol of each listener name, `NAME:PLAINTEXT` or `NAME:SSL`, for Kafka listeners also "
        "`NAME:SASL_PLAINTEXT` or `NAME:SASL_SSL`. Names that are protocols need no entry; those that begin "
        "with `GRPC` are PLAINTEXT, and so is the controllers'.",
    ),
    Key(
        "inter.broker.listener.name",
        "text",
        None,
        "Listener through which brokers follow each other. Default: by `security.inter.broker.protocol`.",
        roles=(BROKER,),
    ),
    Key(
        "security.inter.broker.protocol",
        "text",
        None,
        "Brokers follow each other through the listener of this name, else the first with this protocol. "
        "Default: PLAINTEXT, else the first Kafka listener, those with SASL last.",
        roles=(BROKER,),
    ),
    Key("broker.rack", "text", None, "Rack of the broker.", roles=(BROKER,)),
    Key(
        "log.dirs",
        "list",
        None,
        "Formatted directories of this node. The first holds the metadata log unless `metadata.log.dir` "
        "is set.",
        required=True,
    ),
    Key(
        "metadata.log.dir",
        "text",
        None,
        "Directory of the metadata log. Default: the first of `log.dirs`.",
    ),
)

_CONTROLLER = (
    ms_key(
        "broker.session.timeout.ms",
        9_000,
        "A broker without a heartbeat for this long is fenced.",
        roles=(CONTROLLER,),
    ),
    ms_key(
        "broker.metadata.lag.timeout.ms",
        30_000,
        "A broker that is behind and makes no progress for this long is fenced.",
        roles=(CONTROLLER,),
        own=True,
    ),
    Key(
        "reserved.broker.max.id",
        "int",
        1_000,
        "Generated ids are above this one.",
        roles=(CONTROLLER,),
    ),
    ms_key(
        "broker.id.reuse.grace.ms",
        300_000,
        "Time after which an id without a broker may be taken over (`broker.id.reuse.missing`).",
        minimum=0,
        roles=(CONTROLLER,),
        own=True,
    ),
    ms_key(
        "broker.id.gc.interval.ms",
        60_000,
        "Interval between removals of obsolete broker id bindings. 0: never.",
        minimum=0,
        roles=(CONTROLLER,),
        own=True,
    ),
    Key(
        "delegation.token.secret.key",
        "text",
        None,
        "Secret for delegation tokens, the same on all controllers, and on brokers where tokens log in. "
        "Unset: no tokens.",
    ),
    ms_key(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "Maximum lifetime of a delegation token, with renewals.",
        maximum=MAX_LONG,
        roles=(CONTROLLER,),
    ),
    ms_key(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "Lifetime of a delegation token until its next renewal.",
        maximum=MAX_LONG,
        roles=(CONTROLLER,),
    ),
    ms_key(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "Interval between removals of expired tokens.",
        roles=(CONTROLLER,),
    ),
    Key(
        "auto.leader.rebalance.enable",
        "choice",
        "true",
        "Whether leadership returns to preferred replicas automatically.",
        roles=(CONTROLLER,),
        choices=("false", "true"),
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        "int",
        300,
        "Interval between rebalances of leaders and checks of leaderless partitions. 0: never.",
        maximum=86_400,
        unit="s",
        roles=(CONTROLLER,),
    ),
    Key(
        "num.partitions",
        "int",
        1,
        "Default number of partitions of a new topic; in a broker's file (if not 1), of automatically "
        "created ones.",
        minimum=1,
    ),
    Key(
        "default.replication.factor",
        "int",
        1,
        "Default replication factor of a new topic; in a broker's file, of automatically created ones.",
        minimum=1,
        maximum=32767,
    ),
)

_BROKER = (
    Key(
        "broker.id.generation.enable",
        "choice",
        "false",
        "Whether a broker without `node.id` finds its id and formats empty directories; see broker-ids.md.",
        roles=(BROKER,),
        choices=("false", "true"),
    ),
    Key(
        "broker.id.reuse.missing",
        "choice",
        "false",
        "Whether an unknown broker may take over the only id that partitions name and no broker has.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    Key(
        "broker.id.binding.key",
        "text",
        "host",
        "What a broker's id is bound to: `host` (of the first advertised listener), or any stable text "
        "unique to the broker.",
        roles=(BROKER,),
        own=True,
    ),
    Key(
        "auto.create.topics.enable",
        "choice",
        "true",
        "Whether to create a topic that a client asks for. Clients can forbid it.",
        roles=(BROKER,),
        choices=("false", "true"),
    ),
    ms_key(
        "initial.broker.registration.timeout.ms",
        60_000,
        "A broker that could not register for this long exits with the reason.",
        roles=(BROKER,),
    ),
    ms_key("broker.heartbeat.interval.ms", 2_000, "Interval of a broker's heartbeats.", roles=(BROKER,)),
    ms_key(
        "registration.lease.timeout.ms",
        18_000,
        "A broker fences itself this long after its last answered heartbeat, or after the controller's "
        "session timeout if that is shorter.",
        roles=(BROKER,),
        own=True,
    ),
    Key(
        "broker.self.fencing.enable",
        "choice",
        "true",
        "Whether a broker whose lease has ended stops serving clients. `false`: it continues, as Kafka's "
        "brokers do, until a controller answers that it is fenced.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    ms_key(
        "controller.request.timeout.ms",
        1_000,
        "Timeout of a registration or heartbeat; well below the session timeout.",
        roles=(BROKER,),
        own=True,
    ),
    ms_key(
        "controlled.shutdown.timeout.ms",
        30_000,
        "How long a stopping broker waits for its leaderships to move.",
        roles=(BROKER,),
        own=True,
    ),
)

_PROCESS = (
    Key(
        "allow.insecure.listeners",
        "choice",
        "false",
        "Whether a listener on another address than loopback may take clients without authentication "
        "(SASL or `ssl.client.auth=required`). Otherwise the node refuses to start.",
        choices=("false", "true"),
        own=True,
    ),
    Key(
        "metrics.listener",
        "text",
        None,
        "Address for Prometheus, `http://host:port`, or `https://host:port` with the keys `ssl.*`; see "
        "metrics.md. Unset: no metrics.",
        own=True,
    ),
    Key(
        "inbox.max.events",
        "int",
        20_000,
        "Maximum number of waiting events; more requests are refused as retriable.",
        minimum=100,
        maximum=10_000_000,
        own=True,
    ),
    Key(
        "log.format",
        "choice",
        "text",
        "Format of log lines on standard error.",
        choices=("text", "json"),
        own=True,
    ),
    Key(
        "log.level",
        "choice",
        "info",
        "Minimum severity of log lines.",
        choices=("debug", "info", "warning", "error"),
        own=True,
    ),
)

GROUPS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    ("The node", _NODE),
    ("The quorum", QUORUM),
    ("The metadata log", METADATA_LOG),
    ("Controllers", _CONTROLLER),
    ("Brokers", _BROKER),
    ("Partition data on brokers", DATA),
    ("Topics that set nothing", TOPICS),
    ("Groups and internal topics", COORDINATORS),
    ("What may be set on a group", GROUP_BOUNDS),
    ("TLS", TLS),
    ("Access", ACCESS),
    ("The process", _PROCESS),
)
KEYS: dict[str, Key] = {key.name: key for _, group in GROUPS for key in group}
