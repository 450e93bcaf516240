"""Tools that pass over what their question does not need answer as those that look at every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import TOPIC_RESOURCE
from metaquorum.metadata.inspect.causes.rule import CRITICAL, SEVERITIES, WARNING
from metaquorum.metadata.inspect.checks import check as check_module
from metaquorum.metadata.inspect.checks.check import LogReport, check_log
from metaquorum.metadata.inspect.entities.history import filter_of, history
from metaquorum.metadata.inspect.entities.targets import EntityTarget, parse_target
from metaquorum.metadata.inspect.entities.views import Wanted
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, damage_line
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN
from metaquorum.metadata.inspect.walk.reader import HistoryReader, LostRecords, WrongPlace
from metaquorum.metadata.inspect.walk.states import (
    Passed,
    WalkStep,
    earliest,
    state_at,
    steps_about,
)
from metaquorum.metadata.inspect.walk.steps import FastForward
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.explanation import Explanation
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.records import types as r
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from tests.unit.metadata.made_logs import ORDERS, STORY, Batch, make_node, memory_disk, topic
from tests.unit.metadata.random_logs import add_snapshots, random_node, tamper

SEEDS = range(6)


def checked(log: MetadataLog, *, past_corruption: bool) -> dict[str, Any]:
    report = asdict(check_log(log, past_corruption=past_corruption))
    del report["log"]
    return report


def node_of(seed: int, *, tampered: bool, steady: bool = False) -> NodeFiles:
    node = random_node(memory_disk(), seed, wild=0.1 if tampered else 0.01, steady=steady)
    add_snapshots(node, seed)
    if tampered:
        tamper(node, seed)
    return node


@pytest.mark.parametrize("tampered", [False, True])
@pytest.mark.parametrize(("seed", "few"), [(seed, (0, 4, 40)[seed % 3]) for seed in SEEDS])
def test_check_finds_the_same_whether_it_passes_over_batches_or_not(
    seed: int, tampered: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:  # more break than can be kept and remembered
        monkeypatch.setattr(check_module, "MAX_OPEN", 2 * few)
        monkeypatch.setattr(check_module, "MAX_FINDINGS", few)
    log = node_of(seed, tampered=tampered, steady=seed % 4 < 2).log
    passed = 0
    own = check_module.steps_about

    def counted(*given: Any, **more: Any) -> Iterator[WalkStep | Passed]:
        nonlocal passed
        for one in own(*given, **more):
            passed += one.batches if isinstance(one, Passed) else 0
            yield one

    def every_batch(log: MetadataLog, found: Any, batch_filter: object, **more: Any) -> Iterator[WalkStep]:
        steps = own(log, found, None, **more)
        return (step for step in steps if isinstance(step, WalkStep))

    answers: list[list[dict[str, Any]]] = []
    for walk in (counted, every_batch):
        monkeypatch.setattr(check_module, "steps_about", walk)
        answers.append([checked(log, past_corruption=beyond) for beyond in (False, True)])
    assert answers[0] == answers[1]
    assert passed > 20
    assert answers[0][1]["findings"], "nothing was found that could differ"


def test_the_generated_logs_break_what_a_check_looks_for() -> None:
    """Otherwise the comparison above would compare little."""
    reports: list[LogReport] = [
        check_log(node_of(seed, tampered=True).log, past_corruption=True) for seed in SEEDS
    ]
    rules = {finding.rule for report in reports for finding in report.findings}
    assert {"snapshot-agrees", "record-applies", "leader-in-isr", "replicas-distinct", "isr-active"} <= rules
    assert any(report.problems for report in reports)
    assert any(report.unknown for report in reports)


def told_one_by_one(log: MetadataLog, gap_ms: int) -> tuple[list[TimelineEvent], list[str]]:
    """The timeline of every batch decoded by itself, as the command told it before it took columns."""
    image = state_at(log, earliest(log), past_corruption=True).image if log.start_offset else None
    timeline = Timeline(image, gap_ms=gap_ms, clock=partial(clock_of, log))
    first = 0 if image is None else image.provenance.offset
    found: list[TimelineEvent] = []
    problems: list[str] = []
    reader = HistoryReader(log, first, BatchRun.batches, lambda _: False, is_first_expected=False)
    for item in reader.read(END):
        match item:
            case Damage():
                problems.append(damage_line(item))
            case WrongPlace() if item.is_mended:
                problems.append(item.line)
            case LostRecords():
                found += timeline.lose(item.start, item.ends_behind)
            case ReadBatch():
                header = item.batch.header
                records = [(one.offset, one.record) for one in item.records]
                found += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    return found + timeline.finish(), problems


@pytest.mark.parametrize("tampered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_timeline_from_columns_tells_what_one_batch_after_the_other_tells(
    seed: int, tampered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node_of(seed, tampered=tampered).log
    monkeypatch.setattr(log, "snapshots", list)  # one behind a hole would be taken in
    expected, damage = told_one_by_one(log, 5_000)
    problems: list[str] = []
    assert list(events(log, problems.append)) == expected
    assert problems == damage
    kinds = {event.kind for event in expected}
    assert {"topic created", "leaderless", "isr shrank"} <= kinds
    for shown in ({CRITICAL}, set(SEVERITIES[2:]), set(SEVERITIES[1:]), {WARNING}):
        wanted = [event for event in expected if event.severity in shown]
        assert list(events(log, problems.append, shown=frozenset(shown))) == wanted


def test_the_generated_logs_tell_of_everything_that_is_taken_in_columns() -> None:
    kinds: set[str] = set()
    for seed in SEEDS:
        kinds |= {event.kind for event in events(node_of(seed, tampered=True).log, lambda line: None)}
    assert {
        *("partitions added", "record does not apply", "gap in time", "time ran backwards", "election"),
        *("transaction aborted", "unclean election", "min isr restored", "unknown record", "topic deleted"),
        *("reassignment started", "config changed", "broker fenced", "still leaderless", "under min isr"),
    } <= kinds


def _created(name: str, topic_id: bytes, *more: object) -> Batch:
    """One batch that creates a topic with 40 partitions."""
    return 2, [*topic(name, topic_id, partitions=40), *more]


def _set(name: str, value: str) -> r.ConfigRecord:
    return r.ConfigRecord(TOPIC_RESOURCE, name, "retention.ms", value)


IDS = {name: name[:1].encode() * 16 for name in ("alone", "both", "config", "deleted")}
CREATIONS: list[Batch] = [
    *STORY,
    _created("alone", IDS["alone"], _set("alone", "1")),
    _created("both", IDS["both"], _set("config", "2")),  # settings of another topic
    _created(
        "config", IDS["config"], _set("config", "3"), r.PartitionChangeRecord(0, IDS["alone"], leader=-1)
    ),
    _created("deleted", IDS["deleted"], r.PartitionChangeRecord(1, ORDERS, leader=-1)),
    (2, [*(r.PartitionChangeRecord(at, IDS["both"], leader=-1) for at in range(40)), _set("alone", "4")]),
    (2, [*(r.PartitionChangeRecord(at, IDS["both"], leader=1) for at in range(40)), _set("orders", "5")]),
    (2, [*(r.PartitionChangeRecord(at, IDS["deleted"], leader=-1) for at in range(40))]),
    (2, [r.RemoveTopicRecord(IDS["deleted"])]),
    _created("deleted", b"e" * 16),
]


def answer(log: MetadataLog, target: EntityTarget, at: Point) -> Explanation | str:
    try:
        return explain(log, target, at)
    except InspectError as error:
        return str(error)


@pytest.mark.parametrize("name", [*IDS, "orders", "payments"])
def test_why_is_the_same_whether_creations_of_other_topics_are_decoded_or_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches that create other topics with their settings are applied by column."""
    log = make_node(memory_disk(), CREATIONS).log
    end = log.end_offset
    targets = [parse_target(f"topic/{name}{part}") for part in ("", "/0", "/1", "/39.leader")]
    targets += [parse_target(f"config/topic/{name}{part}") for part in ("", "/retention.ms", "s")]
    targets += [parse_target(f"topic/{name}s{part}") for part in ("", "/0")]  # where a name is suggested
    answers: list[list[Explanation | str]] = []
    decoded: list[int] = []
    own = Chain.batch

    def batch(chain: Chain, epoch: int, time_ms: int, records: Sequence[tuple[int, object]]) -> None:
        decoded[-1] += len(records)
        own(chain, epoch, time_ms, records)

    monkeypatch.setattr(Chain, "batch", batch)
    for passes in (True, False):
        if not passes:
            monkeypatch.setattr(Chain, "is_passed", lambda chain, batch: False)
            monkeypatch.setattr(Chain, "pieces", lambda chain, run: run.batches())
        decoded.append(0)
        answers.append(
            [answer(log, target, Point(offset=at)) for target in targets for at in (end // 2, end)]
        )
    assert answers[0] == answers[1]
    assert decoded[0] < decoded[1] * 0.7


def test_a_topic_s_own_creation_settings_and_removal_are_not_passed_over() -> None:
    log = make_node(memory_disk(), CREATIONS).log
    links = explain(log, parse_target("topic/both")).links
    assert [link.type_name for link in links[:2]] == ["TOPIC_RECORD", "PARTITION_RECORD"] and len(links) == 41
    settings = explain(log, parse_target("config/topic/config")).links
    assert [link.type_name for link in settings].count("CONFIG_RECORD") == 2


def test_a_deleted_topic_s_settings_end_with_it_even_if_its_creation_is_passed_over() -> None:
    log = make_node(memory_disk(), CREATIONS).log
    for path in ("config/topic/deleted", "config/topic/deleted/retention.ms"):
        (link,) = explain(log, parse_target(path)).links
        assert link.type_name == "REMOVE_TOPIC_RECORD"
        assert [cause.text for cause in link.causes] == ["the topic was deleted, which changed nothing"]


@pytest.mark.parametrize("first", [[], [r.NoOpRecord()]])
@pytest.mark.parametrize("after", [1, 30])
def test_why_a_broker_was_fenced_is_the_same_after_a_slice_that_is_not_decoded(
    first: list[object], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence of many partitions in slices: the broker's own record follows, in a batch of its own."""
    moved = [r.PartitionChangeRecord(index, IDS["both"], leader=-1) for index in range(SLICE_MIN + 500)]
    story: list[Batch] = [
        *STORY[:4],
        (1, topic("both", IDS["both"], len(moved))),
        *[(1, [r.NoOpRecord()])] * after,
        (1, [*first, *moved]),
        (1, [r.FenceBrokerRecord(1, 2)]),
    ]
    log = make_node(memory_disk(), story).log
    answers = []
    for passes in (True, False):
        if not passes:
            monkeypatch.setattr(Chain, "is_passed", lambda chain, batch: False)
            monkeypatch.setattr(Chain, "pieces", lambda chain, run: run.batches())
        answers.append(explain(log, parse_target("broker/1")))
    assert answers[0] == answers[1]
    assert "led nothing" not in str(answers[0].links[-1].causes)


def test_a_large_batch_that_stands_alone_is_passed_over_like_those_of_a_run() -> None:
    """One about other partitions, one about the wanted one, and one that changes it twice."""
    others = [r.PartitionChangeRecord(0, ORDERS, leader=at % 2) for at in range(40)]
    own = r.PartitionChangeRecord(1, ORDERS, leader=1)
    twice = [own, r.PartitionChangeRecord(1, ORDERS, leader=-1)]
    batches: list[Batch] = [(2, others), (2, [own, *others]), (2, [*others, *twice])]
    log = make_node(memory_disk(), [*STORY, *batches]).log
    wanted, start = Wanted("topic/orders/1"), state_at(log, Point(offset=15))
    steps = list(steps_about(log, start, filter_of(wanted), past_corruption=True))
    assert [type(step) for step in steps] == [Passed, FastForward, WalkStep]
    spans = [(span.from_offset, span.fields["leader"]) for span in history(log, wanted)]
    assert spans == [(4, 1), (13, -1), (55, 1), (96, -1)]
