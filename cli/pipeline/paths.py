"""Paths as options and arguments of `metaquorum pipeline`, checked for their form."""

from __future__ import annotations

from typing import Any

import click

from metaquorum.cli.given import GivenPath, refuse_no_path
from metaquorum.pipeline.stores.address import PathError, address, local_path


class FilePath(GivenPath):
    """A path of a file system, as `pathlib.Path`. Refuses addresses of object stores."""

    def __init__(self, **checks: Any) -> None:
        super().__init__(**checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        refuse_no_path(self, str(value), param, ctx)
        try:
            path = local_path(str(value))
        except PathError as error:
            self.fail(str(error), param, ctx)
        super().convert(str(path), param, ctx)
        return path


class Place(click.ParamType):  # type: ignore[type-arg]
    """A path or a store's address, as text in the form of `pipeline.stores.address`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        refuse_no_path(self, str(value), param, ctx)
        try:
            return address(str(value))
        except PathError as error:
            self.fail(str(error), param, ctx)
