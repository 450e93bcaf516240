"""metaquorum: a controller quorum for metadata logs, and tools that look inside any such log.

The public surface:

- `__version__`: the installed release.
- `open_log(path)`: a metadata log for reading, ours or Apache Kafka's.
- `raft`: the consensus library (docs/raft.md). Its payload is bytes.
- `metaquorum.pipeline`: what the extra `pipeline` adds (docs/pipeline-source.md). No attribute of this
  package: its functions need Spark, so it is imported by its own name.

Everything else may move from one release to the next. In the repository, the folders beside this file are
links to the repository's own folders; an installed package holds copies. A checkout without symbolic links
(Windows, a zip from a host) is searched for them itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as `typing` has it, which would take longer to load than all else here
if TYPE_CHECKING:
    from typing import Any

    from metaquorum import raft
    from metaquorum.metadata.inspect.log.log import MetadataLog

    __version__: str

__all__ = ["__version__", "open_log", "raft"]

_here = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_here, "storage")):
    __path__.append(os.path.dirname(_here))


def open_log(path: str | os.PathLike[str]) -> MetadataLog:
    """Opens a metadata log for reading: a node's directory, a `__cluster_metadata-0` directory, one `.log`
    segment or one `.checkpoint`, also below an archive (`nodes.mqa/controller-3000`). Takes no lock and
    writes nothing. README.md has an example.

    Raises FileMissingError, NotALogError (`metaquorum.storage.errors`).
    """
    from metaquorum.metadata.inspect.log.log import open_log as open_on_disk
    from metaquorum.platforms import slashed
    from metaquorum.storage.archive import disk_for

    place = slashed(os.fspath(path))
    return open_on_disk(disk_for(place), place)


def __getattr__(name: str) -> Any:
    """`__version__` and `raft` on first use, so that `import metaquorum` stays cheap."""
    if name == "__version__":
        from importlib.metadata import version

        return version("metaquorum")
    if name == "raft":
        from importlib import import_module

        return import_module("metaquorum.raft")
    raise AttributeError(f"module 'metaquorum' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
