"""Types of options and arguments that refuse values which click takes and no one means."""

from __future__ import annotations

import math
from typing import Any

import click


class GivenPath(click.Path):
    """A path that is not empty: as a path, an empty text is the current directory, which no one means."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        refuse_no_path(self, str(value), param, ctx)
        return super().convert(value, param, ctx)


def refuse_no_path(
    kind: click.ParamType,  # type: ignore[type-arg]
    value: str,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> None:
    """Refuses an empty text, for every type whose values are paths."""
    if not value:
        kind.fail("the path is empty; give one, or . for the current directory", param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds. "nan" is within all bounds, and "inf" within those without an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
