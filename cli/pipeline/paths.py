"""Paths as options and arguments of `metaquorum pipeline`: checked for being paths at all.

Owns the step from `pipeline.paths` to click.
"""

from __future__ import annotations

from typing import Any

import click

from metaquorum.pipeline.paths import PathError, local_path


class FilePath(click.Path):
    """A path of a file system, as `pathlib.Path`; an address of an object store is refused."""

    def __init__(self, **checks: Any) -> None:
        super().__init__(**checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = local_path(str(value))
        except PathError as error:
            self.fail(str(error), param, ctx)
        super().convert(str(path), param, ctx)
        return path
