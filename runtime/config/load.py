"""Reads and checks a node's configuration file: once, before anything else.

Owns the rules that span keys. Every problem is one `ConfigError` of one line that names the file. Touches no
other file. Does not build the configuration of the cores: `node` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import javaproperties
from msgspec.structs import replace

from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.runtime.config.access.listeners import (
    brokers_login,
    check_authorizer,
    is_of_a_listener,
    listener_access,
)
from metaquorum.runtime.config.addresses import (
    Listener,
    check_advertised,
    check_speaks_grpc,
    parse_listeners,
    parse_metrics_listener,
    parse_protocols,
    parse_servers,
    parse_voters,
    protocol_of,
)
from metaquorum.runtime.config.foreign import check_passed_over, refuse_unknown, with_new_names
from metaquorum.runtime.config.key import BOTH, BROKER, COMBINED, CONTROLLER, Value
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.node import (
    UNKNOWN_NODE_ID,
    NodeConfig,
    RetentionBounds,
    check_membership,
    unbounded,
)
from metaquorum.runtime.config.tls import check_tls, tls_files
from metaquorum.runtime.errors import ConfigError
from metaquorum.storage.log.log import LogConfig

MAX_FILE_BYTES = 1024 * 1024


BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
FIRST_BOOTSTRAP_ID = -2
"""The id of the first bootstrap server, as in Kafka; the others follow in descending order."""

KAFKAS_LISTENER = "PLAINTEXT://:9092"
"""The default listener of a broker, as in Kafka."""


def load_config(path: Path, role: str | None = None, node_id: int | None = None) -> NodeConfig:
    """Reads and checks the file. `role`: the role that the process must have; None: the file's. `node_id`:
    the id from the command line; the file may omit it, but must not contradict it.

    Raises ConfigError; touches nothing but the file.
    """
    try:
        pairs = _with_node_id(with_new_names(_needed_pairs(path)), node_id)
        refuse_unknown(pairs, KEYS)
        its_role = _role(pairs, role)
        passed = _passed_over(pairs, its_role)
        values = _parse({name: pairs[name] for name in pairs if name not in passed}, its_role)
        config = _with_access(_build(path, values, its_role), passed)
        passed = {name: passed[name] for name in passed if not is_of_a_listener(name, config.kafka_listeners)}
        tls = config.controllers_use_tls or any(each.is_tls for each in config.listeners)
        check_passed_over(passed, config.listeners, uses_tls=tls)
        return replace(config, passed_over=tuple(sorted(passed)))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{path}:") else f"{path}: {text}") from error


def _needed_pairs(path: Path) -> dict[str, str]:
    pairs = read_properties(path)
    if not pairs:
        raise ConfigError(
            "is empty; it needs at least process.roles, node.id, listeners, log.dirs and the voters"
        )
    return pairs


def read_properties(path: Path) -> dict[str, str]:
    """Reads a .properties file, in which a key may occur once. Raises ConfigError, in one line without the
    path."""
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError("is not a configuration file: it is larger than 1 MiB")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}; give the path of a .properties file") from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text; give the path of a .properties file") from error
    pairs: dict[str, str] = {}
    try:
        for entry in javaproperties.parse(text):
            if not isinstance(entry, javaproperties.KeyValue):
                continue
            if entry.key in pairs:
                raise ConfigError(f"{entry.key} is set twice: remove one of the lines")
            pairs[entry.key] = entry.value
    except ValueError as error:
        raise ConfigError(f"is not a .properties file: {error}") from error
    return pairs


def _with_node_id(pairs: dict[str, str], node_id: int | None) -> dict[str, str]:
    if node_id is None:
        return pairs
    written = pairs.get("node.id")
    if written is not None and written.strip() != str(node_id):
        raise ConfigError(f"node.id={written}, but the command line says {node_id}: leave one of them out")
    return {**pairs, "node.id": str(node_id)}


def _passed_over(pairs: Mapping[str, str], role: str) -> dict[str, str]:
    """Kafka's keys that have no effect here, or not in this role."""
    passed = {}
    for name, value in pairs.items():
        key = KEYS.get(name)
        used = key is not None and (role == COMBINED or role in key.roles)
        if key is not None and key.own and not used:
            raise ConfigError(f"{name} is for a {key.roles[0]}, but this is a {role}: remove the line")
        if not used:
            passed[name] = value
    return passed


