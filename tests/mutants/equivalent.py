"""The table of mutants that change nothing observable, each with the reason.

An entry names file, function and operator, the line before and after, and the reason, so that it stays valid
when lines move. An entry that matches no mutant is out of date: the run names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sites import Mutant

ANY = "*"
"""Instead of a line after: any change of the line before. For sizes that only affect the speed."""
TABLE = Path(__file__).with_name("equivalent.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    file: str
    function: str
    operator: str
    before: str
    after: str
    why: str

    def fits(self, mutant: Mutant) -> bool:
        place = (self.file, self.function, self.before)
        if place != (mutant.file, mutant.function, mutant.before):
            return False
        return self.after == ANY or (self.operator, self.after) == (mutant.operator, mutant.after)


def parse(text: str) -> list[Equivalent]:
    """Entries of four lines: `@ file function: operator`, `- before`, `+ after`, `= why`.

    Lines that begin with # are remarks. Raises ValueError, naming the line, for anything else.
    """
    found = []
    lines = [(at, line) for at, line in enumerate(text.splitlines(), start=1) if line[:1] not in ("", "#")]
    for first in range(0, len(lines), 4):
        entry = lines[first : first + 4]
        if [line[:2] for _, line in entry] != ["@ ", "- ", "+ ", "= "]:
            raise ValueError(f"line {lines[first][0]}: an entry is four lines that begin with @, -, +, =")
        head, before, after, why = (line[2:] for _, line in entry)
        place, _, operator = head.partition(": ")
        file, _, function = place.partition(" ")
        found.append(
            Equivalent(file=file, function=function, operator=operator, before=before, after=after, why=why)
        )
    return found


def as_entry(mutant: Mutant, why: str = "") -> str:
    """A mutant's entry in the table."""
    place = f"{mutant.file} {mutant.function}".strip()
    return f"@ {place}: {mutant.operator}\n- {mutant.before}\n+ {mutant.after}\n= {why}\n"
