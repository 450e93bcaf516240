"""`metaquorum transactions`, `partitions elect`, `acls` and `tokens`: what they ask for, what they print for
each kind of answer, on which stream, and the exit code. The functions that ask the cluster are replaced."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from metaquorum.cli.admin import acls, partitions, tokens, transactions
from metaquorum.clients.admin.transactions import (
    DescribedTransaction,
    PartitionProducer,
    TransactionListing,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.settings import DeletedAcls
from tests.unit.cli.answered import Run, cells, fixture_run, topic

__all__ = ["fixture_run"]

MINUTE_MS = 60_000


def producer(number: int, open_from: int | None = None, **more: int) -> PartitionProducer:
    fields = {"epoch": 2, "coordinator_epoch": 5, "last_sequence": 8, "last_timestamp_ms": 1_000} | more
    return PartitionProducer(partition=("t", 1), producer_id=number, open_from=open_from, **fields)


def test_transactions_are_listed(run: Run) -> None:
    listed = [TransactionListing(transactional_id="x", producer_id=7, state="Ongoing", coordinator=2)]
    found = run(transactions, "transactions list", list_transactions=listed)
    assert cells(found.out) == [
        ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER", "STATE"],
        ["x", "2", "7", "Ongoing"],
    ]
    nothing: dict[str, Any] = {"states": (), "producer_ids": (), "longer_than_ms": -1}
    assert found.asked["list_transactions"] == ((), nothing)
    words = "--state Empty --producer-id 0 --producer-id 4 --longer-than 0"
    found = run(transactions, f"transactions list {words}", list_transactions=[])
    given = {"states": ("Empty",), "producer_ids": (0, 4), "longer_than_ms": 0}
    assert found.asked["list_transactions"] == ((), given)


def described(name: str, **more: Any) -> DescribedTransaction:
    fields: dict[str, Any] = {
        "transactional_id": name,
        "producer_id": 7,
        "producer_epoch": 1,
        "state": "Ongoing",
        "timeout_ms": 900,
        "started_ms": 2_000,
        "places": (("t", 0), ("t", 1)),
    }
    return DescribedTransaction(**(fields | more))


def test_transactions_are_described(run: Run) -> None:
    known = {
        "x": described("x"),
        "y": described("y", state="Empty", places=()),
        "z": described("z", started_ms=None, places=()),
    }
    found = run(transactions, "transactions describe x gone y z x", describe_transaction=known.get)
    assert (found.code, found.err) == (
        1,
        ["metaquorum: TRANSACTIONAL_ID_NOT_FOUND: gone; see: metaquorum transactions list"],
    )
    heading, x, y, z = cells(found.out)
    assert heading == [
        "TRANSACTIONAL-ID",
        "PRODUCER",
        "EPOCH",
        "STATE",
        "TIMEOUT-MS",
        "STARTED",
        "PARTITIONS",
    ]
    assert x[:6] == ["x", "7", "1", "Ongoing", "900", "1970-01-01T00:00:02.000Z"] and x[6].startswith("t-")
    assert y == ["y", "7", "1", "Empty", "900", "-", "-"]
    assert z[5] == "-"
    alone = run(transactions, "transactions describe gone", describe_transaction=known.get)
    assert (alone.out, alone.code) == ([], 1)
    settled = run(transactions, "transactions describe y z --json", describe_transaction=known.get)
    assert settled.code == 0 and settled.out[0].count('"durationMs":null') == 2


def test_how_long_a_transaction_is_open(run: Run) -> None:
    now_ms = transactions._now_ms()
    for started_ms, least in ((now_ms - 7_000, 7_000), (now_ms + 50_000, 0)):
        one = described("x", started_ms=started_ms)
        assert least <= transactions._transaction_json(one, now_ms)["durationMs"] <= least + 10


COLUMNS = ["PRODUCER", "EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP", "OPEN-FROM"]


def test_producers_are_described(run: Run) -> None:
    words = "transactions describe-producers --topic t --partition 1"
    rows = [producer(7, 30), producer(8, coordinator_epoch=-1, last_timestamp_ms=-1)]
    rows.append(producer(9, 0, coordinator_epoch=0, last_timestamp_ms=0))
    found = run(transactions, words, describe_producers=rows)
    assert cells(found.out) == [
        COLUMNS,
        ["7", "2", "5", "8", "1970-01-01T00:00:01.000Z", "30"],
        ["8", "2", "-", "8", "-", "-"],
        ["9", "2", "0", "8", "1970-01-01T00:00:00.000Z", "0"],
    ]
    assert found.asked["describe_producers"] == (([("t", 1)],), {"broker": None})
    found = run(transactions, f"{words} --broker 0", describe_producers=[])
    assert found.asked["describe_producers"] == (([("t", 1)],), {"broker": 0})


@pytest.mark.parametrize(
    ("words", "places", "broker"),
    [
        ("", [("t", 0), ("t", 1), ("u", 0)], None),
        ("--broker 2", [("t", 1), ("u", 0)], 2),
        ("--topic t", [("t", 0), ("t", 1)], None),
        ("--topic t --broker 2", [("t", 1)], 2),
        ("--topic t:7", [("t", 7)], None),
    ],
)
def test_where_a_hanging_transaction_is_looked_for(
    run: Run, words: str, places: list[tuple[str, int]], broker: int | None
) -> None:
    found = run(
        transactions,
        f"transactions find-hanging {words}",
        list_topics=[topic("t", (0, 1), (1, 2)), topic("u", (2,))],
        partitions_of=([("t", 7)], []),
        find_hanging=[],
    )
    count = f"{len(places)} partition{'s' if len(places) > 1 else ''}"
    assert found.out == [f"no transaction hangs in {count}"]
    (asked,), named = found.asked["find_hanging"]
    assert (asked, named["broker"]) == (places, broker)


def test_hanging_transactions_are_shown(run: Run) -> None:
    words = "transactions find-hanging --topic t:1"
    answers: dict[str, Any] = {"partitions_of": ([("t", 1)], []), "find_hanging": [producer(7, 30)]}
    before_ms = transactions._now_ms()
    found = run(transactions, words, **answers)
    assert cells(found.out) == [
        ["TOPIC", "PARTITION", *COLUMNS],
        ["t", "1", "7", "2", "5", "8", "1970-01-01T00:00:01.000Z", "30"],
    ]
    since_ms = found.asked["find_hanging"][1]["silent_since_ms"]
    assert 0 <= since_ms - (before_ms - 15 * MINUTE_MS) < 10_000
    found = run(transactions, f"{words} --max-transaction-timeout 1 --json", **answers)
    assert 0 <= found.asked["find_hanging"][1]["silent_since_ms"] - (before_ms - MINUTE_MS) < 10_000
    assert found.out == [
        '[{"topic":"t","partition":1,"producerId":7,"producerEpoch":2,"coordinatorEpoch":5,'
        '"lastSequence":8,"lastTimestampMs":1000,"currentTransactionStartOffset":30}]'
    ]
    gone = run(transactions, words, partitions_of=([], ["no t", "no u"]))
    assert (gone.err, gone.code) == (["metaquorum: no t"], 1)


ABORT = "transactions abort --topic t --partition 1"
BY_EPOCHS = "--producer-id 0 --producer-epoch 3 --coordinator-epoch -1"


def test_a_hanging_transaction_is_aborted(run: Run) -> None:
    rows = [producer(6), producer(7, 30), producer(8, 31)]
    found = run(transactions, f"{ABORT} --start-offset 30", describe_producers=rows, abort_transaction=None)
    assert (found.out, found.code) == (["t-1: the transaction of producer 7 is aborted"], 0)
    numbers = {"producer_id": 7, "producer_epoch": 2, "coordinator_epoch": 5}
    assert found.asked["abort_transaction"] == ((("t", 1),), numbers)
    assert found.asked["describe_producers"] == (([("t", 1)],), {})
    found = run(transactions, f"{ABORT} {BY_EPOCHS} --json", abort_transaction=None)
    assert found.out == ['{"topic":"t","partition":1,"producerId":0,"aborted":true}']
    numbers = {"producer_id": 0, "producer_epoch": 3, "coordinator_epoch": -1}
    assert found.asked["abort_transaction"] == ((("t", 1),), numbers)
    found = run(transactions, f"{ABORT} --start-offset 29", describe_producers=rows, abort_transaction=None)
    assert (found.code, len(found.err), "abort_transaction" in found.asked) == (1, 1, False)
    assert found.err[0].startswith("metaquorum: no open transaction begins at offset 29 of t-1; see: ")


# ---- elections, access


class Elected(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None
    leader: int | None


@pytest.mark.parametrize(
    ("words", "unclean", "chosen"),
    [
        ("--election preferred --all", False, None),
        ("--election unclean --topic t", True, [("t", 0), ("t", 1)]),
        ("--election preferred --topic gone", False, [("gone", 0)]),
        ("--election preferred --topic t --partition 5 --partition 0", False, [("t", 5), ("t", 0)]),
    ],
)
def test_which_leaders_are_elected(
    run: Run, words: str, unclean: bool, chosen: list[tuple[str, int]] | None
) -> None:
    found = run(
        partitions,
        f"partitions elect {words}",
        look_up_topics=lambda names: [topic("t", (0,), (1,))] if names == ["t"] else [],
        elect_leaders=(),
    )
    assert (found.out, found.code) == (["nothing to do: no partition needs this election"], 0)
    assert found.asked["elect_leaders"] == ((), {"unclean": unclean, "partitions": chosen})


def test_what_became_of_elections(run: Run) -> None:
    results = (
        Elected("t", 0, ErrorCode.NONE, None, 2),
        Elected("t", 1, ErrorCode.ELECTION_NOT_NEEDED, "It leads.", None),
        Elected("t", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "It is down.", None),
        Elected("t", 3, ErrorCode.NOT_CONTROLLER, None, None),
    )
    words = "partitions elect --election preferred --all"
    found = run(partitions, words, elect_leaders=results)
    assert (found.out, found.code) == (["t-0: leader 2", "t-1: It leads."], 1)
    assert found.err == [
        "metaquorum: t-2: PREFERRED_LEADER_NOT_AVAILABLE: It is down.",
        "metaquorum: t-3: NOT_CONTROLLER: refused",
    ]
    assert run(partitions, words, elect_leaders=results[:2]).code == 0
    found = run(partitions, f"{words} --json", elect_leaders=results[2:3])
    assert (found.code, found.err) == (1, [])
    assert found.out == [
        '[{"topic":"t","partition":2,"leader":null,"error":"PREFERRED_LEADER_NOT_AVAILABLE",'
        '"message":"It is down."}]'
    ]
    assert run(partitions, f"{words} --json", elect_leaders=()).out == ["[]"]


def test_entries_are_removed(run: Run) -> None:
    words = "acls remove --resource-name x"
    refused = DeletedAcls(acls=(), error=ErrorCode.SECURITY_DISABLED, message="no authorizer")
    found = run(acls, words, delete_acls=refused)
    assert (found.out, found.code, len(found.err)) == ([], 1, 1)
    assert "SECURITY_DISABLED" in found.err[0] and "no authorizer" in found.err[0]
    found = run(acls, words, delete_acls=DeletedAcls(acls=()))
    assert (found.out, found.code) == (["no entry matches"], 0)
    found = run(acls, f"{words} --dry-run --json", list_acls=())
    assert (found.out, found.code) == (["[]"], 0)


def test_the_expiry_of_a_token(run: Run) -> None:
    words = "tokens expire --hmac aGk="
    found = run(tokens, words, expire_token=1_000)
    assert (found.out, found.asked["expire_token"]) == (
        ["expires: 1970-01-01T00:00:01.000Z"],
        ((b"hi", None), {}),
    )
    found = run(tokens, f"{words} --period-ms 0", expire_token=None)
    assert (found.out, found.asked["expire_token"]) == (["the token has expired"], ((b"hi", 0), {}))
    found = run(tokens, "tokens renew --hmac aGk= --period-ms 1 --json", renew_token=1_000)
    assert (found.out, found.asked["renew_token"]) == (['{"expirationTimestampMs":1000}'], ((b"hi", 1), {}))
    found = run(tokens, "tokens renew --hmac ä", renew_token=1_000)
    assert (found.code, found.out) == (2, []) and "--hmac is not base64" in found.err[0]
