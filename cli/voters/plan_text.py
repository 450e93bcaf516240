"""A plan for voters as text and JSON: what each step needs, and which voters are alive.

Owns the wording. Knows values only; progress of a running plan is `perform`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metaquorum.cli.voters.plan import StepKind, VoterPlan, VoterStep
from metaquorum.storage.uuids import uuid_to_text


def plan_lines(plan: VoterPlan) -> Iterator[str]:
    """One line per step, or the reason why there is none."""
    if not plan.steps:
        yield f"{plan.nothing_to_do}: nothing to do"
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. {step.kind.value} voter {step.member}{_condition(step)}"
        yield f"   then {_majority(step)}"


def _condition(step: VoterStep) -> str:
    if step.wait_for is None:
        return ""
    who = (
        "it" if step.kind is StepKind.ADD else f"its new directory {uuid_to_text(step.wait_for.directory_id)}"
    )
    return f" once {who} has caught up"


def _majority(step: VoterStep) -> str:
    ids = ", ".join(str(member.node_id) for member in step.voters)
    alive = ", ".join(map(str, step.alive_ids)) or "none"
    spare = len(step.alive_ids) - step.needed
    more = "" if spare > 0 else "; no other voter may fail" if spare == 0 else "; NOTHING CAN BE COMMITTED"
    noun = "voter" if len(step.voters) == 1 else "voters"
    return f"{len(step.voters)} {noun} ({ids}), of which {step.needed} are needed; alive: {alive}{more}"


def plan_json(plan: VoterPlan) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "steps": [
            {
                "step": step.kind.value,
                "nodeId": step.member.node_id,
                "directoryId": uuid_to_text(step.member.directory_id),
                "votersAfter": [member.node_id for member in step.voters],
                "needed": step.needed,
                "alive": list(step.alive_ids),
                "hasMajority": step.has_majority,
            }
            for step in plan.steps
        ],
        "nothingToDo": plan.nothing_to_do or None,
    }
