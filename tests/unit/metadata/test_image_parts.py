"""The image's own parts: sharded maps, directory codes, columns, tree, invariants, differences."""

from __future__ import annotations

import gc
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from metaquorum.metadata import invariants
from metaquorum.metadata.columnar.partition_records import lengths_at, varint_widths
from metaquorum.metadata.delta import diff
from metaquorum.metadata.image import (
    CHUNK_ROWS,
    MIGRATING,
    UNASSIGNED,
    BrokerRegistration,
    ImageBuilder,
    MetadataImage,
    PartitionInfo,
    Provenance,
    ShardedMap,
    images_equal,
)
from metaquorum.metadata.image.chunk import TopicEntry, with_run
from metaquorum.metadata.image.directories import DirectoryTable, _HashIndex, damaged_in, given_up_in, is_mark
from metaquorum.metadata.image.maps import FIRST_SHARD_COUNT, MAX_SHARD_LOAD
from metaquorum.metadata.image.types import TopicInfo
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.inspect.timeline.spans import PartitionSpans
from metaquorum.metadata.invariants import COLUMN_RULES, FEW_ROWS, check_image, check_step
from metaquorum.metadata.meanings import _sorted_directories
from metaquorum.metadata.text.tree import image_tree, render_tree, subtree
from metaquorum.storage.batches.format import encode_varint
from metaquorum.storage.uuids import uuid_from_text
from tests.images import describe_difference

T1, T2 = b"\x01" * 16, b"\x02" * 16


def info(
    index: int, replicas: tuple[int, ...] = (1, 2), topic_id: bytes = T1, **fields: Any
) -> PartitionInfo:
    defaults: dict[str, Any] = {
        "isr": replicas,
        "leader": replicas[0],
        "leader_epoch": 0,
        "partition_epoch": 0,
        "leader_recovery_state": 0,
        "directories": (UNASSIGNED,) * len(replicas),
    }
    return PartitionInfo(topic_id=topic_id, index=index, replicas=replicas, **(defaults | fields))


def built(*partitions: PartitionInfo, base: MetadataImage | None = None) -> MetadataImage:
    builder = ImageBuilder(MetadataImage() if base is None else base)
    if T1 not in builder.topics.by_id:
        builder.topics.add_topic(T1, "orders")
        for broker_id in (1, 2, 3):
            builder.put_broker(
                BrokerRegistration(broker_id=broker_id, epoch=broker_id, incarnation_id=T2, fenced=False)
            )
    for partition in partitions:
        builder.topics.put_partition(builder.topics.by_id[partition.topic_id], partition)
    return builder.freeze()


def test_map_equals_a_dict_through_growth_and_shares_what_did_not_change() -> None:
    rng = random.Random(4)
    model: dict[str, int] = {}
    frozen: list[tuple[ShardedMap[str, int], dict[str, int]]] = []
    current: ShardedMap[str, int] = ShardedMap()
    for _ in range(90):
        builder = current.builder()
        for _ in range(40):
            key = f"k{rng.randrange(3_000)}"
            if rng.random() < 0.3:
                model.pop(key, None)
                builder.remove(key)
            else:
                model[key] = rng.randrange(100)
                builder.put(key, model[key])
        current = builder.freeze()
        frozen.append((current, dict(model)))
    for image, expected in frozen:
        assert dict(image.items_sorted()) == expected and len(image) == len(expected)
        assert sorted(image.values_unordered()) == sorted(expected.values())
    for _ in range(200):
        (one, first), (two, second) = rng.choice(frozen), rng.choice(frozen)
        differ = [key for key in {*first, *second} if first.get(key) != second.get(key)]
        assert sorted(one.changed_keys(two)) == sorted(differ)
        assert (one == two) is (not differ)
    assert current == current.builder().freeze()


