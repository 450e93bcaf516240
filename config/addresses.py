"""Addresses, voters and listeners of a file: parsed, and checked against each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from metaquorum.errors import ConfigError
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.metadata.text.addresses import address_text, listener_text, may_be_host
from metaquorum.raft.config import Voter
from metaquorum.storage.uuids import uuid_from_text

PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_NOWHERE = frozenset({"0.0.0.0", "::"})

_LISTENER = re.compile(
    r"^([A-Za-z][A-Za-z0-9_.-]*)://(\[[0-9a-fA-F:]+(?:%[0-9A-Za-z_.-]+)?\]|[^:/\[\]]*):(\d+)$"
)
_VOTER = re.compile(r"^(\d+)@(\[[0-9a-fA-F:]+\]|[^:@\[\]]+):(\d+)(?::([A-Za-z0-9_-]+))?$")
_SERVER = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^:@/\[\]]+):(\d+)$")


def split(text: str | None) -> tuple[str, ...]:
    """The entries of a text that separates them by commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One address; `protocol` is one of `PROTOCOL_IDS`. An empty `host` means every interface of this
    machine."""

    name: str
    host: str
    port: int
    protocol: str

    @property
    def leads_nowhere(self) -> bool:
        """True if no other machine can connect to this host."""
        return self.host in _NOWHERE

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


def parse_voters(entries: Iterable[str], key: str = "controller.quorum.voters") -> tuple[Voter, ...]:
    """Parses `id@host:port[:directory-id]` entries. `key` is the key or option that error texts name. Raises
    ConfigError for a malformed, repeated or empty entry."""
    voters: list[Voter] = []
    for entry in entries:
        match = _VOTER.match(entry)
        if match is None:
            raise ConfigError(f"{key} has {entry!r}: write id@host:port:directory-id, or id@host:port")
        try:
            directory_id = uuid_from_text(match[4]) if match[4] else None
        except ValueError as error:
            raise ConfigError(f"{key} has {entry!r}: {error}") from error
        voters.append(
            Voter(
                node_id=_node_id(key, match[1]),
                host=_host(key, entry, match[2]),
                port=_port(key, entry, match[3]),
                directory_id=directory_id,
            )
        )
    ids = [voter.node_id for voter in voters]
    for node_id in ids:
        if ids.count(node_id) > 1:
            raise ConfigError(f"{key} has node {node_id} twice: give each voter its own id")
    addresses = [(voter.host, voter.port) for voter in voters]
    for host, port in addresses:
        if addresses.count((host, port)) > 1:
            raise ConfigError(f"{key} has {address_text(host, port)} twice: each voter listens on its own")
    return tuple(voters)


def parse_servers(key: str, entries: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Parses `host:port` entries of one key into (host, port), IPv6 hosts without brackets. Raises
    ConfigError."""
    servers = []
    for entry in entries:
        match = _SERVER.match(entry)
        if match is None:
            raise ConfigError(f"{key} has {entry!r}: write host:port, or [address]:port for IPv6")
        servers.append((_host(key, entry, match[1]), _port(key, entry, match[2])))
    return tuple(servers)


def _node_id(key: str, text: str) -> int:
    value = whole_number(text, MAX_INT)
    if value is None:
        raise ConfigError(f"{key} has node id {text}: the largest is {MAX_INT}")
    return value


def _host(key: str, entry: str, text: str) -> str:
    host = text.strip("[]")
    if not may_be_host(host):
        raise ConfigError(
            f"{key} has {entry!r}: a host name has from 1 to 63 characters between dots: correct it"
        )
    return host


def _port(key: str, entry: str, text: str) -> int:
    port = whole_number(text, 65535)
    if port is None or port < 1:
        raise ConfigError(f"{key} has {entry!r}: a port is a number from 1 to 65535")
    return port


def parse_protocols(entries: tuple[str, ...], controllers: tuple[str, ...] = ()) -> dict[str, str]:
    """Parses NAME:PROTOCOL entries; returns protocols by name in upper case. Protocols also count as names.
    Without an entry, the listeners of controllers are PLAINTEXT."""
    protocols: dict[str, str] = {}
    for entry in entries:
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if protocol not in PROTOCOL_IDS:
            raise ConfigError(
                f"listener.security.protocol.map has {entry!r}: write NAME:PROTOCOL, with one of "
                f"{', '.join(PROTOCOL_IDS)}"
            )
        if protocols.setdefault(name, protocol) != protocol:
            raise ConfigError(f"listener.security.protocol.map has {name} twice: remove one")
    plain = dict.fromkeys(controllers, "PLAINTEXT")
    return {**plain, **{name: name for name in PROTOCOL_IDS}, **protocols}


def protocol_of(name: str, protocols: Mapping[str, str]) -> str:
    """The protocol of a listener. Raises ConfigError if none is configured: PLAINTEXT would let anyone in."""
    if name not in protocols and name.startswith(GRPC_LISTENER):
        return "PLAINTEXT"
    if name not in protocols:
        raise ConfigError(
            f"listener.security.protocol.map does not have the listener {name}: add {name}:PROTOCOL, with "
            f"one of {', '.join(PROTOCOL_IDS)}"
        )
    return protocols[name]


