"""`metaquorum local up` of a new cluster until the first message is acknowledged."""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time

import confluent_kafka

from tests.bench.figures import Figure, spread
from tests.bench.kafka.site import WAIT_S
from tests.e2e.processes import COMMAND, ENVIRONMENT


def first_produce(options: argparse.Namespace) -> list[Figure]:
    """3 controllers and 3 brokers, and one combined node: from the command to the acknowledgement, including
    the creation of the topic."""
    figures: list[Figure] = []
    for nodes, more, most in (("3 + 3", (), 2.5), ("one combined node", ("--combined", "1"), 1.0)):
        took = [_once(*more) for _ in range(1 if options.short else 5)]
        name = f"local up ({nodes}), its start to the first acknowledgement"
        figures += spread(name, took, "s", most, most)
    return figures


def _once(*nodes: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        begun = time.perf_counter()
        said = _local("up", directory, "--free-ports", *nodes)
        try:
            (bootstrap,) = re.findall(r"bootstrap\.servers=(\S+)", said)
            _produce(bootstrap)
            return time.perf_counter() - begun
        finally:
            _local("down", directory)


def _local(verb: str, directory: str, *more: str) -> str:
    command = [*COMMAND, "local", verb, "--directory", directory, *more]
    return subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _produce(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    outcomes: list[object] = []
    producer.produce("first", b"message", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(WAIT_S) == 0
    assert outcomes == [None]
