"""The suites: whose they are, where they come from and how each is pointed at a cluster that runs already.

Nothing of a suite is kept in this repository. What a released source lacks of its own helpers is written
beside it, in our words (`added`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.packaging.project import REPOSITORY
from tests.suites.librdkafka import NUMBER, RUNNER

_SERVICE = '''\
"""The source as released lacks this module. A service that runs elsewhere needs nothing done."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def start(self):
        pass

    def stop(self):
        pass

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass

    def wait_for(self, pattern, timeout=None):
        return True


class SpawnedService:
    def __init__(self, *arguments):
        raise NotImplementedError("only a cluster that runs already is tested")
'''


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """`tests`: paths that need a cluster and nothing else (no Kafka of their own, no certificates).
    `added`: files to write into the source, or beside a checkout's reports. `properties`: what the brokers
    have, as the suite's own Kafka would; `of_all`: what the controller has, too. Values of these and of
    `environment` may hold `{host}`, `{port}`, `{node}`, `{servers}`, `{source}` and `{home}`, the reports'
    folder. `checkout`: what is needed of a suite in C, which no registry has."""

    name: str
    package: str
    version: str
    tests: tuple[str, ...]
    environment: Mapping[str, str]
    brokers: int = 1
    checkout: str = ""
    added: Mapping[str, str] = msgspec.field(default_factory=dict)
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    of_all: Mapping[str, str] = msgspec.field(default_factory=dict)

    def addresses(self, names: list[str]) -> list[str]:
        """What pytest calls the tests that a report names `module::test`; in C, their numbers."""
        if self.checkout:
            return sorted({name[:NUMBER] for name in names})
        paths = {Path(each).stem: each for each in self.tests}
        parts = [name.partition("::") for name in names]
        return [f"{paths[module]}::{test}" for module, _, test in parts]


def pinned(package: str) -> str:
    """The version of a client that all other tests use too."""
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    raise ValueError(f"constraints.txt has no {package}")


def _kafka_python(name: str, version: str, kafka: str, *modules: str) -> Suite:
    """Both generations share fixtures that take a running broker, and lack the module that starts processes.
    `kafka`: the release that the client takes our versions of requests for; more of its tests run with it."""
    return Suite(
        name=name,
        package="kafka-python",
        version=version,
        tests=tuple(f"test/integration/test_{each}.py" for each in modules),
        environment={
            "KAFKA_VERSION": kafka,
            "KAFKA_URI": "kafka://{host}:{port}",
            "ZOOKEEPER_URI": "zookeeper://{host}:{port}",
            "KAFKA_ROOT": "{source}",
        },
        added={"test/__init__.py": "", "test/service.py": _SERVICE},
        properties={
            "advertised.listeners": "PLAINTEXT://{host}:{port}",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "num.partitions": "4",
        },
    )


_LIBRDKAFKA = Suite(
    name="librdkafka",
    package="",
    version="checkout",
    tests=(RUNNER,),
    environment={
        "RDKAFKA_TEST_CONF": "{home}/test.conf",
        "TEST_KAFKA_VERSION": "4.0.0",
        "BROKERS": "{servers}",
    },
    brokers=3,
    checkout="a checkout with its tests compiled: ./configure && make && make -C tests test-runner",
    added={
        "test.conf": """\
bootstrap.servers={servers}
broker.address.family=v4
test.timeout.multiplier=3
"""
    },
    properties={
        "broker.rack": "RACK{node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    },
    of_all={
        "allow.everyone.if.no.acl.found": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "default.replication.factor": "3",
        "num.partitions": "4",
    },
)

SUITES = {
    suite.name: suite
    for suite in (
        _LIBRDKAFKA,
        _kafka_python(
            "kafka-python",
            pinned("kafka-python"),
            "4.1.0",
            "admin_integration",
            "consumer_integration",
            "producer_integration",
        ),
        _kafka_python(
            "kafka-python-2",
            "2.2.15",
            "4.0.0",
            "admin_integration",
            "consumer_group",
            "consumer_integration",
            "producer_integration",
        ),
    )
}

WITHOUT_SUITE = {
    "aiokafka": "its source on PyPI has no tests",
    "confluent-kafka": "its source on PyPI has only the programs of kafkatest; its repository has tests,"
    " which take BROKERS=HOST:PORT",
    "kafkajs": "its package has no tests of a broker",
    "@platformatic/kafka": "its package has no tests",
}
"""Clients whose registry has no suite: said in one line each, so that a run does not look complete."""

KNOWN = Path(__file__).with_name("known.toml")
