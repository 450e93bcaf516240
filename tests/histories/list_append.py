"""Judges a history of transactions that append to lists and read them: is there an order in which they ran?

A key is a list, every appended value is used once, and a final read gives each list as it is at the end. From
what was read and where the values are follow the dependencies between transactions: one's append comes right
before another's (ww), one reads what another appended (wr), one appends right after what another read (rw).
Source: Adya, Weak Consistency (2000); Kingsbury and Alvaro, Elle (2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

Values = tuple[int, ...]


class Outcome(Enum):
    """UNKNOWN: its client does not know whether it was committed."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """`reads`: what was read of each key, before the first append. `appends`: (key, value) in their order."""

    name: str
    outcome: Outcome
    reads: Mapping[str, Values] = field(default_factory=dict)
    appends: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`kind`: G0, G1a, G1b, G1c, G2 (which G-single is one of), or what happened to a list: `lost append`,
    `duplicate append`, `torn transaction`, `unknown value`, `incompatible order`."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


Edge = tuple[str, str]
"""(the name of a transaction, how it comes before the next one: ww, wr or rw)."""


def judge(transactions: Sequence[Transaction], final: Mapping[str, Values]) -> list[Anomaly]:
    """Everything that no serial order explains. `final`: every list at the end, read as committed."""
    history = _History(transactions, final)
    return [*history.lists(), *history.reads(), *history.cycles()]


class _History:
    def __init__(self, transactions: Sequence[Transaction], final: Mapping[str, Values]) -> None:
        self._final = final
        self._by_name = {each.name: each for each in transactions}
        self._writer = {at: each for each in transactions for at in each.appends}
        self._all = transactions
        self._present = {(key, value) for key, values in final.items() for value in values}
        self._committed = [each for each in transactions if self._is_committed(each)]

    def _is_committed(self, one: Transaction) -> bool:
        """Of an unknown one, by what is there."""
        if one.outcome is Outcome.UNKNOWN:
            return any(at in self._present for at in one.appends)
        return one.outcome is Outcome.COMMITTED

    # ---- lists -----------------------------------------------------------------------------------

    def lists(self) -> Iterator[Anomaly]:
        for key, values in self._final.items():
            for value in sorted({each for each in values if values.count(each) > 1}):
                yield Anomaly("duplicate append", f"{value} is in {key} {values.count(value)} times")
            for value in values:
                writer = self._writer.get((key, value))
                if writer is None:
                    yield Anomaly("unknown value", f"{key} holds {value}, which nobody appended")
                elif writer.outcome is Outcome.ABORTED:
                    yield Anomaly("G1a", f"{key} holds {value} of {writer.name}, which was aborted")
        for one in self._committed:
            missing = [at for at in one.appends if at not in self._present]
            kind = "lost append" if one.outcome is Outcome.COMMITTED else "torn transaction"
            for key, value in missing:
                yield Anomaly(kind, f"{one.name} was committed, and {value} is not in {key}")
            yield from self._own_order(one)

    def _own_order(self, one: Transaction) -> Iterator[Anomaly]:
        for key in dict.fromkeys(key for key, _ in one.appends):
            mine = [value for other, value in one.appends if other == key]
            stored = [value for value in self._final.get(key, ()) if value in mine]
            if list(dict.fromkeys(stored)) != [value for value in mine if value in stored]:
                yield Anomaly(
                    "incompatible order", f"{one.name} appended {mine} to {key}, which has {stored}"
                )

    # ---- reads -----------------------------------------------------------------------------------

    def reads(self) -> Iterator[Anomaly]:
        for one in self._committed:
            for key, values in one.reads.items():
                yield from self._dirty(one, key, values)
                if values != self._final.get(key, ())[: len(values)]:
                    text = f"{one.name} read {values} of {key}, which became {self._final.get(key, ())}"
                    yield Anomaly("incompatible order", text)

    def _dirty(self, one: Transaction, key: str, values: Values) -> Iterator[Anomaly]:
        for value in values:
            writer = self._writer.get((key, value))
            if writer is None:
                yield Anomaly("unknown value", f"{one.name} read {value} of {key}, which nobody appended")
            elif not self._is_committed(writer):
                yield Anomaly("G1a", f"{one.name} read {value} of {key}, which {writer.name} aborted")
        last = self._writer.get((key, values[-1])) if values else None
        if last is not None and last is not one:
            later = [value for other, value in last.appends if other == key]
            if later[-1] != values[-1]:
                text = f"{one.name} read {key} up to {values[-1]}, amid what {last.name} appended: {later}"
                yield Anomaly("G1b", text)

    # ---- cycles ----------------------------------------------------------------------------------

    def cycles(self) -> Iterator[Anomaly]:
        """The first cycle of each kind: of ww alone, of ww and wr, of all."""
        edges = self._edges()
        for kind, kinds in (("G0", {"ww"}), ("G1c", {"ww", "wr"}), ("G2", {"ww", "wr", "rw"})):
            graph = {name: [(to, how) for to, how in found if how in kinds] for name, found in edges.items()}
            cycle = _cycle(graph)
            if cycle is not None:
                steps = "".join(f"{name} -{how}-> " for name, how in cycle)
                yield Anomaly(kind, steps + cycle[0][0])
                return

    def _edges(self) -> dict[str, list[Edge]]:
        edges: dict[str, list[Edge]] = {each.name: [] for each in self._committed}

        def add(one: Transaction | None, other: Transaction | None, how: str) -> None:
            if one is not None and other is not None and one is not other and one.name in edges:
                edges[one.name].append((other.name, how))

        for key, values in self._final.items():
            writers = [self._writer.get((key, value)) for value in values]
            for one, other in pairwise(writers):
                add(one, other, "ww")
        for one in self._committed:
            for key, values in one.reads.items():
                if values:
                    add(self._writer.get((key, values[-1])), one, "wr")
                after = self._final.get(key, ())[len(values) :]
                writers = [self._writer.get((key, value)) for value in after]
                add(one, next((each for each in writers if each is not one), None), "rw")
        return edges


def _cycle(graph: Mapping[str, Sequence[Edge]]) -> list[Edge] | None:
    """A cycle, as the transactions on it, each with the way to the next; None: there is none."""
    done: set[str] = set()
    for start in graph:
        path = [] if start in done else [(start, iter(graph[start]))]
        ways: list[str] = []
        while path:
            name, edges = path[-1]
            to, how = next(((to, how) for to, how in edges if to not in done), ("", ""))
            names = [each for each, _ in path]
            if to in names:
                begin = names.index(to)
                return list(zip(names[begin:], [*ways[begin:], how], strict=True))
            if to:
                ways.append(how)
                path.append((to, iter(graph.get(to, ()))))
                continue
            done.add(name)
            path.pop()
            ways = ways[:-1]
    return None
