"""The table of bounds in docs/security.md, from the code: `python -m tests.bounds` prints it.

A row names a configuration key, whose default is read from the table of keys, or a constant of a module,
whose value is read from there. To add one, add it to `BOUNDS`, then
`pytest --rewrite tests/unit/test_bounds.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec

from metaquorum.config.keys import KEYS
from metaquorum.metadata.settings.keys import MAX_INT
from metaquorum.network import acceptor
from metaquorum.observability import authorizer_log
from tests.closed_pipe import end

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"
BEGIN, END = "<!-- bounds: python -m tests.bounds -->\n", "<!-- end of bounds -->\n"
_HEAD = "| bound | per | default | key | at the bound |\n|---|---|---|---|---|\n"
_UNITS = {"S": "s", "MS": "ms", "BYTES": "bytes"}


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """`key`: a configuration key; otherwise `constant`: MODULE:NAME below metaquorum, whose last word is its
    unit if it is one. `default`: the text instead of a value, for a bound that is computed."""

    what: str
    per: str
    at: str
    key: str = ""
    constant: str = ""
    default: str = ""

    def row(self) -> str:
        """One line of the table."""
        key = f"`{self.key}`" + ("\\*" if self.key and KEYS[self.key].own else "")
        return f"| {self.what} | {self.per} | {self._default()} | {key if self.key else ''} | {self.at} |\n"

    def _default(self) -> str:
        if self.default:
            return self.default
        if self.key:
            key = KEYS[self.key]
            value = key.default
            return "none" if value in (MAX_INT, None, "", ()) else _shown(value, key.unit)
        module, name = self.constant.split(":")
        value = getattr(importlib.import_module(f"metaquorum.{module}"), name)
        words = name.split("_")
        unit = next((_UNITS[word] for word in (words[-1], *words) if word in _UNITS), "")
        return _shown(value, unit)


def _shown(value: object, unit: str) -> str:
    if isinstance(value, int) and unit == "bytes":
        for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size} {name}"
    text = (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )
    return f"{text} {unit}".strip()


BOUNDS = (
    Bound(
        what="open files",
        per="process",
        default="hard limit",
        at="shared at the start; the log opens files with its reserve, ports accept nothing for "
        f"{acceptor.PAUSE_S:g} s",
    ),
    Bound(
        what="file descriptors in reserve for the log",
        per="process",
        constant="network.files_plan:HELD",
        at="used",
    ),
    Bound(
        what="connections",
        per="broker, Kafka listeners",
        key="max.connections",
        default="what the open files leave",
        at="closed when accepted; brokers' own listener replaces the least used client",
    ),
    Bound(
        what="connections",
        per="gRPC port",
        constant="network.files_plan:GRPC_MAX",
        at="closed; the oldest unknown one makes room",
    ),
    Bound(
        what="connections",
        per="address: all Kafka listeners, each other port",
        key="max.connections.per.ip",
        at="closed when accepted",
    ),
    Bound(
        what="connections without a known client",
        per="broker's Kafka listeners, each other port",
        key="max.connections.unauthenticated",
        at="the oldest of the address with most of them is closed",
    ),
    Bound(
        what="new connections per second",
        per="broker, or listener",
        key="max.connection.creation.rate",
        at="accepted later",
    ),
    Bound(
        what="frames before logins",
        per="broker",
        constant="listeners.listener:LOGIN_BYTES",
        at="not read; stalled connections are closed",
    ),
    Bound(
        what="TLS handshake and first frames",
        per="connection to a gRPC port",
        constant="rpc.channels:SERVER_HANDSHAKE_MS",
        at="closed",
    ),
    Bound(
        what="log lines about refused connections and malformed frames",
        per="10 s, and kind of listener",
        constant="network.refused_callers:LINES_MAX",
        at="counted instead",
    ),
    Bound(
        what="time of TLS handshake and login",
        per="connection",
        key="connection.authentication.timeout.ms",
        at="closed",
    ),
    Bound(
        what="frame before a login",
        per="connection",
        key="sasl.server.max.receive.size",
        at="closed",
    ),
    Bound(what="request", per="connection", key="socket.request.max.bytes", at="closed"),
    Bound(
        what="requests received and in progress",
        per="listener",
        key="queued.max.request.bytes",
        at="connections are not read; stalled ones are closed",
    ),
    Bound(
        what="requests in progress",
        per="connection",
        constant="listeners.connection:REQUESTS_MAX",
        at="not read",
    ),
    Bound(
        what="values in the arrays of a request",
        per="request",
        constant="wire.codec:VALUES_MAX",
        at="closed",
    ),
    Bound(
        what="requests with many values in memory",
        per="process",
        constant="listeners.long_work:LONG_AT_ONCE",
        at="decoded later, in a thread",
    ),
    Bound(
        what="protocols of a member",
        per="request to join a group",
        constant="broker.server.kafka.groups:PROTOCOLS_MAX",
        at="INCONSISTENT_GROUP_PROTOCOL",
    ),
    Bound(
        what="topics by name in a subscription",
        per="request of a consumer",
        constant="broker.server.kafka.groups:SUBSCRIBED_MAX",
        at="INVALID_REQUEST",
    ),
    Bound(
        what="topics, partitions, settings, entries and the like",
        per="request to the active controller",
        constant="listeners.forwarded.too_many:THINGS_MAX",
        at="POLICY_VIOLATION; new partitions: 50,000",
    ),
    Bound(
        what="comparisons of filters with entries",
        per="DeleteAcls",
        constant="controller.settings.access:COMPARED_MAX",
        at="POLICY_VIOLATION",
    ),
    Bound(
        what="structures in an answer about many things",
        per="request",
        constant="listeners.slices:ANSWER_VALUES_MAX",
        at="closed; many things are answered in slices, repeated ones once",
    ),
    Bound(
        what="bytes of a batch when unpacked",
        per="batch",
        constant="storage.batches.codecs:MAX_UNPACKED_BYTES",
        at="INVALID_RECORD",
    ),
    Bound(
        what="records and headers",
        per="batch with fewer bytes",
        constant="broker.replica.partition.validation:VALUES_MAX",
        at="INVALID_RECORD",
    ),
    Bound(
        what="pattern of a subscription",
        per="request",
        constant="broker.coordinator.groups.consumer.patterns:PATTERN_MAX_BYTES",
        at="INVALID_REGULAR_EXPRESSION",
    ),
    Bound(
        what="repetitions in braces and Unicode classes",
        per="pattern of a subscription",
        constant="broker.coordinator.groups.consumer.patterns:COSTLY_MAX",
        at="INVALID_REGULAR_EXPRESSION",
    ),
    Bound(
        what="log lines about denials",
        per=f"principal and {authorizer_log.DENIALS_S:g} s",
        constant="observability.authorizer_log:LINES_MAX",
        at="counted instead",
    ),
    Bound(
        what="log lines about records that cannot be read",
        per="partition of an internal topic, when loaded",
        constant="broker.coordinator.shard:REPORTED_MAX",
        at="counted instead; records are left out",
    ),
    Bound(
        what="answers not sent",
        per="broker",
        key="queued.max.response.bytes",
        at="fetches return less, then wait",
    ),
    Bound(
        what="idle time",
        per="client's connection",
        key="connections.max.idle.ms",
        at="closed",
    ),
    Bound(
        what="connections",
        per="`metrics.listener`",
        constant="observability.metrics.endpoint:CONNECTIONS_MAX",
        at="closed when accepted",
    ),
    Bound(
        what="message of a gRPC call, before the caller's rights are known",
        per="call",
        constant="rpc.channels:UNREAD_BYTES",
        at="the rest is not read",
    ),
    Bound(
        what="message of a gRPC call",
        per="call, most methods",
        constant="rpc.server:USUAL_MAX_BYTES",
        at="refused",
    ),
    Bound(
        what="message of a gRPC call",
        per="call about many partitions",
        constant="rpc.server:LISTS_MAX_BYTES",
        at="refused",
    ),
    Bound(
        what="message of a gRPC call",
        per="call of Forward; answer",
        constant="rpc.server:MAX_MESSAGE_BYTES",
        at="refused",
    ),
    Bound(
        what="gRPC calls in progress",
        per="connection",
        constant="rpc.channels:CALLS_PER_CONNECTION_MAX",
        at="not begun",
    ),
    Bound(
        what="epoch that a Raft request brings",
        per="request",
        constant="raft.protocol.election:ASKED_MAX",
        at="refused, if more than 1,000 ahead of the receiver's",
    ),
)


def table() -> str:
    """The whole table."""
    return _HEAD + "".join(bound.row() for bound in BOUNDS)


def with_table(page: str) -> str:
    """The page with the current table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> int:
    """Prints the table."""
    print(table(), end="")
    return 0


if __name__ == "__main__":
    end(main)
