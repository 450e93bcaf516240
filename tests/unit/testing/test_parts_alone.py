"""Parts of a test cluster by themselves, against plain models."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import pytest

from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches, EndMarker, RecordBatch, encode_marker
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.storage.errors import DiskError
from metaquorum.testing import ClusterError, HistoryError, check_log
from metaquorum.testing.clock import ClusterClock, NodeClock
from metaquorum.testing.contents import _messages, _whole, committed
from metaquorum.testing.interception import Happening, lines_of
from metaquorum.testing.memory_disk import DiskFaultOrder, begin_disk_fault
from metaquorum.testing.request_faults import (
    AFTER_THE_WORK,
    ENTITIES,
    PARTITIONS,
    READS,
    How,
    RequestFault,
    named,
    with_error,
)
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.table import API_BY_NAME, request_type, response_type


@dataclass
class _Machine:
    """The machine's clocks, which a test moves."""

    monotonic_s: float = 50.0
    unix_s: float = 1_700_000_000.0


@pytest.mark.parametrize("seed", range(5))
def test_a_clock_does_what_a_model_of_two_times_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, draw = _Machine(), random.Random(seed)
    monkeypatch.setattr(time, "monotonic", lambda: machine.monotonic_s)
    monkeypatch.setattr(time, "time", lambda: machine.unix_s)
    clock = ClusterClock()
    node, moved, forgotten = NodeClock(clock), [0], [0]
    node.when_moved(lambda: moved.__setitem__(0, moved[0] + 1))
    seconds, wall, is_held, moves = 50.0, machine.unix_s, False, 0
    for _ in range(60):
        match draw.randrange(6):
            case 0:
                clock.hold()
                is_held = True
            case 1:
                clock.resume()
                is_held = False
            case 2:
                clock.follow()
                is_held, wall = False, machine.unix_s
            case 3:
                clock.hurry()
                is_held = True
            case 4:
                by_s, is_wall = draw.uniform(0.001, 9), draw.random() < 0.5
                clock.move(by_s, wall=is_wall)
                seconds, wall, moves = seconds + by_s, wall + by_s * is_wall, moves + 1
                assert node.was_moved() and not node.was_moved()
            case _:
                by_s = draw.uniform(0, 3)
                machine.monotonic_s += by_s
                machine.unix_s += by_s + draw.choice((0, 0, 0.5))  # which may be set
                if not is_held:
                    seconds, wall = seconds + by_s, wall + by_s
        assert clock.seconds() == pytest.approx(seconds) and clock.is_manual == is_held
        assert clock.monotonic_ms() == pytest.approx(seconds * 1000, abs=1.5)
        assert node.wall_ms() == pytest.approx(wall * 1000, abs=1.5) == clock.wall_ms()
        assert moved == [moves]
    clock.when_moved(lambda: forgotten.__setitem__(0, 1))
    node.close()
    clock.move(1)
    assert (moved, forgotten, node.was_moved()) == ([moves], [1], False)


