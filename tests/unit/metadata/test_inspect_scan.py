"""The quick ways of a scan over a log give what the plain ones give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.metadata.delta import diff
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import CHUNK_ROWS, INDEX, PADDING
from metaquorum.metadata.image.compare import partition_changes
from metaquorum.metadata.inspect.causes.losses import LOSSES
from metaquorum.metadata.inspect.checks.bisect import Bisection, bisect
from metaquorum.metadata.inspect.checks.checks import named_check, predicate_check
from metaquorum.metadata.inspect.checks.predicate import compile_predicate
from metaquorum.metadata.inspect.entities.history import history
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.entities.views import Wanted
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.invariants import (
    COLUMN_RULES,
    FEW_ROWS,
    ChunkView,
    broken_column_rules,
    check_batch,
    check_changes,
    check_step,
    row_violations,
)
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.uuids import uuid_to_text
from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import START_MS, Batch, leads, make_node, memory_disk, topic
from tests.unit.metadata.test_passing_over import told_one_by_one

ROOT = shared_data_path() or Path("absent")
RECORDED = sorted({path.parent for path in ROOT.rglob("__cluster_metadata-0/*.log")})
TOPICS = [bytes([at]) * 16 for at in range(1, 5)]


def base_image(partitions: int = 40) -> MetadataImage:
    engine = Replayer(ReplayState())
    listed: list[object] = [r.BrokerRecord(at, TOPICS[0], at, fenced=at % 4 == 3) for at in range(6)]
    for number, topic_id in enumerate(TOPICS):
        listed.append(r.TopicRecord(f"t{number}", topic_id))
        for index in range(partitions):
            nodes = tuple((index + at) % 6 for at in range(3))
            listed.append(
                r.PartitionRecord(
                    index,
                    topic_id,
                    replicas=nodes,
                    isr=nodes,
                    leader=nodes[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
    engine.apply_records(base_offset=0, epoch=1, timestamp_ms=1, records=listed)
    return engine.state().image


def scrambled(seed: int) -> MetadataImage:
    """An image whose rows hold anything."""
    rng = np.random.default_rng(seed)
    builder = ImageBuilder(base_image())
    columns = builder.topics.columns
    chunk = columns.own(0)
    live = np.flatnonzero(chunk.data[0] >= 0)
    wanted = rng.integers(-1, 7, size=(chunk.data.shape[0] - INDEX - 1, len(live)), dtype=np.int32)
    keep = rng.random(wanted.shape) < 0.8
    chunk.data[INDEX + 1 :, live] = np.where(keep, chunk.data[INDEX + 1 :, live], wanted)
    return builder.freeze()


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_row_breaks_the_same_rules_alone_as_among_many(seed: int) -> None:
    image = scrambled(seed)
    known, active = image.brokers.ids()
    chunk = image.topics.columns.chunks[0]
    view = ChunkView(chunk, known, active)
    answers = {rule: broken(view) & view.live for rule, (_, _, broken) in COLUMN_RULES.items()}
    assert any(answer.any() for answer in answers.values())
    rows = image.topics.columns.live_rows().tolist()
    for row in rows:
        assert broken_column_rules(image, row) == [rule for rule in COLUMN_RULES if answers[rule][row]]
    few = rows[:FEW_ROWS]
    paths = {f"topic/t{at // 40}/{at % 40}" for at in few}
    alone = list(row_violations(image, few))
    assert alone == [one for one in row_violations(image, rows) if one.where in paths]


CHANGE = st.tuples(
    st.sampled_from(TOPICS), st.integers(0, 39), st.integers(-1, 6), st.lists(st.integers(0, 6), max_size=4)
)


@given(st.lists(st.lists(CHANGE, min_size=1, max_size=3), min_size=1, max_size=8), st.booleans())
@settings(max_examples=25, deadline=None)
def test_neighbours_differ_in_what_strangers_with_the_same_content_differ_in(
    story: list[list[tuple[bytes, int, int, list[int]]]], fence: bool
) -> None:
    """`partition_changes` of two images that share their history, and of the same two that do not."""
    state = ReplayState(base_image())
    first = state.image
    for number, batch in enumerate(story):
        listed: list[object] = [
            r.PartitionChangeRecord(index, topic_id, leader=leader, isr=tuple(isr))
            for topic_id, index, leader, isr in batch
        ]
        if fence and number == 1:
            listed += [r.FenceBrokerRecord(1, 1), r.RemoveTopicRecord(TOPICS[3])]
        engine = Replayer(state, on_error=lambda error: None)
        offset = engine.end_offset
        engine.apply_records(base_offset=offset, epoch=1, timestamp_ms=number, records=listed)
        before, state = state, engine.state()
        for old, new in ((before.image, state.image), (first, state.image), (state.image, first)):
            assert partition_changes(old.topics, new.topics) == partition_changes(
                old.topics, stranger(new).topics
            )
        apart = stranger(state.image)
        expected = [*check_step(before.image, apart), *check_changes(before.image, apart)]
        assert sorted(map(str, check_batch(before.image, state.image))) == sorted(map(str, expected))


def stranger(image: MetadataImage) -> MetadataImage:
    """The same content with rows, slots and chunks of its own."""
    engine = Replayer(ReplayState())
    listed: list[object] = []
    topics = image.topics.all()
    random.Random(len(topics)).shuffle(topics)
    for one in topics:
        listed.append(r.TopicRecord(one.name, one.topic_id))
        listed += [
            r.PartitionRecord(
                at.index,
                at.topic_id,
                replicas=at.replicas,
                isr=at.isr,
                leader=at.leader,
                leader_epoch=at.leader_epoch,
                partition_epoch=at.partition_epoch,
                directories=at.directories,
            )
            for at in image.topics.partitions_of(one.topic_id)
        ]
    engine.apply_records(base_offset=0, epoch=1, timestamp_ms=1, records=listed)
    for broker in image.brokers.values():
        engine.builder.put_broker(broker)
    return engine.state().image.with_provenance(image.provenance)


def test_only_what_was_touched_is_looked_at() -> None:
    image = base_image(CHUNK_ROWS)
    engine = Replayer(ReplayState(image))
    assert len(image.topics.columns.chunks) == len(TOPICS)
    change = r.PartitionChangeRecord(5, TOPICS[2], leader=1)
    engine.apply_records(base_offset=engine.end_offset, epoch=1, timestamp_ms=1, records=[change])
    after = engine.state().image
    assert after.topics.columns.differing_chunks(image.topics.columns) == [2]
    assert image.topics.columns.differing_chunks(after.topics.columns) == [2]
    assert diff(image, after).partitions.changed == ((TOPICS[2], 5),)
    chunk = after.topics.columns.chunks[2]
    assert chunk.data[0, 5] != PADDING


# --- what goes by in columns


PREDICATES = (
    "leaderless() < 3",
    "partition('t1', 5).leader != 2",
    "partitions('t2')[3].partition_epoch < 6 or broker(1).fenced",
    "not broker(1).fenced",
    "len(topics) == 4",
    "all(len(p.isr) > 0 for p in partitions())",
    "config('topic/t0', 'k') is None",
    "image.features.metadata_version > 0 and image.brokers.get(1) is not None",
    "image.provenance.offset < 150",
    "quorum.leader_id is None and partition('t0', 1).leader >= 0",
)
SINGLE = st.one_of(
    st.just(r.NoOpRecord()),
    st.just(r.NoOpRecord()),
    st.builds(
        r.PartitionChangeRecord,
        st.integers(0, 41),
        st.sampled_from([*TOPICS, bytes(16)]),
        leader=st.integers(-1, 3),
        isr=st.lists(st.integers(0, 5), max_size=3, unique=True).map(tuple),
    ),
    st.builds(r.FenceBrokerRecord, st.integers(0, 6), st.integers(0, 6)),
    st.builds(r.ConfigRecord, st.just(2), st.just("t0"), st.just("k"), st.sampled_from(["1", None])),
    st.sampled_from([r.RemoveTopicRecord(TOPICS[3]), r.TopicRecord("t3", bytes([9]) * 16)]),
    st.sampled_from(
        [r.BeginTransactionRecord("x"), r.EndTransactionRecord(), r.AbortTransactionRecord(None)]
    ),
)


@st.composite
def stories(draw: st.DrawFn) -> MetadataLog:
    """A log with long runs of one-record batches, mostly idle, some of which do not fit."""
    seed = draw(st.integers(0, 2**32))
    drawn = draw(st.lists(SINGLE, min_size=4, max_size=14))
    rng = random.Random(seed)
    first = [r.BrokerRecord(at, TOPICS[0], at, fenced=False) for at in range(6)]
    story: list[Batch] = [(1, [r.FeatureLevelRecord("metadata.version", 14)]), (1, first)]
    story += [(1, topic(f"t{at}", topic_id, 41)) for at, topic_id in enumerate(TOPICS)]
    for _ in range(180):
        size = rng.choice((1, 1, 1, 3))
        story.append((1, [rng.choice(drawn) if rng.random() < 0.5 else r.NoOpRecord() for _ in range(size)]))
    disk = memory_disk()
    made = make_node(disk, story, per_segment=90)
    return made.log


def outcome(found: Bisection) -> tuple[object, ...]:
    changes = [str(change) for change in found.changes()] if found.step is not None else []
    step = None if found.step is None else (found.step.offset, found.step.before, found.step.after)
    return (
        *(step, found.record, found.batches, found.end_offset, found.always_false, found.never_defined),
        *(found.unknown, changes),
    )


@given(stories())
@settings(max_examples=10, deadline=None)
def test_a_search_finds_what_one_that_looks_at_every_batch_finds(log: MetadataLog) -> None:
    checks = [predicate_check(compile_predicate(one)) for one in PREDICATES]
    checks += [
        named_check(one) for one in ("all-led", "full-isr", "min-isr", "no-violations", "leader-in-isr")
    ]
    assert sum(check.batch_filter is not None for check in checks) == len(checks) - 1
    for check in checks:
        plain = replace(check, batch_filter=None)
        assert outcome(bisect(log, check)) == outcome(bisect(log, plain)), check.name


@given(stories(), st.integers(5, 340))
@settings(max_examples=10, deadline=None)
def test_chains_events_and_rows_are_those_of_every_batch(log: MetadataLog, end: int) -> None:
    point = Point(offset=min(end, log.end_offset))
    timeline, told = Timeline(), list[TimelineEvent]()
    targets = ("topic/t1/5.leader", "broker/1", "config/topic/t0", "topic/t3", "topic/t0", "topic")
    by_id = f"topic/{uuid_to_text(TOPICS[3])}"
    chains = {text: Chain(parse_target(text)) for text in (*targets, by_id)}
    for item in log.items():
        assert isinstance(item, ReadBatch)
        header = item.batch.header
        records = [(one.offset, one.record) for one in item.records]
        told += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
        if header.next_offset <= (point.offset or 0):
            for chain in chains.values():
                chain.batch(header.leader_epoch, header.max_timestamp_ms, records)
    assert list(events(log, print)) == [*told, *timeline.finish()]
    for text, chain in chains.items():
        try:
            expected = chain.result()
        except InspectError as error:
            with pytest.raises(InspectError) as refused:
                explain(log, parse_target(text), point)
            assert str(refused.value).startswith(str(error))
            continue
        assert explain(log, parse_target(text), point) == expected
    everything = list(history(log))
    for path in ("topic/t1/5", "topic/t2", "topic", "broker/1", "config/topic/t0"):
        expected_rows = [row for row in everything if Wanted(path).has(row.entity)]
        assert list(history(log, Wanted(path))) == expected_rows


@pytest.mark.parametrize(
    ("target", "last"),
    [
        ("topic/t1", "CONFIG_RECORD"),
        ("topic", "CONFIG_RECORD"),
        (f"topic/{uuid_to_text(TOPICS[1])}", "PARTITION_RECORD"),
    ],
)
def test_a_topics_chain_passes_over_what_happens_to_partitions(
    target: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of partitions are no links of it, and nearly all that a large log holds."""
    seen: list[int] = []
    own = Chain.batch

    def counted(chain: Chain, epoch: int, time_ms: int, records: Sequence[tuple[int, object]]) -> None:
        seen.extend(offset for offset, _ in records)
        own(chain, epoch, time_ms, records)

    monkeypatch.setattr(Chain, "batch", counted)
    changes: list[Batch] = [
        (1, [r.PartitionChangeRecord(at % 3, TOPICS[1], leader=at % 2)]) for at in range(200)
    ]
    brokers = [r.BrokerRecord(at, TOPICS[0], at, fenced=False) for at in range(6)]
    end: Batch = (1, [r.ConfigRecord(2, "t1", "k", "1")])
    node = make_node(memory_disk(), [(1, brokers), (1, topic("t1", TOPICS[1], 3)), *changes, end])
    found = explain(node.log, parse_target(target))
    first = len(brokers)
    assert [link.offset for link in found.links if link.type_name == "PARTITION_RECORD"] == [
        *range(first + 1, first + 4)
    ]
    assert found.links[-1].type_name == last
    assert len(seen) < 20


