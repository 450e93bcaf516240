"""The pytest plugin, in runs of its own: fixtures, marker, ini section, and a run without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import unittest
import pytest

def test_one(kafka):
    name = kafka.topic("orders", partitions=2)
    assert name.startswith("orders-")
    kafka.cluster.create_topic("plain")
    assert kafka.bootstrap_servers == kafka.cluster.bootstrap_servers

def test_another_has_the_same_cluster_without_its_topics(kafka):
    kafka.cluster.create_topic("plain")

def test_what_is_killed_comes_back(kafka):
    kafka.cluster.kill(0)

def test_it_came_back(kafka):
    kafka.topic()

def test_fresh(kafka_cluster):
    kafka_cluster.create_topic("plain")
    kafka_cluster.close()

@pytest.mark.kafka(brokers=2, properties={"num.partitions": 4})
def test_marked(kafka_cluster):
    assert kafka_cluster.brokers == (0, 1)

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _kafka(self, kafka):
        self.kafka = kafka

    def test_of_unittest(self):
        assert self.kafka.topic()
"""


def run(directory: Path, tests: str, *options: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text(f"[pytest]\n{ini}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=200, check=False)


def test_fixtures_give_a_cluster_to_tests_of_every_kind(tmp_path: Path) -> None:
    found = run(tmp_path, TESTS)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "7 passed" in found.stdout


def test_the_ini_file_sets_size_properties_and_names(tmp_path: Path) -> None:
    ini = "kafka_brokers = 3\nkafka_properties =\n    num.partitions=2\nkafka_fixture = broker\n"
    ini += "kafka_racks = a b c\n"
    ini += "kafka_seed = 5\nkafka_sasl = scram\nkafka_version = 3.6\n"
    tests = (
        "import pytest\n"
        "def test_it(broker):\n"
        "    assert broker.cluster.brokers == (0, 1, 2) and broker.cluster.seed == 5\n"
        "    assert broker.client_config['sasl.username'] == 'test'\n"
        "    racks = [each.rack for each in broker.cluster._nodes[0].image.brokers.values()]\n"
        "    assert sorted(racks) == ['a', 'b', 'c']\n"
        "@pytest.mark.kafka(clock='manual', brokers=1, racks=('a',))\n"
        "def test_of_a_marker(kafka_cluster):\n"
        "    assert kafka_cluster.clock.wall_ms == kafka_cluster.clock.wall_ms\n"
    )
    found = run(tmp_path, tests, ini=ini)
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_is_wrong_in_the_ini_file_or_a_marker_is_one_line(tmp_path: Path) -> None:
    tests = "import pytest\n@pytest.mark.kafka(size=3)\ndef test_it(kafka):\n    pass\n"
    text = (
        "takes brokers, controllers, log_dirs, disk_bytes, seed, version, sasl, mode, tls, properties, racks,"
        " clock"
    )
    assert text in run(tmp_path, tests).stdout
    plain = "def test_it(kafka):\n    pass\n"
    many = run(tmp_path, plain, ini="kafka_brokers = many\n")
    assert "kafka_brokers = 'many': write a whole number" in many.stdout
    few = run(tmp_path, plain.replace("kafka", "kafka_cluster"), ini="kafka_brokers = 2\nkafka_racks = a\n")
    assert "racks=('a',): write 2, one name for each broker" in few.stdout
    same = run(tmp_path, plain, ini="kafka_fixture = kafka_cluster\n")
    assert "are both kafka_cluster: rename one" in same.stderr


def test_a_fixture_of_another_plugin_is_named_with_what_to_set_and_one_of_conftest_is_meant(
    tmp_path: Path,
) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef kafka():\n    return 7\n"
    (tmp_path / "docker_kafka.py").write_text(fixture)
    tests = "def test_it(kafka):\n    assert kafka == 7\n"
    other = ("-p", "docker_kafka")
    both = run(tmp_path, tests, *other)
    assert (
        "the fixture kafka is one of metaquorum and one of docker_kafka: name ours"
        in both.stdout + both.stderr
    )
    assert both.returncode == 4 and "Traceback" not in both.stderr
    assert run(tmp_path, "def test_it():\n    pass\n", *other).returncode == 0
    renamed = run(tmp_path, tests, *other, ini="kafka_fixture = broker\n")
    assert renamed.returncode == 0, renamed.stdout
    (tmp_path / "conftest.py").write_text(fixture)
    assert run(tmp_path, tests).returncode == 0


def test_a_run_without_the_fixtures_imports_nothing_heavy(tmp_path: Path) -> None:
    tests = (
        "import sys\n"
        "def test_it():\n"
        "    assert 'metaquorum.testing.plugin' in sys.modules\n"
        "    heavy = ('asyncio', 'numpy', 'grpc', 'msgspec', 'metaquorum.testing.cluster')\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    found = run(tmp_path, tests, "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:xdist")
    assert found.returncode == 0, found.stdout + found.stderr