def history(draw: random.Random) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What was acknowledged, and what a consumer read of it in some order of its partitions."""
    places = [("t", 0), ("t", 1), ("u", 0)]
    sent = [(*draw.choice(places), n, draw.choice((None, "done", "gone"))) for n in range(40)]
    queues = [[each for each in sent if each[:2] == place and each[3] != "gone"] for place in places]
    read = []
    while any(queues):
        read.append(draw.choice([queue for queue in queues if queue]).pop(0)[:3])
    return sent, read


def judged(sent: list[Any], read: list[Any]) -> str:
    try:
        check_log(sent, read, aborted=["gone"], unknown=["late"])
    except HistoryError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(5))
def test_one_broken_promise_in_a_long_history_is_the_only_one_that_is_named(seed: int) -> None:
    draw = random.Random(seed)
    sent, read = history(draw)
    assert judged(sent, read) == judged(sent, [*read, ("u", 0, "late")]) == ""
    at = draw.randrange(len(read))
    topic, partition, value = read[at]
    assert judged(sent, read[:at] + read[at + 1 :]) == f"1 acknowledged, and never read: {value}"
    assert judged(sent, [*read, read[at]]) == f"1 read more than once: {value}"
    assert judged(sent, [*read, (topic, partition, "x")]) == "1 read, and never acknowledged: 'x'"
    moved = [*read[:at], (topic, 7, value), *read[at + 1 :]]
    assert judged(sent, moved) == f"1 read in another partition than it was acknowledged in: {value}"
    gone = next(each for each in sent if each[3] == "gone")
    found = judged(sent, [*read, gone[:3]])
    assert found == f"1 read, although its transaction was aborted: {gone[2]}"
    first, second = [number for number, each in enumerate(read) if each[:2] == ("t", 0)][:2]
    swapped = list(read)
    swapped[first], swapped[second] = read[second], read[first]
    text = "1 read before a message that was acknowledged earlier"
    assert judged(sent, swapped) == f"{text}: {read[second][2]}"
    assert judged(sent, []).startswith(f"{len(read)} acknowledged, and never read: ")
    assert judged(sent, []).endswith(f" and {len(read) - 5} more")
    five = [each[:3] for each in sent if each[3] != "gone"][5:]
    assert "more" not in judged([each for each in sent if each[3] != "gone"], five)


@pytest.mark.parametrize("lines_max", [2, 5, 40])
def test_the_last_lines_are_those_of_plain_python(lines_max: int) -> None:
    draw = random.Random(lines_max)
    made = [
        Happening(wall_ms=1000 * number + 7, kind=draw.choice(("fault", "error")), text=draw.choice("ab"))
        for number in range(12)
    ]
    expected = []
    for (kind, text), group in groupby(made, key=lambda each: (each.kind, each.text)):
        same = list(group)
        count = f" ({len(same)} times)" if len(same) > 1 else ""
        expected.append(f"00:00:{same[-1].wall_ms // 1000:02d}.007  {kind:<11}  {text}{count}")
    if len(expected) > lines_max:
        left = len(expected) - lines_max + 1
        expected = [f"... {left} earlier events", *expected[left:]]
    assert lines_of(draw.sample(made, len(made)), lines_max) == expected
    assert len(expected) <= lines_max


def structures(cls: Any, *fields: str) -> Any:
    """The structure of a message that has these fields."""
    return next(
        each
        for each in vars(cls).values()
        if isinstance(each, type) and set(fields) <= {*getattr(each, "__struct_fields__", ())}
    )


ASKED = {"a": (0, 1), "b": (0,)}
"""Topics and partitions of a request."""


def request_of(api: str) -> Request:
    key, (of_topics, of_partitions, index) = API_BY_NAME[api].key, PARTITIONS[api].asked
    cls = request_type(key).cls
    topic_cls = structures(cls, of_partitions, *(("topic",) if api == "Fetch" else ("name",)))
    part_cls = next(
        each for each in vars(cls).values() if isinstance(each, type) and index in each.__struct_fields__
    )
    topics = tuple(
        topic_cls(
            **{("topic" if api == "Fetch" else "name"): name},
            **{of_partitions: tuple(part_cls(**{index: number}) for number in numbers)},
        )
        for name, numbers in ASKED.items()
    )
    answered = {"acks": 1} if api == "Produce" else {}
    return Request(RequestHeader(key, 1, 1, "billing"), cls(**{of_topics: topics}, **answered), 0)


def name_of(entry: Any) -> str:
    return str(getattr(entry, "topic", "") or getattr(entry, "name", ""))


def name_in(found: tuple[str, int, int]) -> str:
    return found[0]


def in_body(api: str, body: Any, which: int) -> Counter[tuple[str, int, int]]:
    """(topic, partition, code) of a request (`which` 0) or a response."""
    of_topics, of_partitions, index = (PARTITIONS[api].asked, PARTITIONS[api].answered)[which]
    return Counter(
        (name_of(topic), getattr(part, index), getattr(part, "error_code", 0))
        for topic in getattr(body, of_topics)
        for part in getattr(topic, of_partitions)
    )


@pytest.mark.parametrize("api", PARTITIONS)
def test_a_code_is_at_the_partitions_that_are_meant_and_the_others_are_carried_out(api: str) -> None:
    for topic, partition, error in product(
        (None, "a", "b", "c"), (None, 0, 1, 5), ("UNKNOWN_SERVER_ERROR", "REQUEST_TIMED_OUT")
    ):
        how: How = {"error": error}
        if topic is not None:
            how["topic"] = topic
        if partition is not None:
            how["partition"] = partition
        fault, request, carried = RequestFault.of(api, how), request_of(api), []
        code = ErrorCode[error].value
        everything = {(name, number) for name, numbers in ASKED.items() for number in numbers}
        meant = {each for each in everything if topic in (None, each[0]) and partition in (None, each[1])}
        client = Client(listener="L", address="A", principal="User:x")
        takes = fault.takes(0, request, client, name_of)
        assert takes == bool(meant or (topic is None and partition is None)) and fault.hits == takes

        async def carry_out(given: Request, carried: list[Any] = carried) -> Any:
            carried.append(given.body)
            of_topics, of_partitions, index = PARTITIONS[api].answered
            cls = response_type(given.header.api_key).cls
            topic_cls, part_cls = structures(cls, of_partitions), structures(cls, index, "error_code")
            key = "topic" if "topic" in topic_cls.__struct_fields__ else "name"
            rows = [
                topic_cls(
                    **{key: name}, **{of_partitions: tuple(part_cls(**{index: at}) for _, at, _ in own)}
                )
                for name, own in groupby(sorted(in_body(api, given.body, 0)), key=name_in)
                for own in (list(own),)
            ]
            return cls(**{of_topics: tuple(rows)})

        answer = asyncio.run(with_error(fault, request, carry_out, name_of))
        assert in_body(api, answer, 1) == Counter((*each, code * (each in meant)) for each in everything)
        left = everything if api in READS or error in AFTER_THE_WORK else everything - meant
        assert [{each[:2] for each in in_body(api, body, 0)} for body in carried] == ([left] if left else [])
        assert all(body.max_wait_ms == 0 for body in carried if api == "Fetch")


@pytest.mark.parametrize("api", ENTITIES)
def test_a_code_is_at_the_entities_that_are_meant_and_the_others_are_carried_out(api: str) -> None:
    places, key = ENTITIES[api], API_BY_NAME[api].key
    cls, answer_cls, asked_name = request_type(key).cls, response_type(key).cls, places.asked_name
    entry_cls = structures(answer_cls, "error_code", places.answered_name)
    carried: list[Any] = []

    async def carry_out(given: Request) -> Any:
        asked = getattr(given.body, places.asked)
        carried.append(asked and [(asked_name and getattr(each, asked_name)) or each for each in asked])
        rows = tuple(entry_cls(**{places.answered_name: name}) for name in carried[-1] or ())
        return answer_cls(**{places.answered: rows})

    def answered(entries: Any, how: How) -> Any:
        request = Request(RequestHeader(key, 1, 1, "billing"), cls(**{places.asked: entries}), 0)
        answer = asyncio.run(with_error(RequestFault.of(api, how), request, carry_out, name_of))
        rows = getattr(answer, places.answered)
        return sorted((getattr(each, places.answered_name), each.error_code) for each in rows)

    of_both = (
        ["a", "b"] if asked_name is None else [structures(cls, asked_name)(**{asked_name: at}) for at in "ab"]
    )
    error: How = {"error": "UNKNOWN_SERVER_ERROR"}
    assert (answered(of_both, error), carried) == ([("a", -1), ("b", -1)], [])
    assert (answered(of_both, {**error, "group": "b"}), carried) == ([("a", 0), ("b", -1)], [["a"]])
    assert (answered(of_both, {**error, "group": "c"}), carried[1:]) == ([("a", 0), ("b", 0)], [["a", "b"]])
    assert (answered(None, error), carried[2:]) == ([], [None]), "of all, and of none by its name"


def test_a_fault_meets_the_requests_that_all_its_words_fit() -> None:
    request = request_of("Produce")
    client = Client(listener="L", address="A", principal="User:x")
    choices: dict[str, dict[Any, bool]] = {
        "topic": {"a": True, "c": False},
        "node": {1: True, 2: False},
        "client": {"billing": True, "User:x": True, "x": False},
        "times": {1: True, 2: True},
        "predicate": {(lambda body: body.acks == 1): True, (lambda body: body.acks == 0): False},
    }
    for names in product(*((None, *values) for values in choices.values())):
        how: Any = {key: value for key, value in zip(choices, names, strict=True) if value is not None}
        fits = all(choices[key][value] for key, value in how.items())
        fault = RequestFault.of("Produce", how)
        assert fault.takes(1, request, client, name_of) == fits and fault.hits == fits
        assert fault.only_counts
        assert fault.takes(1, request, client, name_of) == (fits and how.get("times") != 1)
        assert not RequestFault.of("Produce", {**how, "hold": True}).only_counts


@pytest.mark.parametrize(
    ("api", "fields", "names"),
    [
        ("JoinGroup", {"group_id": "g"}, {"group": {"g"}, "transaction": set(), "resource": set()}),
        ("DeleteGroups", {"groups_names": ("g", "h")}, {"group": {"g", "h"}}),
        ("DescribeGroups", {"groups": ("g",)}, {"group": {"g"}}),
        ("FindCoordinator", {"key": "g", "key_type": 0, "coordinator_keys": ("h",)}, {"group": {"g", "h"}}),
        ("FindCoordinator", {"key": "t", "key_type": 1}, {"group": set(), "transaction": {"t"}}),
        ("EndTxn", {"transactional_id": "t"}, {"transaction": {"t"}, "group": set()}),
        (
            "TxnOffsetCommit",
            {"transactional_id": "t", "group_id": "g"},
            {"transaction": {"t"}, "group": {"g"}},
        ),
    ],
)
def test_the_names_that_a_request_is_about(
    api: str, fields: dict[str, Any], names: dict[str, set[str]]
) -> None:
    body = request_type(API_BY_NAME[api].key).cls(**fields)
    for kind, expected in names.items():
        assert named(body, kind) == expected


@pytest.mark.parametrize(
    ("api", "how", "text"),
    [
        ("Producing", {}, "there is no API 'Producing'"),
        ("Produce", {"error": "NOPE"}, "there is no error 'NOPE'"),
        ("Produce", {"error": "NONE"}, "there is no error 'NONE'"),
        ("Produce", {"tpoic": "a"}, "a fault has no tpoic: it has topic, "),
        ("AlterPartitionReassignments", {"error": "NOT_CONTROLLER"}, None),
        ("DescribeLogDirs", {"error": "NOT_CONTROLLER"}, None),
        ("CreateAcls", {"error": "NOT_CONTROLLER"}, "CreateAcls has neither"),
    ],
)
def test_a_fault_that_no_broker_would_answer_is_refused(api: str, how: Any, text: str | None) -> None:
    if text is None:
        assert RequestFault.of(api, how).code is ErrorCode.NOT_CONTROLLER
        return
    with pytest.raises(ClusterError, match=text):
        RequestFault.of(api, how)


def stored(draw: random.Random) -> tuple[list[RecordBatch], list[tuple[int, str | None]]]:
    """Batches of three producers, and what each message's offset and the end of its transaction are."""
    batches: list[RecordBatch] = []
    expected: list[list[Any]] = []
    offset = 3
    for _ in range(30):
        producer, what = draw.choice((-1, 5, 6)), draw.random()
        if producer >= 0 and what < 0.3:
            marker = EndMarker(committed=draw.random() < 0.5, coordinator_epoch=1)
            data = encode_marker(marker, producer_id=producer, producer_epoch=0, timestamp_ms=9)
            data = offset.to_bytes(8, "big") + data[8:]
            for row in expected:
                if row[1] == ("open", producer):
                    row[1] = "committed" if marker.committed else "aborted"
            count = 1
        else:
            count, is_part = draw.randint(1, 3), producer >= 0 and what < 0.8
            data = encode_batch(
                base_offset=offset,
                leader_epoch=1,
                timestamp_ms=1000 + offset,
                values=[b"v%d" % (offset + at) for at in range(count)],
                producer_id=producer,
                attributes=TRANSACTIONAL if is_part else 0,
            )
            expected += [[offset + at, ("open", producer) if is_part else None] for at in range(count)]
        batches += Batches.sealed(data).split()
        offset += count
    return batches, [(at, state[0] if isinstance(state, tuple) else state) for at, state in expected]