STEPS_MS = (*(4 * [500]), 0, -300, 999, 4_000, 6_000, -5_000, 70_000, -70_000, 86_400_000, -86_400_000)


@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(1, 160), st.sampled_from(STEPS_MS)), max_size=6),
    st.sampled_from(STEPS_MS),
)
@settings(max_examples=25, deadline=None)
def test_random_clocks_are_told_alike_and_never_run_backwards_unmarked(
    seed: int, steps: list[tuple[int, int]], usual: int
) -> None:
    rng = random.Random(seed)
    first = [r.BrokerRecord(at, TOPICS[0], at, fenced=False) for at in range(3)]
    story: list[Batch] = [(1, [leads(3000)]), (1, [r.FeatureLevelRecord("metadata.version", 14)]), (1, first)]
    story += [(1, topic("t0", TOPICS[0], 4))]
    for number in range(160):
        moved = r.PartitionChangeRecord(rng.randrange(4), TOPICS[0], leader=rng.randrange(-1, 3))
        fenced = rng.choice([r.FenceBrokerRecord, r.UnfenceBrokerRecord])(number % 3, number % 3)
        usually = rng.choices([r.NoOpRecord(), moved, fenced], weights=[20, 3, 1])[0]
        story.append((1 + number // 100, [usually] if number != 100 else [leads(3001)]))
    stamps, now = [], START_MS
    for number in range(len(story)):
        now += sum(step for at, step in steps if at == number) + max(usual, 0) % 10_000
        stamps.append(max(now, 0))
    log = make_node(memory_disk(), story, stamps=stamps).log
    timeline, each = Timeline(clock=lambda: clock_of(log)), list[TimelineEvent]()
    chains = {text: Chain(parse_target(text), clock=lambda: clock_of(log)) for text in ("quorum", "broker/1")}
    for item in log.items():
        assert isinstance(item, ReadBatch)
        header, records = item.batch.header, [(one.offset, one.record) for one in item.records]
        each += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
        for chain in chains.values():
            chain.batch(header.leader_epoch, header.max_timestamp_ms, records)
    each += timeline.finish()
    assert list(events(log, print)) == each
    for text, chain in chains.items():
        assert explain(log, parse_target(text)) == chain.result()
    back = [one for one, two in pairwise(each) if two.time_ms < one.time_ms]
    marked = sum(event.kind == "time ran backwards" for event in each)
    assert len(back) <= marked and not (marked and clock_of(log).has_jumps)
    gaps = [event.span_ms or 0 for event in each if event.kind == "gap in time"]
    if clock_of(log).has_jumps:
        assert sum(gaps) <= each[-1].time_ms - each[0].time_ms
    rows = list(history(log, Wanted("broker/1")))
    assert all(row.to_ms is None or row.from_ms <= row.to_ms for row in rows) or marked


@needs_shared_data
@pytest.mark.parametrize("path", RECORDED, ids=str)
def test_recorded_logs_are_told_as_if_every_batch_were_looked_at(path: Path) -> None:
    log = open_log(PosixDisk(), str(path))
    if log.start_offset or log.is_checkpoint:
        return
    timeline, told = Timeline(clock=lambda: clock_of(log)), list[TimelineEvent]()
    for item in log.items():
        if isinstance(item, ReadBatch):
            records = [(one.offset, one.record) for one in item.records]
            header = item.batch.header
            told += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    assert list(events(log, [].append)) == [*told, *timeline.finish()]
    for text in ("leaderless() == 0", "len(partitions('unclean')) < 2", "len(brokers) < 4"):
        check = predicate_check(compile_predicate(text))
        found = [bisect(log, one, past_corruption=True) for one in (check, replace(check, batch_filter=None))]
        assert outcome(found[0]) == outcome(found[1])


# Gaps and clocks that run backwards, inside what a timeline takes many batches at a time.


ID = bytes(range(16))
START: list[Batch] = [
    (1, [leads(3000)]),
    (1, [r.FeatureLevelRecord("metadata.version", 19), *topic("orders", ID)]),
]
GAP_STEPS_MS = (0, 40, 900, 5_000, 5_001, 7_000, 61_000, -100)


def batch_of(dice: random.Random) -> list[object]:
    led: list[object] = [r.PartitionChangeRecord(0, ID, leader=dice.choice((-1, 1, 2)))]
    asked = cause_record(BatchCause(request="AlterPartition", principal="User:ann"))
    return dice.choice(([r.NoOpRecord()], led, [asked, *led], [asked, r.PartitionChangeRecord(1, ID)]))


@pytest.mark.parametrize("seed", range(8))
def test_batches_taken_together_say_the_same_of_time_as_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    batches = START + [(1, batch_of(dice)) for _ in range(300)]
    stamps = [1_000_000, 1_000_000]
    for _ in batches[2:]:
        stamps.append(stamps[-1] + dice.choice(GAP_STEPS_MS))
    log = make_node(memory_disk(), batches, per_segment=dice.choice((90, 400)), stamps=stamps).log
    expected, _ = told_one_by_one(log, 5_000)
    taken = 0
    own = Timeline.part

    def counted(self: Timeline, part: object) -> object:
        nonlocal taken
        taken += part.batches  # type: ignore[attr-defined]
        return own(self, part)  # type: ignore[arg-type]

    monkeypatch.setattr(Timeline, "part", counted)
    assert list(events(log, pytest.fail)) == expected
    gaps = [event for event in expected if event.kind == "gap in time"]
    assert len(gaps) > 50 and {None} < {event.asked for event in gaps}
    assert taken > 250, "a gap costs no batch its place among the others"


def test_what_is_kept_for_a_broker_in_one_batch_is_said_by_rules_that_know_nothing_else() -> None:
    names = {rule.name for rule in LOSSES.rules}
    assert LOSSES.of_broker and names >= LOSSES.of_broker
    for rule in LOSSES.rules:
        fields = set(rule.find.__code__.co_names)
        assert not (rule.name in LOSSES.of_broker and fields & {"change", "led", "leads"}), rule


MANY = 1_100


@pytest.mark.parametrize("later_ms", [400, 1_000, 1_001])
@pytest.mark.parametrize("left", [{"isr": (2,), "leader": 2}, {"leader": -1}, {"leader": 2}, {"isr": (1,)}])
def test_a_batch_of_a_split_fence_is_taken_as_a_whole_and_says_the_same(
    left: dict[str, object], later_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the leaders that moved before it are explained by the fence depends on the time between."""
    brokers = [r.BrokerRecord(number, ID, number, fenced=False) for number in (1, 2)]
    rows = [
        r.PartitionRecord(at, ID, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0)
        for at in range(MANY)
    ]
    moved: list[object] = [r.PartitionChangeRecord(at, ID, **left) for at in range(MANY)]  # type: ignore[arg-type]
    fence = r.BrokerRegistrationChangeRecord(1, 1, fenced=r.FENCED)
    batches: list[Batch] = [
        *START[:1],
        (1, [r.FeatureLevelRecord("metadata.version", 19), *brokers, r.TopicRecord("orders", ID)]),
        (1, list(rows)),
        (1, moved),
        (1, [fence]),
        (1, [r.NoOpRecord()]),
    ]
    stamps = [0, 1_000, 2_000, 60_000, 60_000 + later_ms, 70_000]
    log = make_node(memory_disk(), batches, stamps=stamps).log
    expected, _ = told_one_by_one(log, 5_000)
    alone: list[int] = []
    own = Timeline.batch

    def noted(self: Timeline, epoch: int, time_ms: int, records: list[object]) -> object:
        alone.append(len(records))
        return own(self, epoch, time_ms, records)  # type: ignore[arg-type]

    monkeypatch.setattr(Timeline, "batch", noted)
    assert list(events(log, pytest.fail)) == expected
    assert max(alone) < MANY
