"""Many partition records at once: decoded and replayed in columns.

The fast path beside `metadata.meaning`; a property test proves that both reach the same image and the same
errors. Anything unusual is left to the per-record path.
"""

from metaquorum.metadata.columnar.apply import MIN_RECORDS, apply_batch
from metaquorum.metadata.columnar.runs import apply_run

__all__ = ["MIN_RECORDS", "apply_batch", "apply_run"]
