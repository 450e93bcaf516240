"""What transactional producers and group members did and what they received, and what follows from that at
once.

Raises SafetyError. What the logs say is checked in `verify`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.errors import SafetyError

Place = tuple[str, int]
Producer = tuple[int, int]
"""(producer id, epoch)."""


@dataclass(slots=True, eq=False)
class Txn:
    """One transaction. `records`: values by partition; `offsets`: by (group, source partition).
    `commit_asked`: an EndTxn that commits was sent. `outcome`: that of the response; None: there was none, or
    only that the producer is fenced."""

    name: str
    transactional_id: str
    producer: Producer
    records: dict[Place, list[bytes]] = field(default_factory=dict)
    offsets: dict[tuple[str, Place], int] = field(default_factory=dict)
    commit_asked: bool = False
    outcome: bool | None = None
    was_read: bool = False


class TransactionHistory:
    """See the module."""

    def __init__(self) -> None:
        self.by_name: dict[str, Txn] = {}
        self._newest: dict[str, Producer] = {}

    def initialized(self, transactional_id: str, producer: Producer) -> None:
        """A producer received its id and epoch."""
        newest = self._newest.get(transactional_id)
        if newest is not None and newest[0] == producer[0] and producer[1] <= newest[1]:
            raise SafetyError(f"{transactional_id}: {producer} was given out after {newest}")
        self._newest[transactional_id] = producer

    def is_fenced(self, transactional_id: str, producer: Producer) -> bool:
        """Whether another producer of this id has received an id and epoch by now."""
        return self._newest.get(transactional_id) != producer

    def begun(self, transactional_id: str, producer: Producer) -> Txn:
        name = f"{transactional_id}.{len(self.by_name)}"
        txn = self.by_name[name] = Txn(name, transactional_id, producer)
        return txn

    def ended(self, txn: Txn, *, committed: bool, was_fenced: bool) -> None:
        """EndTxn succeeded. `was_fenced`: the producer was fenced before it was sent."""
        if was_fenced:
            raise SafetyError(f"{txn.name}: the fenced producer {txn.producer} ended its transaction")
        txn.outcome = committed

    def wrote(self, txn: Txn, place: Place, *, was_fenced: bool) -> None:
        """A batch that was sent once was accepted."""
        if was_fenced:
            raise SafetyError(f"{txn.name}: the fenced producer {txn.producer} wrote to {place}")

    def read(self, value: bytes, reader: str) -> None:
        """A reader of committed transactions received a record."""
        txn = self.by_name.get(value.split(b"|")[0].decode())
        if txn is None:
            return  # not in a transaction
        txn.was_read = True
        if not txn.commit_asked or txn.outcome is False:
            raise SafetyError(f"{reader} read {value!r}, and nobody committed {txn}")


class GroupHistory:
    """See the module. One object per group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self._owners: dict[tuple[int, Place], str] = {}
        self._committed: dict[Place, list[tuple[int, int]]] = {}
        self._asked: dict[Place, set[int]] = {}

    def assigned(self, generation: int, member_id: str, places: list[Place]) -> None:
        """A member of the classic protocol received its assignment."""
        for place in places:
            known = self._owners.setdefault((generation, place), member_id)
            if known != member_id:
                raise SafetyError(
                    f"{self.group_id}: {known} and {member_id} own {place} in generation {generation}"
                )

    def asks(self, place: Place, offset: int) -> None:
        """A commit is being sent."""
        self._asked.setdefault(place, set()).add(offset)

    def committed(self, generation: int, place: Place, offset: int) -> None:
        """A commit was acknowledged."""
        self._committed.setdefault(place, []).append((generation, offset))

    def fetched(self, generation: int, place: Place, offset: int) -> None:
        """A member of a generation received its start position: it is not below an offset acknowledged in an
        earlier generation, and is an offset that a member sent a commit of."""
        floor = max((at for other, at in self._committed.get(place, ()) if other < generation), default=-1)
        if offset < floor:
            raise SafetyError(
                f"{self.group_id}: {place} is told to be at {offset} in generation {generation}, and {floor}"
                " was committed before"
            )
        if offset >= 0 and offset not in self._asked.get(place, ()):
            raise SafetyError(f"{self.group_id}: {place} is told to be at {offset}, which nobody committed")

    def newest(self, place: Place) -> int:
        """The highest acknowledged offset."""
        return max((offset for _, offset in self._committed.get(place, ())), default=-1)

    def places(self) -> list[Place]:
        return sorted(self._asked)
