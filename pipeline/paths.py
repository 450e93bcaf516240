"""Paths as people write them: files that this machine sees, and no addresses of object stores.

Owns which texts are paths. What is below a path is `pipeline.logs.places`'.
"""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class PathError(ValueError):
    """The text is not a path of a file system; it says what to do."""


def local_path(text: str) -> Path:
    """The path that `text` means; `file:` may be before it. Raises PathError for any other scheme, which
    would otherwise become a folder of that name."""
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() == "file":
        return Path(re.sub(r"^file:/+", "/", text, flags=re.IGNORECASE))
    raise PathError(
        f"{text}: {found[1]} stores are not supported, only file systems: mount the store, or copy its "
        "contents"
    )