def _parse(pairs: Mapping[str, str], role: str) -> dict[str, Value]:
    """The value of every key of the table. Raises ConfigError if a required one is missing."""
    values: dict[str, Value] = {}
    for key in KEYS.values():
        values[key.name] = key.parse(pairs[key.name]) if key.name in pairs else key.default
        if key.required and values[key.name] in (None, (), ""):
            raise ConfigError(f"{key.name} is missing: {key.text}")
    generates = values["broker.id.generation.enable"] == "true"
    if generates and role == COMBINED:
        raise ConfigError(
            "broker.id.generation.enable=true is for a broker alone: a controller's id is in its quorum; "
            "remove the line"
        )
    if values["node.id"] is None and (role != BROKER or not generates):
        raise ConfigError(f"node.id is missing: {KEYS['node.id'].text}")
    return values


def _role(pairs: Mapping[str, str], wanted: str | None) -> str:
    key = KEYS["process.roles"]
    roles = cast("tuple[str, ...]", key.parse(pairs.get(key.name, "")))
    if not roles:
        raise ConfigError(f"{key.name} is missing: {key.text}")
    unknown = [each for each in roles if each not in BOTH]
    if unknown:
        raise ConfigError(
            f"process.roles={','.join(unknown)} is not valid: choose controller, broker or both"
        )
    if len(set(roles)) != len(roles):
        raise ConfigError(f"process.roles={','.join(roles)} names a role twice: name each one once")
    role = roles[0] if len(roles) == 1 else COMBINED
    if wanted is not None and role != wanted:
        command = "metaquorum node run" if role == COMBINED else f"the {role}'s command or file"
        raise ConfigError(f"process.roles={','.join(roles)}, but a {wanted} was started: use {command}")
    return role


def _build(path: Path, values: dict[str, Value], role: str) -> NodeConfig:
    node_id = UNKNOWN_NODE_ID if values["node.id"] is None else cast(int, values["node.id"])
    voters, servers = _quorum(values)
    check_membership(role, node_id, voters)
    values = _as_in_kafka(values, role)
    controller_names = cast("tuple[str, ...]", values["controller.listener.names"])
    protocols = parse_protocols(
        cast("tuple[str, ...]", values["listener.security.protocol.map"]), controller_names
    )
    listeners = parse_listeners("listeners", cast("tuple[str, ...]", values["listeners"]), protocols)
    if not controller_names:
        raise ConfigError("controller.listener.names is empty: name the controllers' listener, or remove it")
    controller_name = controller_names[0]
    check_speaks_grpc(controller_name, protocol_of(controller_name, protocols))
    _check_roles_listeners(role, listeners, controller_names)
    advertised = parse_listeners(
        "advertised.listeners", cast("tuple[str, ...]", values["advertised.listeners"]), protocols
    )
    if advertised and role == COMBINED and controller_name not in [each.name for each in advertised]:
        advertised += tuple(each for each in listeners if each.name == controller_name)
    # A combined node reaches static voters through `controller.quorum.voters`.
    found = controller_name if role == COMBINED and voters else None
    if role != CONTROLLER or advertised or not voters:
        told = tuple(each for each in advertised or listeners if each.name != found)
        check_advertised(listeners, told)
    log_dirs = tuple(Path(each) for each in cast("tuple[str, ...]", values["log.dirs"]))
    if len(set(log_dirs)) != len(log_dirs):
        raise ConfigError("log.dirs names a directory twice: remove one")
    metadata_dir = values["metadata.log.dir"]
    config = NodeConfig(
        path=path,
        role=role,
        node_id=node_id,
        voters=voters,
        bootstrap_servers=servers,
        listeners=listeners,
        advertised=advertised or listeners,
        metrics_listener=parse_metrics_listener(cast("str | None", values["metrics.listener"]), listeners),
        controller_listener=controller_name,
        controllers_use_tls=protocol_of(controller_name, protocols) == "SSL",
        log_dirs=log_dirs,
        metadata_log_dir=Path(cast(str, metadata_dir)) if metadata_dir else log_dirs[0],
        tls=tls_files(values),
        raft=_raft(values, len(servers)),
        log=LogConfig(
            segment_bytes=cast(int, values["metadata.log.segment.bytes"]),
            segment_ms=cast(int, values["metadata.log.segment.ms"]),
        ),
        retention=RetentionBounds(
            max_bytes=unbounded(values["metadata.max.retention.bytes"]),
            max_ms=unbounded(values["metadata.max.retention.ms"]),
        ),
        values=values,
    )
    _check_listeners(config)
    if role != CONTROLLER:
        _check_broker(config.of(BROKER))
    return config