class ControllerNames(msgspec.Struct, frozen=True):
    """The controllers' listeners by name. `grpc` and `kafka`: those on which the two protocols are asked;
    None: there is none. `first`: the one of the two that this node asks on."""

    names: tuple[str, ...]
    grpc: str | None
    kafka: str | None
    first: str = ""

    @classmethod
    def of(cls, names: tuple[str, ...], *, insists_on_grpc: bool) -> ControllerNames:
        """A listener speaks gRPC if its name begins with GRPC. If none does and the file insists on gRPC, the
        first does. All others speak Kafka's protocol."""
        grpc = [name for name in names if name.startswith(GRPC_LISTENER)]
        if insists_on_grpc:
            grpc = grpc or [*names[:1]]
        others = [name for name in names if name not in grpc]
        return cls(names, next(iter(grpc), None), next(iter(others), None))


def check_speaks_grpc(name: str, protocol: str) -> None:
    """Raises ConfigError for a gRPC listener with SASL."""
    if protocol.startswith("SASL_"):
        raise ConfigError(
            f"listener {name} is {protocol}, but only Kafka listeners have SASL: map it to SSL or PLAINTEXT "
            "in listener.security.protocol.map, or give it a name that does not begin with GRPC"
        )


def check_controllers_speak_grpc(name: str, protocol: str) -> None:
    """Raises ConfigError if the controllers' listener that nodes ask over gRPC has SASL."""
    if protocol.startswith("SASL_"):
        raise ConfigError(
            f"the controllers' listener {name} is {protocol}, but speaks gRPC, and only Kafka listeners have "
            "SASL: map it to SSL in listener.security.protocol.map of every node and set "
            "ssl.client.auth=required, so that nodes identify themselves with certificates, or let it speak "
            "Kafka's protocol (no controller.quorum.protocol=grpc, and a name that does not begin with GRPC)"
        )


def parse_listeners(key: str, entries: tuple[str, ...], protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """Parses NAME://host:port entries of one key; names become upper case, as in Kafka. Raises
    ConfigError."""
    listeners: list[Listener] = []
    for entry in entries:
        match = _LISTENER.match(entry)
        if match is None:
            raise ConfigError(
                f"{key} has {entry!r}: write NAME://host:port, for example PLAINTEXT://127.0.0.1:9092"
            )
        name = match[1].upper()
        if int(match[3]) == 0:
            raise ConfigError(
                f"{key} has {entry!r}: port 0 is not supported, because nodes register their port"
            )
        listeners.append(
            Listener(
                name=name,
                host=_host(key, entry, match[2]),
                port=_port(key, entry, match[3]),
                protocol=protocol_of(name, protocols),
            )
        )
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(f"{key} uses a name twice: give each listener its own")
    if any(_collide(one, other) for one, other in combinations(listeners, 2)):
        raise ConfigError(f"{key} uses an address twice: give each listener its own port")
    return tuple(listeners)


def _collide(listener: Listener, other: Listener) -> bool:
    everywhere = not listener.host or not other.host
    return listener.port == other.port and (everywhere or listener.host == other.host)


def parse_metrics_listener(text: str | None, taken: tuple[Listener, ...]) -> Listener | None:
    """Parses `metrics.listener`; None if it is not set or empty. `taken`: the node's other listeners."""
    if not text:
        return None
    match = _LISTENER.match(text)
    if match is None or match[1].lower() not in {"http", "https"}:
        raise ConfigError(
            f"metrics.listener has {text!r}: write http://host:port, for example http://127.0.0.1:9404, or "
            "https"
        )
    port = _port("metrics.listener", text, match[3])
    name = match[1].lower()
    listener = Listener(
        name=name,
        host=_host("metrics.listener", text, match[2]) or "127.0.0.1",
        port=port,
        protocol="SSL" if name == "https" else "PLAINTEXT",
    )
    for other in taken:
        if _collide(other, listener):
            raise ConfigError(
                f"metrics.listener has the address of the listener {other.name}: give it a port of its own"
            )
    return listener


def check_advertised(listeners: tuple[Listener, ...], advertised: tuple[Listener, ...]) -> None:
    """Raises ConfigError for an advertised name without a listener, and for an address that other machines
    cannot connect to."""
    names = {listener.name for listener in listeners}
    for listener in advertised or listeners:
        if listener.leads_nowhere:
            raise ConfigError(
                f"{listener_text(listener.name, listener.host, listener.port)} cannot be advertised: clients"
                " cannot connect to it; name this node's host in advertised.listeners"
            )
        if listener.name not in names:
            raise ConfigError(
                f"advertised.listeners has {listener.name}, which listeners does not have: use the same names"
            )


def parse_overrides(entries: Iterable[str]) -> dict[str, int]:
    """Parses the `HOST:NUMBER` entries of max.connections.per.ip.overrides. Raises ConfigError for a
    malformed or repeated one."""
    key = "max.connections.per.ip.overrides"
    limits: dict[str, int] = {}
    for entry in entries:
        host, _, raw = entry.rpartition(":")
        host = _host(key, entry, host.strip())
        number = whole_number(raw.strip(), MAX_INT)
        if not host or number is None:
            raise ConfigError(f"{key} has {entry!r}: write HOST:NUMBER, separated by commas")
        if host in limits:
            raise ConfigError(f"{key} names {host} twice: remove one")
        limits[host] = number
    return limits