class _Key(str):
    """Counts how often it is looked at."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        _Key.looks += 1
        return super().__hash__()


def test_no_write_to_a_map_looks_at_all_of_it() -> None:
    """Also not the one that makes it grow: the active controller would stand still for as long."""
    current: ShardedMap[_Key, int] = ShardedMap()
    most = 0
    for number in range(40 * MAX_SHARD_LOAD * FIRST_SHARD_COUNT):
        before = _Key.looks
        builder = current.builder()
        builder.put(_Key(number), number)
        current = builder.freeze()
        most = max(most, _Key.looks - before)
    assert len(current) == number + 1
    assert most < 5 * MAX_SHARD_LOAD


def test_the_garbage_collector_has_no_more_to_look_at_for_more_topics() -> None:
    """It stops the process for as long as it looks: at everything that may be part of a cycle."""

    def tracked(topics: int) -> int:
        builder = ImageBuilder(MetadataImage())
        for number in range(topics):
            topic_id = number.to_bytes(16, "big")
            builder.topics.add_topic(topic_id, f"t{number}")
            partition = info(0, topic_id=topic_id)
            builder.topics.put_partition(builder.topics.by_id[topic_id], partition)
        image = builder.freeze()
        del builder
        gc.collect()
        seen: set[int] = set()
        todo: list[Any] = [image.topics.by_id, image.topics.by_name, image.topics.by_slot]
        while todo:
            one = todo.pop()
            if id(one) not in seen and not isinstance(one, type):
                seen.add(id(one))
                todo += gc.get_referents(one)
        return sum(gc.is_tracked(one) for one in gc.get_objects() if id(one) in seen)

    assert tracked(2_000) == tracked(20)


def test_directory_codes_many_at_once_equal_one_by_one() -> None:
    rng = random.Random(1)
    ids = [rng.randbytes(16) for _ in range(700)] + [MIGRATING, UNASSIGNED]
    table = DirectoryTable()
    for _ in range(3):
        asked = [rng.choice(ids) for _ in range(2000)]
        words = np.frombuffer(b"".join(asked), dtype=np.uint64).reshape(-1, 2)
        codes = table.codes_of(words)
        assert table.ids(codes.tolist()) == tuple(asked)
        assert codes.tolist() == [table.code(at) for at in asked]
    assert table.code(MIGRATING) == 0 and len(set(map(table.code, ids))) == len(ids)


@pytest.mark.parametrize("shared", [0, 1, None])
@pytest.mark.parametrize("known", [1, 60, 400])
def test_ids_that_nobody_knows_are_not_found_in_the_place_of_others(shared: int | None, known: int) -> None:
    """They share one half: thousands of them meet others in the hash table, smaller and larger ones."""
    rng = random.Random(known)
    halves = [
        [rng.randbytes(8)] * 3000 if at == shared else [rng.randbytes(8) for _ in range(3000)]
        for at in (0, 1)
    ]
    ids = [first + second for first, second in zip(*halves, strict=True)]
    table = DirectoryTable()
    codes = [table.code(one) for one in ids[:known]]
    index = _HashIndex(table.id_words())
    words = np.frombuffer(b"".join(ids), dtype=np.uint64).reshape(-1, 2)
    assert index.find(words).tolist() == [*codes, *[-1] * (3000 - known)]


def test_images_of_two_histories_are_compared_by_directory_and_not_by_its_code() -> None:
    """Two replays number directories as they meet them: equal codes need not be equal directories."""
    here, there = b"\x0a" * 16, b"\x0b" * 16
    both = [info(0, directories=(here, there)), info(1, directories=(there, here))]
    swapped = [info(0, directories=(there, here)), info(1, directories=(here, there))]
    one, same, other = built(*both), built(*both), built(*swapped)
    tables = [each.topics.columns.directories for each in (one, same, other)]
    assert tables[0].agrees_with(tables[1]) and not tables[0].agrees_with(tables[2])
    assert images_equal(one, same) and not images_equal(one, other)
    longer = built(*both, info(2, directories=(here, b"\x0c" * 16)))
    assert tables[0].agrees_with(longer.topics.columns.directories)
    assert longer.topics.columns.directories.agrees_with(tables[0])


@pytest.mark.parametrize(
    ("runs", "run", "expected"),
    [
        ((), (0, 5, 100), ((0, 5, 100),)),
        (((0, 5, 100),), (5, 2, 105), ((0, 7, 100),)),
        (((0, 5, 100),), (5, 2, 300), ((0, 5, 100), (5, 2, 300))),
        (((5, 2, 105),), (0, 5, 100), ((0, 7, 100),)),
        (((0, 2, 10), (4, 2, 14)), (2, 2, 12), ((0, 6, 10),)),
        (((0, 5, 100),), (4, 1, 200), None),
        (((4, 2, 14),), (3, 2, 50), None),
    ],
)
def test_runs_merge_and_refuse_overlap(runs: Any, run: Any, expected: Any) -> None:
    assert with_run(runs, run) == expected


@pytest.mark.parametrize("seed", range(30))
def test_runs_against_a_row_for_every_index(seed: int) -> None:
    """Runs that touch are one where index and row both go on, and only there."""
    rng = random.Random(seed)
    runs: tuple[tuple[int, int, int], ...] = ()
    rows: dict[int, int] = {}
    for _ in range(40):
        first, count, row = rng.randrange(14), rng.randrange(1, 4), rng.randrange(14)
        after = with_run(runs, (first, count, row))
        new = {first + at: row + at for at in range(count)}
        assert (after is None) == (not rows.keys().isdisjoint(new))
        if after is None:
            continue
        runs, rows = after, rows | new
        assert {first + at: row + at for first, count, row in runs for at in range(count)} == rows
        starts = [at for at in sorted(rows) if rows.get(at - 1) != rows[at] - 1]
        assert [first for first, _, _ in runs] == starts
        entry = TopicEntry(TopicInfo(T1, "t"), 0, runs)
        assert entry.rows().tolist() == [rows[at] for at in sorted(rows)]
        assert entry.partition_count == len(rows)
        assert [entry.row_of(at) for at in range(-2, 20)] == [rows.get(at, -1) for at in range(-2, 20)]


def test_lists_of_any_length_share_chunks_and_rows_are_reused() -> None:
    partitions = [info(at, tuple(range(1 + at % 9))) for at in range(CHUNK_ROWS + 50)]
    image = built(*partitions)
    assert image.topics.partitions_of(T1) == partitions
    builder = ImageBuilder(image)
    builder.topics.remove_topic(builder.topics.by_id[T1])
    builder.topics.add_topic(T2, "again")
    for at in range(CHUNK_ROWS + 50):
        builder.topics.put_partition(builder.topics.by_id[T2], info(at, (3,), T2))
    after = builder.freeze()
    emptied = ImageBuilder(after)
    emptied.topics.remove_topic(emptied.topics.by_id[T2])
    nothing = emptied.freeze().topics
    assert not len(nothing.rows_with_isr(3)) and not len(nothing.rows_with_replica(3))
    assert nothing.partition_count == 0 and not len(nothing.rows_led_by(3))
    assert after.topics.partition_count == CHUNK_ROWS + 50
    assert len(after.topics.columns.chunks) == len(image.topics.columns.chunks)
    assert image.topics.partitions_of(T1) == partitions
    assert after.topics.partition(T2, 7) == info(7, (3,), T2)


def test_frozen_chunks_cannot_be_written() -> None:
    image = built(info(0))
    with pytest.raises(ValueError, match="read-only"):
        image.topics.columns.chunks[0].data[2, 0] = 5


def test_a_write_copies_one_chunk_and_shares_the_rest() -> None:
    image = built(*(info(at) for at in range(3 * CHUNK_ROWS)))
    after = built(info(0, partition_epoch=1, leader=2), base=image)
    shared = [a is b for a, b in zip(image.topics.columns.chunks, after.topics.columns.chunks, strict=True)]
    assert shared == [False, True, True]
    delta = diff(image, after)
    assert delta.partitions.changed == ((T1, 0),) and not delta.partitions.added
    assert diff(after, image).partitions.changed == ((T1, 0),)
    assert not delta.is_empty and diff(image, image).is_empty


def test_images_are_equal_wherever_rows_lie() -> None:
    forward = built(*(info(at) for at in range(20)))
    backward = built(*(info(at) for at in reversed(range(20))))
    assert forward == backward and forward.topics.rows_of(T1).tolist() != backward.topics.rows_of(T1).tolist()
    other = built(*(info(at) for at in range(19)), info(19, leader=2))
    assert not images_equal(forward, other)
    assert describe_difference(forward, other) == "topic/orders/partitions/19/leader: 1 -> 2"


def test_diff_of_brokers_topics_and_configs() -> None:
    old = built(info(0))
    builder = ImageBuilder(old)
    builder.topics.remove_topic(builder.topics.by_id[T1])
    builder.topics.add_topic(T2, "orders")
    builder.remove_broker(3)
    builder.put_broker(BrokerRegistration(broker_id=4, epoch=9, incarnation_id=T1))
    builder.put_broker(BrokerRegistration(broker_id=1, epoch=8, incarnation_id=T1))
    builder.set_feature("metadata.version", 19)
    delta = diff(old, builder.freeze())
    assert (delta.brokers.added, delta.brokers.removed, delta.brokers.changed) == ((4,), (3,), (1,))
    assert [topic.topic_id for topic in delta.topics_added] == [T2]
    assert [topic.topic_id for topic in delta.topics_removed] == [T1]
    assert delta.partitions.removed == ((T1, 0),)
    assert delta.features.added == ("metadata.version",)


def test_tree_has_paths_and_json_and_hides_secrets() -> None:
    image = built(info(0), info(1, adding=(2,)))
    tree = image_tree(image)
    assert json.loads(json.dumps(tree)) == tree
    assert subtree(tree, "topic/orders/1")["addingReplicas"] == [2]
    assert subtree(tree, "broker/3/epoch") == 3
    with pytest.raises(KeyError, match="nothing"):
        subtree(tree, "topic/nothing")
    lines = render_tree(tree).splitlines()
    assert any(line.startswith("topic/orders/1: leader=1 leaderEpoch=0") for line in lines)
    assert any(line.startswith("broker/3") for line in lines)


def with_lists(**fields: Any) -> PartitionInfo:
    return info(0, **fields)


@pytest.mark.parametrize(
    ("rule", "partition"),
    [
        (
            "partition-has-replicas",
            PartitionInfo(
                topic_id=T1,
                index=0,
                replicas=(),
                isr=(),
                leader=-1,
                leader_epoch=0,
                partition_epoch=0,
                leader_recovery_state=0,
                directories=(),
                elr=(),
                last_known_elr=(1,),
            ),
        ),
        ("replicas-distinct", with_lists(replicas=(1, 2, 1), isr=(1,))),
        ("isr-distinct", with_lists(isr=(1, 1))),
        ("isr-within-replicas", with_lists(isr=(1, 3))),
        ("leader-in-isr", with_lists(isr=(2,))),
        ("epochs-not-negative", with_lists(partition_epoch=-1)),
        ("leader-active", with_lists(replicas=(7, 1), isr=(7,))),
        ("isr-active", with_lists(replicas=(1, 7))),
        ("replicas-registered", with_lists(replicas=(1, 7), isr=(1,))),
        ("isr-not-empty", with_lists(isr=(), leader=-1)),
        ("reassignment-within-replicas", with_lists(adding=(9,))),
        ("reassignment-within-replicas", with_lists(adding=(1,), removing=(1,))),
        ("elr-outside-isr", with_lists(elr=(1,))),
        ("partition-indexes-dense", info(1)),
    ],
)
def test_each_partition_rule_finds_what_breaks_it(rule: str, partition: PartitionInfo) -> None:
    assert check_image(built(info(0))) == []
    violations = check_image(built(partition))
    assert rule in {violation.rule for violation in violations}
    assert all("orders" in violation.where for violation in violations if violation.rule == rule)
    severity = next(violation.severity for violation in violations if violation.rule == rule)
    if rule in COLUMN_RULES:
        assert severity == COLUMN_RULES[rule][0]


def test_directories_of_brokers_are_distinct_and_not_reserved() -> None:
    def broker(broker_id: int, *directories: bytes) -> BrokerRegistration:
        return BrokerRegistration(broker_id=broker_id, epoch=1, incarnation_id=T1, directories=directories)

    builder = ImageBuilder(MetadataImage())
    for registration in (broker(1, T1, T2), broker(2, T2), broker(3, UNASSIGNED)):
        builder.put_broker(registration)
    found = [(at.rule, at.where) for at in check_image(builder.freeze())]
    assert found == [("directories-distinct", "broker/2"), ("directories-not-reserved", "broker/3")]


def test_steps_must_not_go_back() -> None:
    before = built(info(0, partition_epoch=5, leader_epoch=3), info(1))
    provenance = Provenance(10, 2, 5)
    same_epoch = built(info(0, partition_epoch=5, leader_epoch=3, isr=(1,)), base=before)
    assert {at.rule for at in check_step(before, same_epoch)} == {"partition-epoch-grows"}
    new_leader = built(info(0, partition_epoch=6, leader_epoch=3, leader=2), base=before)
    assert {at.rule for at in check_step(before, new_leader)} == {"leader-epoch-grows"}
    sound = built(info(0, partition_epoch=6, leader_epoch=4, leader=2), base=before)
    assert check_step(before, sound) == []
    assert {at.rule for at in check_step(before.with_provenance(provenance), before)} == {"provenance-grows"}
    builder = ImageBuilder(before)
    builder.put_broker(BrokerRegistration(broker_id=3, epoch=2, incarnation_id=T1))
    builder.put_broker(BrokerRegistration(broker_id=2, epoch=2, incarnation_id=T1))
    rules = {at.rule for at in check_step(before, builder.freeze())}
    assert rules == {"broker-epoch-grows", "incarnation-has-own-epoch"}


def test_many_steps_at_once_are_looked_at_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those whose epochs do not grow are looked at one by one."""
    fields = [
        {"partition_epoch": 6},
        {"partition_epoch": 5, "isr": (1,)},
        {"partition_epoch": 4},
        {"partition_epoch": 6, "leader_epoch": 2},
        {"partition_epoch": 6, "leader": 2},
        {"partition_epoch": 6, "leader_epoch": 4, "leader": 2},
        {"partition_epoch": 5, "leader": 2},
    ]
    count = 8 * FEW_ROWS
    before = built(*(info(at, partition_epoch=5, leader_epoch=3) for at in range(count)))
    chosen = [{"partition_epoch": 5, "leader_epoch": 3, **fields[at % len(fields)]} for at in range(count)]
    after = built(*(info(at, **chosen[at]) for at in reversed(range(count))), base=before)
    keys = diff(before, after).partitions.changed
    assert len(keys) == count
    looked_at = invariants._doubtful_steps(before.topics, after.topics, keys)
    assert len(looked_at) == sum(at % len(fields) not in (0, 5) for at in range(count))
    together = check_step(before, after)
    monkeypatch.setattr(invariants, "FEW_ROWS", count)
    assert together == check_step(before, after)
    assert {at.rule for at in together} == {"partition-epoch-grows", "leader-epoch-grows"}


