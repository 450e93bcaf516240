"""Reads and checks a node's configuration file: once, before anything else.

Every problem is one `ConfigError` of one line that names the file. Kafka's keys that have no effect here are
ignored if the node without them is slower, lacks a feature or retains more; never if it would let in, show or
change what the key prevents.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from metaquorum.config.addresses import (
    ControllerNames,
    Listener,
    check_advertised,
    check_controllers_speak_grpc,
    check_speaks_grpc,
    parse_listeners,
    parse_metrics_listener,
    parse_protocols,
    parse_servers,
    parse_voters,
    protocol_of,
    split,
)
from metaquorum.config.files import Resolved, read_properties, resolve
from metaquorum.config.keys import GRPC_PROTOCOL, KAFKA_PROTOCOL, KEYS, PROTOCOL_KEY, parsed
from metaquorum.config.node import (
    COMBINED,
    UNKNOWN_NODE_ID,
    NodeConfig,
    RetentionBounds,
    check_membership,
    filled,
    unbounded,
)
from metaquorum.config.security import (
    brokers_login,
    check_authorizer,
    check_tls,
    controllers_login,
    is_of_a_listener,
    listener_access,
    own_tls_files,
    own_tls_keys,
    tls_files,
)
from metaquorum.errors import ConfigError
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS, is_kafkas
from metaquorum.metadata.settings.keys import BOTH, BROKER, CONTROLLER, Key, Value
from metaquorum.metadata.text.addresses import address_text
from metaquorum.raft.config import RaftConfig, RaftConfigError, Voter
from metaquorum.storage.log.config import LogConfig

BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
_GENERATES = "broker.id.generation.enable"
FIRST_BOOTSTRAP_ID = -2
"""The id of the first bootstrap server, as in Kafka; the others follow in descending order."""


def load_config(
    path: Path,
    role: str | None = None,
    node_id: int | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    found_protocol: str | None = None,
) -> NodeConfig:
    """Reads and checks the file, and what its `config.providers` read. `role`: the role that the process must
    have; None: the file's. `node_id`: the id from the command line; the file may omit it, but must not
    contradict it. `settings`: instead of the file, whose path then only names them in messages.
    `found_protocol`: that of the controllers, if the file does not say it.

    Raises ConfigError; changes nothing.
    """
    warnings: list[str] = []
    resolved = Resolved({})
    try:
        resolved = resolve(_needed_pairs(path, warnings) if settings is None else settings)
        pairs = _with_node_id(with_new_names(resolved.pairs), node_id)
        unknown = unknown_names(pairs, KEYS)
        if unknown:
            warnings.append(f"ignoring keys that neither Kafka nor metaquorum has: {', '.join(unknown)}")
        its_role = _role(pairs, role)
        passed = _passed_over({name: pairs[name] for name in pairs if name not in unknown}, its_role)
        used = {name: pairs[name] for name in pairs if name in KEYS and name not in passed}
        values = _parse(used, its_role)
        values[PROTOCOL_KEY] = values[PROTOCOL_KEY] or found_protocol
        config = _with_access(_with_tls(_build(path, values, its_role), passed), passed)
        of_tls = {key for name in config.tls_listeners for key in own_tls_keys(name).values()}
        passed = {
            name: passed[name]
            for name in passed
            if name not in of_tls and not is_of_a_listener(name, (*config.kafka_listeners, *_asked(config)))
        }
        check_passed_over(passed, config.tls_listeners)
        if values[_GENERATES] and not config.values[_GENERATES]:
            warnings.append(
                f"{_GENERATES}=true has no effect where nothing asks controllers over gRPC: nothing binds "
                f"this broker's id; remove the line, or set {PROTOCOL_KEY}=grpc on every node"
            )
        warnings += own_entry_warnings(config)
        return replace(
            config,
            passed_over=tuple(sorted(passed)),
            finds_protocol=its_role == BROKER and not values[PROTOCOL_KEY] and config.quorum_speaks_kafka,
            warnings=tuple(resolved.hide(each) for each in warnings),
        )
    except ConfigError as error:
        text = resolved.hide(str(error))
        raise ConfigError(text if text.startswith(f"{path}:") else f"{path}: {text}") from error


def _needed_pairs(path: Path, warnings: list[str]) -> dict[str, str]:
    repeated: list[str] = []
    pairs = read_properties(path, repeated)
    if not pairs:
        raise ConfigError(
            "is empty; it needs at least process.roles, node.id, listeners, log.dirs and the voters"
        )
    warnings += [f"{name} is set more than once: the last line counts" for name in repeated]
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


def _parse(pairs: Mapping[str, str], role: str) -> dict[str, Value | None]:
    """The value of every key of the table. Raises ConfigError if a required one is missing."""
    values: dict[str, Value | None] = {}
    for key in KEYS.values():
        values[key.name] = parsed(key.name, pairs[key.name]) if key.name in pairs else key.default
    # A controller alone keeps nothing but the metadata log.
    if role == CONTROLLER and not values["log.dirs"] and values["metadata.log.dir"]:
        values["log.dirs"] = (cast(str, values["metadata.log.dir"]),)
    for key in KEYS.values():
        if key.required and values[key.name] in (None, (), ""):
            raise ConfigError(f"{key.name} is missing: {key.text}")
    generates = values["broker.id.generation.enable"]
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
    roles = cast("tuple[str, ...]", parsed(key.name, pairs.get(key.name, "")))
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


def _build(path: Path, values: dict[str, Value | None], role: str) -> NodeConfig:
    node_id = UNKNOWN_NODE_ID if values["node.id"] is None else cast(int, values["node.id"])
    voters, servers = _quorum(values)
    check_membership(role, node_id, voters)
    values = _as_in_kafka(values)
    controller_names = cast("tuple[str, ...]", values["controller.listener.names"])
    protocols = parse_protocols(_entries(values, "listener.security.protocol.map"), controller_names)
    listeners = parse_listeners("listeners", _entries(values, "listeners"), protocols)
    if not controller_names:
        raise ConfigError("controller.listener.names is empty: name the controllers' listener, or remove it")
    values, asked = _asked_listeners(role, values, controller_names)
    controller_name, speaks_kafka = asked.first, asked.first == asked.kafka
    if not speaks_kafka:
        check_controllers_speak_grpc(controller_name, protocol_of(controller_name, protocols))
    _check_roles_listeners(role, listeners, controller_name, asked, speaks_kafka=speaks_kafka)
    advertised = parse_listeners("advertised.listeners", _entries(values, "advertised.listeners"), protocols)
    if role == CONTROLLER:
        listeners, advertised = (
            tuple(sorted(each, key=lambda listener: listener.name != controller_name))
            for each in (listeners, advertised)
        )
    advertised = _with_controllers(role, listeners, advertised, controller_names)
    # A combined node reaches static voters through `controller.quorum.voters`.
    found = controller_name if role == COMBINED and voters else None
    if role != CONTROLLER or advertised or not voters:
        others = tuple(each for each in advertised or listeners if each.name != found)
        check_advertised(listeners, others)
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
        controller_names=controller_names,
        controller_listener=controller_name,
        controllers_protocol=protocol_of(controller_name, protocols),
        grpc_controller_listener=asked.grpc,
        log_dirs=log_dirs,
        metadata_log_dir=Path(cast(str, metadata_dir)) if metadata_dir else log_dirs[0],
        tls=tls_files(values),
        raft=_raft(values, len(servers)),
        log=LogConfig(**filled(LogConfig, values)),
        retention=RetentionBounds(
            max_bytes=unbounded(values["metadata.max.retention.bytes"]),
            max_ms=unbounded(values["metadata.max.retention.ms"]),
        ),
        values=values,
    )
    config.overrides()
    _check_protocols(config)
    if role != CONTROLLER:
        _check_broker(config.of(BROKER))
    return config


def _with_controllers(
    role: str, listeners: tuple[Listener, ...], advertised: tuple[Listener, ...], names: tuple[str, ...]
) -> tuple[Listener, ...]:
    """What a combined node advertises, if its file says that of its broker alone."""
    if not advertised or role != COMBINED:
        return advertised
    said = {each.name for each in advertised}
    return advertised + tuple(each for each in listeners if each.name in names and each.name not in said)


def _asked_listeners(
    role: str, values: dict[str, Value | None], names: tuple[str, ...]
) -> tuple[dict[str, Value | None], ControllerNames]:
    """The values with the protocol by which this node asks controllers, and where those listen. Raises
    ConfigError for what Kafka's protocol cannot ask, and for a protocol without a listener."""
    said = values[PROTOCOL_KEY]
    if role != BROKER and said == GRPC_PROTOCOL:
        raise ConfigError(
            f"{PROTOCOL_KEY}={said}: controllers ask each other by Kafka's protocol; remove the line from "
            "the files of all controllers, and for brokers that ask over gRPC add a listener whose name "
            f"begins with {GRPC_LISTENER} (docs/operations.md, What a listener speaks)"
        )
    needs_id = role == BROKER and values["node.id"] is None
    insists = said == GRPC_PROTOCOL or (said is None and needs_id)
    asked = ControllerNames.of(names, insists_on_grpc=insists)
    if said is None:
        # Where there are both, brokers ask by gRPC.
        is_grpc = role == BROKER and asked.grpc is not None
        said = GRPC_PROTOCOL if is_grpc else KAFKA_PROTOCOL
    if said == KAFKA_PROTOCOL and asked.kafka is None:
        what = f"{PROTOCOL_KEY}={said} needs" if role == BROKER else "controllers need"
        raise ConfigError(
            f"{what} a listener in controller.listener.names that speaks Kafka's protocol: its name does not "
            f"begin with {GRPC_LISTENER}"
        )
    if said == KAFKA_PROTOCOL and needs_id:
        raise ConfigError(
            f"{_GENERATES}=true needs {PROTOCOL_KEY}=grpc: Kafka's protocol cannot ask for an id; set "
            "node.id and format the directories, or remove one of the two"
        )
    first = asked.kafka if said == KAFKA_PROTOCOL else asked.grpc
    generates = values[_GENERATES] and said == GRPC_PROTOCOL
    return {**values, PROTOCOL_KEY: said, _GENERATES: generates}, replace(asked, first=first)


