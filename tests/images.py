"""What tests ask of images: the one after a whole log, where two differ, and which replicas are offline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metaquorum.metadata.image import MetadataImage, PartitionInfo, differing_parts
from metaquorum.metadata.offline import BrokersById, directory_online
from metaquorum.metadata.replay import ErrorHandler, Replayer, ReplayState
from metaquorum.metadata.text.tree import image_tree
from metaquorum.storage.batches.batch import RecordBatch


def replay_all(
    state: ReplayState, batches: Iterable[RecordBatch], *, on_error: ErrorHandler | None = None
) -> ReplayState:
    """The state after all batches. Without `on_error`, the first ReplayError stops it; with it, a record that
    fails is passed to `on_error` and skipped."""
    engine = Replayer(state, on_error=on_error)
    for batch in batches:
        engine.apply_batch(batch)
    return engine.state()


def describe_difference(
    a: MetadataImage, b: MetadataImage, *, provenance: bool = True, limit: int = 20
) -> str:
    """Up to `limit` lines that tell where two images differ; empty when they are equal."""
    lines: list[str] = []
    parts = differing_parts(a, b, provenance=provenance)
    if not parts:
        return ""
    trees = image_tree(a, secrets=True), image_tree(b, secrets=True)
    if not provenance:
        for tree in trees:
            del tree["provenance"]
    _describe("", *trees, lines, limit)
    if not lines:
        lines = [f"{part} differs" for part in parts]
    return "\n".join(lines[:limit])


def _describe(path: str, a: Any, b: Any, lines: list[str], limit: int) -> None:
    if len(lines) >= limit or a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}, key=str):
            _describe(f"{path}/{key}" if path else str(key), a.get(key), b.get(key), lines, limit)
        return
    lines.append(f"{path}: {a!r} -> {b!r}")


def offline_replicas(brokers: BrokersById, partition: PartitionInfo) -> tuple[int, ...]:
    """The partition's replicas on brokers that are fenced or gone, or in directories that are not online."""
    return tuple(
        [
            replica
            for replica, directory in zip(partition.replicas, partition.directories, strict=True)
            if (known := brokers.get(replica)) is None
            or known.fenced
            or not directory_online(brokers, replica, directory)
        ]
    )