def test_every_rule_has_a_line_in_the_document() -> None:
    root = Path(__file__).resolve().parents[3]
    text = (root / "docs/invariants.md").read_text()
    errors, warnings = re.findall(r"^### (?:Errors|Warnings).*?\n\n(.*?)\n\n", text, re.M | re.S)
    documented = {
        rule: severity
        for severity, section in (("error", errors), ("warning", warnings))
        for rule in re.findall(r"^- `([\w-]+)`: ", section, re.M)
    }
    source = (root / "metadata/invariants.py").read_text()
    found = re.findall(r'(?:Violation\(\s*|^    )"([\w-]+)"[:,]\s+\(?\s*(ERROR|WARNING)', source, re.M)
    in_code = {rule: severity.lower() for rule, severity in found}
    assert len(in_code) == 30
    assert in_code.items() <= documented.items()


def test_directories_are_in_kafkas_order_of_uuids() -> None:
    """Two signed numbers of 64 bits, the higher one first."""
    ids = [
        first + second
        for first in (b"\x80", b"\xff", b"\x00", b"\x7f")
        for second in (b"\x80", b"\x00", b"\x7f")
    ]
    wanted = tuple(one[:1] + bytes(7) + one[1:] + bytes(7) for one in ids)
    assert len(wanted) == 12
    for seed in range(3):
        mixed = random.Random(seed).sample(wanted, len(wanted))
        assert _sorted_directories(tuple(mixed)) == wanted


