"""Documents, --help, errors, log lines, docstrings and comments keep to the words of the style sheet.

The style sheet is in docs/contributing.md; every phrase here is one of its left-hand sides, or a case of one.
Names no module: what people read is found in the sources.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import click
import pytest

from metaquorum.cli.main import main
from tests.unit.sources import FOLDERS, REPOSITORY

MAX_LINE = 120

BANNED = {
    r"\bevery so manieth\b": "every Nth",
    r"\bseconds to be ready\b": "startup timeout in seconds",
    r"\bthe furthest\b": "the most caught-up",
    r"(?<![-\w])(?:nobody|somebody|anybody)(?![-\w])": "no broker, no client, no one; someone",
    r"(?<![-\w])whoever(?![-\w])": "the node that, a client that",
    r"\bis to be done\b|\bis to change\b": "there is nothing to do, to change",
    r"\bgo(?:es)? on (?:behind|with|without|as)\b": "continue past, with, without, as",
    r"\btold by the\b|\btells? (?:the|its|a) (?:node|broker|leader|log)\b": "say, report; tell is for people",
    r"\bare told to come back\b|\bis told to come back\b": "are refused as retriable",
    r"\bfor so long\b|\bso much for\b": "for this long",
    r"(?<![-\w])anew(?![-\w])": "again, new; recreated",
    r"\bwas so already\b|\bwere so already\b": "was already set",
    r"(?<!there )\b(?:is|are) no (?:number|offset|path|id|uuid|list|voter|directory|JSON)\b": "is not a",
    r"\bno more so\b|\bstill so\b": "no longer; ongoing",
    r"\blogs? parts?\b|\bwhere the two logs part\b": "diverge",
    r"\b(?:a|an) (?:row|line|object|value|bar) a (?:line|record|batch|row|cluster)\b": "one ... per ...",
    r"\b\d[\d,]* a second\b|\btimes a second\b": "per second",
    r"\bbelow that\b(?= stands)|\bstands? in the log\b": "is in the log",
    r"\bask that one\b|\bask broker\b": "send the request to",
    r"\bfits? not\b|\bhas not got\b": "does not",
    r"\bin the place of\b": "instead of",
    r"\bwho (?:has|have|leads?|left|joins?|fetch\w*|became|becomes)\b": "that, which; who is for people",
    r"\bDESIGN\b": "a section of docs/ or an ADR",
    r"\b(?:an object|an item|a line|a flush|one (?:object|line|event|entry|value|request|answer)) a"
    r" (?:record|batch|field|line|voter|caller|request)\b": "one ... per ...",
    r"\b(?:counts?|is led|are led|is bound|are bound) no more\b|\bin sync no more\b": "no longer",
    r"\btells? \w+ apart\b|\btold apart\b": "distinguish",
    r"\b(?:is|are|be) told (?:to|again|twice|once|of|by)\b(?! (?:to do|what))": "hears, gets, is reported",
    r"(?:^|[.:;] )So (?:many|much|long|often)\b(?! as)": "The number of, how long, this many",
    r"\boutside of\b": "outside",
    r"\bany more\b": "no longer, still",
    r"\borderly\b|\b(?:stop(?:s|ped)?|closed) in order\b": "clean; shut down cleanly",
    r"\bst(?:ood|ands?) still\b|\b(?:falls?|fell) silent\b|\bhurts?\b": "paused; stopped; affected",
    r"\breplac(?:e|es|ing) (?:[\w.'{}-]+ ){1,4}by\b": "replace with",
    r"\bchanges? of voters\b": "voter change",
    r"\b(?:has|had|finds?|made) it so\b": "has this value; what happened",
    r"\b(?:stands?|lies|lie) (?:in|below|behind|before|beside|there|elsewhere|at|above|outside|after)\b"
    r"(?! (?:the|its|their) way)": "is",
}
ALLOWED = {
    "nobody": {"'nobody' is not a user"},
}
"""Where a phrase is right, with the words around it."""


def paragraphs(text: str) -> str:
    """Markdown without what programs print: code blocks and code spans."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "``", text)


def pages() -> list[Path]:
    return [
        REPOSITORY / "README.md",
        REPOSITORY / "CHANGELOG.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=path, terminal_width=200, max_content_width=200)
    yield f"{path} --help", command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found, f"{path} {name}")


@lru_cache(maxsize=1)
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Of a module, those that hold its texts."""
    return tuple(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr | ast.Constant | ast.JoinedStr)
    )


def explained(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, code spans left out; lines of one comment are one text."""
    for node in nodes_of(source):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, " ".join(paragraphs(node.value.value).split())
    comment: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield last, paragraphs(" ".join(comment))
                comment = []
            comment.append(token.string.lstrip("# "))
            last = token.start[0]
    if comment:
        yield last, paragraphs(" ".join(comment))


def spoken(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a module with at least three words, without docstrings; an expression in one is `{}`."""
    silent: set[int] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            silent.update(id(part) for part in ast.walk(node) if part is not node)
    for node in nodes_of(source):
        if id(node) in silent:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "{}"
                for part in node.values
            )
        if len(text.split()) >= 3:
            yield node.lineno, text


@cache
def read_by_people() -> tuple[tuple[str, str], ...]:
    found = [(str(path.relative_to(REPOSITORY)), paragraphs(path.read_text("utf-8"))) for path in pages()]
    found += helps(main, "metaquorum")
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if "_pb2" not in path.name:
                source = path.read_text("utf-8")
                texts = [*spoken(source), *explained(source)]
                found += [(f"{path.relative_to(REPOSITORY)}:{line}", text) for line, text in texts]
    return tuple(found)


def offences(pattern: str, texts: tuple[tuple[str, str], ...]) -> list[str]:
    return [
        f"{where}: ...{text[max(0, hit.start() - 40) : hit.end() + 30]!r}"
        for where, text in texts
        for hit in re.finditer(pattern, text, re.I if pattern.islower() else 0)
        if not any(right in text for right in ALLOWED.get(hit.group().lower(), ()))
    ]


@pytest.mark.parametrize("pattern", BANNED, ids=BANNED.values())
def test_words_of_the_style_sheet(pattern: str) -> None:
    assert offences(pattern, read_by_people()) == [], f"write: {BANNED[pattern]}"


def test_the_search_finds_what_it_must() -> None:
    source = '"""nobody here"""\nraise ValueError(f"{x} is told that nobody leads")\n# nobody\n'
    assert [text for _, text in spoken(source)] == ["{} is told that nobody leads"]
    assert [text for _, text in explained(source)] == ["nobody here", "nobody"]
    assert offences(r"\bnobody\b", (("here", "nobody leads"), ("there", "'nobody' is not a user"))) == [
        "here: ...'nobody leads'"
    ]
    assert paragraphs("a `b` c\n```\nnobody\n```\nd") == "a `` c\n\nd"
    everything = read_by_people()
    assert len(everything) > 2000 and any("--help" in where for where, _ in everything)


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_lines_outside_of_tables_are_short(page: Path) -> None:
    long = [
        f"{page.name}:{number}: {len(line)} characters"
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if len(line) > MAX_LINE and not line.startswith("|")
    ]
    assert long == [], f"at most {MAX_LINE}"