@pytest.mark.parametrize("seed", range(4))
def test_messages_have_the_state_of_their_transaction_and_readers_stop_at_an_open_one(seed: int) -> None:
    batches, expected = stored(random.Random(seed))
    start, end = expected[2][0], expected[-2][0]
    made = _messages(batches, "t", 4, start, end)
    within = [each for each in expected if start <= each[0] < end]
    assert [(each.offset, each.transaction) for each in made] == within
    assert all((each.topic, each.partition, each.value) == ("t", 4, b"v%d" % each.offset) for each in made)
    states = [state for _, state in within]
    stop = states.index("open") if "open" in states else len(within)
    assert [each.offset for each in committed(made)] == [
        at for at, state in within[:stop] if state != "aborted"
    ]
    whole = b"".join(batch.data for batch in batches[:3])
    sizes = [sum(len(batch.data) for batch in batches[:count]) for count in range(4)]
    for size in range(len(whole) + 1):
        assert len(_whole(whole[:size])) == max(each for each in sizes if each <= size)


class _Slow:
    """A disk with faults, which notes how long it was told to wait."""

    def __init__(self) -> None:
        self.faults: tuple[Any, ...] = ()
        self.waits: list[tuple[float, bool]] = []
        self.healed = 0

    def wait(self, seconds: float, is_healed: Any) -> None:
        self.waits.append((seconds, is_healed()))

    def fault_healed(self) -> None:
        self.healed += 1


