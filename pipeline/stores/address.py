"""Paths of this machine's file systems and addresses of object stores, as people write them.

Which texts are addresses, and the one form that the pipeline uses: an absolute path without `file:`, or
SCHEME://BUCKET/KEY.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from metaquorum.platforms import slashed

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""At least two letters: one is a drive of Windows."""
_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}
_KNOWN = (
    "s3://BUCKET/KEY, gs://BUCKET/KEY, abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, hdfs://HOST/PATH"
)


class PathError(ValueError):
    """The text is not a valid place. The message says what to write."""


def scheme_of(address: str) -> str | None:
    """The scheme of an address; None for a path."""
    found = _SCHEME.match(address)
    return found[1].lower() if found is not None else None


def is_remote(address: str) -> bool:
    """Whether a place (in the form of `address`) is in a store."""
    return scheme_of(address) is not None


def address(text: str) -> str:
    """The place that `text` names: an absolute path, or the address of a store. Raises PathError."""
    scheme = scheme_of(text)
    if scheme in (None, "file"):
        return slashed(os.path.abspath(local_path(text)))
    if scheme not in _STORES:
        raise PathError(f"{text}: {scheme} is not a store that can be read; use {_KNOWN}, or a path")
    rest = text[len(scheme) + 1 :].lstrip("/").rstrip("/")
    if "?" in rest.partition("/")[0]:
        raise PathError(f"{text}: options do not belong in an address; set them in the environment")
    if not rest and scheme != "hdfs":
        raise PathError(f"{text} names no bucket; use {_KNOWN}")
    if scheme in ("hdfs", "viewfs") and re.match(rf"{scheme}:/([^/]|$)|{scheme}:///", text, re.IGNORECASE):
        return f"{scheme}://default/{rest}"  # the name node of the Hadoop configuration
    return f"{_STORES[scheme]}://{rest}"


def local_path(text: str) -> Path:
    """The path that `text` names, also with `file:` before it. Raises PathError for any other scheme, which
    would otherwise become a folder of that name."""
    scheme = scheme_of(text)
    if scheme is None:
        return Path(text)
    if scheme == "file":
        found = re.sub(r"^file:/+", "/", text, flags=re.IGNORECASE)
        return Path(found[1:] if Path(found[1:]).drive else found)
    raise PathError(f"{text}: this must be a path of a file system, not an address of a store")
