"""README and docs/ name only what exists: links and anchors, files, commands, options, tests and mutants.

A page that tells a reader to run or open something that is gone is a broken instruction.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import javaproperties
import pytest

from metaquorum.cli.main import main
from metaquorum.config.keys import KEYS
from metaquorum.errors import ConfigError
from tests.mutants.layers import LAYERS
from tests.mutants.sites import Source
from tests.planted.bugs import BUGS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
UUID = "AAAAAAAAAAAAAAAAAAAAAQ"
TOP = {path.name for path in REPOSITORY.iterdir()} - {"var"}  # where clusters run, if any


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^[ ]*```(?:sh|text)?\n(.*?)^[ ]*```", text, re.S | re.M)


def links(text: str) -> list[str]:
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, spaces to dashes, punctuation dropped."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {
        re.sub(r"[^\w\- ]", "", head.replace("`", "")).strip().lower().replace(" ", "-") for head in heads
    }


def named_files(text: str) -> set[str]:
    """Paths in code spans that begin in one of our folders, without entities of a log (`broker/3`)."""
    spans = re.findall(r"`([\w./*-]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    paths = {span.split("::")[0] for span in spans if "/" in span}
    entity = re.compile(r"(broker|controller)/\d|config/(topic|broker|group|cluster|client-metrics)(/|$)")
    return {path for path in paths if path.split("/")[0] in TOP and not entity.match(path)}


def commands(text: str) -> Iterator[list[str]]:
    """The `metaquorum` lines of code blocks and code spans, without what follows a pipe or a comment."""
    lines = [line for block in code_blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(metaquorum [^`]+)`", text)
    for line in lines:
        found = re.search(r"(?:^|[|(] *|^[$] )metaquorum ([a-z].*)", line.strip())
        if found is None:
            continue
        words = re.split(r"\s[|#>]|\)\"", found.group(1))[0].replace("\\", " ")
        try:
            yield shlex.split(words)
        except ValueError:
            yield words.split()


def unknown(words: list[str]) -> str | None:
    """What of a command line does not exist: a command, or an option of it."""
    command: click.Command = main
    path = "metaquorum"
    while isinstance(command, click.Group) and words:
        if words[0].startswith(("-", "<", "[", "...")):
            break
        context = click.Context(command, info_name=path)
        found = command.get_command(context, words[0].strip(",.;:"))
        if found is None:
            return f"{path} {words[0]}"
        command, path, words = found, f"{path} {words[0]}", words[1:]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    for word in words:
        name = re.match(r"\[?(--[a-z][\w-]*)", word)
        if name and name.group(1) not in options:
            return f"{path} {name.group(1)}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_named_files_exist(page: Path) -> None:
    gone = [
        path for path in named_files(page.read_text("utf-8")) if not any(REPOSITORY.glob(path.rstrip("/")))
    ]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_name_is_in_the_file_that_is_named_with_it(page: Path) -> None:
    """`Name` (`folder/file.py`): the file defines it."""
    named = re.findall(r"`([A-Za-z_]\w+)`\s+\(`([\w/]+\.py)`", page.read_text("utf-8"))
    elsewhere = [
        (name, path)
        for name, path in named
        if not re.search(
            rf"^ *(?:class|def|async def) {name}\b|^ *{name}\b.*=",
            (REPOSITORY / path).read_text("utf-8"),
            re.M,
        )
    ]
    assert not elsewhere, f"{page.name} names files that do not define it: {elsewhere}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_named_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [found for words in commands(text) if (found := unknown(words))] == []


def python_lines(text: str) -> list[tuple[str, list[str]]]:
    """The module and the arguments of every `python -m` line."""
    lines = [line for block in code_blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(python -m [^`]+)`", text)
    found = [re.search(r"\bpython3? -m ([\w.]+)([^|>#]*)", line) for line in lines]
    return [(at.group(1), shlex.split(at.group(2))) for at in found if at is not None]


def source_of(module: str) -> str | None:
    """The text of what `python -m` runs; None if there is no such module."""
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError:
        return None
    return None if found is None or found.origin is None else Path(found.origin).read_text("utf-8")


def wrong_for_pytest(arguments: list[str]) -> list[str]:
    """Files that do not exist, ids and names of -k that no test in them has, options that pytest lacks."""
    paths = [each for each in arguments if each.startswith("tests/")]
    wrong = [each for each in paths if not is_test(each)]
    scripts = [
        path
        for each in paths
        for file in [REPOSITORY / each.partition("::")[0]]
        for path in [file, *file.rglob("*")]
        if path.suffix in (".py", ".txt")
    ]
    for option, value in pairwise(arguments):
        if option == "-k" and not any(
            value in path.stem or re.search(rf"\bdef test_\w*{value}", path.read_text()) for path in scripts
        ):
            wrong.append(f"-k {value}")
    known = (REPOSITORY / "tests" / "conftest.py").read_text()
    return wrong + [each for each in arguments if each.startswith("--") and f'"{each}"' not in known]


def is_test(name: str) -> bool:
    """Whether a file, or the test of an id in it, exists."""
    path, _, test = name.partition("::")
    file = REPOSITORY / path
    return file.exists() and (not test or f"def {test.split('[')[0]}(" in file.read_text("utf-8"))


def wrong_for_mutants(arguments: list[str]) -> list[str]:
    """Keys that no mutant of the layer has."""
    if "--keys" not in arguments:
        return []
    layer = LAYERS[arguments[arguments.index("--layer") + 1]]
    keys = [each for each in arguments[arguments.index("--keys") + 1 :] if re.fullmatch("[0-9a-f]{10}", each)]
    known = {mutant.key for file in layer.sources(REPOSITORY) for mutant in Source(REPOSITORY, file).mutants}
    return [key for key in keys if key not in known] or ([] if keys else ["--keys names none"])


def wrong_for_python(module: str, arguments: list[str]) -> list[str]:
    """What of a `python -m` line does not exist: the module, or something that it names."""
    if module == "pytest":
        return wrong_for_pytest(arguments)
    source = source_of(module)
    if source is None:
        return [module]
    options = [each for each in arguments if each.startswith("--") and f'"{each}"' not in source]
    if module == "tests.mutants":
        return options + wrong_for_mutants(arguments)
    if module == "tests.planted":
        names = {bug.name for bug in BUGS}
        return options + [each for each in arguments if not each.startswith("--") and each not in names]
    return options


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_lines_run_what_exists(page: Path) -> None:
    lines = python_lines(page.read_text("utf-8"))
    assert [(module, wrong) for module, rest in lines if (wrong := wrong_for_python(module, rest))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"\btests/[\w/]+\.py::\w+", page.read_text("utf-8"))
    assert [each for each in named if not is_test(each)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("tests.no_such", ["tests.no_such"]),
        ("tests.no.such", ["tests.no.such"]),
        ("tests", ["tests"]),
        ("tests.sim --seeds 1..2 --no-such", ["--no-such"]),
        ("tests.planted no-such-bug", ["no-such-bug"]),
        ("tests.mutants --layer raft --keys 0000000000 --budget 5", ["0000000000"]),
        ("tests.mutants --layer raft --keys", ["--keys names none"]),
        ("pytest -n 0 tests/no/such.py", ["tests/no/such.py"]),
        ("pytest tests/unit/test_documents.py::test_no_such", ["tests/unit/test_documents.py::test_no_such"]),
        ("pytest tests/unit/test_documents.py::test_links_lead_somewhere -k lead", []),
        ("pytest tests/raft -k nosuch --rewrote", ["-k nosuch", "--rewrote"]),
    ],
)
def test_what_a_python_line_names_is_looked_up(line: str, wrong: list[str]) -> None:
    ((module, rest),) = python_lines(f"```\n.venv/bin/python -m {line}  # why\n```\n")
    assert wrong_for_python(module, rest) == wrong


def configurations(text: str) -> list[dict[str, str]]:
    """Code blocks that are files of nodes, as nodes read them."""
    blocks = re.findall(r"^[ ]*```(?:properties)?\n(.*?)^[ ]*```", text, re.S | re.M)
    files = [dict(javaproperties.loads(block)) for block in blocks if re.match(r"\s*[a-z.]+=", block)]
    return [file for file in files if KEYS.keys() & file.keys()]


def misread(file: dict[str, str]) -> list[str]:
    """Keys that have no value as written. Behind a value there is no comment: it is part of the value."""
    wrong = [name for name, value in file.items() if re.search(r"\s#", value)]
    for name in KEYS.keys() & file.keys():
        try:
            KEYS[name].parse(re.sub("<[a-z ]+>", UUID, file[name]))
        except ConfigError:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_configurations_can_be_read(page: Path) -> None:
    assert [wrong for file in configurations(page.read_text("utf-8")) if (wrong := misread(file))] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.M))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text("utf-8"), re.M)
    }
    assert named <= targets and {"test", "demo", "sim"} <= named


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in links(page.read_text("utf-8")):
            found = (page.parent / target.partition("#")[0]).resolve()
            waiting += sorted(found.glob("*.md")) if found.is_dir() else [found]
    assert [page.name for page in PAGES if page not in seen] == []


def test_the_example_of_the_library_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = REPOSITORY / "README.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    (program,) = (block for block in blocks if "open_log" in block)
    monkeypatch.chdir(REPOSITORY)
    exec(compile(program, str(page), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0 LeaderChangeMessage(leader_id=3000")
    assert lines[-1].startswith("260 ")


def test_the_search_finds_what_it_must() -> None:
    assert unknown(["topics", "create", "orders", "--partitions", "6"]) is None
    assert unknown(["topics", "make"]) == "metaquorum topics make"
    assert unknown(["log", "state", "PATH", "--when", "3"]) == "metaquorum log state --when"
    assert list(commands("```\nseq 9 | metaquorum produce orders  # nine\n```\n`metaquorum local up`")) == [
        ["produce", "orders"],
        ["local", "up"],
    ]
    assert named_files("`tests/no_such.py` `1/2` `raft/core.py`") == {"tests/no_such.py", "raft/core.py"}
    assert links("[a](b.md#c) [d](https://e) \n```\n[f](g)\n```\n") == ["b.md#c"]
