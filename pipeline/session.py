"""The Spark session that the pipeline needs, set up so that no one has to: Java, Python, addresses, Arrow.

Owns the settings, the check for Java, and how this package comes to the executors. Everything is bound to
127.0.0.1 for a master on this machine.
"""

from __future__ import annotations

import atexit
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import metaquorum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
LOOPBACK = "127.0.0.1"
DEFAULT_MASTER = "local[*]"
_PACKAGES = (".", "pipeline", "metadata", "storage")
_INSTALL_JAVA = (
    f"install Java {MIN_JAVA} or 21 (Debian: apt-get install openjdk-17-jre-headless) and put it in PATH "
    "or JAVA_HOME"
)


class SessionError(Exception):
    """Spark cannot start here; the text is one line and says what to install."""


def require_java() -> int:
    """Java's major version. Raises SessionError when there is none or it is too old for Spark."""
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
    """The major version in what `java -version` prints: 17 for "17.0.15", 8 for "1.8.0_392"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second is not None else int(first)


def require_pyspark() -> None:
    """Raises SessionError when the extra is not installed."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise SessionError(
            f"the pipeline's extra is not installed ({error.name} is missing); "
            "install it: pip install 'metaquorum[pipeline]'"
        ) from error
    del pyarrow, pyspark


def settings(master: str) -> dict[str, str]:
    """Spark's settings for a master."""
    found = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.python.worker.reuse": "true",
    }
    quiet = Path(__file__).with_name("log4j2.properties")
    if quiet.is_file():
        found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
    else:
        found["spark.log.level"] = "ERROR"  # a level that is set so is announced on standard error
    if master.startswith("local"):
        found |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        found["spark.driver.memory"] = os.environ.get("METAQUORUM_DRIVER_MEMORY", "2g")
    return found


def spark_session(
    master: str | None = None, *, name: str = "metaquorum-pipeline", extra: dict[str, str] | None = None
) -> SparkSession:
    """The session in which the pipeline runs, with the data source `metadata_log` registered.

    With spark-submit the master is the one that it was given. Raises SessionError when Java or the extra is
    missing.
    """
    require_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from metaquorum.pipeline.source import MetadataLogSource

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = (SparkConf().get("spark.master", "") or "") if submitted else (master or DEFAULT_MASTER)
    if not submitted:
        require_java()
        if chosen.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name)
    if chosen and not submitted:
        builder = builder.master(chosen)
    for key, value in {**settings(chosen), **(extra or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not _runs_in_this_process(session.sparkContext.master):
        ship_packages(session)
    session.dataSource.register(MetadataLogSource)
    return session


def _runs_in_this_process(master: str | None) -> bool:
    return master is not None and (master == "local" or master.startswith("local["))


def ship_packages(session: SparkSession) -> None:
    """Gives the executors this package and what it builds on, as a zip file. What comes from elsewhere
    (numpy, msgspec, crc32c, javaproperties, pyarrow) must be installed where the executors run."""
    directory = tempfile.mkdtemp(prefix="metaquorum-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory) / "metaquorum-packages.zip"
    root = Path(metaquorum.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for file in sorted((root / package).glob("*.py" if package == "." else "**/*.py")):
                name = file.relative_to(root.parent).as_posix()
                archive.write(file, name)
                # Compiled too, since a worker cannot keep what it compiles from a zip file; another release
                # of Python takes the source.
                compiled = py_compile.compile(
                    str(file),
                    cfile=str(Path(directory) / "module.pyc"),
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                    doraise=True,
                )
                if compiled is not None:
                    archive.write(compiled, name + "c")
    session.sparkContext.addPyFile(str(target))
