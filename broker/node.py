"""One broker as a pure state machine: Raft observer, metadata image and lifecycle behind one inbox.

Events in, effects out (`broker.events`); no clock, no files, no tasks. The counterpart of the controller's
node, driven the same way: `handle` for every inbox item, `tick` when the inbox is empty, one timer at
`next_deadline_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from metaquorum.broker.channel import ControllerChannel, ControllerReported, Farewell
from metaquorum.broker.events import (
    Effect,
    Event,
    LifecycleEffect,
    LogRead,
    MetadataEvent,
    PublishImage,
    RaftRequestFailed,
    RaftResponseArrived,
    ShutdownRequested,
    Stop,
    TrimLog,
)
from metaquorum.broker.replica.deadlines import earliest
from metaquorum.broker.replica.events import DataEffect, DataEvent, OfflineDirectoriesChanged
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.session import BrokerSession
from metaquorum.metadata.errors import InvariantViolation, ReplayError
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.replica import MetadataReplica
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.raft import effects as raft_effects
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import Outbox, RaftEffect
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.storage.errors import CommittedLostError

_DATA_EVENTS = frozenset(get_args(DataEvent)) - {ControllerReported}
_OF_THE_SESSION = frozenset({OfflineDirectoriesChanged, Stop})


class BrokerNode:
    """See the module. `metadata`: the image that the shell loaded from the newest snapshot on disk (or an
    empty one), whose provenance says where the log continues; or the replica of the controller in this
    process, which drives it and `raft`, and calls `follow`. `channel`: the way to the active controller, also
    of `replicas`. `previous_broker_epoch`: that of the previous process if it shut down cleanly. `replicas`:
    the broker's partition data, or None. The broker registers those of `config.directories` that `replicas`
    found good. `turns` counts inputs that may have changed more than partition data."""

    def __init__(
        self,
        config: BrokerConfig,
        raft: RaftCore,
        metadata: MetadataImage | MetadataReplica,
        *,
        channel: ControllerChannel,
        incarnation_id: bytes,
        now_ms: int,
        previous_broker_epoch: int | None = None,
        replicas: ReplicaManager | None = None,
    ) -> None:
        self._config, self._raft, self._replicas = config, raft, replicas
        if drives := isinstance(metadata, MetadataImage):
            metadata = MetadataReplica(raft, metadata, config.metadata_replica, now_ms=now_ms)
        self._metadata, self._drives = metadata, drives
        self._followed: tuple[object, ...] = (None, None, None, None)
        self._published = MetadataImage()
        self._channel, self._voters = channel, raft.voters
        self._incarnation_id = incarnation_id
        self._session = BrokerSession(
            config,
            incarnation_id=incarnation_id,
            channel=channel,
            applied_offset=metadata.state.image.provenance.offset,
            previous_broker_epoch=previous_broker_epoch,
            offline_directories=() if replicas is None else replicas.offline_directories,
        )
        self._now_ms, self._wall_ms, self._serves_before_ms = now_ms, 0, 0
        self._metadata_due_ms: int | None = None
        self._session_due_ms: int | None = now_ms
        self._stopped, self.turns = False, 0
        self._out: Outbox[Effect] = Outbox()

    # ---- driven by the shell ---------------------------------------------------------------------

    def start(self, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """Starts fetching the metadata log. Call once, before anything else."""
        self._note_time(now_ms, wall_ms)
        self._lifecycle(self._session.start(now_ms))
        if self._replicas is not None:
            self._data(now_ms, self._replicas.start(now_ms=now_ms, wall_ms=wall_ms))
        if not self._stopped and self._drives:
            self._raft_effects(now_ms, self._metadata.release(self._raft.start(now_ms=now_ms)))
        return self._settle(now_ms)

    def handle(self, event: Event, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """Handles one event. Returns effects in order; some wait for `settle`. No effects follow a `Stop`."""
        if self._stopped:
            return []
        if type(event) in _DATA_EVENTS:
            return self._handle_data(event, now_ms, wall_ms)  # type: ignore[arg-type]
        self._note_time(now_ms, wall_ms)
        self._lifecycle(self._session.tick(now_ms))
        if not self._stopped:
            try:
                self._dispatch(cast("MetadataEvent", event), now_ms)
            except ReplayError as error:
                reason = f"broker {self._config.node_id} cannot apply its metadata log: {error}"
                self._lifecycle(self._session.fail(now_ms, reason))
            except CommittedLostError as error:
                self._lifecycle(self._session.fail(now_ms, str(error)))
        return self._settle(now_ms)

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """Returns the effects of all events since the last call. Call it when no other event is waiting."""
        if self._stopped or self._replicas is None or not self._replicas.gathered:
            return []
        self._data(now_ms, self._replicas.settle(now_ms=now_ms, wall_ms=wall_ms))
        return self._out.take()

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool = True) -> list[Effect]:
        """Lets time pass. A broker's deadlines only ever fence it, so they need no drained inbox."""
        if self._stopped:
            return []
        self._note_time(now_ms, wall_ms)
        self._lifecycle(self._session.tick(now_ms))
        if not self._stopped and self._drives:
            self._raft_effects(now_ms, self._metadata.release(self._raft.tick(now_ms=now_ms)))
        if not self._stopped and self._replicas is not None:
            self._data(now_ms, self._replicas.tick(now_ms=now_ms, wall_ms=wall_ms))
        return self._settle(now_ms)

    def follow(
        self, known_end: int | None, *, fetches_snapshot: bool, now_ms: int, wall_ms: int
    ) -> list[Effect]:
        """The controller that drives the shared replica handled an input. `known_end`: the high watermark
        that the current leader reported, if any. `fetches_snapshot`: part of a snapshot arrived."""
        before = self._followed
        self._followed = now = (self._image, self._raft.voters, self._raft.leader_id, known_end)
        same = now[0] is before[0] and now[1] is before[1] and now[2:] == before[2:]
        if self._stopped or (same and not fetches_snapshot):
            return []
        self._note_time(now_ms, wall_ms)
        if fetches_snapshot:
            self._session.startup.progressed(now_ms)
        self._lifecycle(self._session.tick(now_ms))
        if not self._stopped and now[2] != before[2]:
            self._lifecycle(self._session.leader_known(now_ms, self._raft.leader_id))
        if not self._stopped and known_end is not None:
            self._lifecycle(self._session.high_watermark_known(now_ms, known_end))
        return self._settle(now_ms)

    def give_up(self, reason: str, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """The process ends, whatever the cluster says about it. Returns the last effects, with a `Stop`."""
        if self._stopped:
            return []
        self._note_time(now_ms, wall_ms)
        self._lifecycle(self._session.fail(now_ms, reason))
        return self._out.take()

    def note_gap(self, until_ms: int) -> None:
        """The process was paused. A broker's deadlines only fence itself, so they still hold."""

    def carry(self, by_ms: int) -> None:
        """The clock was set forward by so much at once: the lease is left as it is."""
        self._session.lease.carry(by_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None if no timer is needed."""
        if self._stopped:
            return None
        data_ms = None if self._replicas is None else self._replicas.next_deadline_ms()
        return earliest(self._session_due_ms, self._metadata_due_ms, data_ms)

    # ---- queries by the shell --------------------------------------------------------------------

    @property
    def replicas(self) -> ReplicaManager | None:
        """For metrics and for what is read outside the inbox; never an input."""
        return self._replicas

    @property
    def stopped(self) -> bool:
        """Whether a `Stop` was returned: no more effects follow."""
        return self._stopped

    @property
    def _image(self) -> MetadataImage:
        """The visible image: never the inside of an open metadata transaction."""
        return self._metadata.state.image

    @property
    def provenance(self) -> Provenance:
        """How far this broker has applied the metadata log, and when that part was written."""
        return self._image.provenance

    @property
    def metadata_version(self) -> int:
        """The finalized level in its image."""
        return self._image.features.metadata_version

    @property
    def vouched_epoch(self) -> int | None:
        """What a clean shutdown of this process leaves for the next one (`leave_clean_shutdown`)."""
        return self._session.vouched_epoch

    def farewell(self, *, now_ms: int, timeout_ms: int) -> Farewell | None:
        """The last heartbeat, to be sent when this process ends because it cannot continue. None if there is
        nothing to send (`BrokerSession.farewell`)."""
        request = self._session.farewell()
        if request is None:
            return None
        return Farewell(self._channel, request, now_ms=now_ms, timeout_ms=timeout_ms)

    def serves(self, now_ms: int) -> bool:
        """Whether clients are served at `now_ms`: the broker is unfenced and its lease is valid (S2.17). Read
        the clock for this call: a process that was paused past its lease has had no tick yet."""
        return now_ms < self._serves_before_ms

    def status(self, *, now_ms: int) -> BrokerStatus:
        """What this broker reports about itself."""
        session, raft = self._session, self._raft
        lease_ms, serves = session.lease.end_ms, now_ms < session.serves_before_ms
        return BrokerStatus(
            node_id=self._config.node_id,
            incarnation_id=self._incarnation_id,
            state=session.state,
            process_state=session.state.process_state,
            fenced=not serves,
            broker_epoch=session.broker_epoch,
            lease_left_ms=None if lease_ms is None else max(0, lease_ms - now_ms),
            applied_offset=self._image.provenance.offset,
            high_watermark=raft.high_watermark,
            log_end_offset=raft.log_end_offset,
            catch_up_offset=session.startup.catch_up_offset,
            leader_id=raft.leader_id,
            quorum_epoch=raft.epoch,
            failures=session.exchange.failures,
            last_problem="" if serves else session.exchange.last_problem,
        )

    # ---- events ----------------------------------------------------------------------------------

    def _dispatch(self, event: MetadataEvent, now_ms: int) -> None:
        match event:
            case LogRead():
                self._metadata.apply(event)
            case RaftResponseArrived():
                self._on_raft_response(event, now_ms)
            case ControllerReported():
                self._on_report(event, now_ms)
            case ShutdownRequested():
                self._lifecycle(self._session.shut_down(now_ms))
            case RaftRequestFailed(target=target, refusal=refusal) if refusal:
                self._session.refused_rights(target, refusal)
                self._raft_effects(now_ms, self._metadata.handle(event, now_ms))
            case _:
                self._raft_effects(now_ms, self._metadata.handle(event, now_ms))

    def _on_report(self, report: ControllerReported, now_ms: int) -> None:
        if self._session.waits_for(report):
            self._lifecycle(self._session.reported(now_ms, report))
        elif self._replicas is not None:
            serves = now_ms < self._serves_before_ms
            self._data(
                now_ms,
                self._replicas.gather(report, serving=serves, now_ms=now_ms, wall_ms=self._wall_ms),
            )

    def _on_raft_response(self, event: RaftResponseArrived, now_ms: int) -> None:
        response = event.response
        if response.error is RaftError.INCONSISTENT_CLUSTER_ID:
            reason = (
                f"controller {event.source} does not belong to cluster {self._config.cluster_id}, for "
                f"which the directory of broker {self._config.node_id} was formatted: check "
                "controller.quorum.voters and the directory"
            )
            self._lifecycle(self._session.refuse(now_ms, reason))
            if self._stopped:
                return
        self._raft_effects(now_ms, self._metadata.handle(event, now_ms))
        if isinstance(response, FetchResponse) and response.error is RaftError.NONE:
            current = event.source == self._raft.leader_id and response.epoch == self._raft.epoch
            if current and response.high_watermark >= 0:
                self._lifecycle(self._session.high_watermark_known(now_ms, response.high_watermark))

    def _read_registration(self, image: MetadataImage, now_ms: int) -> None:
        """Reads this broker's registration: at a level below 3.7-IV2 it could not carry directories, without
        which none can fail alone (KIP-858, S1.22); and another process may have used this broker's id."""
        registration = image.brokers.get(self._config.node_id)
        if registration is None or registration.epoch != self._session.broker_epoch:
            return
        said = image.features.metadata_version >= LEVEL_DIRECTORIES
        directories, leaving = (
            frozenset(registration.directories) if said else None,
            registration.in_controlled_shutdown,
        )
        read = self._session.registration_read(now_ms, directories=directories, leaving=leaving)
        self._lifecycle(read)

    def _publish(self) -> PublishImage | None:
        """The change since the last publication, or None."""
        image = self._image
        if image.provenance.offset <= self._published.provenance.offset:
            return None
        previous, self._published = self._published, image
        return PublishImage(image=image, previous=previous, offset=image.provenance.offset)

    def _follow(self, moved: PublishImage, now_ms: int) -> None:
        """Replicas follow before the cluster learns how far this broker has applied the log (S4.10, K9)."""
        broker_epoch = self._session.broker_epoch
        if self._replicas is not None and broker_epoch is not None:
            effects = self._replicas.publish(
                moved.image,
                moved.previous,
                broker_epoch=broker_epoch,
                now_ms=now_ms,
                wall_ms=self._wall_ms,
            )
            self._data(now_ms, effects)
        if not self._stopped and moved.while_another_leaves(self._config.node_id):
            self._lifecycle(self._session.waited_for(now_ms))
        if not self._stopped:
            self._read_registration(moved.image, now_ms)

    # ---- partition data --------------------------------------------------------------------------

    def _handle_data(self, event: DataEvent, now_ms: int, wall_ms: int) -> list[Effect]:
        """The path of every produce and fetch: skips the metadata log, and the lease unless it is due."""
        if self._replicas is None:
            text = f"broker {self._config.node_id} holds no data and got {type(event).__name__}"
            raise InvariantViolation(f"{text}: report this with its log")
        if self._session_due_ms is not None and now_ms >= self._session_due_ms:
            self._lifecycle(self._session.tick(now_ms))
        self._now_ms, self._wall_ms = now_ms, wall_ms
        if not self._stopped:
            serves = now_ms < self._serves_before_ms
            effects = self._replicas.gather(event, serving=serves, now_ms=now_ms, wall_ms=wall_ms)
            if not self._out and _OF_THE_SESSION.isdisjoint(map(type, effects)):
                return effects  # type: ignore[return-value]
            self._data(now_ms, effects)
        return self._out.take()

    def _data(self, now_ms: int, effects: list[DataEffect]) -> None:
        for effect in effects:
            match effect:
                case OfflineDirectoriesChanged(directories=directories):
                    self._lifecycle(self._session.directories_failed(now_ms, directories))
                case Stop(reason=reason):
                    self._lifecycle(self._session.fail(now_ms, reason))
                    return
                case _:
                    self._out.append(effect)

    # ---- effects ---------------------------------------------------------------------------------

    def _note_time(self, now_ms: int, wall_ms: int) -> None:
        self._raft.wall_ms = self._wall_ms = wall_ms
        self._now_ms = now_ms

    def _raft_effects(self, now_ms: int, effects: Iterable[RaftEffect | TrimLog]) -> None:
        for effect in effects:
            match effect:
                case raft_effects.HighWatermarkChanged():
                    pass  # `_settle` continues reading
                case raft_effects.RoleChanged(leader_id=leader_id):
                    self._lifecycle(self._session.leader_known(now_ms, leader_id))
                case raft_effects.WriteSnapshotChunk():
                    self._session.startup.progressed(now_ms)
                    self._out.append(effect)
                case (
                    raft_effects.PersistQuorumState()
                    | raft_effects.AppendLog()
                    | raft_effects.TruncateLog()
                    | raft_effects.ResetLog()
                    | raft_effects.NoteCommitted()
                    | raft_effects.SendRequest()
                    | raft_effects.FinishSnapshot()
                    | raft_effects.Warn()
                    | TrimLog()
                ):
                    self._out.append(effect)
                case _:
                    raise InvariantViolation(
                        f"the Raft core of broker {self._config.node_id} asked for {type(effect).__name__},"
                        " which an observer never does: report this with the broker's log"
                    )

    def _lifecycle(self, effects: list[LifecycleEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Stop) and not self._stopped:
                self._stopped = True
                if self._replicas is not None:
                    # Before the last effect: answer waiting requests, and write what a restart needs.
                    last = self._replicas.stop(now_ms=self._now_ms, wall_ms=self._wall_ms)
                    self._out += [each for each in last if not isinstance(each, Stop)]
            self._out.append(effect)
        self._session_due_ms = self._session.next_deadline_ms()
        self._serves_before_ms = self._session.serves_before_ms
        self.turns += 1

    def _settle(self, now_ms: int) -> list[Effect]:
        """Work after any event: apply more records, update the session, publish, write a snapshot."""
        if self._raft.voters is not self._voters:
            self._voters = self._raft.voters
            self._channel.voters_are(tuple(self._voters))
        if not self._stopped:
            self._lifecycle(self._session.applied(now_ms, self._image.provenance.offset))
        if not self._stopped:
            parts: tuple[Effect | None, ...] = (
                self._publish() if self._session.has_applied_registration() else None,
                self._metadata.next_read() if self._drives else None,
                self._metadata.snapshot_due(now_ms) if self._drives else None,
            )
            self._out += [effect for effect in parts if effect is not None]
            if isinstance(parts[0], PublishImage):
                self._follow(parts[0], now_ms)
        self._metadata_due_ms = self._metadata.next_deadline_ms() if self._drives else None
        return self._out.take()