WRITES = ("write", "truncate", "sync", "sync_directory", "mkdir", "rename", "remove", "utime")


@pytest.mark.parametrize("kind", ["full", "read-only", "failing", "slow"])
def test_a_fault_of_a_disk_meets_the_operations_below_its_directory(kind: Any) -> None:
    disk = _Slow()
    heal = begin_disk_fault(disk, DiskFaultOrder(kind=kind, directory="/d", value=7))
    other = begin_disk_fault(disk, DiskFaultOrder(kind="read-only", directory="/else"))
    fault, _ = disk.faults

    def fails(operation: str, path: str, size: int = 0) -> bool:
        try:
            fault(operation, path, size)
        except DiskError as error:
            assert path in str(error)
            return True
        return False

    for operation in (*WRITES, "read", "list"):
        assert not fails(operation, "/dx/a", 3) and not fails(operation, "/", 3)
        is_write = operation in WRITES
        assert fails(operation, "/d/a") == (kind == "read-only" and is_write)
        assert fails(operation, "/d") == (kind == "read-only" and is_write)
    if kind == "failing":  # after seven bytes
        sizes = (3, 3, 1, 0, 5)
        assert [fails("write", "/d/a", size) for size in sizes] == [False, False, False, True, True]
    else:
        assert fails("write", "/d/a/b", 1) == (kind in ("full", "read-only"))
    slowed = [(7, False)] * (2 * len(WRITES) + 1) if kind == "slow" else []
    assert disk.waits == slowed
    heal()
    assert len(disk.faults) == 1 and disk.faults[0] is not fault and disk.healed == 1
    if kind == "slow":
        fault("write", "/d/a", 1)
        assert disk.waits[-1] == (7, True)
    other()
    assert disk.faults == () and disk.healed == 2
