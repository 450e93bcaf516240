"""Checks whether a client history is linearizable: the Wing-Gong search with Lowe's memory of visited
configurations.

The search and the two sequential models of the cluster: one topic name (create, delete, describe) and one
broker id (register). A history is a list of `Operation`s on ONE key; keys are independent objects, so each is
checked alone (Herlihy & Wing 1990, locality). An operation without a response may take effect at any time
after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call by one client. Times in ms; `returned_ms` None: no response, or one that leaves the outcome
    open."""

    client: str
    name: str
    argument: Hashable
    result: Hashable
    called_ms: int
    returned_ms: int | None


# A model returns the possible states after `operation` takes effect in `state` (none: it may not take
# effect).
Model = Callable[[Hashable, Operation], Sequence[Hashable]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`linearizable`, and if not, the longest prefix of operations that could still be ordered."""

    linearizable: bool
    longest: tuple[Operation, ...] = ()


def check(history: Sequence[Operation], model: Model, initial: Hashable) -> Verdict:
    """Searches for an order of `history` that respects real time and the model."""
    operations = sorted(history, key=lambda op: (op.called_ms, op.returned_ms is None, op.returned_ms or 0))
    must_return = frozenset(i for i, op in enumerate(operations) if op.returned_ms is not None)
    visited: set[tuple[frozenset[int], Hashable]] = set()
    longest: tuple[int, ...] = ()
    stack: list[tuple[frozenset[int], Hashable, tuple[int, ...]]] = [(frozenset(), initial, ())]
    while stack:
        done, state, order = stack.pop()
        if must_return <= done:
            return Verdict(linearizable=True)
        if len(order) > len(longest):
            longest = order
        # An operation may come next unless another one returned before it was called.
        horizon = min(
            (operations[i].returned_ms for i in must_return - done),  # type: ignore[type-var]
            default=None,
        )
        for index, operation in enumerate(operations):
            if index in done:
                continue
            if horizon is not None and operation.called_ms > horizon:
                break
            for following in model(state, operation):
                configuration = (done | {index}, following)
                if configuration not in visited:
                    visited.add(configuration)
                    stack.append((configuration[0], following, (*order, index)))
    return Verdict(linearizable=False, longest=tuple(operations[i] for i in longest))


def topic_name_model(state: Hashable, operation: Operation) -> Sequence[Hashable]:
    """One topic name: state is None, a topic id, or ("made by", operation) while its id is not known."""
    unknown = operation.returned_ms is None
    if isinstance(operation.result, tuple):
        return [state]  # refused for a reason other than the name: nothing changed
    match operation.name:
        case "create" if unknown:
            return [("made by", operation)] if state is None else [state]
        case "create" if operation.result == "exists":
            return [state] if state is not None else []
        case "create":
            return [operation.result] if state is None else []
        case "delete" if unknown:
            return [None]
        case "delete" if operation.result == "absent":
            return [state] if state is None else []
        case "delete":
            return [None] if state is not None else []
        case "describe" if unknown:
            return [state]
        case "describe":
            if isinstance(state, tuple):
                return [operation.result] if operation.result is not None else []
            return [state] if state == operation.result else []
    raise ValueError(f"no such operation on a topic name: {operation.name}")


def broker_id_model(state: Hashable, operation: Operation) -> Sequence[Hashable]:
    """One broker id: state is (incarnation, epoch). `register` returns an epoch or "duplicate".

    A new incarnation gets a higher epoch; a repeat of the same incarnation keeps its epoch (K8). A refusal is
    right only while another incarnation holds the id.
    """
    if operation.name != "register":
        raise ValueError(f"no such operation on a broker id: {operation.name}")
    incarnation, epoch = state if isinstance(state, tuple) else (None, -1)
    if operation.returned_ms is None:
        # Its epoch is unknown: above the current one, and below that of any later registration.
        return [state, (operation.argument, epoch)]
    if operation.result == "duplicate":
        return [state] if incarnation not in (None, operation.argument) else []
    if not isinstance(operation.result, int):
        raise ValueError(f"a registration answers an epoch or 'duplicate', not {operation.result!r}")
    if incarnation == operation.argument:
        # >= covers a repeat, and the first response after one that was lost.
        return [(incarnation, operation.result)] if operation.result >= epoch else []
    return [(operation.argument, operation.result)] if operation.result > epoch else []
