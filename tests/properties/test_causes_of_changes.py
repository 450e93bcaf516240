"""The cause of each change in a random history is the request that made it, even if leaders are lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.controller.active.outcome import RULES
from metaquorum.metadata.image import ConfigResource
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.requests.common import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from metaquorum.metadata.requests.settings import (
    AlterConfigsRequest,
    AlterQuotasRequest,
    ConfigChange,
    ConfigOp,
    OpKind,
    QuotaChange,
    QuotaOp,
)
from metaquorum.storage.batches.batch import iter_batches
from tests.unit.controller.node_quorum import CLUSTER, Quorum, registration

ACTIONS = ("create", "config", "quota", "delete", "retry", "settle", "silence", "kill", "fence", "bounce")


@dataclass
class History:
    """Requests by number, which is their client id. What they write contains the number too: in names and
    values."""

    quorum: Quorum
    number: int = 0
    sent: dict[int, object] = field(default_factory=dict)
    deletes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    writers: dict[object, set[str]] = field(default_factory=lambda: defaultdict(set))

    def ask(self, request: object, what: object) -> None:
        """`what`: what this request writes and no other one does, except its retries."""
        self.number += 1
        self.sent[self.number] = request
        self.writers[what].add(str(self.number))
        self.quorum.request(request, client_id=str(self.number))

    def act(self, action: str, pick: int) -> None:
        at, quorum = self.number + 1, self.quorum
        topics = [what[1] for what in self.writers if isinstance(what, tuple) and what[0] == "topic"]
        match action:
            case "create":
                topic = NewTopic(name=f"t{at}", assignments=((1, 2), (2, 1)))
                self.ask(CreateTopicsRequest(topics=(topic,)), ("topic", f"t{at}"))
            case "config":
                change = ConfigChange(
                    resource=ConfigResource(4, ""),
                    ops=(ConfigOp(kind=OpKind.SET, name="retention.ms", value=str(1_000 + at)),),
                )
                self.ask(AlterConfigsRequest(changes=(change,)), ("config", str(1_000 + at)))
            case "quota":
                ops = (QuotaOp(key="producer_byte_rate", value=1_000.0 + at),)
                quota = QuotaChange(entity=(("user", "bob"),), ops=ops)
                self.ask(AlterQuotasRequest(changes=(quota,)), ("quota", 1_000.0 + at))
            case "delete" if topics:
                name = topics[pick % len(topics)]
                self.ask(DeleteTopicsRequest(topics=(name,)), ("deleted", name))
            case "retry" if self.sent:
                number = list(self.sent)[pick % len(self.sent)]
                (what,) = [one for one, numbers in self.writers.items() if str(number) in numbers]
                self.ask(self.sent[number], what)
            case "settle":
                quorum.settle()
            case "silence":
                quorum.advance(12_000)
            case "fence" | "bounce":
                quorum.settle()
                self.broker(1 + pick % 2, action)
            case "kill":
                leader = quorum.leader
                leader.kill()
                quorum.elect()
                leader.boot()
                quorum.settle()

    def broker(self, broker_id: int, action: str) -> None:
        known = self.quorum.image().brokers.get(broker_id)
        if action == "fence" and known is not None:
            self.quorum.request(self.quorum.heartbeat_request(broker_id, want_fence=True), client_id="fence")
        else:
            self.quorum.request(registration(broker_id, 2 + self.number), client_id="bounce")
        self.quorum.settle()

    def check(self) -> None:
        names: dict[bytes, str] = {}
        for _, _, data in self.quorum.leader.log:
            for batch in iter_batches(data):
                if not batch.header.is_control:
                    self.check_batch([one.record for one in decode_batch(batch)], names)

    def check_batch(self, records: list[object], names: dict[bytes, str]) -> None:
        cause = cause_in(records[0])
        assert not any(cause_in(record) for record in records[1:])
        if cause is None:
            idle = len(records) == 1 and records == [r.NoOpRecord()]
            assert idle or isinstance(records[0], r.BeginTransactionRecord | r.FeatureLevelRecord), records
            return
        assert (cause.request is None) == (cause.client_id is None)
        assert cause.rule is None or cause.rule in RULES
        for record in records[1:]:
            match record:
                case r.TopicRecord(name=name, topic_id=topic_id):
                    names[topic_id] = name
                    what: object = ("topic", name)
                case r.ConfigRecord(value=value):
                    what = ("config", value)
                case r.ClientQuotaRecord(value=limit):
                    what = ("quota", limit)
                case r.RemoveTopicRecord(topic_id=topic_id):
                    what = ("deleted", names[topic_id])
                case r.PartitionRecord(topic_id=topic_id):
                    what = ("topic", names[topic_id])
                case _:
                    assert self.fits(cause, record), (cause, record)
                    continue
            assert cause.client_id in self.writers[what], (cause, record)

    @staticmethod
    def fits(cause: BatchCause, record: object) -> bool:
        """Whether a cause can be that of a record about brokers, leaders or controllers."""
        match record:
            case r.BrokerRecord():
                return cause.request == "RegisterBroker"
            case r.FenceBrokerRecord():
                return cause.rule in ("session-expired", "fence-requested", "new-incarnation", "metadata-lag")
            case r.UnfenceBrokerRecord():
                return cause.request == "BrokerHeartbeat"
            case r.ControllerRecord():
                return cause == BatchCause(rule="controller-registered")
        return cause.rule is not None or cause.request == "BrokerHeartbeat"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 99)), max_size=14))
def test_each_change_has_the_cause_that_made_it(actions: list[tuple[str, int]]) -> None:
    quorum = Quorum(
        size=3,
        config=ControllerConfig(
            cluster_id=CLUSTER,
            node_id=0,
            bootstrap=(r.FeatureLevelRecord("metadata.version", 19),),
            records_per_slice_max=2,
        ),
    )
    quorum.elect()
    for broker_id in (1, 2):
        quorum.start_broker(broker_id)
    history = History(quorum)
    for action, pick in actions:
        history.act(action, pick)
    quorum.settle()
    quorum.advance(1_000)
    history.check()
