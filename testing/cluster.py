"""A Kafka cluster of a test, with the troubles that clients of Kafka's protocol can meet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Unpack

from metaquorum import testing
from metaquorum.broker.server.kafka.groups import partition_of
from metaquorum.clients.admin.access import alter_quotas
from metaquorum.clients.admin.cluster import elect_leaders
from metaquorum.clients.admin.groups import CONSUMER, describe_group
from metaquorum.clients.admin.replicas import alter_reassignments
from metaquorum.clients.admin.transactions import describe_transaction
from metaquorum.clients.kafka.cluster import Coordinator, PartitionLeader
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.partitions import WantedReplicas
from metaquorum.metadata.requests.settings import QuotaChange, QuotaOp
from metaquorum.testing.access import TOKEN_S, USER
from metaquorum.testing.breaking import BreakableCluster
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.healing import BROKERS, ActiveFault, Effect, no_end
from metaquorum.testing.running import PROCESSES, Wishes
from metaquorum.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    DeleteRecordsRequest,
    InitProducerIdRequest,
    LeaveGroupRequest,
)

GROUP, TRANSACTION = 0, 1
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
PRODUCER_TIMEOUT_MS = 60_000
FENCED_S = 9.0
"""After this time without a broker it is fenced and out of every ISR."""
EXPIRY_LOOK_S = 11.0
"""Coordinators look for expired transactions every 10 s."""
REFUSED = {
    "Produce": "TOPIC_AUTHORIZATION_FAILED",
    "Fetch": "TOPIC_AUTHORIZATION_FAILED",
    "ListOffsets": "TOPIC_AUTHORIZATION_FAILED",
    "Metadata": "TOPIC_AUTHORIZATION_FAILED",
}
"""What a broker answers about a topic to a client without rights."""


class Cluster(BreakableCluster):
    """See `RunningCluster` for its arguments."""

    def __new__(cls, brokers: int = 1, controllers: int | None = None, **wishes: Unpack[Wishes]) -> Cluster:
        """Also that of a cluster of processes."""
        if cls is not Cluster or wishes.get("mode") != PROCESSES:
            return super().__new__(cls)
        kind: type[Cluster] = testing.ProcessCluster
        return super().__new__(kind)

    def __init__(self, brokers: int = 1, controllers: int | None = None, **wishes: Unpack[Wishes]) -> None:
        super().__init__(brokers, controllers, **wishes)
        self._quotas: dict[str, dict[str, float]] = {}
        """By client, what a fault has set."""

    # --- producers and transactions

    def fence_producer(self, transaction: str) -> None:
        """Another producer takes over a transactional id: an ongoing transaction is aborted, and the earlier
        producer is fenced."""
        body = InitProducerIdRequest(
            transactional_id=transaction, transaction_timeout_ms=PRODUCER_TIMEOUT_MS, producer_epoch=-1
        )

        def is_fenced() -> bool:
            asked = self._asks().ask(body, target=Coordinator(TRANSACTION, transaction))
            code = ErrorCode.of(self._run(asked, f"transaction {transaction} to be fenced").error_code)
            if code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
                raise ClusterError(f"transaction {transaction} was not fenced: {code.name}")
            return code is ErrorCode.NONE

        self.wait_until(is_fenced, f"transaction {transaction} to be fenced")
        self._note(f"the producer of transaction {transaction} is fenced")

    def expire_transaction(self, transaction: str) -> None:
        """Moves the clock until an ongoing transaction has timed out, and waits until it is aborted."""
        state = self._run(describe_transaction(self._asks(), transaction), f"transaction {transaction}")
        if state is None or not state.is_open:
            raise ClusterError(f"transaction {transaction} is not ongoing: there is nothing to expire")
        self.clock.advance(ms=state.timeout_ms, seconds=EXPIRY_LOOK_S)

        def is_over() -> bool:
            now = self._run(describe_transaction(self._asks(), transaction), f"transaction {transaction}")
            return now is None or not now.is_open

        self.wait_until(is_over, f"transaction {transaction} to be aborted")
        self._note(f"transaction {transaction} has expired")

    # --- groups and coordinators

    def expire_session(self, group: str, member: str | None = None) -> None:
        """The coordinator removes members of a group, as when their sessions expire: all, or one with this
        member id or client id. They learn it at their next heartbeat."""
        described = self._run(describe_group(self._asks(), group), f"group {group}")
        members = () if described is None else described.members
        gone = [each for each in members if member in (None, each.member_id, each.client_id)]
        if described is None or not gone:
            who = "members" if member is None else f"member {member}"
            raise ClusterError(f"group {group} has no {who}: wait_for_group waits for them")
        coordinator = Coordinator(GROUP, group)
        for member_id in gone:
            body = (
                ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id.member_id, member_epoch=-1)
                if described.kind == CONSUMER
                else LeaveGroupRequest(
                    group_id=group, members=(LeaveGroupRequest.MemberIdentity(member_id=member_id.member_id),)
                )
            )
            self._run(self._asks().ask(body, target=coordinator), f"a member to leave group {group}")
            self._note(f"the session of member {member_id.member_id} of group {group} has expired")

    def rebalance(self, group: str) -> None:
        """All members of a group join again: each is answered once that a rebalance is in progress."""
        described = self._run(describe_group(self._asks(), group), f"group {group}")
        if described is None or not described.members:
            raise ClusterError(f"group {group} has no members: wait_for_group waits for them")
        if described.kind == CONSUMER:
            raise ClusterError(
                f"group {group} has the consumer protocol, whose members are not told of rebalances: use"
                " expire_session"
            )
        count = len(described.members)
        with self.fault("Heartbeat", group=group, error="REBALANCE_IN_PROGRESS", times=count) as fault:
            fault.wait(count)

    def move_coordinator(
        self, *, group: str | None = None, transaction: str | None = None, to: int | None = None
    ) -> int:
        """Another broker becomes the coordinator of a group, or of a transactional id; returns its id."""
        if (group is None) is (transaction is None):
            raise ClusterError("give either group= or transaction=, of which to move the coordinator")
        self.coordinator(group=group, transaction=transaction)
        topic = TRANSACTIONS_TOPIC if group is None else OFFSETS_TOPIC
        count = len(self._partitions_of(topic) or ())
        return self.move_leader(topic, partition_of(group or transaction or "", count), to)

    # --- partitions

    def move_leader(self, topic: str, partition: int = 0, to: int | None = None) -> int:
        """Another replica in the ISR becomes the leader; returns its id."""
        leader = self.leader(topic, partition)
        part = (self._partitions_of(topic) or [])[partition]
        others = [each for each in part.isr if each != leader]
        if (to is not None and to not in others) or not others:
            in_sync = ", ".join(map(str, others)) or "none"
            raise ClusterError(f"no other replica of {topic}-{partition} can lead: in sync are {in_sync}")
        target = others[0] if to is None else to
        order = (target, *(each for each in part.replicas if each != target))
        wanted = WantedReplicas(topic=topic, partition=partition, replicas=order)
        self._run(alter_reassignments(self._asks(), [wanted]), f"the replicas of {topic}-{partition}")
        self._elect(topic, partition, unclean=False)
        self._note(f"broker {target} leads {topic}-{partition}, which broker {leader} led")
        return target

    def unclean_election(self, topic: str, partition: int = 0) -> ActiveFault:
        """What is acknowledged while it is in force is lost: one replica is down and leaves the ISR, and
        healing has it lead, without what it missed, when all others are down. Moves the clock."""
        leader = self.leader(topic, partition)
        replicas = (self._partitions_of(topic) or [])[partition].replicas
        behind = [each for each in replicas if each != leader and not self._nodes[each].local.controls]
        if not behind or self._nodes[leader].local.controls:
            raise ClusterError(
                f"{topic}-{partition} needs two replicas on brokers that are no controllers: have"
                " Cluster(brokers=2, controllers=1)"
            )
        ahead = [each for each in replicas if each != behind[0]]
        down = self.kill(behind[0])
        self.clock.advance(seconds=FENCED_S)
        text = f"{topic}-{partition}: what is acknowledged now will be lost"

        def elect() -> None:
            faults = [self._kill(self._nodes[each], power_lost=False) for each in ahead]
            try:
                self.clock.advance(seconds=FENCED_S)
                down.heal()
                if behind[0] in self._able():
                    self._elect(topic, partition, unclean=True)
                else:
                    self._note(f"{text}: it is not, another fault keeps {self._name(behind[0])} from leading")
            finally:
                for fault in faults:
                    fault.end()
            self._recover()

        return self._fault(text, elect)

    def expire_messages(self, topic: str, partition: int = 0) -> int:
        """The messages of a partition are gone, as after retention: offsets below the end are out of range.
        Returns the offset of the next message."""
        message = DeleteRecordsRequest
        part = message.DeleteRecordsPartition(partition_index=partition, offset=-1)
        topics = (message.DeleteRecordsTopic(name=topic, partitions=(part,)),)
        body = message(topics=topics, timeout_ms=int(self.timeout_s * 1000))
        self.leader(topic, partition)  # the topic is there
        asked = self._asks().ask(body, target=PartitionLeader(topic, partition))
        ((result,),) = [each.partitions for each in self._run(asked, f"{topic}-{partition}").topics]
        if result.error_code:
            code = ErrorCode.of(result.error_code).name
            raise ClusterError(f"the messages of {topic}-{partition} were not deleted: {code}")
        self._note(f"{topic}-{partition} begins at offset {result.low_watermark}")
        return int(result.low_watermark)

    def recreate_topic(self, name: str, *, configs: Mapping[str, object] | None = None) -> str:
        """A topic is deleted and created with as many partitions and replicas, and another topic id."""
        parts = self._partitions_of(name)
        if not parts:
            raise ClusterError(f"there is no topic {name}: create it")
        self.delete_topic(name)
        self.create_topic(name, len(parts), len(parts[0].replicas), configs=configs)
        self._note(f"topic {name} was deleted and created")
        return name

    def _elect(self, topic: str, partition: int, *, unclean: bool) -> None:
        kinds = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        code: list[ErrorCode] = []

        def is_elected() -> bool:
            asked = elect_leaders(self._asks(), unclean=unclean, partitions=[(topic, partition)])
            (result,) = self._run(asked, f"an election of {topic}-{partition}")
            code.append(result.error)
            return result.error in kinds

        self.wait_until(is_elected, f"an election of {topic}-{partition}")

    # --- what expires

    def client_certificate(self, name: str) -> dict[str, str]:
        """With `tls`, a client that uses these settings of librdkafka shows a certificate, and is the
        principal `User:CN=` and the name."""
        files = self._access.certificates.client(name)
        return {"ssl.certificate.location": files.certificate, "ssl.key.location": files.key}

    def expire_certificate(self, client: str | None = None) -> ActiveFault:
        """The certificate of the brokers has expired, or that of a client of `client_certificate`; open
        connections stay, and no new one is made until it heals."""
        held = self._access.certificates
        if client is not None and not held.has_client(client):
            raise ClusterError(f"there is no certificate of {client}: client_certificate makes one")

        def follow() -> None:
            has_expired = owner in [each.expired for each in self._faults.effects]
            if client is None:
                held.expire_broker(has_expired)
            else:
                held.expire_client(client, has_expired)

        owner = BROKERS if client is None else client
        text = f"the certificate of {'the brokers' if client is None else f'client {client}'} has expired"
        fault = self._fault(text, follow, Effect(expired=owner))
        follow()
        return fault

    def token(self, user: str = USER, *, seconds: float = TOKEN_S) -> str:
        """With sasl="oauth", a token with which a user logs in for some seconds, by the cluster's clock."""
        return self._access.token(user, self._time.wall_ms(), seconds)

    def expire_tokens(self) -> None:
        """Moves the clock until all tokens so far have expired: logins with them are refused, and a
        connection ends at its next request."""
        self.clock.advance(seconds=self._access.longest_token_s(self._time.wall_ms()))
        self._note("the tokens so far have expired")

    # --- quotas and rights

    def throttle(
        self, client: str, *, produce_bytes_s: float | None = None, fetch_bytes_s: float | None = None
    ) -> ActiveFault:
        """A quota of a client id in bytes a second, for producing or fetching; healing removes it."""
        rates = {"producer_byte_rate": produce_bytes_s, "consumer_byte_rate": fetch_bytes_s}
        wanted = {key: rate for key, rate in rates.items() if rate is not None}
        if not wanted or min(wanted.values()) <= 0:
            raise ClusterError("give produce_bytes_s= or fetch_bytes_s=, in bytes a second, above 0")

        limits = ", ".join(f"{key} {rate:g}" for key, rate in wanted.items())
        text = f"client {client} is throttled: {limits}"
        fault = self._fault(text, no_end, Effect(quota=(client, wanted)))
        try:
            self._settle_quotas()
        except BaseException:
            fault.end()
            raise
        return fault

    def _recover(self) -> None:
        super()._recover()
        if self._able():
            self._settle_quotas()

    def _settle_quotas(self) -> None:
        """Clients have the quotas of the faults in force."""
        clients = {each.quota[0] for each in self._faults.effects if each.quota is not None}
        for client in clients.union(self._quotas):
            wanted, present = self._faults.quota_of(client), self._quotas.get(client, {})
            if wanted == present:
                continue
            values = {**dict.fromkeys(present), **wanted}
            ops = tuple(QuotaOp(key=key, value=value) for key, value in values.items())
            change = QuotaChange(entity=(("client-id", client),), ops=ops)
            result = self._run(alter_quotas(self._asks(), change), f"a quota of client {client}")
            if result.error is not ErrorCode.NONE:
                raise ClusterError(f"client {client} has no quota: {result.error.name}: {result.message}")
            self._quotas[client] = wanted

    def refuse(self, client: str, topic: str, *, apis: Sequence[str] = tuple(REFUSED)) -> ActiveFault:
        """A client, named by its client id or principal, has no rights on a topic; healing gives them
        back."""
        with contextlib.ExitStack() as stack:
            for api in apis:
                if api not in REFUSED:
                    raise ClusterError(f"{api} has no topic to refuse: write {', '.join(REFUSED)}")
                stack.enter_context(self.fault(api, client=client, topic=topic, error=REFUSED[api]))
            refusals = stack.pop_all()
        return self._fault(f"client {client} has no rights on topic {topic}", refusals.close)
