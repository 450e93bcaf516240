"""What is asked about a story's nodes, and the answers.

The questions: every tool, as text and as JSON, over the whole log and over parts of it, from both ends,
about entities of the log. Besides the nodes as the story leaves them, its first one is asked about once more
with its beginning gone and a snapshot in its middle, and with two batches damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.segment import segment_name
from tests.stories.story import METADATA, Story
from tests.sums.generated import generated

STORIES = Path(__file__).parent.parent / "stories"
SEEDS = range(1, 9)
LARGE_BYTES = 20_000
"""Of a longer log less is asked: each answer takes a while."""
ENTITIES = 6
FIELDS = {"topic": ".isr", "broker": ".fenced", "quorum": ".leader"}
PREDICATES = ("leaderless() == 0 or time_ms < 1795000005000", "len(violations()) < 3")
ASKS = ("log ", "all ", "files ")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one tool said of one node, or of all: the words of the question, and the lines."""

    node: str
    words: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def tool(self) -> str:
        return self.words[0]


@dataclass(slots=True)
class Survey:
    """Asks about one story; the commands of its text that ask are passed over."""

    text: str
    home: Path
    story: Story = field(init=False)

    def write(self) -> None:
        """Writes what the story writes, and asks nothing."""
        self.home.mkdir(exist_ok=True)
        self.story = Story(self.home)
        for line in self.text.splitlines():
            if line.startswith("> ") and not line[2:].startswith(ASKS):
                self.story.run(line[2:])

    def answers(self) -> Iterator[Answer]:
        self.write()
        nodes = sorted(path.name for path in self.home.iterdir())
        for node in nodes:
            yield from self._of_node(node, is_first=node == nodes[0])
        if len(nodes) > 1:
            for words in (["timeline", "--json"], ["summary"], ["check", "--all", "--json"], ["salvage"]):
                yield self._asked("all", [words[0], *nodes, *words[1:]])
        if "n" in nodes:
            yield from self._of_worse()

    def _asked(self, node: str, words: list[str]) -> Answer:
        return Answer(node, tuple(words), tuple(self.story.ask(words)))

    def _bases(self, node: str) -> list[tuple[int, int]]:
        """Base offset and time of each batch of a node's log."""
        self.story.do_node(node)
        heads = [content[start : start + 43] for _, content, start, _ in self.story.frames()]
        return [(int.from_bytes(head[:8], "big"), int.from_bytes(head[35:43], "big")) for head in heads]

    def _of_node(self, node: str, *, is_first: bool) -> Iterator[Answer]:
        bases = self._bases(node)
        if not bases:
            yield self._asked(node, ["check", node])
            return
        whole = self._asked(node, ["timeline", node, "--severity", "detail", "--json"])
        yield whole
        yield self._asked(node, ["summary", node, "--all"])
        yield self._asked(node, ["check", node, "--all", "--past-corruption", "--json"])
        if _bytes_of(self.home / node) > LARGE_BYTES:
            return
        first, middle, last = (bases[len(bases) * part // 4] for part in (1, 2, 3))
        moment = utc_text(middle[1])
        yield self._asked(node, ["history", node, "--json"])
        yield self._asked(node, ["state", node, "--json"])
        yield from self._whys(node, _entities(whole.lines), str(last[0]))
        if not is_first:
            return
        low, high = str(first[0]), str(last[0])
        for words in (
            ["timeline", node, "--from", low, "--to", high],
            ["timeline", node, "--from", moment, "--severity", "detail"],
            ["summary", node, "--from", high, "--json"],
            ["summary", node, "--last", "2s"],
            ["check", node],
            ["history", node, "--from", low, "--to", moment],
            ["history", node, "broker", "--past-corruption"],
            ["state", node, "--at", moment],
            ["diff", node, low, "end", "--json"],
            ["diff", node, "end", high, "--past-corruption"],
            ["dump", node, "--causes"],
            ["repair", node, "--dry-run", "--past-corruption"],
            *(["bisect", node, "--predicate", one] for one in PREDICATES),
            ["bisect", node, "--check", "no-violations", "--from", low, "--json"],
        ):
            yield self._asked(node, words)

    def _whys(self, node: str, entities: list[str], at: str) -> Iterator[Answer]:
        for number, entity in enumerate(entities[:ENTITIES]):
            with_field = entity + FIELDS.get(entity.partition("/")[0], "")
            yield self._asked(
                node,
                (
                    ["why", node, entity, "--json"],
                    ["why", node, with_field, "--json"],
                    ["why", node, entity, "--at", at, "--past-corruption"],
                    ["why", node, with_field, "--last", "2", "--newest-first"],
                )[number % 4],
            )

    def write_worse(self) -> dict[str, list[int]]:
        """Writes the first node twice more, trimmed and damaged, unless its log is short or large; returns
        the base offsets of each."""
        bases = [base for base, _ in self._bases("n")]
        if len(bases) < 12 or _bytes_of(self.home / "n") > LARGE_BYTES:
            return {}
        for node, worsened in (("trimmed", self._trim), ("damaged", self._damage)):
            self.story.do_node("n")
            self.story.do_copy(f"{node} 3000")
            with contextlib.suppress(StorageError, ValueError, IndexError):
                worsened(bases)
        return {"trimmed": bases, "damaged": bases}

    def _of_worse(self) -> Iterator[Answer]:
        for node, bases in self.write_worse().items():
            whole = self._asked(node, ["timeline", node, "--severity", "detail", "--json"])
            yield whole
            for words in (
                ["summary", node, "--json"],
                ["check", node, "--past-corruption", "--json"],
                ["history", node, "--past-corruption", "--json"],
                ["state", node, "--past-corruption"],
                ["diff", node, str(bases[len(bases) // 3]), "end", "--past-corruption", "--json"],
            ):
                yield self._asked(node, words)
            for entity in _entities(whole.lines)[: ENTITIES // 2]:
                yield self._asked(node, ["why", node, entity, "--past-corruption", "--json"])

    def _trim(self, bases: list[int]) -> None:
        """A snapshot in the middle; what is before a third of the log is gone."""
        self.story.do_snapshot(str(bases[len(bases) // 2]))
        cut = bases[len(bases) // 3]
        kept = b"".join(
            bytes(content[start:end])
            for _, content, start, end in list(self.story.frames())
            if int.from_bytes(content[start : start + 8], "big") >= cut
        )
        directory = self.home / "trimmed" / METADATA
        for path in directory.glob("*.log"):
            path.unlink()
        (directory / segment_name(cut)).write_bytes(kept)
        for path in directory.glob("*.checkpoint"):
            if int(path.stem.split("-")[0]) < cut:
                path.unlink()

    def _damage(self, bases: list[int]) -> None:
        self.story.do_flip(str(bases[len(bases) // 2]))
        self.story.do_lose(str(bases[len(bases) * 3 // 4]))


def _bytes_of(node: Path) -> int:
    return sum(path.stat().st_size for path in node.rglob("*.log"))


def _entities(timeline: tuple[str, ...]) -> list[str]:
    """What a timeline names, as `shown` makes of its JSON; in an order in which one more moves few others."""
    found = set()
    for line in timeline:
        for word in line.split():
            if word.startswith("entities=["):
                listed = word.removeprefix("entities=[").rstrip("]").split(",")
                found.update(one.strip('"') for one in listed)
    return sorted(found, key=_sum)


def names() -> list[str]:
    """All stories: those that are written down, and those that seeds write."""
    return [*sorted(path.stem for path in STORIES.glob("*.txt")), *(f"seed-{seed}" for seed in SEEDS)]


def text_of(name: str) -> str:
    kind, _, seed = name.partition("-")
    return generated(int(seed)) if kind == "seed" else (STORIES / f"{name}.txt").read_text(encoding="utf-8")


def sums(answers: Iterator[Answer]) -> str:
    """One line per node and tool: how many questions, lines, and their sum."""
    grouped: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        grouped.setdefault((answer.node, answer.tool), []).append(answer)
    lines = []
    for (node, tool), found in grouped.items():
        content = json.dumps([(one.words, one.lines) for one in found])
        many = sum(len(one.lines) for one in found)
        lines.append(f"{node} {tool}: {len(found)} asked, {many} lines, {_sum(content)}")
    return "\n".join(lines) + "\n"


def _sum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:12]
