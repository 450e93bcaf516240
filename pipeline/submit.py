"""The ingest as an application of spark-submit: `spark-submit [--master ...]
pipeline/submit.py --out DIR PATHS...`.

The run is that of `metaquorum pipeline ingest`. The package must be installed in the Python of the executors,
or shipped to them with --py-files or --archives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Runs the ingest. Returns 1, after one line on standard error, if it fails."""
    above = Path(__file__).absolute().parents
    sys.path.insert(0, str(next(root for root in above if (root / "metaquorum" / "__init__.py").exists())))
    from metaquorum.pipeline.logs.places import NoLogsError
    from metaquorum.pipeline.session import SessionError, spark_session

    parser = argparse.ArgumentParser(description="Build tables from metadata logs.")
    parser.add_argument("paths", nargs="+", help="logs, node directories, or directories above them")
    parser.add_argument("--out", required=True, help="directory of the tables, or its address in a store")
    parser.add_argument("--cluster", help="name of the cluster for all paths")
    given = parser.parse_args()
    try:
        session = spark_session()
        from metaquorum.pipeline.ingest.job import ingest
        from metaquorum.pipeline.ingest.layout import LayoutError
        from metaquorum.pipeline.ingest.work import ExecutorError
        from metaquorum.pipeline.stores.address import PathError
        from metaquorum.storage.errors import StorageError

        try:
            report = ingest(session, given.paths, given.out, cluster=given.cluster, say=_say)
        except (LayoutError, PathError, ExecutorError, StorageError) as error:
            _say(str(error))
            return 1
    except (SessionError, NoLogsError) as error:
        _say(str(error))
        return 1
    print(f"version {report.version}: {report.records} records, {len(report.ingested)} clusters read")
    for line in [*report.unreadable, *report.left_out]:
        _say(f"left out: {line}")
    session.stop()
    return 0


def _say(line: str) -> None:
    print(f"metaquorum: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
