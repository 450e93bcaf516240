"""What pyproject.toml says about dependencies.

Asks no registry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "metaquorum"

_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def lowest_python() -> str:
    """The oldest supported version, such as 3.11."""
    text: str = _PROJECT["requires-python"]
    return text.removeprefix(">=")


def base() -> list[Requirement]:
    """What every installation brings."""
    return [Requirement(each) for each in _PROJECT["dependencies"]]


def extra(name: str) -> list[Requirement]:
    """What an extra adds, with the extras that it names itself."""
    found = [Requirement(each) for each in _PROJECT["optional-dependencies"][name]]
    own = [each for each in found if each.name == NAME]
    return [each for each in found if each.name != NAME] + [
        inner for each in own for part in sorted(each.extras) for inner in extra(part)
    ]


def extras() -> list[str]:
    return sorted(_PROJECT["optional-dependencies"])


def lowest(requirement: Requirement) -> Version | None:
    """The lower bound; None if there is none."""
    found = [Version(each.version) for each in requirement.specifier if each.operator in {">=", "=="}]
    return max(found, default=None)


def pins(requirements: Iterable[Requirement]) -> list[str]:
    """Lines for pip that allow only the lowest versions. Raises ValueError for one without a lower bound."""
    lines = []
    for each in requirements:
        version = lowest(each)
        if version is None:
            raise ValueError(f"{each.name} has no lower bound in pyproject.toml: add the lowest that passes")
        lines.append(f"{each.name}=={version}")
    return lines
