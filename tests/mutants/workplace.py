"""One process that has imported and collected everything, and a child of it for every mutant.

The runs of the tests: first on the code without mutants, to learn which statements each test runs and
how long it takes; then, for each mutant, the tests that run its statement, those most likely to fail first,
until one fails. A forked child needs no import and no collection. Its tests run under an alarm, because a
mistake may cause an endless loop. The first run has a child of its own: threads, sockets and caches that
tests leave behind would otherwise be in every child.

A loaded machine decides nothing: a loop is bounded by its processor time, a test is measured without its
waits for a processor, and one that fails is repeated at once without the mutant. If it fails again, it is
left out, and the other tests judge the mutant.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.exchange import exchange, functions_by_name
from tests.mutants.marking import MarkingFinder
from tests.mutants.sites import Mutant, Source

PATIENCE = 20
"""A test may take this many times as long as without a mutant: plus `GRACE_S` of processor time, plus
`WAITING_S` of any time."""
GRACE_S = 4.0
ALONE_GRACE_S = 40.0
WAITING_S = 120.0
MOST_NAMES = 300
"""The maximum number of tests that are passed to a separate process."""
MEMORY_BYTES = 6 << 30
_SURVIVED, _KILLED = 0, 41


def _nameless_file() -> int:
    """A file that children write, those of another program, too, and nobody else finds."""
    with tempfile.TemporaryFile() as file:
        inherited = os.dup(file.fileno())
    os.set_inheritable(inherited, True)
    return inherited


class Verdict(Enum):
    KILLED = "killed"
    ENDLESS = "killed (did not end)"
    SURVIVED = "SURVIVED"
    UNSEEN = "SURVIVED (no test runs it)"

    @property
    def is_killed(self) -> bool:
        return self in (Verdict.KILLED, Verdict.ENDLESS)


@dataclass(slots=True)
class Known:
    """What the first run found out about one test."""

    item: pytest.Item
    seconds: float
    kills: int = 0


@dataclass(slots=True)
class _Run:
    """A child with a mutant in place; it writes the name of each test that it begins to a file."""

    source: Source
    mutant: Mutant
    begun: int = field(default_factory=_nameless_file)
    since: float = field(default_factory=time.monotonic)

    def names(self) -> list[str]:
        """The tests that have begun. Closes the file."""
        with os.fdopen(self.begun, "rb") as file:
            file.seek(0)
            return file.read().decode().splitlines()


@dataclass(slots=True)
class Sound:
    """What the first run found out: seconds of the tests that pass, and which of them run each statement."""

    seconds: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    tests_at: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    at_import: set[tuple[str, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    mutant: Mutant
    verdict: Verdict
    test: str = ""
    tests: int = 0
    seconds: float = 0.0


class Examples:
    """A pytest plugin: uses the same examples every time, and shrinks none: only a failure matters."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        settings.load_profile("mutants")


@dataclass(slots=True)
class Begun(Examples):
    """A pytest plugin: writes the name of each test that begins to an open file."""

    begun: int

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.write(self.begun, f"{nodeid}\n".encode())