def _as_in_kafka(values: dict[str, Value], role: str) -> dict[str, Value]:
    """The values with names of listeners and protocols in upper case, and with a broker's default
    listener."""
    names = cast("tuple[str, ...]", values["controller.listener.names"])
    single = ("inter.broker.listener.name", "security.inter.broker.protocol")
    capitals = {key: name.upper() for key in single if isinstance(name := values[key], str)}
    if role == BROKER and not values["listeners"]:
        values = {**values, "listeners": (KAFKAS_LISTENER,)}
    return {**values, **capitals, "controller.listener.names": tuple(name.upper() for name in names)}


def _check_broker(broker: NodeConfig) -> None:
    """Checks the values of a broker against each other. Raises ConfigError."""
    known = broker.with_node_id(0) if broker.node_id == UNKNOWN_NODE_ID else broker
    _check_speaks_kafka(broker)
    # The process looks up the machine's own name later, when it starts.
    known.with_host_name(lambda: "localhost").broker("", (), ())
    broker.replicas()
    broker.coordinators()


def _check_roles_listeners(
    role: str, listeners: tuple[Listener, ...], controller_names: tuple[str, ...]
) -> None:
    """Checks that a controller has a listener with its name, and that a broker has another. Raises
    ConfigError."""
    controller_name, names = controller_names[0], [each.name for each in listeners]
    of_controllers = [name for name in names if name in controller_names]
    if role == CONTROLLER and names != [controller_name]:
        raise ConfigError(
            f"a controller needs exactly one listener, named {controller_name} "
            f"(controller.listener.names): write listeners={controller_name}://host:port"
        )
    if role == COMBINED and of_controllers != [controller_name]:
        raise ConfigError(
            f"a node with both roles needs one listener named {controller_name} "
            f"(controller.listener.names), and its broker's beside it: correct listeners"
        )
    if role == COMBINED and names == of_controllers:
        raise ConfigError(
            f"listeners has {controller_name} only, which is the controllers': add one for clients and other "
            "brokers, such as PLAINTEXT://host:port"
        )
    if role == BROKER and of_controllers:
        raise ConfigError(
            f"listeners has {of_controllers[0]}, which controller.listener.names gives to controllers, but "
            "this is a broker: remove it, or give it another name"
        )


def _check_listeners(config: NodeConfig) -> None:
    for listener in config.grpc_listeners:
        check_speaks_grpc(listener.name, listener.protocol)
    figures = () if config.metrics_listener is None else (config.metrics_listener,)
    check_tls(config.tls, serves_tls=any(listener.is_tls for listener in (*config.listeners, *figures)))


