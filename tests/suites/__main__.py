"""`python -m tests.suites [NAME ...]`: the test suites of Kafka's clients, run against a cluster of ours.

NAME may be a part of names, such as `python`. Exit code 0: every failure is listed in known.toml, with its
reason. A suite that cannot be had is skipped with one line. `--source`: a checkout, for a suite of which no
registry has the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.closed_pipe import end
from tests.e2e.cluster import HOST, Cluster
from tests.packaging.project import REPOSITORY
from tests.suites.catalogue import KNOWN, SUITES, WITHOUT_SUITE, Suite
from tests.suites.judge import Outcome, Result, Verdict, judge, read_junit, unlisted
from tests.suites.librdkafka import run_librdkafka

_SOURCES = REPOSITORY / ".venv" / "suites"
_DOWNLOAD_S = 600
_SUITE_S = 1_800
_TEST_S = 90
_PROGRAM_S = 400


class Absent(Exception):
    """The suite cannot be had here; the text says why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--source", type=Path, metavar="PATH", help="a checkout, for a suite that needs one")
    arguments = parser.parse_args()
    names: list[str] = arguments.names
    checkout: Path | None = arguments.source

    def chosen(name: str) -> bool:
        return not names or any(part in name for part in names)

    suites = [suite for name, suite in SUITES.items() if chosen(name)]
    absent = {name: why for name, why in WITHOUT_SUITE.items() if chosen(name)}
    if not suites and not absent:
        parser.error(f"no suite is named so; there are {', '.join(SUITES)}")
    if checkout and [bool(suite.checkout) for suite in suites] != [True]:
        parser.error("--source is for one suite that needs a checkout: name that")
    known = read_known(KNOWN)
    bad = 0
    for name, why in absent.items():
        print(f"{name}: skipped: {why}", flush=True)
    for suite in suites:
        try:
            source = checked_out(suite, checkout) if suite.checkout else fetch(suite)
        except Absent as why:
            print(f"{suite.name} {suite.version}: skipped: {why}", flush=True)
            continue
        verdict = run(suite, source, known.get(suite.name, {}))
        for line in lines_of(suite, verdict):
            print(line, flush=True)
        bad += not verdict.good
    return 1 if bad else 0


def read_known(path: Path) -> dict[str, dict[str, str]]:
    """Reasons by suite and test."""
    known: dict[str, dict[str, str]] = tomllib.loads(path.read_text())
    return known


def home_of(suite: Suite) -> Path:
    return _SOURCES / f"{suite.name}-{suite.version}"


def checked_out(suite: Suite, checkout: Path | None) -> Path:
    """Raises Absent."""
    if checkout is None:
        raise Absent(f"no registry has its tests: SOURCE=PATH names {suite.checkout}")
    lacking = [each for each in suite.tests if not (checkout / each).is_file()]
    if lacking:
        raise Absent(f"{checkout} has no {', '.join(lacking)}: {suite.checkout}")
    return checkout.resolve()


def fetch(suite: Suite) -> Path:
    """The folder of its source, which is kept for the next run. Raises Absent."""
    home = home_of(suite)
    if home.is_dir():
        return home
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    source = ["--no-deps", "--no-binary", ":all:", f"{suite.package}=={suite.version}"]
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        try:
            done = subprocess.run(
                [*pip, *source, "--dest", folder],
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Absent(f"pip needs more than {_DOWNLOAD_S} s for its source") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Absent(f"pip cannot download its source: {' '.join(errors[-1:]) or done.stderr.strip()}")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (unpacked,) = (each for each in Path(folder).iterdir() if each.is_dir())
        lacking = [each for each in suite.tests if not (unpacked / each).is_file()]
        if lacking:
            raise Absent(f"its source has no {', '.join(lacking)}")
        for name, text in suite.added.items():
            (unpacked / name).write_text(text)
        _SOURCES.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, home)
    return home


def run(suite: Suite, source: Path, known: dict[str, str]) -> Verdict:
    """One controller and the suite's brokers, new for each suite: suites leave topics and groups behind. What
    fails and is not listed runs once more: many of these tests have limits of a few seconds."""
    home = home_of(suite)
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        with Cluster(Path(folder) / "cluster", controllers=1, brokers=suite.brokers) as cluster:
            servers = ",".join(broker.kafka_address for broker in cluster.brokers)
            places = {"host": HOST, "source": source, "home": home, "servers": servers}
            for node in cluster.nodes:
                here = places | {"port": node.kafka_port, "node": node.node_id}
                own = suite.properties if node.role == "broker" else {}
                node.set_properties(_filled({**suite.of_all, **own}, here))
            cluster.start()
            given = _filled(suite.environment, places | {"port": cluster.brokers[0].kafka_port})
            if suite.checkout:
                home.mkdir(parents=True, exist_ok=True)
                for name, text in _filled(suite.added, places).items():
                    (home / name).write_text(text)
            ask = _programs if suite.checkout else _pytest
            results = ask(suite, source, given, list(suite.tests), "first")
            names = unlisted(results, known)
            again = ask(suite, source, given, suite.addresses(names), "again") if names else {}
            return judge(results, known, again)


def _filled(values: Mapping[str, str], places: Mapping[str, object]) -> dict[str, str]:
    return {key: value.format_map(places) for key, value in values.items()}


def _pytest(
    suite: Suite, source: Path, environment: dict[str, str], tests: list[str], run_name: str
) -> dict[str, Result]:
    """Its report and its output stay beside the source."""
    report = source / f"{run_name}.xml"
    report.unlink(missing_ok=True)
    # Its own options would end the whole run at the first test that hangs.
    options = ["-c", "pyproject.toml", "-o", "addopts=", f"--timeout={_TEST_S}", "--timeout-method=signal"]
    quiet = ["-p", "no:cacheprovider", "-q", "--show-capture=no", "--tb=short", f"--junitxml={report}"]
    with (source / f"{run_name}.log").open("w") as log:
        try:
            subprocess.run(
                [sys.executable, "-m", "pytest", *quiet, *options, *tests],
                cwd=source,
                env=os.environ | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_SUITE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{suite.name}: ended after {_SUITE_S} s", file=sys.stderr)
    return read_junit(report.read_text()) if report.is_file() else {}


def _programs(
    suite: Suite, source: Path, environment: dict[str, str], numbers: list[str], run_name: str
) -> dict[str, Result]:
    """All of them if the suite's programs are asked for. Reports and output stay in the suite's folder."""
    chosen = [] if numbers == list(suite.tests) else numbers
    return run_librdkafka(source, environment, chosen, home_of(suite) / run_name, _PROGRAM_S)


def lines_of(suite: Suite, verdict: Verdict) -> list[str]:
    """What a person reads: the summary, and a line for each test that is not as listed."""
    lines = [f"{suite.name} {suite.version}: {verdict.summary()}"]
    if not verdict.ran:
        lines.append(f"  no test passed, so nothing is shown: see first.log in {home_of(suite)}")
    for name in verdict.new:
        lines.append(f"  NEW FAILURE {name}: {verdict.results[name].reason}")
    for name in verdict.unsteady:
        lines.append(f"  failed, and passed when it ran again: {name}")
    for name in verdict.healed:
        lines.append(f"  passes now: {name}: take it out of {KNOWN.name}")
    for name in verdict.missing:
        skipped = name in verdict.results and verdict.results[name].outcome is Outcome.SKIPPED
        lines.append(f"  listed, but {'skipped' if skipped else 'there is no such test'}: {name}")
    return lines


if __name__ == "__main__":
    end(main)
