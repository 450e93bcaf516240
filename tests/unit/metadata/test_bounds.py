"""What an expression costs, step by step, and the last value that each bound lets through."""

from __future__ import annotations

import ast
import operator
from typing import Any

import pytest

from metaquorum.metadata.inspect.checks import bounds
from metaquorum.metadata.inspect.checks.bounds import Budget, TooMuch, bounded

STEPS, BITS = 100, 64


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_STEPS", STEPS)
    monkeypatch.setattr(bounds, "MAX_BITS", BITS)


def run(source: str, budget: Budget, **names: Any) -> Any:
    tree = bounded(ast.parse(source, mode="eval"), frozenset(names))
    return eval(compile(tree, "<test>", "eval"), {**budget.names, **names})


def steps(source: str, **names: Any) -> int:
    """What it costs; its value is that of Python."""
    budget = Budget()
    budget.begin()
    assert run(source, budget, **names) == eval(source, dict(names))
    return STEPS - budget._left


@pytest.mark.parametrize(
    ("source", "cost"),
    [
        ("1 + 2 * 3 - 4", 0),
        ("'ab' + 'cde'", 5),
        ("b'ab' + b'c'", 3),
        ("[1] + [2, 3]", 3),
        ("(1,) + ()", 1),
        ("'ab' * 3", 6),
        ("3 * [1, 2]", 6),
        ("(1, 2) * 0", 0),
        ("'a' * -5", 0),
        ("7 % 4", 0),
        ("[x for x in range(7)]", 7),
        ("{x: y for x in (1, 2) for y in (3, 4, 5)}", 8),
        ("[x for x in (1, 2, 3) if x > 1]", 3),
        ("len([1, 2])", 0),
        ("sum([1, 2, 3])", 3),
        ("sum((1, 2), 10)", 2),
        ("sum((1, 2), start=10)", 2),
        ("max(1, 2)", 0),
        ("max([4, 5])", 2),
        ("max((4, 5), key=lambda x: -x)", 22),
        ("sorted('abc')", 0),
        ("dict({1: 2, 3: 4})", 2),
        ("list({1: 2})", 1),
        ("any([0, 0, 1, 0])", 3),
        ("list(zip([1, 2], [3, 4]))", 6),
        ("list(map(abs, [1, -2]))", 4),
        ("str(12)", 1),
        ("str()", 1),
        ("str('abc')", 4),
        ("str(b'abc') != ''", 4),
        ("str([1, 'ab'])", 5),
        ("str((1, {2}))", 4),
        ("repr({1: 'ab'})", 5),
        ("str(frozenset({7}))", 3),
        ("f'{12}-{[1, 2]}'", 4),
        ("f'{\"abc\"!r}'", 4),
        ("(lambda x: x)(3)", 10),
        ("[(lambda: 1)() for _ in (1, 2)]", 22),
        ("isinstance('a', str)", 0),
        ("isinstance([], (list, tuple)) and not isinstance(3, range)", 0),
        ("isinstance(str(3), str)", 1),
        ("len(list(range(3)))", 3),
    ],
)
def test_what_it_costs(source: str, cost: int) -> None:
    assert steps(source) == cost


def test_a_name_that_the_expression_binds_is_its_own() -> None:
    assert steps("max([1, 2, 3])", max=len) == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1 << 63", "1 << 64"),
        ("0 << 1000", "3 << 63"),
        ("5 << 0", "-1 << 64"),
        ("2 ** 32", "2 ** 33"),
        ("(-2) ** 32", "(-2) ** 33"),
        ("1 ** 1000", "3 ** 33"),
        ("(-1) ** 1001", "(2 ** 32) ** 2"),
        ("0 ** 1000", "10 ** 17"),
        ("2 ** 0", "2 ** 65"),
        ("2.0 ** 100", "2 ** 64"),
        ("2 ** -100", "7 ** 22"),
        ("(2 ** 31) * (2 ** 31)", "(2 ** 32) * (2 ** 31)"),
        ("'a' * 100", "'a' * 101"),
        ("100 * b'a'", "101 * [0]"),
        ("'a' * 50", "'a' * 50 + 'b' * 1"),
        ("len(range(100))", "range(101)"),
        ("len(range(0, 201, 2))", "range(0, 202, 2)"),
        ("len(range(100, 0, -1))", "range(100, -1, -1)"),
        ("len(range(5, 105))", "range(5, 106)"),
        ("[1 for _ in range(100)]", "[1 for _ in range(100) for _ in (1,)]"),
        ("sum([1], start=0)", "sum([''], start='')"),
        ("sum([1], 0)", "sum([[1]], [])"),
        ("7 % 4", "'%d' % 3"),
        ("7.5 % 4", "b'%d' % 3"),
        ("str('a' * 49)", "str('a' * 50)"),
        ("list(range(100))", "list(list(range(100)))"),
    ],
)
def test_the_last_that_is_let_through(right: str, wrong: str) -> None:
    steps(right)
    with pytest.raises(TooMuch):
        run(wrong, Budget())


def test_a_budget_is_whole_again_when_it_begins() -> None:
    budget = Budget()
    assert budget.tick() is False
    assert not budget.tick(STEPS - 1)
    with pytest.raises(TooMuch, match="takes more than 100 steps"):
        budget.tick()
    budget.begin()
    assert not budget.tick(STEPS)


SIGNS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    ">>": operator.rshift,
    "<<": operator.lshift,
    "/": operator.truediv,
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("links", [30, 31, 32, 33])
def test_a_long_chain_is_what_a_short_one_is(sign: str, links: int) -> None:
    source = "9" + f" {sign} 1" * links
    assert run(source, Budget()) == eval(source)
    names = {one.id for one in ast.walk(bounded(ast.parse(source, mode="eval"))) if isinstance(one, ast.Name)}
    assert ("<chain>" in names) == (links >= 32)
    # The rest of the expression is bounded as anywhere.
    with pytest.raises(TooMuch):
        run(f"(2 ** 99){f' {sign} 1' * links}", Budget())
    with pytest.raises(TooMuch):
        run(f"9{f' {sign} 1' * (links - 1)} {sign} (2 ** 99)", Budget())


def test_a_long_chain_of_texts_costs_what_each_link_makes() -> None:
    source = "x" + " + y" * 33
    assert steps(source, x="", y="") == 0
    budget = Budget()
    with pytest.raises(TooMuch):
        run(source, budget, x="a", y="a" * 3)
    mixed = "x" + " + y - y" * 17
    assert steps(mixed, x=5, y=2) == 0
