"""The Spark session of the pipeline, with its settings for Java, Python, addresses and Arrow.

Binds everything to 127.0.0.1 if the master is this machine. A session that was made elsewhere (a notebook's,
a platform's) only needs `register`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaquorum.metadata.extras import missing_module

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
LOOPBACK = "127.0.0.1"
DEFAULT_MASTER = "local[*]"
POLL_SECONDS = 0.5
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SQL_SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    PUSHDOWN: "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What the source and the tables need in any session."""
LIGHT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the second compiler, a JVM that runs for a minute takes half the processor time."""
_INSTALL_JAVA = (
    f"install Java {MIN_JAVA} or 21 (Debian: apt-get install openjdk-17-jre-headless) and put it in PATH "
    "or JAVA_HOME"
)


class SessionError(Exception):
    """Spark cannot start here. The text is one line and says what to install."""


def require_java() -> int:
    """Java's major version. Raises SessionError if there is none, or one too old for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f" at {java}" if java else ""
        raise SessionError(f"Java was not found{where}: {_INSTALL_JAVA}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"{java} does not run ({error}): {_INSTALL_JAVA}") from error
    version = java_version(said.stderr + said.stdout)
    if version is None:
        raise SessionError(f"{java} -version prints no version: {_INSTALL_JAVA}")
    if version < MIN_JAVA:
        raise SessionError(f"{java} is Java {version}, Spark needs {MIN_JAVA} or newer: {_INSTALL_JAVA}")
    return version


def java_version(text: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_392"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second is not None else int(first)


def require_pyspark() -> None:
    """Raises SessionError if the extra `pipeline` is not installed."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise SessionError(
            missing_module(error) or f"the pipeline's extra cannot be imported: {error}"
        ) from error
    del pyarrow, pyspark


def settings(master: str, *, light: bool = False) -> dict[str, str]:
    """Spark's settings for a master. `light` as in `spark_session`."""
    conf = {
        **SQL_SETTINGS,
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # readers know its bounds
        "spark.python.worker.reuse": "true",
    }
    java = [LIGHT_JAVA] if light and master.startswith("local") else []
    quiet = Path(__file__).with_name("log4j2.properties")
    if quiet.is_file():
        java.append(f"-Dlog4j2.configurationFile={quiet.as_uri()}")
    else:
        conf["spark.log.level"] = "ERROR"  # Spark prints a line about a level that is set this way
    if java:
        conf["spark.driver.extraJavaOptions"] = " ".join(java)
    if master.startswith("local"):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        conf["spark.driver.memory"] = os.environ.get("METAQUORUM_DRIVER_MEMORY", "2g")
    return conf


def spark_session(
    master: str | None = None,
    *,
    name: str = "metaquorum-pipeline",
    extra: dict[str, str] | None = None,
    light: bool = False,
) -> SparkSession:
    """The session in which the pipeline runs, with the data source `metadata_log` registered. `light`: it
    only moves Python tasks, so that a JVM on this machine need not compile much.

    Under spark-submit, its master is used; sc://host:port is a server of Spark Connect. Raises SessionError
    if Java or the extra is missing, or the server does not answer.
    """
    require_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None and master.startswith("sc://"):
        return _remote_session(master, name, extra or {})
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = (SparkConf().get("spark.master", "") or "") if submitted else (master or DEFAULT_MASTER)
    if not submitted:
        require_java()
        if chosen.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name)
    if chosen and not submitted:
        builder = builder.master(chosen)
    for key, value in {**settings(chosen, light=light), **(extra or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Registers the data source `metadata_log` in any session, classic or Spark Connect, and lets Spark give
    its filters to it, without which Spark refuses to read. Raises SessionError if the session does not take
    the setting."""
    from pyspark.errors import PySparkException

    from metaquorum.pipeline.source import MetadataLogSource

    try:
        session.conf.set(PUSHDOWN, "true")
    except PySparkException as error:
        raise SessionError(
            f"this session does not take the setting {PUSHDOWN} ({str(error).splitlines()[0]}); make it with "
            f"{PUSHDOWN}=true"
        ) from error
    session.dataSource.register(MetadataLogSource)


def _remote_session(url: str, name: str, extra: dict[str, str]) -> SparkSession:
    """A session of Spark Connect: no JVM here, and only SQL settings."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.remote(url).appName(name).getOrCreate()
        for key, value in {**SQL_SETTINGS, **extra}.items():
            session.conf.set(key, value)
        register(session)
    except ImportError as error:
        raise SessionError(
            f"Spark Connect's client is not installed ({str(error).splitlines()[0]}); install it: "
            "pip install 'pyspark[connect]'"
        ) from error
    except PySparkException as error:
        raise SessionError(
            f"{url} does not answer as a Spark Connect server ({str(error).splitlines()[0]}); check the "
            "address, and that the server runs"
        ) from error
    return session


@contextmanager
def watched(session: SparkSession, on_done: Callable[[int], None]) -> Iterator[None]:
    """While entered, reports to `on_done` how many Spark tasks of the running jobs have ended, for a session
    that `spark_session` made."""
    if _is_remote(session):

        def handle(stages: Iterable[Any] | None, **_: Any) -> None:
            on_done(sum(stage.num_completed_tasks for stage in stages or ()))

        session.registerProgressHandler(handle)  # type: ignore[arg-type]  # keywords, as Spark calls it
        try:
            yield
        finally:
            session.removeProgressHandler(handle)  # type: ignore[arg-type]
        return
    ended = threading.Event()
    tracker = session.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            on_done(sum(at.numCompletedTasks for at in stages if at is not None))

    thread = threading.Thread(target=watch, name="ingest-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_executor(session: SparkSession) -> bool:
    """Whether the driver's machine alone runs the tasks of a session."""
    master = "" if _is_remote(session) else session.sparkContext.master or ""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _is_remote(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")
