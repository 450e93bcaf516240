"""One Spark session for all tests of this folder, with a server of Spark Connect in the same JVM, and the
tables of one run over recorded logs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

pytest.importorskip("pyspark")

from metaquorum.pipeline.ingest import spark as tasks
from metaquorum.pipeline.ingest.job import ingest
from metaquorum.pipeline.session import SessionError, require_java, spark_session
from tests.unit.pipeline.recorded import GOLDEN, LIGHT_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    try:
        require_java()
    except SessionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def connect_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def spark(connect_port: int) -> Iterator[SparkSession]:
    extra = {
        "spark.sql.shuffle.partitions": "2",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(connect_port),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_SUBMIT_OPTS", LIGHT_JVM)
        session = spark_session("local[2]", extra=extra)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "HERE_RECORDS", -1)  # always as Spark jobs, however small
        yield session
    session.stop()


class Ingested(NamedTuple):
    """The tables of one run, and the number of records that it wrote."""

    out: Path
    records: int


@pytest.fixture(scope="session")
def recorded(spark: SparkSession, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    """The tables of the golden log and of the logs from the wild."""
    out = tmp_path_factory.mktemp("recorded") / "out"
    report = ingest(spark, [str(shared_data / GOLDEN), str(shared_data / "kraft-wild")], out)
    return Ingested(out, report.records)