def _check_protocols(config: NodeConfig) -> None:
    for listener in config.grpc_listeners:
        check_speaks_grpc(listener.name, listener.protocol)


def own_entry_warnings(config: NodeConfig) -> list[str]:
    """What to say about a controller's own entry among the static voters."""
    own = next((each for each in config.voters if each.node_id == config.node_id), None)
    if own is None or config.role == BROKER:
        return []
    places = config.of(CONTROLLER)
    if own.port in {each.port for each in (*places.listeners, *places.advertised)}:
        return []
    return [
        f"controller.quorum.voters has {own.node_id}@{address_text(own.host, own.port)} for this node, but "
        f"its listener {config.controller_listener} has port {_port(places)}: other nodes connect "
        f"to port {own.port}; correct one of the two, unless something forwards the port"
    ]


def _port(config: NodeConfig) -> int:
    return next(each.port for each in config.listeners if each.name == config.controller_listener)


def _entries(values: Mapping[str, Value | None], name: str) -> tuple[str, ...]:
    """The entries of a text key."""
    return split(cast("str | None", values[name]))


def _as_in_kafka(values: dict[str, Value | None]) -> dict[str, Value | None]:
    """The values with names of listeners and protocols in upper case."""
    names = cast("tuple[str, ...]", values["controller.listener.names"])
    single = ("inter.broker.listener.name", "security.inter.broker.protocol")
    capitals = {key: name.upper() for key in single if isinstance(name := values[key], str)}
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
    role: str,
    listeners: tuple[Listener, ...],
    controller_name: str,
    asked: ControllerNames,
    *,
    speaks_kafka: bool,
) -> None:
    """Checks that a controller has the listener on which others ask it, and that a broker has another.
    Raises ConfigError."""
    names = [each.name for each in listeners]
    of_controllers = [name for name in names if name in asked.names]
    if role == CONTROLLER and controller_name not in names:
        raise ConfigError(
            f"a controller needs a listener named {controller_name} (controller.listener.names): write "
            f"listeners={controller_name}://host:port"
        )
    if role == CONTROLLER and of_controllers != names:
        other = next(name for name in names if name not in asked.names)
        raise ConfigError(
            f"listeners has {other}, which controller.listener.names does not have: add it there, after "
            f"{controller_name}, for clients of Kafka's protocol, or remove it"
        )
    if role == COMBINED and (
        controller_name not in of_controllers if speaks_kafka else of_controllers != [controller_name]
    ):
        raise ConfigError(
            f"a node with both roles needs one listener named {controller_name} "
            "(controller.listener.names), and its broker's beside it; only a quorum that speaks Kafka's "
            "protocol has others of controller.listener.names there: correct listeners"
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


def _with_tls(config: NodeConfig, own: Mapping[str, str]) -> NodeConfig:
    """The configuration with the TLS files of each listener. `own`: as for `_with_access`."""
    found = {name: own_tls_files(name, config.values, own) for name in config.tls_listeners}
    config = replace(config, listener_tls={name: each for name, each in found.items() if each is not None})
    figures = () if config.metrics_listener is None else (config.metrics_listener,)
    serving = [each.name for each in (*config.listeners, *figures) if each.is_tls]
    for name in serving:
        prefix = f"listener.name.{name.lower()}." if name in config.listener_tls else ""
        check_tls(config.tls_of(name), prefix)
    if config.tls.client_auth and not serving:
        raise ConfigError(
            "ssl.client.auth=required, but no listener is SSL: map one in listener.security.protocol.map"
        )
    return config


def _with_access(config: NodeConfig, own: Mapping[str, str]) -> NodeConfig:
    """The configuration with the access to each Kafka listener. `own`: keys that are not in the table, among
    them those of single listeners."""
    check_authorizer(config.values)
    access = {each.name: listener_access(each, config.values, own) for each in config.kafka_listeners}
    asking = [name for name, each in access.items() if each.client_auth != "none"]
    if any(config.tls_of(name).truststore is None for name in asking):
        raise ConfigError(
            "a listener asks clients for certificates, which needs ssl.truststore.location: set it to the "
            "PEM file of the clients' CA"
        )
    followed = None if config.role == CONTROLLER else config.of(BROKER).inter_broker_listener
    login = None if followed is None else brokers_login(followed, access[followed.name], config.values, own)
    there = None
    for asked in _asked(config):
        there = controllers_login(asked, access.get(asked.name), config.values, own)
    return replace(config, access=access, brokers_login=login, controllers_login=there)


def _asked(config: NodeConfig) -> tuple[Listener, ...]:
    """The controllers' listener that this node asks by Kafka's protocol, if it does: a controller's own, and
    for a broker its name and protocol."""
    if not config.quorum_speaks_kafka:
        return ()
    if config.role != BROKER:
        return config.of(CONTROLLER).kafka_listeners[:1]
    name, protocol = config.controller_listener, config.controllers_protocol
    return (Listener(name=name, host="", port=0, protocol=protocol),)


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


def _quorum(values: Mapping[str, Value | None]) -> tuple[tuple[Voter, ...], tuple[tuple[str, int], ...]]:
    """The static voters, and (host, port) of the bootstrap servers; one of the two may be empty."""
    voters = parse_voters(cast("tuple[str, ...]", values["controller.quorum.voters"] or ()))
    servers = parse_servers(BOOTSTRAP_SERVERS, cast("tuple[str, ...]", values[BOOTSTRAP_SERVERS]))
    if not voters and not servers:
        raise ConfigError(
            f"controller.quorum.voters is missing: name every controller there, or, where the voters are "
            f"dynamic, some of them in {BOOTSTRAP_SERVERS}"
        )
    return voters, servers


def _raft(values: Mapping[str, Value | None], servers: int) -> RaftConfig:
    fields = filled(RaftConfig, values)
    # doubled up to a maximum, which Kafka does not have: it grows with what a file for Kafka sets
    fields["retry_backoff_max_ms"] = max(fields["retry_backoff_ms"], fields["retry_backoff_max_ms"])
    try:
        return RaftConfig(**fields, bootstrap_ids=tuple(FIRST_BOOTSTRAP_ID - at for at in range(servers)))
    except RaftConfigError as error:
        names = {key.fills[1]: key.name for key in KEYS.values() if key.fills and key.fills[0] is RaftConfig}
        raise ConfigError(error.named(lambda field: names[field])) from None


ALLOW = "allow.insecure.listeners"


def check_closed(config: NodeConfig, addresses: Callable[[str], list[str]]) -> str | None:
    """The line about Kafka listeners that other machines can reach and that do not authenticate clients; None
    if there are none, or if the file allows them. Raises ConfigError for another such listener, which no file
    of Apache Kafka has, and for all if the file forbids them (ADR 26). `addresses` returns the IP addresses
    of a host name, none for an unknown one."""
    allowed = config.values[ALLOW]
    if allowed:
        return None
    open_at = []
    figures = () if config.metrics_listener is None else (config.metrics_listener,)
    for listener in (*config.listeners, *figures):
        if _knows_clients(config, listener) or _is_loopback(listener.host, addresses):
            continue
        where = f"{listener.name} on {listener.host or 'every interface'}:{listener.port}"
        kafka = listener in config.kafka_listeners
        if kafka and allowed is None:
            open_at.append(where)
            continue
        configure = "use SASL or ssl.client.auth=required" if kafka else "use ssl.client.auth=required"
        if listener in figures:
            configure = "use https in metrics.listener with ssl.client.auth=required"
        raise ConfigError(_open_line(config, where, configure))
    return _open_line(config, ", ".join(open_at), "use SASL or ssl.client.auth=required") if open_at else None


def _open_line(config: NodeConfig, where: str, configure: str) -> str:
    return (
        f"{config.path}: listener {where} takes clients of other machines without authentication: "
        f"{configure} (docs/security.md), or accept that with {ALLOW}=true"
    )


def open_to_certificates(config: NodeConfig, addresses: Callable[[str], list[str]]) -> str | None:
    """The line about gRPC listeners and controllers' listeners on which every certificate of the CA is an
    administrator; None if there are none. Such a node starts: a cluster whose CA certifies only nodes and
    administrators is safe."""
    if config.text("authorizer.class.name"):
        return None
    names = [
        listener.name
        for listener in config.listeners
        if (listener in config.grpc_listeners or listener.name in config.controller_names)
        and (listener.is_tls and not listener.is_sasl and _knows_clients(config, listener))
        and not _is_loopback(listener.host, addresses)
    ]
    if not names:
        return None
    return (
        f"{config.path}: on listener {', '.join(names)} every client with a certificate that this node"
        " accepts may do everything: set authorizer.class.name and super.users in every node's file"
        " (docs/security.md)"
    )


def _knows_clients(config: NodeConfig, listener: Listener) -> bool:
    """True if the listener authenticates its clients."""
    access = config.access.get(listener.name)
    if access is None:
        return listener.is_tls and config.tls_of(listener.name).client_auth
    return bool(access.mechanisms) or (listener.is_tls and access.client_auth == "required")


def _is_loopback(host: str, addresses: Callable[[str], list[str]]) -> bool:
    """True if only this machine can reach a host, or if the host is unknown: no one can listen on it."""
    found = addresses(host) if host else [""]
    return all(each and ip_address(each.partition("%")[0]).is_loopback for each in found)


ALIASES = {"broker.id": "node.id", "log.dir": "log.dirs"}
"""Older names that Kafka still accepts if the newer one is not set."""


class KeyRefusal(msgspec.Struct, frozen=True):
    """What to do about a key that is refused, and the values for which it is."""

    advice: str
    applies: Callable[[str], bool] = bool


def _is(word: str) -> Callable[[str], bool]:
    return lambda value: value.lower() == word


def _restricts_tls(value: str) -> bool:
    return bool(value) and not {"TLSv1.2", "TLSv1.3"} <= {part.strip() for part in value.split(",")}


_DEFAULT_PRINCIPALS = ".DefaultKafkaPrincipalBuilder"
_POLICY = "remove the line to allow what the policy would refuse"
_INLINE = "name PEM files in ssl.keystore.location and ssl.truststore.location instead"

ALWAYS: Mapping[str, KeyRefusal] = {
    "create.topic.policy.class.name": KeyRefusal(_POLICY),
    "alter.config.policy.class.name": KeyRefusal(_POLICY),
    "cordoned.log.dirs": KeyRefusal("directories cannot be cordoned; remove the line"),
    "principal.builder.class": KeyRefusal(
        "there are no plug-ins; remove the line", lambda value: not value.endswith(_DEFAULT_PRINCIPALS)
    ),
    "sasl.oauthbearer.jwt.validator.class": KeyRefusal(
        "there are no plug-ins; remove the line", lambda value: not value.endswith(".DefaultJwtValidator")
    ),
    "delete.topic.enable": KeyRefusal("topics can always be deleted; remove the line", _is("false")),
    "remote.log.storage.system.enable": KeyRefusal(
        "there is no tiered storage, and its records would be missing", _is("true")
    ),
    "zookeeper.connect": KeyRefusal("remove the line and set controller.quorum.voters"),
    "zookeeper.metadata.migration.enable": KeyRefusal("finish the migration with Kafka", _is("true")),
}
WITH_TLS: Mapping[str, KeyRefusal] = {
    "ssl.cipher.suites": KeyRefusal("gRPC chooses the cipher suites; remove the line"),
    "ssl.enabled.protocols": KeyRefusal(
        "TLSv1.2 and TLSv1.3 are always enabled; remove the line",
        _restricts_tls,
    ),
    "ssl.engine.factory.class": KeyRefusal("there are no plug-ins; remove the line"),
    "ssl.key.password": KeyRefusal("decrypt the private key"),
    "ssl.keystore.password": KeyRefusal("a PEM file has no password; remove the line"),
    "ssl.truststore.password": KeyRefusal("a PEM file has no password; remove the line"),
    "ssl.keystore.key": KeyRefusal(_INLINE),
    "ssl.keystore.certificate.chain": KeyRefusal(_INLINE),
    "ssl.truststore.certificates": KeyRefusal(_INLINE),
}
"""Refused if a listener of this node or of the controllers is SSL; otherwise they have no effect in Kafka
either."""

_ALIKE, _NEARLY_THE_SAME = 0.75, 0.85
"""Shares of equal letters from which names are alike."""

_OF_A_LISTENER = re.compile(r"listener\.name\.([^.]+)\.(ssl\..+)")


def unknown_names(names: Iterable[str], keys: Mapping[str, Key]) -> tuple[str, ...]:
    """The names that are neither keys here nor Kafka's, such as a vendor's. Raises one ConfigError for all
    that look like a mistake, each with the known name that it resembles."""
    unknown = [name for name in names if name not in keys and not is_kafkas(name)]
    near = {name: _resembled(name, sorted({*keys, *KAFKA_KEYS})) for name in unknown}
    mistakes = [name for name in unknown if near[name]]
    if len(mistakes) == 1:
        raise ConfigError(f"{mistakes[0]} is not a known key: did you mean {near[mistakes[0]]}?")
    if mistakes:
        listed = ", ".join(f"{name} (did you mean {near[name]}?)" for name in mistakes)
        raise ConfigError(f"{listed} are not known keys: docs/configuration.md lists the known ones")
    return tuple(unknown)


def _resembled(name: str, keys: list[str]) -> str | None:
    """The known key for which a name is a likely mistake: nearly the same, or its end. A vendor's key may end
    like one of Kafka's, but begins with the vendor's name."""
    ends = [each for each in keys if each.endswith(f".{name}")]
    if ends and "." in name:
        return min(ends, key=len)
    for match in difflib.get_close_matches(name, keys, n=3, cutoff=_ALIKE):
        ratio = difflib.SequenceMatcher(None, name, match).ratio()
        first, its_first = name.partition(".")[0], match.partition(".")[0]
        if ratio >= _NEARLY_THE_SAME or difflib.SequenceMatcher(None, first, its_first).ratio() >= _ALIKE:
            return match
    return None


def with_new_names(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs with Kafka's older names replaced by the newer ones. Raises ConfigError if a node's two ids
    differ."""
    renamed = dict(pairs)
    for old, new in ALIASES.items():
        if old not in renamed:
            continue
        value = renamed.pop(old)
        if new == "node.id" and renamed.get(new, value).strip() != value.strip():
            raise ConfigError(f"{old}={value}, but {new}={renamed[new]}: remove the line with {old}")
        renamed.setdefault(new, value)
    return renamed


def check_passed_over(passed: Mapping[str, str], tls_listeners: tuple[str, ...]) -> None:
    """Raises one ConfigError for all keys that must not be ignored. `tls_listeners`: the names of those with
    TLS, this node's and the controllers'."""
    refusals = {**ALWAYS, **WITH_TLS} if tls_listeners else ALWAYS
    tls_names = {name.lower() for name in tls_listeners}
    problems = []
    for name, raw in passed.items():
        value = raw.strip()
        refusal = refusals.get(name)
        own = _OF_A_LISTENER.fullmatch(name)
        if own is not None and own[1].lower() in tls_names:
            refusal = WITH_TLS.get(own[2])
        if refusal is not None and refusal.applies(value):
            problems.append(f"{name} is not supported: {refusal.advice}")
    if problems:
        raise ConfigError("; ".join(problems))
