"""The tool itself: which mistakes it makes, what they are called, and that tests judge them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.mutants.equivalent import TABLE, as_entry, parse
from tests.mutants.layers import LAYERS, SEEDS
from tests.mutants.sites import Mutant, Source

PURE = '''
"""A module."""
from functools import cache
LIMIT = 3

class Box:
    def __init__(self):
        self.size = 2

    def fits(self, count, *, strict=False):
        """Whether."""
        if count is None:
            raise ValueError(f"none of {[count][0]}")
        inner = lambda: count < self.size and not strict
        return inner()

def clipped(value):
    # spare: no test runs it
    return min(value, LIMIT)

def loop(n):
    while n > 0:
        n -= 1
    return n

def unseen():
    return 1

def hurried():
    return 7

def table_of(count):
    return [0] * count

@cache
def kind():
    return type("Kind", (), {})

def is_kind(values):
    return all(isinstance(value, kind()) for value in values[0:])

TABLE = table_of(LIMIT)
Kind = kind()
'''

TESTS = """
from pathlib import Path
import pytest
from metaquorum.pure.code import TABLE, Box, Kind, clipped, hurried, is_kind, loop, table_of

def test_fits():
    assert Box().fits(1) and not Box().fits(2)
    assert not Box().fits(1, strict=True)
    with pytest.raises(ValueError):
        Box().fits(None)

def test_clipped():
    assert [clipped(2), clipped(5)] == [2, 3]

def test_loop():
    assert loop(3) == 0

def test_that_fails_from_the_second_time_on():
    at = Path(__file__).with_name("loaded")
    first = not at.exists()
    at.touch()
    assert hurried() and first

def test_kind():
    assert is_kind([Kind()]) and not is_kind([Kind(), 1]) and not is_kind([1, Kind()])

def test_tables():
    assert table_of(2)
    assert TABLE == [0, 0, 0]
"""

PROGRAM = """
import sys
from pathlib import Path
from tests.mutants import workplace
from tests.mutants.judging import Judgement
from tests.mutants.layers import Layer
workplace.GRACE_S = 1.0
layer = Layer(name="pure", target=100, files=("pure/*.py",), tests=("test_pure.py",))
run = Judgement(root=Path(sys.argv[1]), layer=layer, table=[], say=lambda text: print(text, file=sys.stderr))
run.run()
for at in run.results:
    print(at.verdict.name, at.mutant.function or "-", at.mutant.after, sep="|")
