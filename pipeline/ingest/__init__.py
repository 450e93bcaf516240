"""The jobs that write the tables: from logs to one version of all Parquet files, published at once.

A run surveys the logs, chooses one history for each cluster, replays clusters and reads records side by
side, each task writing files of its own below a staging folder, and publishes what it made together with the
files of earlier runs that still hold. A run that is killed leaves a staging folder; the next one removes it.
"""
