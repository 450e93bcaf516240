"""What `log check` finds in records and times themselves: epochs, idle changes, credentials, jumps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metaquorum.metadata.inspect.checks.check import Finding, check_log
from metaquorum.metadata.inspect.checks.record_checks import RECORD_RULES, falls_inside
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import FENCED, UNFENCED, QuotaEntity
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from tests.conftest import REPOSITORY
from tests.unit.metadata.made_logs import STORY, Batch, encoded, leads, make_node, memory_disk, write

ID, OTHER = bytes(range(32, 48)), bytes(range(48, 64))
END = 15
"""The offset behind the story: broker 1 is registered and unfenced, topic orders has two partitions."""
ORDERS = bytes(range(16))


def found(*batches: Batch) -> list[Finding]:
    node = make_node(memory_disk(), [*STORY, *batches])
    return [one for one in check_log(node.log).findings if one.rule in RECORD_RULES]


def rules(*batches: Batch) -> list[tuple[int, str]]:
    return [(one.offset, one.rule) for one in found(*batches)]


EPOCH = "broker-epoch-is-offset"
REGISTRATIONS: list[tuple[str, list[Batch], list[tuple[int, str]]]] = [
    ("its offset", [(2, [r.BrokerRecord(2, ID, 15)])], []),
    ("the first of its batch (Kafka 3.9)",
     [(2, [r.PartitionChangeRecord(0, ORDERS, leader=-1), r.BrokerRecord(2, ID, 15)])], []),
    ("a leader change before it was not counted (Kafka 3.3)",
     [(3, [leads(3000)]), (3, [r.BrokerRecord(2, ID, 15)])], []),
    ("amended by the same incarnation (Kafka 3.9, and here)",
     [(2, [r.BrokerRecord(2, ID, 15)]), (2, [r.BrokerRecord(2, ID, 15)])], []),
    ("the same incarnation with a new epoch (Kafka 3.7)",
     [(2, [r.BrokerRecord(2, ID, 15)]), (2, [r.BrokerRecord(2, ID, 16)])], []),
    ("another incarnation with the old epoch",
     [(2, [r.BrokerRecord(2, ID, 15)]), (2, [r.BrokerRecord(2, OTHER, 15)])], [(16, EPOCH)]),
    ("an offset that is not there yet", [(2, [r.BrokerRecord(2, ID, 99)])], [(15, EPOCH)]),
    ("an offset of long before", [(2, [r.NoOpRecord()]), (2, [r.BrokerRecord(2, ID, 15)])], [(16, EPOCH)]),
    ("none", [(2, [r.BrokerRecord(2, ID, -1)])], [(15, EPOCH)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "batches", "expected"), REGISTRATIONS, ids=[row[0] for row in REGISTRATIONS]
)
def test_a_broker_epoch_that_cannot_be(
    what: str, batches: list[Batch], expected: list[tuple[int, str]]
) -> None:
    assert rules(*batches) == expected


def config(value: str | None, name: str = "retention.ms") -> r.ConfigRecord:
    return r.ConfigRecord(2, "orders", name, value)


ACL = r.AccessControlEntryRecord(ID, 2, "orders", 3, "User:a", "*", 3, 3)
QUOTA = r.ClientQuotaRecord((QuotaEntity("user", "a"),), "k", 1.0, False)
UNQUOTA = r.ClientQuotaRecord((QuotaEntity("user", "a"),), "k", 0.0, True)
GOOD = r.UserScramCredentialRecord("a", 1, b"salt", b"s" * 32, b"k" * 32, 4096)
IDLE = "records-change-something"
CHANGES: list[tuple[list[Batch], list[int]]] = [
    ([(2, [config("1000")])], [15]),  # as the story set it
    ([(2, [config("2")]), (2, [config("2")])], [16]),
    ([(2, [config(None)]), (2, [config(None)]), (2, [config(None)])], [16]),  # once
    ([(2, [config(None, "never.set")])], [15]),
    ([(2, [config("2"), config("1000")])], []),  # in one batch: set, and set back
    ([(2, [config("2", "a"), config("1000")])], [16]),
    ([(2, [ACL]), (2, [ACL])], [16]),
    ([(2, [QUOTA]), (2, [QUOTA]), (2, [UNQUOTA]), (2, [UNQUOTA])], [16]),
    ([(2, [GOOD]), (2, [GOOD])], [16]),
    ([(2, [r.RemoveDelegationTokenRecord("none")])], [15]),
    ([(2, [r.FeatureLevelRecord("metadata.version", 14)])], [15]),
    ([(2, [r.UnfenceBrokerRecord(1, 2)])], [15]),
    ([(2, [r.BrokerRegistrationChangeRecord(1, 2, fenced=UNFENCED)])], [15]),
    ([(2, [r.FenceBrokerRecord(1, 2)])], []),
    ([(2, [r.BrokerRegistrationChangeRecord(1, 2, fenced=FENCED)])] * 2, []),  # as Kafka 4 does
    ([(2, [r.PartitionChangeRecord(0, ORDERS)])], [15]),
    ([(2, [r.PartitionChangeRecord(0, ORDERS, isr=(1,))])], [15]),
    ([(2, [r.PartitionChangeRecord(0, ORDERS, leader=1)])], []),  # raises the leader epoch
    ([(2, [r.BeginTransactionRecord("t"), config("5")]), (2, [r.EndTransactionRecord()])], []),
]


@pytest.mark.parametrize(("batches", "offsets"), CHANGES)
def test_records_that_change_nothing(batches: list[Batch], offsets: list[int]) -> None:
    assert [one for one in rules(*batches) if one[1] == IDLE] == [(offset, IDLE) for offset in offsets]


def credential(**more: object) -> r.UserScramCredentialRecord:
    fields: dict[str, object] = {
        "name": "a", "mechanism": 1, "salt": b"salt", "stored_key": b"s" * 32, "server_key": b"k" * 32,
        "iterations": 4096,
    }  # fmt: skip
    return r.UserScramCredentialRecord(**(fields | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (credential(), None),
        (credential(mechanism=2, stored_key=b"s" * 64, server_key=b"k" * 64, iterations=8192), None),
        (credential(iterations=4095), "4095 iterations are fewer than 4096"),
        (credential(iterations=-1), "-1 iterations"),
        (credential(salt=b""), "the salt is empty"),
        (credential(stored_key=b"s" * 31), "the stored key has 31 bytes, not 32"),
        (credential(server_key=b""), "the server key has 0 bytes, not 32"),
        (credential(mechanism=2), "the stored key has 32 bytes, not 64, the server key has 32 bytes, not 64"),
        (credential(mechanism=3), "there is no mechanism 3"),
        (credential(mechanism=0), "there is no mechanism 0"),
    ],
)
def test_credentials_that_no_login_can_use(record: r.UserScramCredentialRecord, text: str | None) -> None:
    told = [one for one in found((2, [record])) if one.rule == "credentials-work"]
    assert [one.severity for one in told] == ([] if text is None else ["error"])
    assert text is None or text in told[0].text
    assert not any("ssss" in one.text or "salt'" in one.text for one in told)


def stamped(stamps: Sequence[int], inside: Sequence[int] = ()) -> list[Finding]:
    """Findings of a log whose batches are stamped so; `inside`: times of the records of one more batch."""
    disk = memory_disk()
    node = make_node(disk)
    made = encoded(STORY)
    start = int.from_bytes(made[0][35:43], "big")
    data, base = b"".join(made), END
    for stamp in stamps:
        data += encode_batch(
            base_offset=base, leader_epoch=2, timestamp_ms=start + stamp, values=[encode(r.NoOpRecord(), 0)]
        )
        base += 1
    write(disk, join(node.log.directory, "00000000000000000000.log"), data)
    return [one for one in check_log(node.log).findings if one.rule == "clock-does-not-jump"]


HOUR, DAY = 3_600_000, 86_400_000
SIX_YEARS = 6 * 365 * DAY


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([60_000, 61_000], []),
        ([60_000, SIX_YEARS, 61_000, 62_000], [(16, " ahead of the next batch")]),
        ([60_000, -SIX_YEARS, 61_000, 62_000], [(16, " behind the previous batch")]),
        ([60_000, SIX_YEARS, SIX_YEARS + 1, 61_000, 62_000, 63_000], [(16, "offsets 16 to 17, 2 batches")]),
        ([60_000, 60_000 + DAY], [(16, "1 d 0 h ahead")] if DAY > 48 * HOUR else [(16, "24 h 0 min ahead")]),
        ([60_000, 60_000 + HOUR], []),
        ([60_000, 59_001, 61_000], []),  # less than a second: two controllers' clocks
    ],
)
def test_jumps_of_the_clock_have_places_and_sizes(stamps: list[int], expected: list[tuple[int, str]]) -> None:
    told = stamped(stamps)
    assert [one.offset for one in told] == [offset for offset, _ in expected]
    assert all(text in one.text for one, (_, text) in zip(told, expected, strict=True)), told
    assert all(one.severity == "warning" for one in told)


def test_a_clock_that_runs_backwards_inside_a_batch() -> None:
    told = list(
        falls_inside(
            [DecodedRecord(at, stamp, 0, r.NoOpRecord()) for at, stamp in ((1, 50), (2, 20), (3, 60))]
        )
    )
    assert [(one.offset, one.rule) for one in told] == [(2, "clock-does-not-jump")]
    assert "30 ms inside a batch" in told[0].text


def test_the_rules_are_documented() -> None:
    text = (REPOSITORY / "docs" / "log-tools.md").read_text()
    for name, what in RECORD_RULES.items():
        assert f"\n- `{name}`: {what}\n" in text.replace("\n  ", " ")