"""


def source(tmp_path: Path, text: str) -> Source:
    (tmp_path / "code.py").write_text(text)
    return Source(tmp_path, "code.py")


def told(mutants: list[Mutant]) -> set[tuple[str, str]]:
    return {(mutant.operator, mutant.after) for mutant in mutants}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {("comparison", "x = a <= b")}),
        ("x = a == b", {("comparison", f"x = a {op} b") for op in ("!=", "<=", ">=")}),
        ("x = a is None", {("comparison", "x = a is not None")}),
        (
            "x = a and b",
            {("and/or", "x = a or b"), ("operand dropped", "x = a"), ("operand dropped", "x = b")},
        ),
        ("x = not a", {("not dropped", "x = a")}),
        ("x = a + 1", {("arithmetic", "x = a - 1"), ("constant", "x = a + 2"), ("constant", "x = a + 0")}),
        ("x = True", {("constant", "x = False")}),
        ("x = min(a)", {("sibling called", "x = max(a)")}),
        (
            "a.f(b, c, k=d)",
            {
                ("statement removed", "pass"),
                ("argument dropped", "a.f(b, c)"),
                ("arguments swapped", "a.f(c, b, k=d)"),
            },
        ),
        ("a.b = c", {("statement removed", "pass")}),
        ("del a[b]", {("statement removed", "pass")}),
        ("return a", {("nothing returned", "return None")}),
        ("x = a if b else c", {("condition negated", "x = c if b else a")}),
        ("x = a[b:c]", {("slice bound dropped", "x = a[:c]"), ("slice bound dropped", "x = a[b:]")}),
        ("x = [a for a in b if c]", {("filter dropped", "x = [a for a in b]")}),
        ("raise Error(f'{a + 1}', 3)", {("statement removed", "pass")}),
        ("if a: pass", {("condition negated", "if not a:"), ("guard removed", "pass")}),
        ("for a in b: continue", {("loop ended", "break")}),
        ("x += a", {("arithmetic", "x -= a"), ("statement removed", "pass")}),
        ("'a text'", set()),
        ("assert_never(a)", set()),
    ],
)
def test_the_mistakes_at_a_line(line: str, expected: set[tuple[str, str]], tmp_path: Path) -> None:
    found = source(tmp_path, f"def f(a, b, c, d):\n    {line}\n")
    assert told(found.mutants) == expected
    before = ast.dump(found.tree)
    for mutant in found.mutants:
        found.compiled(mutant)
        assert ast.dump(found.tree) == before


def test_a_key_stays_when_lines_move(tmp_path: Path) -> None:
    first = source(tmp_path, PURE)
    moved = source(tmp_path, PURE.replace("LIMIT = 3", "# moved\n\n\nLIMIT = 3"))
    assert [at.key for at in first.mutants] == [at.key for at in moved.mutants]
    assert len({at.key for at in first.mutants}) == len(first.mutants)
    assert [at.line for at in first.mutants] != [at.line for at in moved.mutants]


def test_every_mistake_is_judged_by_the_tests_that_run_it(tmp_path: Path) -> None:
    """End to end on a small project; its file is unchanged afterwards."""
    (tmp_path / "pure").mkdir()
    (tmp_path / "pure/__init__.py").touch()
    (tmp_path / "pure/code.py").write_text(PURE)
    (tmp_path / "test_pure.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    verdicts = {
        tuple(line.split("|")[1:]): line.split("|")[0] for line in done.stdout.splitlines() if "|" in line
    }
    survived = {at for at, verdict in verdicts.items() if verdict in ("SURVIVED", "UNSEEN")}
    same = "return all((isinstance(value, kind()) for value in values[:]))"
    unnoticed = {
        ("unseen", "return 2"),
        ("unseen", "return 0"),
        ("hurried", "return 8"),
        ("hurried", "return 6"),
    }
    assert survived == {*unnoticed, ("is_kind", same)}
    assert verdicts["unseen", "return 2"] == "UNSEEN"
    assert verdicts["loop", "pass"] in ("ENDLESS", "KILLED")
    assert verdicts["-", "LIMIT = 4"] == "KILLED"  # code that runs at import, in a process of its own
    assert verdicts["-", "def fits(self, count, *, strict=True):"] == "KILLED"
    assert verdicts["Box.fits", "inner = lambda: count < self.size or not strict"] == "KILLED"
    assert verdicts["is_kind", "return any((isinstance(value, kind()) for value in values[0:]))"] == "KILLED"
    assert verdicts["table_of", "return [0] // count"] == "KILLED"  # by what it created at import
    assert (tmp_path / "pure/code.py").read_text() == PURE


def test_the_table_of_equivalent_mutants_is_read_and_has_reasons() -> None:
    entries = parse(TABLE.read_text())
    assert len(set(entries)) == len(entries)
    assert all(entry.why for entry in entries)
    with pytest.raises(ValueError, match="line 2: an entry is four lines"):
        parse("# a remark\n@ a.py f: constant\n- x = 1\n= why\n")


def test_an_entry_names_its_mutant_again(tmp_path: Path) -> None:
    mutants = source(tmp_path, PURE).mutants
    entries = parse("\n".join(as_entry(mutant, "since") for mutant in mutants))
    for mutant, entry in zip(mutants, entries, strict=True):
        assert entry.fits(mutant)
        assert entry.why == "since"


@pytest.mark.parametrize("layer", LAYERS.values(), ids=lambda layer: layer.name)
def test_a_layer_names_files_and_tests_that_exist(layer: object) -> None:
    assert layer.sources(REPOSITORY)  # type: ignore[attr-defined]
    assert all((REPOSITORY / path).exists() for path in (*layer.tests, *layer.without, SEEDS))  # type: ignore[attr-defined]
