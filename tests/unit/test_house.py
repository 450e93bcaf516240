"""What every file of the package keeps to: its size, its docstring, one meaning of a name.

The tables of exceptions only shrink: an entry that is no longer needed, or that allows more than there is,
fails as well.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sources import FOLDERS, REPOSITORY, files, name_of, tree_of

MAX_FILE_LINES = 800
MEAN_FILE_LINES = 300
"""A file is one concept that a reader opens once (ADR 20)."""
MAX_FUNCTION_LINES = 60
SLACK = 20
"""An exception may be a little larger than what it allows, so that not every small edit has to touch it."""

LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}

NAMES_OF_TWO_THINGS: dict[str, int] = {
    # Kafka has one Fetch for the quorum and for partitions; here each has its own fields
    "FetchRequest": 2,
    "FetchResponse": 2,
    # KIP-853: Kafka's name of the structure in records, and a voter as Raft is configured with it
    "Voter": 2,
}
"""Public classes of the same name in several modules, and how many there are."""

GENERATED_TWINS: dict[str, int] = {
    "wire": 49,
    "proto": 35,
}
"""How many generated classes of a folder are named like a class of the package: a value and its encoding
carry one name, distinguished by their folders."""

EXCEPTIONS_OF_RUFF = {
    ("broker/replica/manager.py", "ReplicaManager._dispatch", "C901"),
    ("broker/replica/store/open.py", "open_directory", "PLR0913"),
    ("broker/replica/store/store.py", "DirectoryStore._execute", "C901"),
    ("broker/replica/store/store.py", "DirectoryStore._execute", "PLR0911"),
    ("broker/replica/store/store.py", "DirectoryStore.open", "PLR0913"),
    ("cli/admin/storage.py", "format_", "PLR0913"),
    ("cli/data/consume.py", "consume", "PLR0913"),
    ("cli/data/produce.py", "produce", "PLR0913"),
    ("cli/log/bisect.py", "bisect_command", "PLR0913"),
    ("cli/log/input/source.py", "_unpack.packed", "SIM115"),
    ("cli/pipeline/audit.py", "load_fleet", "F401"),
    ("controller/settings/settings.py", "decide_settings", "PLR0911"),
    ("metadata/inspect/log/entities.py", "own_entity", "PLR0911"),
    ("metadata/inspect/log/metadata_only.py", "_judged", "PLR0911"),
    ("metadata/inspect/summary.py", "Summary.take", "C901"),
    ("metadata/inspect/summary.py", "Summary.take", "PLR0912"),
    ("metadata/inspect/timeline/event_groups.py", "security_event", "PLR0911"),
    ("metadata/records/control.py", "ControlRecord", "UP007"),
    ("metadata/records/types.py", "Record", "UP007"),
    ("metadata/replica.py", "MetadataReplica.handle", "PLR0911"),
    ("metadata/settings/acls.py", "acl_problem", "PLR0911"),
    ("metadata/settings/quotas.py", "QuotaFilter.parts", "F821"),
    ("pipeline/audit/findings.py", "_finding", "PLR0913"),
    ("raft/blocking.py", "BlockingDriver._carry_out", "C901"),
    ("observability/authorizer_log.py", "_PrivateFile._open.opener", "E731"),
    ("observability/logging.py", "set_log_context", "PLW0603"),
    ("rpc/server.py", "GuardedServer.wait_for_termination", "ASYNC109"),
    ("rpc/reach.py", "tls_problem", "PLR0911"),
    ("storage/batches/encode.py", "encode_batch", "PLR0913"),
}
"""File, what carries the noqa, rule. Most are one `match` over every kind of a thing, or the columns of a
command."""

LONG_TESTS: dict[str, int] = {}
"""Files of tests/ that are longer than those of the package may be."""


def only_shrinks(allowed: dict[str, int], found: dict[str, int], limit: int, slack: int = 0) -> list[str]:
    """What is over the limit without an exception, and exceptions that allow more than is needed."""
    over = {name: size for name, size in found.items() if size > limit}
    wrong = [
        f"{name}: {size} lines, files or homes, {allowed.get(name, limit)} are allowed: split it by concept"
        for name, size in over.items()
        if size > allowed.get(name, limit)
    ]
    return wrong + [
        f"{name}: the exception allows {size}, {over.get(name, limit)} are enough: lower or remove it"
        for name, size in allowed.items()
        if size > over.get(name, 0) + slack
    ]


def test_exceptions_only_shrink() -> None:
    assert only_shrinks({}, {"a": 400}, 400) == []
    assert "split it" in only_shrinks({}, {"a": 401}, 400)[0]
    assert only_shrinks({"a": 500}, {"a": 500}, 400) == []
    assert only_shrinks({"a": 500}, {"a": 480}, 400, 20) == []
    assert "lower or remove" in only_shrinks({"a": 500}, {"a": 479}, 400, 20)[0]
    assert "lower or remove" in only_shrinks({"a": 500}, {"a": 300}, 400)[0]
    assert "lower or remove" in only_shrinks({"gone": 500}, {}, 400)[0]


def test_files_are_short() -> None:
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files()}
    assert only_shrinks(LONG_FILES, sizes, MAX_FILE_LINES, SLACK) == []


def test_files_are_of_middle_length_on_average() -> None:
    sizes = [len(path.read_text("utf-8").splitlines()) for path in files()]
    assert sum(sizes) <= MEAN_FILE_LINES * len(sizes)


def test_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                key = f"{name_of(path)} {node.name}"
                sizes[key] = max(sizes.get(key, 0), node.end_lineno - node.lineno + 1)
    assert only_shrinks(LONG_FUNCTIONS, sizes, MAX_FUNCTION_LINES) == []


def test_files_of_tests_are_short() -> None:
    sizes = {
        name_of(path): len(path.read_text("utf-8").splitlines())
        for path in (REPOSITORY / "tests").rglob("*.py")
    }
    assert only_shrinks(LONG_TESTS, sizes, MAX_FILE_LINES, SLACK) == []


RULES = re.compile(r"#\s*noqa\s*:\s*([A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)", re.IGNORECASE)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with io.StringIO(path.read_text("utf-8")) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def place_of(tree: ast.Module, line: int) -> str:
    """The function or class around a line, or what is assigned there, with the classes around it."""
    found: list[str] = []
    within: ast.AST = tree
    while True:
        for node in ast.iter_child_nodes(within):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                within = node
                break
        else:
            return ".".join(found)
        match within:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.append(name)


def exceptions_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Every rule that a comment turns off; the rule is empty for a comment that turns off more than it
    names."""
    for line, comment in comments(path):
        if re.search(r"(?:ruff|flake8)\s*:\s*noqa|ruff\s*:\s*disable", comment, re.IGNORECASE):
            yield name_of(path), "the whole file", ""
        elif re.search(r"#\s*noqa\b", comment, re.IGNORECASE):
            rules = RULES.search(comment)
            place = place_of(ast.parse(path.read_text("utf-8")), line)
            for rule in re.split(r"[,\s]+", rules.group(1)) if rules else [""]:
                yield name_of(path), place, rule