def test_a_topic_that_is_not_there_has_no_partitions() -> None:
    assert MetadataImage().topics.partition_count_of(b"x" * 16) == 0


def test_a_mark_is_of_a_directory_that_the_broker_has() -> None:
    ids = [bytes([at]) * 16 for at in range(3)]
    registration = cast(BrokerRegistration, SimpleNamespace(directories=tuple(ids[:2])))
    marks = [mark(one) for one in ids for mark in (damaged_in, given_up_in)]
    assert len({*marks, *ids}) == 9
    assert [is_mark(registration, one) for one in marks] == [True] * 4 + [False] * 2
    assert not any(is_mark(registration, one) for one in ids)
    assert not is_mark(None, marks[0])


@pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1_048_575])
def test_lengths_of_one_to_three_bytes_are_read_together(size: int) -> None:
    sizes = [0, 1, size, 63, size // 2]
    data = b"".join(encode_varint(each) for each in sizes)
    at = np.cumsum([0, *(len(encode_varint(each)) for each in sizes)])[:-1]
    octets = np.frombuffer(data + b"\xff" * 3, dtype=np.uint8)
    widths = varint_widths(octets, at)
    assert widths.tolist() == [len(encode_varint(each)) for each in sizes]
    assert lengths_at(octets, at, widths).tolist() == sizes


# A topic whose name is not known is spelled with its id as Kafka prints it, wherever it is named.


TEXT = "HBaK2wDSCOQvkzFFKfH6nA"
TOPIC = uuid_from_text(TEXT)


def test_every_tool_spells_it_the_same() -> None:
    spans = PartitionSpans(ChangeFeed(MetadataImage(), is_known=False), None)
    assert spans.named((TOPIC, 3)) == (f"{TEXT}-3", f"topic/{TEXT}/3")
    assert EntityNamer().topic_name(TOPIC) == TEXT
