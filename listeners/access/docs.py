"""The table of rights that each API needs, which `python -m` with this module prints (docs/security.md)."""

from __future__ import annotations

from metaquorum.listeners.access.steps import CONFIGURED, AccessStep, RightNeeded
from metaquorum.listeners.access.table import CHECKS
from metaquorum.platforms import end_without_reader

_OPEN = "nothing"


def checks_table() -> str:
    """The rows: the permission, and the APIs that need it."""
    by_need: dict[str, list[str]] = {}
    for api, steps in CHECKS.items():
        by_need.setdefault(_needs(steps), []).append(api)
    rows = ["| needed | by |", "|---|---|"]
    rows += [f"| {needs} | {', '.join(apis)} |" for needs, apis in by_need.items()]
    return "\n".join(rows) + "\n"


def _needs(steps: tuple[AccessStep, ...]) -> str:
    parts = dict.fromkeys(part for step in steps for part in [*map(_check, step.checks), step.also] if part)
    return "; ".join(parts) or _OPEN


def _check(check: RightNeeded) -> str:
    operation = check.operation.name.title().replace("_", "")
    if check.source == CONFIGURED:
        return f"{operation} on the configured topic or group, else on the cluster"
    text = f"{operation} on the {check.resource.name.lower().replace('_', ' ')}"
    return text if check.other is None else f"{text}, or {_check(check.other)}"


if __name__ == "__main__":
    end_without_reader()
    print(checks_table(), end="")