def test_exceptions_of_ruff_are_named_and_only_become_fewer() -> None:
    """Ruff itself (RUF100) refuses one whose code no longer needs it."""
    found = [each for path in files() for each in exceptions_of(path)]
    assert sorted(set(found) - EXCEPTIONS_OF_RUFF) == [], "change the code so that ruff accepts it"
    assert sorted(EXCEPTIONS_OF_RUFF - set(found)) == [], "no longer there: remove it from the table"
    assert len(found) == len(EXCEPTIONS_OF_RUFF), "one of them is there twice"


def test_no_comment_turns_off_every_rule() -> None:
    paths = [*files(), *(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "examples").rglob("*.py")]
    assert [each for path in paths for each in exceptions_of(path) if not each[2]] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1  # noqa: E501, F401 -- why\n", [("x", "E501"), ("x", "F401")]),
        ("class A:\n    def f(self):  # NOQA:C901\n        pass\n", [("A.f", "C901")]),
        ("def f():\n    if 1:\n        return 2  # noqa\n", [("f", "")]),
        ("# ruff: noqa: C901\n", [("the whole file", "")]),
        ("x = '# noqa'\n", []),
    ],
)
def test_the_search_for_exceptions_finds_them(
    source: str, found: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.test_house.name_of", lambda path: path.name)
    path = tmp_path / "a.py"
    path.write_text(source)
    assert list(exceptions_of(path)) == [("a.py", *each) for each in found]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_says_what_it_is(folder: str) -> None:
    silent = []
    for path in files():
        if name_of(path).split("/")[0] != folder:
            continue
        text = ast.get_docstring(tree_of(path)) or ""
        first = text.partition("\n\n")[0].strip()
        if len(first.split()) < 4 or not first.endswith((".", ":", "`")):
            silent.append(name_of(path))
    assert silent == [], "say in one sentence what the module is"


BORDERS = re.compile(r"(^|[.:] )(It )?(Owns|Knows no|Knows nothing|Does not know)\b")


def test_no_module_lists_what_it_owns() -> None:
    """Its first sentence and its place say that (ADR 20)."""
    found = [
        name_of(path)
        for path in files()
        if BORDERS.search(" ".join((ast.get_docstring(tree_of(path)) or "").split()))
    ]
    assert found == [], "say what cannot be seen, such as an invariant, an order or a reason"


def class_homes() -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for path in files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    return homes


def test_a_class_name_means_one_thing() -> None:
    homes = class_homes()
    twice = {name: len(found) for name, found in homes.items() if len(found) > 1}
    assert only_shrinks(NAMES_OF_TWO_THINGS, twice, 1) == [], {name: homes[name] for name in twice}


def test_generated_classes_share_no_more_names() -> None:
    homes = class_homes()
    found = {
        folder: sum(
            isinstance(node, ast.ClassDef) and node.name in homes
            for path in (REPOSITORY / folder).glob("*.pyi")
            for node in tree_of(path).body
        )
        for folder in GENERATED_TWINS
    }
    assert only_shrinks(GENERATED_TWINS, found, 0) == []
