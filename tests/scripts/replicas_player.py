"""A broker's replicas, driven by a script: metadata, disks, clients, followers, leaders and the controller.

Nothing happens by itself. Every effect of a command is shown, then the partitions and figures that are others
than before, when the next tick is due, and what partitions, fetchers and requests to the controller remember.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from metaquorum.broker.channel import ControllerReported, SendToController
from metaquorum.broker.replica.disk_work import (
    DirectoryMeasured,
    FindOffset,
    LogAppended,
    LogsSynced,
    OffsetFound,
    PartitionRead,
    ReplicaCreated,
    ReplicaLogTrimmed,
    ReplicaRemoved,
)
from metaquorum.broker.replica.events import (
    DataEffect,
    DataEvent,
    DataRequestCancelled,
    PeerFetched,
    PeerFetchFailed,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    METADATA_VERSION,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.requests.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
)
from metaquorum.storage.batches.batch import Batches
from tests.controllers import reported
from tests.scripts.player import Memory, show
from tests.scripts.replicas_requests import OtherRequests
from tests.scripts.replicas_words import (
    accepted,
    batches,
    fetched,
    found_directory,
    key,
    numbers,
    place_of,
    position,
    setting,
)
from tests.unit.broker.manager_world import Cluster, Host, key_of, topic_id
from tests.unit.broker.replica_world import ListDisk

LEFT_OUT = (
    "_config _rng _out _image _brokers _heap _serial members settings topics _copies partitions _running"
).split()


class ReplicasPlayer(OtherRequests):
    """Broker 1 of brokers 1 to 3, whose directories are named by letters."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self._host: Host | None = None
        self.asked: deque[SendToController] = deque()
        self._memory = Memory(*LEFT_OUT)

    @property
    def host(self) -> Host:
        assert self._host is not None, "begin with: start"
        return self._host

    def take(self, effects: Iterable[DataEffect]) -> None:
        self._note(effects)
        self._say_state()

    def _note(self, effects: Iterable[DataEffect]) -> None:
        for each in effects:
            self.say(show(each))
            if isinstance(each, SendToController):
                self.asked.append(each)

    def _event(self, event: DataEvent) -> None:
        self.take(self.host.do(event))

    def _say_state(self) -> None:
        """What is other than it was when it was said last."""
        manager = self.host.manager
        facts = {f"{show(each)}": self._partition(each) for each in manager.partitions}
        facts |= {f"offline {show(at)}": show(why) for at, why in manager._placement.offline.items()}
        good, bad = show(manager._placement.directories.good_ids()), show(manager.offline_directories)
        facts["status"] = show(manager.status()).removeprefix("ReplicaStatus ")
        facts["directories"] = f"good {good} bad {bad}"
        due_ms = manager.next_deadline_ms()
        facts["due"] = "-" if due_ms is None else f"+{due_ms - self.host.now_ms}"
        self.say_changed(facts)
        partitions = {show(at): each for at, each in manager.partitions.items()}
        remembered = self._memory.told(
            **partitions,
            controller=manager._controller,
            fetchers=manager._fetchers,
            sessions=manager._fetches.sessions,
            moves=manager._placement.moves,
        )
        if remembered:
            self.say(f". {remembered}")

    def _partition(self, at: PartitionKey) -> str:
        each = self.host.manager.partitions[at]
        words = [
            each.role.name,
            f"leader={show(each.leader)}",
            f"epoch={each.leader_epoch}/{each.partition_epoch}",
            f"log={each.start_offset}..{each.end_offset}",
            f"hw={each.high_watermark}",
            f"isr={show(each.isr)}",
            f"in={show(each.directory_id)}",
        ]
        flags = {
            "under-replicated": each.is_under_replicated,
            "under-min-isr": each.is_under_min_isr,
            "at-min-isr": each.is_at_min_isr,
            f"lag={each.lag}": each.lag > 0,
        }
        return " ".join([*words, *(name for name, holds in flags.items() if holds)])

    # ---- the broker

    def do_start(self, **options: str) -> None:
        """start a=x-0,y-0:3x1@1 b= c=! d=? config.<name>=<number> usable.a=1000: directories with what lies
        in them (`!`: bad, `?`: without an id), and how much room there is."""
        config = {name[7:]: setting(value) for name, value in options.items() if name.startswith("config.")}
        disks: dict[tuple[bytes, PartitionKey], ListDisk] = {}
        found = [found_directory(name, options, disks) for name in options if len(name) == 1]
        metadata = options["metadata"].encode() * 16 if "metadata" in options else None
        self._known, self._memory, self.asked = {}, Memory(*LEFT_OUT), deque()
        self._host = Host(self.cluster, *found, metadata_directory=metadata, **config)
        self._host.disks.update(disks)
        self.take(self._host.start())

    def do_publish(self, epoch: str = "-") -> None:
        self.take(self.host.publish(None if epoch == "-" else int(epoch)))

    def do_tick(self, ms: str = "0") -> None:
        self.take(self.host.tick(int(ms)))

    def do_serving(self, word: str) -> None:
        self.host.serving = word == "yes"

    def do_stop(self) -> None:
        self.take(self.host.manager.stop(now_ms=self.host.now_ms, wall_ms=0))

    # ---- the metadata log

    def do_topic(self, name: str, **options: str) -> None:
        """topic x place=a leader=1 replicas=1,2,3 isr=1,2 partitions=2 id=x2"""
        replicas = numbers(options.get("replicas", "1,2,3"))
        self.cluster.topic(
            name,
            partitions=int(options.get("partitions", "1")),
            place=place_of(options.get("place", "unassigned")),
            leader=int(options.get("leader", "1")),
            replicas=replicas,
            isr=numbers(options["isr"]) if "isr" in options else None,
            as_id=topic_id(options["id"]) if "id" in options else None,
        )

    def do_change(self, partition: str, **options: str) -> None:
        """change x-0 leader=2 isr=1,2 replicas=1,2 place=b recovery=1"""
        lists = {"isr", "replicas", "adding", "removing"} & options.keys()
        fields: dict[str, Any] = {name: numbers(options[name]) for name in sorted(lists)}
        if "leader" in options:
            fields["leader"] = int(options["leader"])
        if "recovery" in options:
            fields["leader_recovery_state"] = int(options["recovery"])
        place = place_of(options["place"]) if "place" in options else None
        self.cluster.change(key(partition), place=place, **fields)

    def do_delete(self, name: str) -> None:
        self.cluster.delete(key_of(name))

    def do_broker(self, broker_id: str, epoch: str = "-", fenced: str = "no") -> None:
        self.cluster.broker(
            int(broker_id), epoch=None if epoch == "-" else int(epoch), fenced=fenced == "yes"
        )

    def do_level(self, level: str) -> None:
        self.cluster._builder.set_feature(METADATA_VERSION, int(level))

    def do_configure(self, kind: str, name: str, setting: str, value: str) -> None:
        """configure topic x retention.ms 5; configure broker 1 ... (`-`: of all); `-` as value: remove it."""
        resource = ConfigResource(
            TOPIC_RESOURCE if kind == "topic" else BROKER_RESOURCE, "" if name == "-" else name
        )
        self.cluster.configure(resource, setting, None if value == "-" else value)

    # ---- disks

    def do_work(self, count: str = "all") -> None:
        """The disks carry out what they were asked for, in order, and what follows."""
        queue = self.host.queue
        left = len(queue) if count == "all" else int(count)
        while queue and left > 0:
            left = left if count == "all" else left - 1
            for event in self.host._carry_out(queue.popleft()):
                self._note(self.host.do(event))
        self._say_state()

    def do_lose_work(self) -> None:
        self.host.queue.clear()

    def do_fail(self, directory: str) -> None:
        self.take(self.host.fail(place_of(directory)))

    def do_measured(self, directory: str, total: str, usable: str) -> None:
        where, room = place_of(directory), int(usable)
        self._event(DirectoryMeasured(directory_id=where, total_bytes=int(total), usable_bytes=room))

    def do_created(self, directory: str, partition: str, incarnation: str) -> None:
        where, at = place_of(directory), int(incarnation)
        self._event(ReplicaCreated(directory_id=where, key=key(partition), incarnation=at))

    def do_removed(self, directory: str, partition: str, incarnation: str) -> None:
        where, at = place_of(directory), int(incarnation)
        self._event(ReplicaRemoved(directory_id=where, key=key(partition), incarnation=at))

    def do_appended(self, directory: str, partition: str, incarnation: str, end: str, size: str) -> None:
        event = LogAppended(
            directory_id=place_of(directory),
            key=key(partition),
            incarnation=int(incarnation),
            end_offset=int(end),
            size_bytes=int(size),
        )
        self._event(event)

    def do_synced(self, directory: str, *ends: str) -> None:
        """synced a x-0:1:5: partition, incarnation, end; the size is what was written last."""
        parts = [each.split(":") for each in ends]
        event = LogsSynced(
            directory_id=place_of(directory),
            ends=tuple(
                (key(name), int(incarnation), int(end), self._size(key(name)))
                for name, incarnation, end in parts
            ),
        )
        self._event(event)

    def _size(self, name: PartitionKey) -> int:
        running = self.host.manager.partitions.get(name)
        return 0 if running is None else running.size_bytes

    def do_trimmed(self, directory: str, partition: str, incarnation: str, start: str, size: str) -> None:
        event = ReplicaLogTrimmed(
            directory_id=place_of(directory),
            key=key(partition),
            incarnation=int(incarnation),
            start_offset=int(start),
            size_bytes=int(size),
        )
        self._event(event)

    def do_read(self, token: str, problem: str = "-", records: str = "-", base: str = "0") -> None:
        """The answer to a ReadPartition, which `work` would give otherwise; without records: nothing."""
        self._forget_work(int(token))
        data = None if records == "-" else batches(records, int(base))
        self._event(PartitionRead(token=int(token), data=data, problem=None if problem == "-" else problem))

    def do_found(
        self, token: str, offset: str = "-", time: str = "-1", epoch: str = "-1", problem: str = "-"
    ) -> None:
        """The answer to a FindOffset."""
        self._forget_work(int(token))
        event = OffsetFound(
            token=int(token),
            offset=None if offset == "-" else int(offset),
            timestamp_ms=int(time),
            leader_epoch=int(epoch),
            problem=None if problem == "-" else problem,
        )
        self._event(event)

    def _forget_work(self, token: int) -> None:
        kept = [each for each in self.host.queue if getattr(each, "token", None) != token]
        self.host.queue = deque(each for each in kept if not isinstance(each, FindOffset))

    # ---- clients and followers

    def do_produce(self, name: str, *parts: str, acks: str = "-1", timeout: str = "1000") -> None:
        """produce KEY x-0:2x3 y-0:1x1p7s0: batches as in `start`."""
        split = [each.partition(":") for each in parts]
        request = ProduceRequest(
            acks=int(acks),
            timeout_ms=int(timeout),
            partitions=tuple(
                ProducePartition(
                    key=key(word), batch=Batches.arrived(batches(log.replace("p", "@p") or "1x1"))
                )
                for word, _, log in split
            ),
        )
        self.take(self.host.ask(request, name))

    def do_fetch(self, name: str, *parts: str, **options: str) -> None:
        """fetch KEY x-0@5/1/0 follower=2 epoch=102 session=9/1 wait=500 min=1 max=1000 forget=y-0
        committed=yes rack=r: offset, the leader epoch that is known, and that of the last record."""
        follower = int(options.get("follower", "-1"))
        session, _, epoch = options.get("session", "0/-1").partition("/")
        request = FetchRequest(
            replica_id=follower,
            replica_epoch=int(options.get("epoch", 100 + follower if follower >= 0 else -1)),
            max_wait_ms=int(options.get("wait", "500")),
            min_bytes=int(options.get("min", "1")),
            max_bytes=int(options.get("max", "100000")),
            session_id=int(session),
            session_epoch=int(epoch),
            partitions=tuple(position(each, int(options.get("part", "100000"))) for each in parts),
            forgotten=tuple(key(each) for each in options.get("forget", "").split(",") if each),
            read_committed=options.get("committed") == "yes",
            rack=options.get("rack"),
        )
        self.take(self.host.ask(request, name))

    def do_list(self, name: str, *parts: str, epoch: str = "-1", committed: str = "no") -> None:
        """list KEY x-0:-1"""
        split = [each.split(":") for each in parts]
        request = ListOffsetsRequest(
            partitions=tuple(
                ListOffsetsPartition(key=key(word), timestamp_ms=int(time), current_leader_epoch=int(epoch))
                for word, time in split
            ),
            read_committed=committed == "yes",
        )
        self.take(self.host.ask(request, name))

    def do_cancel(self, name: str) -> None:
        self._event(DataRequestCancelled(key=name))

    # ---- leaders and the controller

    def do_peer(self, at: str, *parts: str, session: str = "0", target: str = "2") -> None:
        """peer 3 session=7 x-0,hw:5,start:0,epoch:1,records:2x1@1,base:3,diverging:1/2,error:NAME"""
        response = FetchResponse(session_id=int(session), partitions=tuple(fetched(each) for each in parts))
        self._event(PeerFetched(target=int(target), correlation_id=int(at), response=response))

    def do_peer_refuses(self, at: str, code: str, target: str = "2") -> None:
        error = ApiError(ErrorCode[code], "as scripted")
        self._event(PeerFetched(target=int(target), correlation_id=int(at), response=error))

    def do_peer_silent(self, at: str, target: str = "2") -> None:
        self._event(PeerFetchFailed(target=int(target), correlation_id=int(at), reason="refused"))

    def do_controller(self, word: str = "accepts", *parts: str, **options: str) -> None:
        """What it answers to the oldest question: accepts [and leaves out x-0], each=<code>, isr=1,2 epoch=3
        first=100; or refuses=<code> hint=2, or `confused`: an answer of another kind."""
        if not self.asked:
            return self.say("nothing was asked")
        asked = self.asked.popleft()
        response: Any
        if word == "refuses":
            hint = options.get("hint")
            response = ApiError(ErrorCode[parts[0]], "as scripted", None if hint is None else int(hint))
        else:
            confused = word == "confused"
            response = accepted(asked.request, parts, options, confused=confused)
        self._event(reported(asked, response))

    def do_controller_late(self, at: str) -> None:
        """An answer to another question."""
        error = ApiError(ErrorCode.NOT_CONTROLLER, "late", 3)
        self._event(ControllerReported(target=1, correlation_id=int(at), outcome=error))
