"""The pytest plugin: the fixtures `kafka` and `kafka_cluster`.

pytest loads it in every run: it imports nothing heavy until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from metaquorum.testing import failures

if TYPE_CHECKING:
    from metaquorum.testing.cluster import Cluster
    from metaquorum.testing.shared import SharedCluster

SHARED, FRESH = "kafka", "kafka_cluster"
MARKER = "kafka"
SECTION = "Kafka cluster"
"""Of the report of a failed test."""

_NUMBERS = ("brokers", "controllers", "log_dirs", "disk_bytes", "seed")
_WORDS = ("version", "sasl", "mode")
_NAMES = (*_NUMBERS, *_WORDS, "tls", "properties", "racks", "clock", "chaos", "timeout_s")
"""What a marker takes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of all clusters of a run, which a marker overrides."""
    parser.addini("kafka_brokers", "number of brokers of a test's Kafka cluster (1)")
    parser.addini("kafka_controllers", "number of controllers beside them (none: brokers are controllers)")
    parser.addini("kafka_log_dirs", "number of directories of each broker for partitions (1)")
    parser.addini("kafka_disk_bytes", "size of each node's disk in memory")
    parser.addini("kafka_seed", "seed of everything that clusters draw")
    parser.addini("kafka_version", "release of Kafka whose APIs and versions clusters offer, such as 3.6")
    parser.addini("kafka_sasl", "scram: clients log in")
    parser.addini("kafka_mode", "processes: each node of clusters has a process of its own")
    parser.addini("kafka_tls", "clients use TLS (false)", type="bool", default=False)
    parser.addini("kafka_properties", "settings of every node, as NAME=VALUE", type="linelist")
    parser.addini("kafka_racks", "rack of each broker, in order", type="args")
    parser.addini("kafka_fixture", f"name of the fixture {SHARED}", default=SHARED)
    parser.addini("kafka_cluster_fixture", f"name of the fixture {FRESH}", default=FRESH)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and the fixtures under their names."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}({', '.join(_NAMES)}): the Kafka cluster of a test",
    )
    failures.is_wanted = True
    shared, fresh = config.getini("kafka_fixture"), config.getini("kafka_cluster_fixture")
    if shared == fresh:
        raise pytest.UsageError(f"kafka_fixture and kafka_cluster_fixture are both {shared}: rename one")
    # pytest looks for fixtures at the class of a plugin.
    named = {shared: pytest.fixture(name=shared)(_shared), fresh: pytest.fixture(name=fresh)(_fresh)}
    config.pluginmanager.register(type("Fixtures", (_Fixtures,), named)(), "metaquorum-fixtures")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses a fixture that another plugin has by the same name: one would hide the other."""
    settings = {config.getini(setting): setting for setting in ("kafka_fixture", "kafka_cluster_fixture")}
    for item in items:
        known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        for name in settings.keys() & known.keys():
            homes = [each.func.__module__ for each in known[name] if not each.baseid]
            others = [home for home in homes if home != __name__ and home.rpartition(".")[2] != "conftest"]
            if others and __name__ in homes:
                raise pytest.UsageError(
                    f"the fixture {name} is one of metaquorum and one of {others[0]}: name ours otherwise,"
                    f" with {settings[name]} = NAME in the ini file"
                )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The report of a failed test shows what its clusters did."""
    outcome: Any = yield
    report = outcome.get_result()
    ended = failures.take()
    if report.when == "call" and report.failed:
        report.sections += [(SECTION, text) for text in (*ended, *_running_clusters(item))]


def _running_clusters(item: pytest.Item) -> Iterator[str]:
    """Reports of the clusters that fixtures gave to a test."""
    for value in getattr(item, "funcargs", {}).values():
        report = getattr(value, "failure_report", None)
        if callable(report) and type(value).__module__.startswith("metaquorum.testing."):
            try:
                yield report()
            except Exception as error:  # the report of the test is not lost by it
                yield f"what the cluster did is not known: {error}"


class _Fixtures:
    """Has the clusters that tests share."""

    def __init__(self) -> None:
        self.clusters = SharedClusters()

    def pytest_sessionfinish(self) -> None:
        """Closes them."""
        self.clusters.close()


def _shared(self: _Fixtures, request: pytest.FixtureRequest) -> Iterator[SharedCluster]:
    """A Kafka cluster for all tests of this process. What a test makes is removed after it."""
    yield from self.clusters.lend(_wishes(request))


def _fresh(self: _Fixtures, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A Kafka cluster for this test alone."""
    with _cluster(_wishes(request)) as cluster:
        yield cluster


class SharedClusters:
    """One cluster for each wish of tests, made at its first use."""

    def __init__(self) -> None:
        self._made: dict[str, SharedCluster] = {}

    def lend(self, wishes: dict[str, Any]) -> Iterator[SharedCluster]:
        from metaquorum.testing.shared import SharedCluster

        key = repr(sorted(wishes.items(), key=str))
        cluster = self._made.get(key)
        if cluster is None:
            cluster = self._made[key] = SharedCluster(lambda: _cluster(wishes))
        cluster.begin_test()
        try:
            yield cluster
        finally:
            cluster.clean()

    def close(self) -> None:
        for cluster in self._made.values():
            cluster.close()
        self._made.clear()


def _cluster(wishes: dict[str, Any]) -> Cluster:
    from metaquorum.testing import Cluster

    return Cluster(**wishes)


def _wishes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of the cluster: of the ini file, and of the closest markers."""
    config: Callable[[str], Any] = request.config.getini
    wishes: dict[str, Any] = {}
    for name in _NUMBERS:
        text = config(f"kafka_{name}")
        if text:
            if not text.isdecimal():
                raise pytest.UsageError(f"kafka_{name} = {text!r}: write a whole number")
            wishes[name] = int(text)
    wishes |= {name: config(f"kafka_{name}") for name in _WORDS if config(f"kafka_{name}")}
    if config("kafka_tls"):
        wishes["tls"] = True
    if config("kafka_racks"):
        wishes["racks"] = tuple(config("kafka_racks"))
    properties: dict[str, object] = {}
    for line in config("kafka_properties"):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_properties has {line!r}: write NAME=VALUE")
        properties[key.strip()] = value.strip()
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        unknown = set(marker.kwargs) - {*_NAMES}
        if unknown or marker.args:
            found = ", ".join(sorted(unknown)) or "positional arguments"
            raise pytest.UsageError(f"@pytest.mark.{MARKER} takes {', '.join(_NAMES)}, not {found}")
        properties |= marker.kwargs.get("properties", {})
        wishes |= {name: value for name, value in marker.kwargs.items() if name != "properties"}
    return {**wishes, "properties": properties} if properties else wishes
