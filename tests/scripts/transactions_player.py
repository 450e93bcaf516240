"""The transactional ids of one partition, driven by a script (`coordinator_player`)."""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.broker.coordinator.state import BatchOrigin, CoordinatorState
from metaquorum.broker.coordinator.transaction import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    Transaction,
    TransactionState,
    TransactionStatus,
)
from metaquorum.metadata.node_configs import TransactionConfig
from tests.scripts.coordinator_player import CoordinatorPlayer, parts_of
from tests.scripts.player import show
from tests.scripts.stored import START_MS

CONFIG = TransactionConfig(
    max_timeout_ms=60_000, id_expiration_ms=100_000, abort_interval_ms=1_000, removal_interval_ms=50_000
)


class TransactionsPlayer(CoordinatorPlayer):
    """A producer is `x/7.0`: transactional id, producer id and epoch."""

    def __init__(self) -> None:
        self.config = CONFIG
        super().__init__("__transaction_state")

    def new_state(self) -> CoordinatorState:
        return TransactionState(3, self.config)

    def facts(self) -> dict[str, str]:
        state = self.state
        assert isinstance(state, TransactionState)
        facts = {f"id {name}": show(each) for name, each in state.transactions.items()}
        facts |= {
            f"adding {name}": f"{show([each.key for each in asked])} +{due - self.now_ms}"
            for name, (due, asked) in state._adding.items()
        }
        facts |= {f"proposed {name}": show(each) for name, each in state._proposed.items() if each}
        facts["unsent"] = show(list(state._unsent))
        dues = {
            "unsent": state._unsent_due_ms,
            "abort": state._abort_due_ms,
            "removal": state._removal_due_ms,
            "next": state.next_deadline_ms(),
        }
        facts["timers"] = ", ".join(
            f"{name} +{due - self.now_ms}" for name, due in dues.items() if due is not None
        )
        return facts

    def do_configure(self, **figures: str) -> None:
        """configure max_timeout_ms=5; `again` begins with it."""
        self.config = replace(self.config, **{name: int(value) for name, value in figures.items()})

    def do_init(self, producer: str, timeout: str = "10000", fresh: str = "-") -> None:
        """init x/7.0 fresh=8"""
        name, producer_id, epoch = _producer(producer)
        self.ask(
            InitProducer(
                transactional_id=name,
                timeout_ms=int(timeout),
                producer_id=producer_id,
                producer_epoch=epoch,
                fresh_id=None if fresh == "-" else int(fresh),
            )
        )

    def do_add(self, producer: str, partitions: str, verify: str = "no") -> None:
        """add x/7.0 t.0.1+u.2"""
        name, producer_id, epoch = _producer(producer)
        places = [(topic, index) for topic, indexes in parts_of(partitions).items() for index in indexes]
        self.ask(
            AddPartitions(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=tuple(places),
                verify_only=verify == "yes",
            )
        )

    def do_end(self, producer: str, word: str) -> None:
        """end x/7.0 commit"""
        name, producer_id, epoch = _producer(producer)
        self.ask(
            EndTransaction(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=word == "commit",
            )
        )

    def do_written(self, producer: str) -> None:
        name, producer_id, epoch = _producer(producer)
        self.ask(MarkersWritten(transactional_id=name, producer_id=producer_id, producer_epoch=epoch))

    def do_describe(self, name: str) -> None:
        self.ask(DescribeTransaction(name))

    def do_list(self, states: str = "", producers: str = "", longer: str = "-1") -> None:
        self.ask(
            ListTransactions(
                states=frozenset(each for each in states.split(",") if each),
                producer_ids=frozenset(int(each) for each in producers.split(",") if each),
                min_duration_ms=int(longer),
            )
        )

    def do_put(self, name: str, status: str, producer: str = "9.0", updated: str = "0") -> None:
        """put x ONGOING producer=9.32766: as the log may have it."""
        producer_id, _, epoch = producer.partition(".")
        partitions = frozenset({("t", 0)}) if TransactionStatus[status].value in (1, 2, 3) else frozenset()
        one = Transaction(
            transactional_id=name,
            producer_id=int(producer_id),
            epoch=int(epoch),
            timeout_ms=5_000,
            status=TransactionStatus[status],
            partitions=partitions,
            start_ms=START_MS if partitions else -1,
            updated_ms=START_MS + int(updated),
        )
        self._keep(one.record(), BatchOrigin())


def _producer(word: str) -> tuple[str, int, int]:
    name, _, rest = word.partition("/")
    producer_id, _, epoch = (rest or "-1.-1").partition(".")
    return name, int(producer_id), int(epoch)
