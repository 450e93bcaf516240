"""Predicates: what may be written, what mistakes look like, and which forms can turn false only once."""

from __future__ import annotations

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.checks import bounds
from metaquorum.metadata.inspect.checks.predicate import (
    MAX_LENGTH,
    PredicateError,
    Verdict,
    compile_predicate,
)
from metaquorum.metadata.inspect.checks.predicate_names import HELPERS, Subject
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.storage.uuids import ZERO_UUID

ID = bytes(range(16))


def image() -> MetadataImage:
    records = [
        r.FeatureLevelRecord("metadata.version", 19),
        r.BrokerRecord(1, ID, 1, fenced=False, rack="a"),
        r.ControllerRecord(3000),
        r.TopicRecord("orders", ID),
        r.PartitionRecord(0, ID, (1, 2), (1,), leader=1, leader_epoch=3, partition_epoch=5),
        r.PartitionRecord(1, ID, (1, 2), (1,), leader=-1, leader_epoch=3, partition_epoch=5),
        r.ConfigRecord(2, "orders", "retention.ms", "1"),
        r.ConfigRecord(4, "", "x", "y"),
    ]
    state = replay_records(ReplayState(), base_offset=0, epoch=4, timestamp_ms=77, records=records)
    return state.image


PLACE = Subject(
    image=image(),
    quorum=QuorumView(leader_id=3000, epoch=4, offset=0, voter_set=(Voter(3000, ZERO_UUID),)),
)


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("leaderless() == 1", "true"),
        ("not broker(1).fenced and broker(1).rack == 'a'", "true"),
        ("partition('orders', 0).leader == 1", "true"),
        ("[p.leader for p in partitions('orders')] == [1, -1]", "true"),
        ("all(p.leader >= 0 for p in partitions())", "false"),
        ("'orders' in topics and len(topics) == 1 and sorted(topics) == ['orders']", "true"),
        ("config('topic/orders', 'retention.ms') == '1' and config('broker/', 'x') == 'y'", "true"),
        ("config('topic/orders', 'nothing') is None", "true"),
        ("metadata_version == 19 == feature('metadata.version')", "true"),
        ("(offset, epoch, time_ms) == (8, 4, 77)", "true"),
        ("quorum.leader_id == 3000 and controller(3000).controller_id in quorum.voters", "true"),
        ("len(violations('replicas-registered')) == 2 <= len(violations())", "true"),
        ("1 in brokers and 9 not in brokers", "true"),
        ("image.topics.partition_count == 2", "true"),
        ("topic('orders').name", "true"),
        ("sum(map(lambda p: len(p.isr), partitions())) > 2", "false"),
        ("broker(9).fenced", "undefined"),
        ("partition('nope', 0).leader >= 0 or True", "undefined"),
        ("len(partitions('nope')) == 0", "undefined"),
        ("leaderless()\n  == 1", "true"),
    ],
)
def test_expressions_read_the_image(source: str, verdict: str) -> None:
    assert compile_predicate(source).verdict(PLACE) is Verdict(verdict)


def test_every_documented_name_can_be_used() -> None:
    for name in HELPERS:
        assert compile_predicate(f"{name} is not None").verdict(PLACE) is Verdict.TRUE


def assert_says(error: PredicateError, marked: str, reason: str) -> None:
    (line,) = str(error).splitlines()
    assert line.endswith(f", at character {error.column + 1} of {error.source!r}")
    assert reason in line and error.source[error.column :].startswith(marked)


@pytest.mark.parametrize(
    ("source", "marked", "reason"),
    [
        ("broker(3.fenced", ".fenced", "invalid decimal literal"),
        ("brokr(3).fenced", "brokr(3)", "there is no name brokr; did you mean broker?"),
        ("1 + xyzzy", "xyzzy", "there is no name xyzzy; known are image, offset"),
        ("leaderless() = 0", "= 0", "= sets a value; write == to compare"),
        ("== 3", "==", "invalid syntax"),
        ("offset == == 3", "==", "invalid syntax"),
        ("import os", "import", "this is a statement; write an expression"),
        ("", "", "the expression is empty"),
        ("open('/etc/passwd')", "open", "there is no name open"),
        ("__import__('os')", "__import__", "there is no name __import__"),
        ("().__class__.__bases__", "__bases__", "attribute __bases__ cannot be used here"),
        ("image._x", "_x", "attribute _x cannot be used here"),
        ("'{0.__class__}'.format(image)", "format", "attribute format cannot be used here"),
        ("(x := 1)", "x := 1", "cannot be used here"),
        ("'é' in topics and brok(1)", "brok(1)", "there is no name brok"),
    ],
)
def test_mistakes_that_can_be_seen_are_one_line(source: str, marked: str, reason: str) -> None:
    with pytest.raises(PredicateError) as caught:
        compile_predicate(source)
    assert_says(caught.value, marked, reason)


