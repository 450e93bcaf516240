"""A sample of a layer's mutants, and the verdict on each.

Two runs with the same seed on the same sources draw the same mutants.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.equivalent import Equivalent, as_entry
from tests.mutants.layers import Layer
from tests.mutants.marking import MarkingFinder, install
from tests.mutants.sites import Mutant, Source
from tests.mutants.workplace import Judged, Workplace, run_pytest


@dataclass(slots=True, kw_only=True)
class Judgement:
    """One run over a layer: which mutants were drawn, and the verdict of the tests on each."""

    root: Path
    layer: Layer
    table: Sequence[Equivalent]
    say: Callable[[str], None]
    seed: int = 1
    count: int | None = None
    files: str = ""
    keys: Sequence[str] = ()
    minutes: float = 0.0
    jobs: int = 2
    budget_s: float = 10.0
    sources: dict[str, Source] = field(default_factory=dict)
    drawn: list[Mutant] = field(default_factory=list)
    equivalent: int = 0
    results: list[Judged] = field(default_factory=list)

    def run(self) -> None:
        """Draws and judges. Modules of the layer must not be imported yet."""
        began = time.monotonic()
        self.sources = {file: Source(self.root, file) for file in self.layer.sources(self.root)}
        every = [mutant for source in self.sources.values() for mutant in source.mutants]
        self.drawn = self._draw([mutant for mutant in every if self.files in mutant.file])
        equal = self._equivalent_keys(every)
        finder = MarkingFinder(self.root, self.sources)
        install(finder)
        place = Workplace(
            finder=finder,
            then=lambda place: self._judge(place, equal, began + 60 * self.minutes),
            say=self.say,
            budget_s=self.budget_s,
            remembered=self._memory(),
        )
        run_pytest(place, self.root, self.layer.tests)
        self.say(f"{self.summary()}, {time.monotonic() - began:.0f} s")

    def _memory(self) -> Path:
        """The file with the results of the run without mutants, for exactly these sources and tests."""
        digest = hashlib.sha256(repr((str(self.root), self.layer)).encode())
        for path in sorted(self.root.rglob("*.py")) + sorted(self.root.glob("tests/**/*.txt")):
            if not any(part.startswith(".") for part in path.relative_to(self.root).parts):
                digest.update(path.read_bytes())
        return Path(tempfile.gettempdir()) / f"metaquorum-mutants-{digest.hexdigest()[:20]}"

    def _draw(self, pool: list[Mutant]) -> list[Mutant]:
        if self.keys:
            return [mutant for mutant in pool if mutant.key in self.keys]
        count = len(pool) if self.count is None else min(self.count, len(pool))
        return random.Random(self.seed).sample(pool, count)

    def _equivalent_keys(self, every: list[Mutant]) -> set[str]:
        if self.keys:
            return set()  # mutants that are requested by key always run
        found: set[str] = set()
        for entry in self.table:
            if entry.file not in self.sources:
                continue
            fitting = {mutant.key for mutant in every if entry.fits(mutant)}
            if not fitting:
                self.say(f"the table's entry no longer fits a mutant: {entry}")
            found |= fitting
        return found

    def _judge(self, place: Workplace, equal: set[str], deadline: float) -> None:
        for mutant in self.drawn:
            if mutant.key in equal:
                self.equivalent += 1
                continue
            if self.minutes and time.monotonic() > deadline:
                break
            while len(place.running) >= self.jobs:
                self._note(place.finish_one())
            at_once = place.start(self.sources[mutant.file], mutant)
            if at_once is not None:
                self._note(at_once)
        while place.running:
            self._note(place.finish_one())

    def _note(self, judged: Judged) -> None:
        self.results.append(judged)
        if judged.verdict.is_killed:
            return
        mutant = judged.mutant
        where = f"{mutant.key} {mutant.file}:{mutant.line}"
        self.say(f"{judged.verdict.value} {where} ({judged.tests} tests, {judged.seconds:.0f} s)")
        self.say(as_entry(mutant))

    @property
    def killed(self) -> int:
        return sum(at.verdict.is_killed for at in self.results)

    @property
    def percent(self) -> float:
        """Of the mutants that were judged, which excludes those known as equivalent."""
        return 100 * self.killed / max(1, len(self.results))

    def summary(self) -> str:
        pool = sum(self.files in at.file for source in self.sources.values() for at in source.mutants)
        return (
            f"{self.layer.name}: {len(self.results)} of {pool} mutants judged (seed {self.seed}), "
            f"{self.killed} killed, {len(self.results) - self.killed} survived: {self.percent:.1f} % "
            f"(target {self.layer.target} %); {self.equivalent} more are known as equivalent"
        )
