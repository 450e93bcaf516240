"""What the overview says is wrong: also what the five numbers do not count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from metaquorum.console import problems
from metaquorum.console.partitions import offline_replicas
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.console.asked import Asked
from tests.unit.console.test_views import GOLDEN, moments_of
from tests.unit.metadata.made_logs import ORDERS, Batch, leads, make_node, topic

GOOD, FAILED = b"g" * 16, b"f" * 16
BROKERS: list[Batch] = [
    (1, [leads(3000)]),  # 0
    (1, [r.FeatureLevelRecord("metadata.version", 19)]),  # 1
    (1, [r.BrokerRecord(1, ORDERS, 2, fenced=False, log_dirs=(GOOD, FAILED))]),  # 2
    (1, [r.BrokerRecord(2, GOOD, 3, fenced=False)]),  # 3
    (1, topic("orders", ORDERS)),  # 4 to 6
]
UNCLEAN = r.PartitionChangeRecord(1, ORDERS, replicas=(1, 2), isr=(2,), leader=2)


def asked(home: Path, *batches: Batch) -> Asked:
    make_node(PosixDisk(), [*BROKERS, *batches], home=str(home))
    return Asked(home)


def lines(console: Asked, at: int | str, words: str) -> list[dict[str, Any]]:
    """The problems at a moment whose text has these words."""
    return [each for each in console.view("overview", at=at)["problems"] if words in each["text"]]


def test_each_number_is_as_severe_as_the_lines_about_the_same(tmp_path: Path) -> None:
    """A replica that left the ISR is no reason for red."""
    console = asked(
        tmp_path,
        (1, [r.PartitionChangeRecord(1, ORDERS, replicas=(1, 2), isr=(1,))]),  # 7
        (1, [r.ConfigRecord(2, "orders", "min.insync.replicas", "2")]),  # 8
        (1, [r.PartitionChangeRecord(1, ORDERS, leader=-1), r.FenceBrokerRecord(1, 2)]),  # 9, 10
        (1, [r.FenceBrokerRecord(2, 3)]),  # 11
    )
    seen = []
    for at in (7, 8, 9, 11, 12):
        overview = console.view("overview", at=at)
        seen.append({each["name"]: each["severity"] for each in overview["numbers"] if each["severity"]})
        shown = {each["show"]: each["severity"] for each in overview["problems"][::-1] if each["show"]}
        assert sorted(shown.values()) == sorted(seen[-1].values())
    assert seen[:3] == [
        {},
        {"out of sync": "info"},
        {"under min ISR": "warning", "out of sync": "info"},
    ]
    assert seen[3]["active brokers"] == "warning" and seen[3]["leaderless"] == "critical"
    assert seen[4]["active brokers"] == "critical"


def test_the_newest_warning_is_one_before_the_moment(tmp_path: Path) -> None:
    """Where nothing is wrong, it says where to look; what the moment does not include yet is none."""
    lost, led = (r.PartitionChangeRecord(1, ORDERS, leader=leader) for leader in (-1, 1))
    console = asked(tmp_path, (1, [lost]), (1, [led]))  # 7, 8
    warnings = [console.view("overview", at=at)["warning"] for at in (7, 8, 9)]
    assert warnings[0] is None
    assert [(each["offset"], each["kind"]) for each in warnings[1:]] == [(7, "leaderless")] * 2


def test_an_unclean_election_is_a_line_from_then_on_until_its_topic_is_deleted(tmp_path: Path) -> None:
    """Also when the five numbers are good again: what was lost stays lost."""
    console = asked(
        tmp_path,
        (1, [UNCLEAN]),  # 7
        (1, [r.PartitionChangeRecord(1, ORDERS, isr=(2, 1))]),  # 8
        (1, [r.RemoveTopicRecord(ORDERS)]),  # 9
        (1, topic("orders", GOOD)),  # 10 to 12
    )
    assert lines(console, 7, "unclean") == []
    for at in (8, 9):
        (one,) = lines(console, at, "unclean")
        assert one["text"] == "orders-1 had an unclean election: records may be lost"
        assert (one["severity"], one["path"], one["at"]) == ("critical", "topic/orders/1", "7+")
    why = console.view("why", target=one["target"], at=one["at"], last=1)
    assert why["records"][0]["offset"] == 7
    assert why["records"][0]["causes"][0]["rule"] == "unclean-election"
    assert lines(console, 10, "unclean") == lines(console, "end", "unclean") == []


def test_of_a_topics_unclean_elections_the_last_one_is_explained(tmp_path: Path) -> None:
    other = r.PartitionChangeRecord(0, ORDERS, replicas=(1, 2), isr=(2,), leader=2)
    console = asked(tmp_path, (1, [UNCLEAN]), (1, [other]))  # 7, 8
    (one,) = lines(console, "end", "unclean")
    assert one["text"] == "orders: 2 partitions had an unclean election: records may be lost"
    assert (one["path"], one["target"], one["at"]) == ("topic/orders", "topic/orders/0.leader", "8+")


def test_what_goes_on_is_said_before_what_is_over(tmp_path: Path) -> None:
    console = asked(tmp_path, (1, [UNCLEAN]), (1, [r.PartitionChangeRecord(0, ORDERS, leader=-1)]))
    texts = [each["text"] for each in console.view("overview")["problems"]]
    assert texts[:2] == [
        "orders-0 is without a leader",
        "orders-1 had an unclean election: records may be lost",
    ]


def test_the_topics_that_have_no_line_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "TOPICS_MAX", 1)
    lost = [r.PartitionChangeRecord(at, GOOD, replicas=(1, 2), isr=(1,)) for at in (0, 1)]
    console = asked(
        tmp_path,
        (1, topic("payments", GOOD)),
        (1, [r.PartitionChangeRecord(1, ORDERS, replicas=(1, 2), isr=(1,))]),  # 10
        (1, lost),
    )
    (one,) = lines(console, 11, "out of the ISR")
    assert one["text"] == "orders-1 with replicas out of the ISR"
    texts = [each["text"] for each in lines(console, "end", "out of the ISR")]
    assert texts == [
        "payments: 2 partitions with replicas out of the ISR",
        "1 more topic: 1 partition with replicas out of the ISR",
    ]


def test_replicas_in_a_failed_log_directory_are_a_line_of_their_broker(tmp_path: Path) -> None:
    placed = [
        r.PartitionChangeRecord(0, ORDERS, directories=(FAILED,)),
        r.PartitionChangeRecord(1, ORDERS, directories=(GOOD,)),
    ]
    console = asked(
        tmp_path,
        (1, placed),  # 7, 8
        (1, [r.BrokerRegistrationChangeRecord(1, 2, log_dirs=(GOOD,))]),  # 9
        (1, [r.BrokerRecord(1, GOOD, 10, fenced=False, log_dirs=(GOOD, FAILED))]),  # 10
    )
    assert lines(console, 9, "director") == lines(console, 11, "director") == []
    (one,) = lines(console, 10, "director")
    assert one["text"] == "broker 1 has 1 replica in log directories that are offline"
    assert (one["severity"], one["path"], one["count"]) == ("warning", "broker/1", 1)
    why = console.view("why", target=one["target"], at=10, last=1)
    assert why["records"][0]["causes"][0]["rule"] == "directory-failed"
    assert why["records"][0]["offset"] == 9


def test_a_failed_log_directory_without_replicas_is_a_line_until_its_broker_registers_again(
    tmp_path: Path,
) -> None:
    """Or until replicas are offline in it, whose line says more."""
    failed = r.BrokerRegistrationChangeRecord(1, 2, log_dirs=(GOOD,))
    console = asked(
        tmp_path,
        (1, [failed]),  # 7
        (1, [r.PartitionChangeRecord(0, ORDERS, directories=(FAILED,))]),  # 8
        (1, [r.PartitionChangeRecord(0, ORDERS, directories=(GOOD,))]),  # 9
        (1, [r.BrokerRecord(1, GOOD, 10, fenced=False, log_dirs=(GOOD, FAILED))]),  # 10
    )
    assert lines(console, 7, "director") == lines(console, 11, "director") == []
    for at in (8, 10):
        (one,) = lines(console, at, "director")
        assert one["text"].startswith("broker 1 lost 1 log directory (")
        assert one["text"].endswith("), 1 left online; no replica is in it now")
        assert (one["severity"], one["path"]) == ("warning", "broker/1")
        why = console.view("why", target=one["target"], at=at, last=1)
        assert why["records"][0]["causes"][0]["rule"] == "directory-failed"
    (one,) = lines(console, 9, "director")
    assert one["text"] == "broker 1 has 1 replica in log directories that are offline"


def test_a_second_directory_that_failed_is_said_beside_one_with_replicas(tmp_path: Path) -> None:
    other = b"o" * 16
    console = asked(
        tmp_path,
        (1, [r.BrokerRecord(1, GOOD, 7, fenced=False, log_dirs=(GOOD, FAILED, other))]),  # 7
        (1, [r.PartitionChangeRecord(0, ORDERS, directories=(FAILED,))]),  # 8
        (1, [r.BrokerRegistrationChangeRecord(1, 7, log_dirs=(GOOD, other))]),  # 9
        (1, [r.BrokerRegistrationChangeRecord(1, 7, log_dirs=(GOOD,))]),  # 10
    )
    texts = sorted(each["text"] for each in lines(console, "end", "director"))
    assert texts[0] == "broker 1 has 1 replica in log directories that are offline"
    assert [text.endswith("no replica is in it now") for text in texts] == [False, True]
    assert uuid_to_text(other) in texts[1]


def test_a_setting_that_put_partitions_under_min_isr_is_in_the_line(tmp_path: Path) -> None:
    console = asked(
        tmp_path,
        (1, [r.PartitionChangeRecord(1, ORDERS, replicas=(1, 2), isr=(1,))]),  # 7
        (1, [r.ConfigRecord(2, "orders", "min.insync.replicas", "2")]),  # 8
        (1, [r.ConfigRecord(2, "orders", "min.insync.replicas", None)]),  # 9
        (1, [r.ConfigRecord(4, "", "min.insync.replicas", "3")]),  # 10
    )
    assert lines(console, 8, "min ISR") == lines(console, 10, "min ISR") == []
    assert lines(console, 9, "min ISR")[0]["text"] == "orders-1 is under min ISR (min.insync.replicas=2)"
    assert lines(console, 11, "min ISR")[0]["text"] == "orders-1 is under min ISR (min.insync.replicas=3)"
    for at, record in ((9, 8), (11, 10)):
        why = console.view("why", target=lines(console, at, "min ISR")[0]["also"], at=at, last=1)
        assert [each["offset"] for each in why["records"]] == [record]


def test_a_controlled_shutdown_says_what_the_broker_still_leads(tmp_path: Path) -> None:
    console = asked(
        tmp_path,
        (1, [r.BrokerRegistrationChangeRecord(1, 2, in_controlled_shutdown=1)]),  # 7
        (1, [r.PartitionChangeRecord(0, ORDERS, replicas=(1, 2), isr=(2,), leader=2)]),  # 8
    )
    (before,), (after,) = (lines(console, at, "shutdown") for at in (8, 9))
    assert before["text"] == "broker 1 is in controlled shutdown; it leads 2 partitions and holds 2 replicas"
    assert after["text"] == "broker 1 is in controlled shutdown; it leads 1 partition and holds 2 replicas"


@pytest.mark.parametrize("path", GOLDEN, ids=[path.name for path in GOLDEN])
def test_as_many_replicas_are_offline_as_the_rule_of_the_controllers_says(path: Path) -> None:
    console = Asked(path)
    for offset in moments_of(console.log, 12):
        image = console.moments.state(Point(offset=offset)).image
        found: dict[int, Counter[bytes]] = {}
        for entry in image.topics.all():
            for info in image.topics.partitions_of(entry.topic_id):
                for broker_id, directory in zip(info.replicas, info.directories, strict=True):
                    if not directory_online(image.brokers, broker_id, directory):
                        own = found.setdefault(broker_id, Counter())
                        own[directory] += 1
        assert offline_replicas(image) == found
