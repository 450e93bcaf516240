"""What Kafka's authorizer let a user do, ours lets it do: every request of E-acls-authorizer, on the entries
that Kafka's tools had added by then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.rights import CHECKS
from metaquorum.listeners.services import Client, Offered
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.wire import codec
from tests.unit.kafka.golden_cluster import GoldenCluster, GoldenNode
from tests.unit.kafka.test_admin_captures import Exchange, exchange_of, rows, shown, unexplained

pytestmark = pytest.mark.shared_data
NAME = "E-acls-authorizer"
ALICE, ROOT = "User:alice", "User:ANONYMOUS"
LOGINS = {17, 18, 36}
"""APIs that come before rights."""
CHANGES_ENTRIES = {30, 31}
DECIDED = {29, 30, 31, 53}
"""Codes of refusals that were recorded."""
LAST_MS = 2**60


def exchanges(folder: Path) -> list[tuple[str, Exchange]]:
    """With the principal that asks: those of the SASL listeners are alice."""
    found, waiting = [], dict[tuple[int, int], dict[str, Any]]()
    for row in rows(folder / "kafka-3.7-wire" / f"{NAME}.jsonl.gz"):
        client = str(row.get("client_id") or "")
        if row["dir"] not in "<>" or row.get("event") or not row["link"].startswith("broker"):
            continue
        place = row["conn"], row["correlation_id"]
        if row["dir"] == ">" and row["api_key"] not in LOGINS and not client.startswith("broker-"):
            waiting[place] = row
        elif row["dir"] == "<" and place in waiting:
            asked = waiting.pop(place)
            label = f"{asked['client_id']} at {asked['t_ms']}"
            made = exchange_of(label, row["link"], asked, asked["frame"], row["frame"], asked["t_ms"])
            found.append((ALICE if row["link"].endswith("-sasl") else ROOT, made))
    return found


def codes(value: Any) -> Counter[int]:
    """The refusals in an answer."""
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__ if name == "error_code"] + [
            getattr(value, name) for name in value.__struct_fields__ if name != "error_code"
        ]
        own = [value[0]] if value and isinstance(value[0], int) else []
        return Counter(code for code in own if code in DECIDED) + codes(tuple(value[1:]))
    if isinstance(value, tuple):
        return sum(map(codes, value), Counter())
    return Counter()


class GuardedNode:
    """A broker of ours behind its checks, which adds and removes entries. For everything else Kafka's answers
    stand, with nothing in them where our checks left nothing of the request, or where Kafka's refused it."""

    def __init__(self, golden: GoldenCluster) -> None:
        self._node = GoldenNode(golden, golden.around(LAST_MS)[-1], 0)
        self._rights = Rights(
            authorizer=Authorizer(super_users=[ROOT, "User:admin"], allow_everyone=True),
            image=lambda: self._node.image,
            checks=CHECKS,
            creates_topics=True,
        )

    def answer(self, principal: str, exchange: Exchange) -> Any:
        asked = codec.decode_request(exchange.request)

        def handle(request: codec.Request, client: Client) -> Any:
            if exchange.api_key not in CHANGES_ENTRIES:
                whole = request.body == asked.body and not codes(exchange.answer)
                return exchange.answer if whole else type(exchange.answer)()
            frame = b"".join(map(bytes, codec.encode_request(request.header, request.body)))
            return self._node.answer(frame, listener=client.listener, principal=client.principal)

        listener = "PLAINTEXT" if principal == ROOT else "SASL_PLAINTEXT"
        client = Client(listener=listener, address="127.0.0.1", principal=principal)
        offered = guarded({exchange.api: Offered(0, 99, handle)}, self._rights)[exchange.api]
        ours = offered.handle(asked, client)
        chunks = codec.encode_response(exchange.api_key, exchange.version, 1, ours)
        return codec.decode_response(exchange.api_key, exchange.version, b"".join(map(bytes, chunks))).body


def test_a_user_may_what_kafka_let_it(shared_data: Path) -> None:
    node = GuardedNode(GoldenCluster(shared_data / "kafka-3.7-wire"))
    used: Counter[str] = Counter()
    refused: Counter[int] = Counter()
    wrong: dict[Any, Any] = {}
    for principal, exchange in exchanges(shared_data):
        ours = node.answer(principal, exchange)
        left = unexplained(exchange, ours, used)
        if left:
            wrong[exchange.label, exchange.api, principal] = left
        refused += codes(ours)
    assert not wrong, shown(wrong)
    assert set(refused) >= DECIDED, refused
