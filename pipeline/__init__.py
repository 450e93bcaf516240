"""Metadata logs of whole fleets on Spark: a data source over the logs, tables, audits and a report.

Stands on `metadata` and `storage` only. PySpark, pyarrow and pandas are the extra `pipeline`: the modules
that need them import them, and `pipeline.tables` and `pipeline.intervals` work without.
"""