@pytest.mark.parametrize(
    ("source", "marked", "reason"),
    [
        ("broker(1).fencd", "fencd", "AttributeError: 'BrokerRegistration' object has no attribute 'fencd'"),
        ("max(p.nix for p in partitions())", "nix", "no attribute 'nix'"),
        ("1 / 0 == offset", "1 / 0", "ZeroDivisionError"),
        ("partition('orders', '0').leader", "partition(", "the second argument is a number"),
        ("config('orders', 'x')", "config(", "write topic/NAME, broker/ID"),
        ("broker(1, 2, 3)", "broker(", "TypeError"),
        ("[q for p in partitions()][0] and q", "q", "name 'q' is not defined"),
    ],
)
def test_mistakes_that_show_when_it_runs_are_told_in_the_same_way(
    source: str, marked: str, reason: str
) -> None:
    predicate = compile_predicate(source.replace("[q for", "[q for q in [1] for"))
    with pytest.raises(PredicateError) as caught:
        predicate.verdict(PLACE)
    assert_says(caught.value, marked, reason)


@pytest.mark.parametrize(
    ("source", "monotone", "headers"),
    [
        ("offset < 100", True, True),
        ("100 >= offset and epoch <= 3", True, True),
        ("not (epoch > 3 or 7 < offset)", True, True),
        ("image.producer_ids.next_producer_id < 5000", True, False),
        ("offset > 100", False, True),
        ("not offset < 100", False, True),
        ("time_ms < 100", False, True),
        ("offset < epoch", False, True),
        ("offset < 100 and leaderless() == 0", False, False),
        ("len(topics) < 5", False, False),
    ],
)
def test_forms_that_can_turn_false_only_once_are_seen(source: str, monotone: bool, headers: bool) -> None:
    found = compile_predicate(source)
    assert (found.is_monotone, found.headers_only) == (monotone, headers)
    if headers:
        assert found.header_verdict(8, 4, 77) is found.verdict(PLACE)