@dataclass(slots=True)
class Workplace(Examples):
    """A pytest plugin: takes over when all tests are collected, and calls `then` after the first run.
    `budget_s` bounds the tests of one mutant, by their time without one: the cheapest are taken."""

    finder: MarkingFinder
    then: Callable[[Workplace], None]
    say: Callable[[str], None]
    budget_s: float = 10.0
    remembered: Path | None = None
    sound: Sound = field(default_factory=Sound)
    tests: dict[str, Known] = field(default_factory=dict)
    running: dict[int, _Run] = field(default_factory=dict)
    _living: dict[tuple[str, str, int], list[Any]] = field(default_factory=dict)
    _killed_in: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started = time.monotonic()
        self.finder.import_all()  # code that a test would import late is exchanged like all other code
        if self.remembered is not None and self.remembered.exists():
            self.sound = pickle.loads(self.remembered.read_bytes())
        else:
            self.sound = self._sound_of_child(session.items)
            if self.remembered is not None:
                self.remembered.write_bytes(pickle.dumps(self.sound))
        for item in session.items:
            if item.nodeid in self.sound.seconds:
                self.tests[item.nodeid] = Known(item, self.sound.seconds[item.nodeid])
        root = self.finder._root
        paths = frozenset(str(root / file) for file in self.finder._files)
        self._living = functions_by_name(paths)
        self.say(
            f"{len(self.tests)} tests pass on the sound code, known in {time.monotonic() - started:.0f} s"
        )
        if self.sound.failing:
            self.say(f"left out, since they fail on it: {len(self.sound.failing)}: {self.sound.failing[:3]}")
        self.then(self)
        return True

    def _sound_of_child(self, items: Sequence[pytest.Item]) -> Sound:
        places = self.finder.marks.lines
        self.sound.at_import = {places[mark] for mark in self.finder.marks.take()}
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                _confine()
                self._run_sound(items)
                with os.fdopen(writing, "wb") as out:
                    pickle.dump(self.sound, out)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as got:
            told = got.read()
        os.waitpid(child, 0)
        if not told:
            raise RuntimeError("the run of the sound code ended early")
        sound: Sound = pickle.loads(told)
        return sound

    def _run_sound(self, items: Sequence[pytest.Item]) -> None:
        places = self.finder.marks.lines
        tests_at = defaultdict(list)
        for at, item in enumerate(items):
            following = items[at + 1] if at + 1 < len(items) else None
            begun = _own_time()
            reports = runtestprotocol(item, nextitem=following, log=False)
            seconds = _own_time() - begun
            seen = self.finder.marks.take()
            if any(report.failed for report in reports):
                self.sound.failing.append(item.nodeid)
            elif any(report.when == "call" and report.passed for report in reports):
                self.sound.seconds[item.nodeid] = seconds
                for mark in seen:
                    tests_at[places[mark]].append(item.nodeid)
        self.sound.tests_at = dict(tests_at)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's statement (for code that runs at import: those that run what uses
        its name), those most likely to fail first, then the fastest, up to the budget."""
        names = set(self.sound.tests_at.get((mutant.file, mutant.statement), ()))
        if mutant.at_import:
            names = self._tests_that_use(mutant)
        elif self._only_at_import(mutant):
            names = set(self.tests)
        killers = self._killed_in[mutant.file, mutant.function]

        def rank(name: str) -> tuple[float, str]:
            known = self.tests[name]
            return known.seconds / (1 + 4 * killers[name] + known.kills**0.5), name

        return self._within_budget(sorted(names & self.tests.keys(), key=rank))

    def _within_budget(self, names: Sequence[str]) -> list[str]:
        chosen: list[str] = []
        spent = 0.0
        for name in names:
            spent += self.tests[name].seconds
            if chosen and spent > self.budget_s:
                break
            chosen.append(name)
        return chosen

    def _tests_for_import(self, names: Sequence[str]) -> list[str]:
        """Tests for a mistake whose statement also ran at import: any test may use what it created. First
        those that run the statement, then the fastest of each file in turn."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.tests, key=lambda name: (self.tests[name].seconds, name)):
            by_file[name.partition("::")[0]].append(name)
        turns = [name for turn in zip_longest(*by_file.values()) for name in turn if name is not None]
        return self._within_budget(list(dict.fromkeys([*names[:20], *turns])))

    def _tests_that_use(self, mutant: Mutant) -> set[str]:
        """Tests that run a function that names what the mutant's statement binds, or a method of it."""
        wanted = set(mutant.names)
        found: set[str] = set()
        root = f"{self.finder._root}/"
        for (path, qualified, _), functions in self._living.items():
            file = path.removeprefix(root)
            own = file == mutant.file and qualified.split(".")[0] in wanted
            for function in functions:
                code = function.__code__
                if own or wanted.intersection(code.co_names):
                    for _, _, line in code.co_lines():
                        found.update(self.sound.tests_at.get((file, line or 0), ()))
        return found or set(self.tests)

    def _only_at_import(self, mutant: Mutant) -> bool:
        place = mutant.file, mutant.statement
        return place in self.sound.at_import and place not in self.sound.tests_at

    def start(self, source: Source, mutant: Mutant) -> Judged | None:
        """Starts a child for the mutant; returns the verdict at once if no test runs its statement."""
        names = self.tests_for(mutant)
        if not names:
            return Judged(mutant=mutant, verdict=Verdict.UNSEEN)
        try:
            code = source.compiled(mutant)
        except (SyntaxError, ValueError):
            return Judged(mutant=mutant, verdict=Verdict.KILLED, test="(does not compile)")
        run = _Run(source, mutant)
        child = os.fork()
        if child == 0:
            self._in_child(mutant, code, names, run.begun)
        self.running[child] = run
        return None

    def finish_one(self) -> Judged:
        """Waits until a mutant is judged."""
        while True:
            child, status = os.wait()
            run = self.running.pop(child, None)  # None: a child that a test left behind
            judged = None if run is None else self._judged(run, os.waitstatus_to_exitcode(status))
            if judged is not None:
                return judged

    def _judged(self, run: _Run, code: int) -> Judged | None:
        """The verdict of a child that has ended; None if the mutant is judged again, without a test that also
        fails without it."""
        names = run.names()
        seconds = time.monotonic() - run.since
        mutant = run.mutant
        if code == _SURVIVED:
            return Judged(mutant=mutant, verdict=Verdict.SURVIVED, tests=len(names), seconds=seconds)
        test = names[-1] if names else "(is not imported)"
        if test in self.tests:
            if self._fails_without(test):
                self.say(f"left out, since it failed without {mutant.key}, too: {test}")
                del self.tests[test]
                return self.start(run.source, mutant)
            self.tests[test].kills += 1
            self._killed_in[mutant.file, mutant.function][test] += 1
        verdict = Verdict.ENDLESS if code in (-signal.SIGALRM, -signal.SIGPROF) else Verdict.KILLED
        return Judged(mutant=mutant, verdict=verdict, test=test, tests=len(names), seconds=seconds)

    def _fails_without(self, test: str) -> bool:
        child = os.fork()
        if child == 0:
            result = _KILLED
            try:
                _confine()
                with tempfile.TemporaryFile() as unread:
                    result = self._run_until_one_fails([test], unread.fileno())
            finally:
                os._exit(result)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _SURVIVED

    def _in_child(self, mutant: Mutant, code: CodeType, names: list[str], begun: int) -> None:
        """Runs the tests with the mistake in place; writes the name of each to `begun`. Does not return."""
        result = _KILLED
        try:
            _confine()
            if mutant.at_import or self._only_at_import(mutant):
                _alone(self, mutant, self._tests_for_import(names), begun)
            if not self._exchange(mutant, code):
                _alone(self, mutant, names, begun)
            result = self._run_until_one_fails(names, begun)
            if result == _SURVIVED and (mutant.file, mutant.statement) in self.sound.at_import:
                # What it had created at import, such as a codec, still existed.
                _alone(self, mutant, self._tests_for_import(names), begun)
        except BaseException:
            result = _KILLED
        finally:
            os._exit(result)

    def _exchange(self, mutant: Mutant, code: CodeType) -> bool:
        try:
            return exchange(self._living, code, mutant.function) > 0
        except ValueError:  # the mistake changed what a function closes over
            return False

    def _run_until_one_fails(self, names: list[str], begun: int) -> int:
        items = [self.tests[name].item for name in names]
        for at, (name, item) in enumerate(zip(names, items, strict=True)):
            os.write(begun, f"{name}\n".encode())
            _limit(GRACE_S, self.tests[name].seconds)
            following = items[at + 1] if at + 1 < len(items) else None
            reports = runtestprotocol(item, nextitem=following, log=False)
            if any(report.failed for report in reports):
                return _KILLED
        return _SURVIVED


