"""Metadata logs of whole fleets on Spark: a data source over the logs, tables, audits and a report.

The functions here take and give DataFrames, in any session of Spark; docs/pipeline-source.md shows them.
Stands on `metadata` and `storage` only. PySpark, pyarrow and pandas are the extra `pipeline`: the functions
that need them import them, and `pipeline.tables` and `pipeline.intervals` work without.
"""

if __name__ == "pipeline":
    raise ImportError("import metaquorum.pipeline: this folder is a part of the package metaquorum")

from metaquorum.pipeline.api import (
    audit_tables,
    make_table,
    read_fleet,
    read_logs,
    read_tables,
    register_tables,
    render_report,
    save_tables,
    table_files,
    write_tables,
)

__all__ = [
    "audit_tables",
    "make_table",
    "read_fleet",
    "read_logs",
    "read_tables",
    "register_tables",
    "render_report",
    "save_tables",
    "table_files",
    "write_tables",
]