def _with_access(config: NodeConfig, own: Mapping[str, str]) -> NodeConfig:
    """The configuration with the access to each Kafka listener. `own`: keys that are not in the table, among
    them those of single listeners."""
    check_authorizer(config.values)
    access = {each.name: listener_access(each, config.values, own) for each in config.kafka_listeners}
    asks = any(each.client_auth != "none" for each in access.values())
    if asks and config.tls.truststore is None:
        raise ConfigError(
            "a listener asks clients for certificates, which needs ssl.truststore.location: set it to the "
            "PEM file of the clients' CA"
        )
    followed = None if config.role == CONTROLLER else config.of(BROKER).inter_broker_listener
    login = None if followed is None else brokers_login(followed, access[followed.name], config.values, own)
    return replace(config, access=access, brokers_login=login)


def _check_speaks_kafka(config: NodeConfig) -> None:
    if not config.kafka_listeners:
        raise ConfigError(
            f"every listener speaks gRPC, because its name begins with {GRPC_LISTENER}: add one with another "
            "name, such as PLAINTEXT; clients and other brokers use it"
        )
    name, protocol = (
        config.values[key] for key in ("inter.broker.listener.name", "security.inter.broker.protocol")
    )
    if name and protocol:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol are both set: remove the latter"
        )
    if config.inter_broker_listener is None and not name and not protocol:
        raise ConfigError(
            "advertised.listeners has no listener that speaks Kafka's protocol: add one, such as "
            f"{config.kafka_listeners[0].name}://host:port; clients and other brokers use it"
        )
    if config.inter_broker_listener is None:
        key, value = (
            ("inter.broker.listener.name", name) if name else ("security.inter.broker.protocol", protocol)
        )
        names = ", ".join(each.name for each in config.kafka_listeners)
        raise ConfigError(
            f"{key}={value} matches no listener that speaks Kafka's protocol; there are: {names}"
        )


def _quorum(values: Mapping[str, Value]) -> tuple[tuple[Voter, ...], tuple[tuple[str, int], ...]]:
    """The static voters, and (host, port) of the bootstrap servers; one of the two may be empty."""
    voters = parse_voters(cast("tuple[str, ...]", values["controller.quorum.voters"] or ()))
    servers = parse_servers(BOOTSTRAP_SERVERS, cast("tuple[str, ...]", values[BOOTSTRAP_SERVERS]))
    if not voters and not servers:
        raise ConfigError(
            f"controller.quorum.voters is missing: name every controller there, or, where the voters are "
            f"dynamic, some of them in {BOOTSTRAP_SERVERS}"
        )
    return voters, servers


def _raft(values: Mapping[str, Value], servers: int) -> RaftConfig:
    def number(name: str) -> int:
        return cast(int, values[f"controller.quorum.{name}"])

    fetch_timeout_ms, fetch_max_wait_ms = number("fetch.timeout.ms"), number("fetch.max.wait.ms")
    if fetch_max_wait_ms * 2 > fetch_timeout_ms:
        raise ConfigError(
            f"controller.quorum.fetch.max.wait.ms ({fetch_max_wait_ms}) must be at most half of "
            f"controller.quorum.fetch.timeout.ms ({fetch_timeout_ms}), or a waiting fetch looks like a "
            "dead leader"
        )
    return RaftConfig(
        election_timeout_ms=number("election.timeout.ms"),
        election_backoff_max_ms=number("election.backoff.max.ms"),
        fetch_timeout_ms=fetch_timeout_ms,
        fetch_max_wait_ms=fetch_max_wait_ms,
        high_watermark_linger_ms=number("high.watermark.linger.ms"),
        observer_fetch_max_wait_ms=number("observer.fetch.max.wait.ms"),
        request_timeout_ms=number("request.timeout.ms"),
        retry_backoff_ms=number("retry.backoff.ms"),
        retry_backoff_max_ms=number("retry.backoff.max.ms"),
        fetch_max_bytes=number("fetch.max.bytes"),
        snapshot_chunk_bytes=number("fetch.snapshot.max.bytes"),
        bootstrap_ids=tuple(FIRST_BOOTSTRAP_ID - at for at in range(servers)),
    )