def test_an_expression_has_a_greatest_length() -> None:
    compile_predicate("1" + " + 1" * 900)
    with pytest.raises(PredicateError, match="longer than"):
        compile_predicate("1" * (MAX_LENGTH + 1))
    with pytest.raises(PredicateError, match=r"nested too deeply|too many nested"):
        compile_predicate("(" * 1500 + "1" + ")" * 1500)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("9**9**9**9 > 0", "produces a number of more than 100,000 bits"),
        ("(2**99999) * (2**99999) > 0", "produces a number"),
        ("1 << 10**9", "produces a number"),
        ("len('x' * 10**10) > 0", "produces a value of more than 100,000 items"),
        ("len([0] * 10**10) > 0", "produces a value"),
        ("[1 for a in range(10**4) for b in range(10**4)]", "takes more than 100,000 steps"),
        ("sum(range(10**12)) > 0", "range has more than 100,000 items"),
        ("[list(range(10**4)) for a in range(10**4)]", "takes more than"),
        ("len([[0] * 10**4 for a in range(10**4)])", "takes more than"),
        ("len(str([[[[0] * 999] * 999] * 999] * 999))", "takes more than"),
        ("len(f'{[[[0] * 999] * 999] * 999}')", "takes more than"),
        ("list(map(list, [range(10**4)] * 10**4))", "takes more than"),
        ("sum([[1], [2]], [])", "sum adds numbers only"),
        ("'%1000000000d' % 1 == ''", "% formats text"),
        ("(lambda f: f(f, 0))(lambda f, n: [f(f, n + 1), f(f, n + 1)] if n < 40 else 0)", "takes more than"),
        ("max(sorted(range(4 * 10**4)), key=lambda x: len([0 for y in range(9)]))", "takes more than"),
    ],
)
def test_what_an_expression_may_cost_is_bounded(
    source: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_STEPS", 100_000)
    with pytest.raises(PredicateError) as refused:
        compile_predicate(source).verdict(Subject(image=MetadataImage()))
    assert_says(refused.value, "", why)


@pytest.mark.parametrize(("sign", "total"), [("+", 901), ("-", -899), ("*", 1), ("//", 1), ("|", 1)])
def test_a_long_chain_is_no_deep_nesting(sign: str, total: int) -> None:
    chain = f" {sign} ".join(["1"] * 901) if sign != "//" else "//".join(["1"] * 901)
    assert compile_predicate(f"{chain} == {total}").verdict(PLACE) is Verdict.TRUE
    assert compile_predicate(f"{chain} == {total + 1}").verdict(PLACE) is Verdict.FALSE


@pytest.mark.parametrize(
    "source",
    [
        *("7" + " + 3 - 2" * 40, "7" + " * 5 // 3 % 11" * 40, "9.5" + " / 1.5 * 2" * 40),
        *("9" + " << 2 >> 1" * 40, "64" + " | 5" * 50, "127" + " & 94" * 50, "5" + " ^ 3" * 41),
        *("'a'" + " + 'b'" * 50, "2" + " * 3 + 1" * 40, "(1 - 2" + " - 2) * 3 + (4" * 40 + ")"),
    ],
)
def test_a_long_chain_of_any_operator_is_what_python_says(source: str) -> None:
    wanted = eval(source)
    assert compile_predicate(f"({source}) == {wanted!r}").verdict(PLACE) is Verdict.TRUE


def test_the_work_of_a_long_chain_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_STEPS", 100_000)
    for source in ("len('x' * 999" + " + 'x' * 999" * 200 + ") > 0", "7**999" + " * 7**999" * 200 + " > 0"):
        with pytest.raises(PredicateError, match=r"takes more than|produces a number of more than"):
            compile_predicate(source).verdict(PLACE)
    with pytest.raises(PredicateError, match="ZeroDivisionError"):
        compile_predicate("1" + " + 1" * 200 + " / 0 > 0").verdict(PLACE)
    with pytest.raises(PredicateError, match="there is no name nix"):
        compile_predicate("1" + " + 1" * 200 + " + nix > 0")


@pytest.mark.parametrize(
    "source", ["'x'.ljust(10**10)", "f'{1:>1000000000}'", "'a'.join(['b'])", "(1).to_bytes(10**9, 'big')"]
)
def test_what_fills_memory_at_once_is_refused_before_it_runs(source: str) -> None:
    with pytest.raises(PredicateError, match="cannot be used here"):
        compile_predicate(source)


@pytest.mark.parametrize(
    "source",
    [
        "2**10 == 1024 and 2**-1 == 0.5 and (-3)**3 == -27",
        "isinstance([1], list) and isinstance('a', (str, int)) and not isinstance(1, (list, str))",
        "sum(x for x in range(10)) == 45 and sum([1, 2], 3) == 6 and sum({1: 2}) == 1",
        "[str(x) for x in (1, 'a')] == ['1', 'a'] and repr('a') + 'b' * 2 == \"'a'bb\"",
        "list(map(lambda x: x * 2 % 3, [1, 2])) == [2, 1] and dict([('a', 1)])['a'] == 1 << 0",
        "sorted([2, 1], key=lambda x: -x) == [2, 1] and max(3, 4) == 4 and max([1], default=0) == 1",
        "all(list(zip([1], [2])) == [(1, 2)] for list in [lambda x: [(1, 2)]])",
        "len(tuple(enumerate('ab'))) == 2 and f'{1}{[1]}' == '1[1]' and set([1]) == {1}",
        "len([p for p in range(10**6)]) == 10**6",
    ],
)
def test_bounds_change_no_answer(source: str) -> None:
    assert compile_predicate(source).verdict(Subject(image=MetadataImage())) is Verdict.TRUE


def test_every_question_has_all_steps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_STEPS", 100_000)
    asked = compile_predicate("len([1 for x in range(3 * 10**4)]) > 0")
    for _ in range(2):
        assert asked.verdict(Subject(image=MetadataImage())) is Verdict.TRUE
