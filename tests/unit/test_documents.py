"""README and docs/ name only what exists: relative links and anchors, files, commands and their options.

A page that tells a reader to run or open something that is gone is a broken instruction.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import javaproperties
import pytest

from metaquorum.cli.main import main
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
UUID = "AAAAAAAAAAAAAAAAAAAAAQ"
TOP = {path.name for path in REPOSITORY.iterdir()}


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
    """Paths in code spans that begin in a folder of the repository; `broker/3` is an entity of a log."""
    spans = re.findall(r"`([\w./*-]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    paths = {span.split("::")[0] for span in spans if "/" in span}
    return {
        path for path in paths if path.split("/")[0] in TOP and not re.match(r"(broker|controller)/\d", path)
    }


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
def test_named_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [found for words in commands(text) if (found := unknown(words))] == []


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