def _own_time() -> float:
    """Seconds that this thread runs or waits for an event, not (as Linux counts it) for a processor."""
    try:
        waited = Path("/proc/self/schedstat").read_text().split()[1]
    except OSError:
        waited = "0"
    return time.monotonic() - int(waited) / 1e9


def _limit(grace_s: float, seconds: float) -> None:
    """Ends this process unless the next limit is set in time."""
    signal.setitimer(signal.ITIMER_PROF, grace_s + PATIENCE * seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S + grace_s + PATIENCE * seconds)


def _confine() -> None:
    """Keeps a child, including that of the first run, quiet and within bounds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _alone(place: Workplace, mutant: Mutant, names: list[str], begun: int) -> None:
    """Becomes a new process, which imports the mistake: nothing that was imported before can be in it."""
    names = names[:MOST_NAMES]
    _limit(ALONE_GRACE_S, sum(place.tests[name].seconds for name in names))
    _confine()  # the tests that ran here have restored standard output
    root = str(place.finder._root)
    os.chdir(root)
    os.execv(
        sys.executable,
        [sys.executable, "-m", "tests.mutants", "--alone", root, mutant.file, mutant.key, str(begun), *names],
    )


def run_pytest(plugin: Any, root: Path, arguments: Sequence[str]) -> int:
    """Runs pytest in this process, quietly, without plugins that would disturb or slow it. Without its
    rewriting of assertions, too: it takes in the modules of every distribution that has a plugin, so ours,
    which the marks would then never see."""
    without = [f"-pno:{name}" for name in ("cacheprovider", "xdist")]
    options = ["-q", *without, "--assert=plain", "-o", "timeout=0", f"--rootdir={root}"]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))
