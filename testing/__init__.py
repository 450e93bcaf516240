"""Clusters for tests, and test doubles for storage: for this project and for its users."""

if __name__ == "testing":
    raise ImportError("import metaquorum.testing: this folder is a part of the package metaquorum")

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaquorum.testing.chaos import Chaos as Chaos
    from metaquorum.testing.cluster import Cluster as Cluster
    from metaquorum.testing.errors import ClusterError as ClusterError
    from metaquorum.testing.errors import ClusterTimeoutError as ClusterTimeoutError
    from metaquorum.testing.histories import HistoryError as HistoryError
    from metaquorum.testing.histories import ReadMessage as ReadMessage
    from metaquorum.testing.histories import SentMessage as SentMessage
    from metaquorum.testing.histories import check_log as check_log

_HOMES = {
    "SentMessage": "metaquorum.testing.histories",
    "Chaos": "metaquorum.testing.chaos",
    "Cluster": "metaquorum.testing.cluster",
    "ClusterError": "metaquorum.testing.errors",
    "ClusterTimeoutError": "metaquorum.testing.errors",
    "ProcessCluster": "metaquorum.cli.local.process_cluster",  # which stands on this package
    "HistoryError": "metaquorum.testing.histories",
    "ReadMessage": "metaquorum.testing.histories",
    "check_log": "metaquorum.testing.histories",
}

__all__ = tuple(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a name when it is used first: pytest loads this package in every run."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import gc
    import importlib

    collects = gc.isenabled()
    gc.disable()  # imports leave little garbage, and the search for it takes a tenth of their time
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    finally:
        if collects:
            gc.enable()
