"""One cluster's log as interval tables: pure Python over the replay of `metadata`, no Spark and no files.

`ClusterReplay` takes the batches of one log in order and gives rows for the tables of `pipeline.tables`
(all but records, damage and files). What is still going on can be asked for at any time, and saved, so that
a later run continues where this one stopped and reaches the same rows.
"""

from metaquorum.pipeline.intervals.cluster import ClusterReplay
from metaquorum.pipeline.intervals.state import StateError

__all__ = ["ClusterReplay", "StateError"]
