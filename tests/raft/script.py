"""Runs one interaction script against a `World` and returns it with the output written anew."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable

from msgspec import structs

from metaquorum.raft import messages as ms
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.core import RaftCore
from metaquorum.raft.errors import RaftInvariantError, RaftUsageError
from metaquorum.raft.voters import PreferredCandidate, VersionRange, VoterNode, VoterSet
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.types import LogPosition
from tests.raft.telling import (
    ADMIN,
    CLUSTER_ID,
    START_WALL_MS,
    changes,
    describe_message,
    directory,
    held,
    show_voters,
)
from tests.raft.world import MemoryDisk, Message, Node, World, address
from tests.scripts.player import play


def run_script(text: str) -> str:
    script = Script()
    return play(text, script.run, script.left)


class Script:
    """One method a command. Arguments are words; `name=value` words are options."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.verbose = True
        self.held: set[tuple[str, int]] = set()
        self.paused: set[int] = set()
        self.copies: dict[int, MemoryDisk] = {}
        self._world: World | None = None
        self._told: dict[int, dict[str, str]] = {}

    @property
    def world(self) -> World:
        assert self._world is not None, "begin with: nodes N"
        return self._world

    def run(self, command: str) -> list[str]:
        words = shlex.split(command)
        plain = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        method: Callable[..., None] = getattr(self, f"do_{words[0].replace('-', '_')}")
        self.lines = []
        try:
            method(*plain, **options)
        except (RaftInvariantError, RaftUsageError, CommittedLostError) as error:
            self.lines.append(f"  STOPPED: {error}")
        if self._world is not None:
            for node in self._world.live:
                self._tell(node)
        return self.lines

    def left(self) -> list[str]:
        """What no command has delivered."""
        return [_line(message) for message in self.world.messages]

    # ---- what is shown ---------------------------------------------------------------------------

    def happened(self, line: str) -> None:
        if self.verbose or line.startswith("  "):
            self.lines.append(line)

    def asked(self, line: str) -> None:
        if self.verbose:
            self.lines.append(line)

    def changed(self, core: RaftCore) -> None:
        if self.verbose:
            self._tell(self.world.nodes[core.node_id])

    def _tell(self, node: Node) -> None:
        """How what a node holds differs from what was shown of it last."""
        assert node.core is not None
        now = held(node.core, len(node.gate))
        line = changes(self._told.get(node.node_id, {}), now)
        self._told[node.node_id] = now
        if line:
            self.lines.append(f"    n{node.node_id}: {line}")

    # ---- the cluster -----------------------------------------------------------------------------

    def do_nodes(
        self,
        voters: str,
        observers: str = "0",
        seed: str = "0",
        pinned: str = "yes",
        dynamic: str = "no",
        told: str = "yes",
        **config: str,
    ) -> None:
        """nodes 3 observers=1 fetch_timeout_ms=600: start a cluster; node ids from 1, voters first. With
        pinned=no the configuration names no directory ids. With dynamic=yes (kraft.version 1) the voters'
        directories are formatted with them, and observers know nodes 1 and 2 as bootstrap servers. With
        told=no they know no more at kraft.version 0 either."""
        settings = RaftConfig(**{name: int(value) for name, value in config.items()})
        self._world = World(
            int(voters),
            int(observers),
            seed=int(seed),
            pinned=pinned == "yes",
            dynamic=dynamic == "yes",
            told=told == "yes",
            config=settings,
            listener=self,
        )
        self._told = {}
        for node_id in self.world.nodes:
            self.world.start(node_id)

    def do_log(self, *nodes: str, entries: str, epoch: str, leader: str = "0", vote: str = "0") -> None:
        """log 2 entries=1,1,2 epoch=3: before a restart, give a node this log (an epoch a record)."""
        for node in nodes:
            self._fill(
                int(node), [int(word) for word in entries.split(",") if word], int(epoch), leader, vote
            )

    def _fill(self, node_id: int, epochs: list[int], epoch: int, leader: str, vote: str) -> None:
        from metaquorum.raft.effects import PersistQuorumState

        node = self.world.nodes[node_id]
        self.world.crash(node_id)
        disk = node.disk
        disk.truncate(disk.start)
        disk.known = disk.durably_known = LogPosition(0, 0)
        for record_epoch in epochs:
            disk.append(_batch(f"{disk.end}@{record_epoch}"))
        disk.synced = disk.end
        disk.hard = PersistQuorumState(
            token=1,
            epoch=epoch,
            leader_id=int(leader) or None,
            voted_id=int(vote) or None,
            voted_directory_id=directory(int(vote)) if int(vote) else None,
        )

    def do_start(self, *nodes: str) -> None:
        for node in nodes:
            self.world.start(int(node))

    def do_crash(self, node: str) -> None:
        self.world.crash(int(node))

    def do_kill(self, node: str) -> None:
        """kill 1: as kill -9; what was written is there, synced or not."""
        self.world.kill(int(node))

    def do_copy(self, node: str) -> None:
        """copy 3: a backup of node 3's directory."""
        self.copies[int(node)] = self.world.nodes[int(node)].disk.copy()

    def do_back(self, node: str) -> None:
        """back 3: node 3 is stopped and its directory replaced by the copy."""
        self.world.kill(int(node))
        self.world.spoiled = True
        self.world.nodes[int(node)].disk = self.copies[int(node)].copy()

    def do_shorten(self, node: str, end: str, epoch: str = "1") -> None:
        """shorten 1 2 [epoch=7]: the stopped node's log is another one, of so many records of that epoch."""
        disk = self.world.nodes[int(node)].disk
        known, durable = disk.known, disk.durably_known
        self._fill(int(node), [int(epoch)] * int(end), int(epoch), "0", "0")
        disk.known, disk.durably_known = known, durable

    def do_known(self, *nodes: str) -> None:
        """known 1: what node 1's directory says of what is committed, and how far that is durable."""
        for node in nodes:
            disk = self.world.nodes[int(node)].disk
            known, durable = disk.known, disk.durably_known
            self.lines.append(
                f"  n{node} known {known.offset}@{known.epoch}, durably {durable.offset}@{durable.epoch}"
            )

    def do_losses(self, node: str) -> None:
        """losses 1: what leader 1 says of committed records that others know of."""
        self.lines += [f"  n{node} {loss}" for loss in self.world.core(int(node)).losses]

    def do_directory(self, node: str, number: str) -> None:
        """directory 3 9: node 3 is stopped and gets an emptied disk with another directory id."""
        self.world.replace_disk(int(node), directory(int(number)))

    def do_registered(self, node: str, *ids: str) -> None:
        """registered 1 7 8: the driver of node 1 says that these observers are registered, and no other."""
        self.world.core(int(node)).know_observers(frozenset(map(int, ids)).__contains__)

    def do_cut(self, *links: str) -> None:
        """cut 1-2 3->1: messages of these links are lost."""
        self.world.cuts |= _links(links)

    def do_pause(self, node: str) -> None:
        """pause 1: as by SIGSTOP; what is sent to it stays in its sockets until `wake`."""
        self.paused.add(int(node))

    def do_wake(self, node: str) -> None:
        self.paused.discard(int(node))

    def do_heal(self) -> None:
        self.world.cuts.clear()

    # ---- messages, disk and time -----------------------------------------------------------------

    def do_hold(self, what: str, node: str) -> None:
        """hold sync 1 | hold persist 1 | hold load 1: completions wait for `release`."""
        self.held.add((what, int(node)))

    def do_release(self, what: str, node: str) -> None:
        self.held.discard((what, int(node)))
        self.do_settle()

    def do_messages(self) -> None:
        self.lines += [_line(message) for message in self.world.messages]

    def do_deliver(self, *links: str, repeat: str = "1") -> None:
        """deliver [1->2]: every message on its way now, once; repeat=2 delivers each twice."""
        wanted = _links(links)
        due = [m for m in self.world.messages if not wanted or (m.source, m.target) in wanted]
        for message in due:
            self.world.messages.remove(message)
            for _ in range(int(repeat)):
                self.world.deliver(message)
        while self._complete_one():
            pass

    def do_lose(self, *links: str) -> None:
        """lose 1->2: the messages that are on their way there."""
        wanted = _links(links)
        for message in [m for m in self.world.messages if (m.source, m.target) in wanted]:
            self.world.messages.remove(message)
            self.lines.append(f"lost {_line(message)}")

    def do_timeout(self, node: str) -> None:
        """timeout 3: what node 3 waits for was lost; its requests time out, its timers run."""
        world = self.world
        flights = [(cid, due) for (who, cid), (_, due) in world.outstanding.items() if who == int(node)]
        world.now = max([world.now, *(due for _, due in flights)])
        for cid, _ in flights:
            world.fail(int(node), cid, "timed out")
        world.now += 100
        world.input(int(node), lambda core: core.tick(now_ms=world.now))

    def do_settle(self) -> None:
        """Deliver messages and complete writes until nothing is left to do; the clock stands."""
        for _ in range(1000):
            if not self._complete_one():
                due = [m for m in self.world.messages if m.target not in self.paused]
                if not due:
                    return
                self.world.messages.remove(due[0])
                self.world.deliver(due[0])
        raise AssertionError("the cluster does not come to rest: messages chase each other")

    def _complete_one(self) -> bool:
        for node in self._awake():
            if node.persists and ("persist", node.node_id) not in self.held:
                self.world.persist_next(node.node_id)
                return True
            if node.syncs and ("sync", node.node_id) not in self.held:
                self.world.sync_next(node.node_id)
                return True
            if node.finishing and ("load", node.node_id) not in self.held:
                self.world.finish_next(node.node_id)
                return True
        return False

    def do_tick(self, node: str, ms_: str) -> None:
        """tick 1 600: the clock moves, and only this node looks at it; nothing is delivered."""
        self.world.now += int(ms_)
        self.world.input(int(node), lambda core: core.tick(now_ms=self.world.now))

    def do_stand(self, node: str) -> None:
        """stand 1: the clock goes to this node's election or fetch deadline and only it looks."""
        core = self.world.core(int(node))
        deadline = getattr(core.state.role, "deadline_ms", None)
        assert deadline is not None, f"node {node} is {core.role}"
        self.world.now = max(self.world.now, deadline)
        self.world.input(int(node), lambda core: core.tick(now_ms=self.world.now))

    def do_elect(self, node: str) -> None:
        """elect 1: shorthand for stand, settle and heard, shown as its result only. It must lead then."""
        self._quietly(lambda: (self.do_stand(node), self.do_settle(), self.do_heard(node), self.do_settle()))
        assert self.world.core(int(node)).is_leader, f"node {node} was not elected"
        self.do_status()

    def do_heard(self, node: str) -> None:
        """heard 1: the clock goes to where this node, with a pre-vote won, stops waiting for others."""
        until = getattr(self.world.core(int(node)).state.role, "hears_until_ms", None)
        if until is not None:
            self.world.now = max(self.world.now, until)
            self.world.input(int(node), lambda core: core.tick(now_ms=self.world.now))

    def do_wait(self, ms_: str, show: str = "effects") -> None:
        """wait 2000: time passes for all, everything that is due happens; shows effects only."""
        end = self.world.now + int(ms_)
        before = self.verbose
        self.verbose = show == "all"
        while True:
            self.do_settle()
            due = self._next_time()
            if due is None or due > end:
                break
            self.world.now = max(self.world.now, due)
            self._pass_time()
        self.world.now = end
        self.verbose = before

    def _next_time(self) -> int | None:
        times = [due for (who, _), (_, due) in self.world.outstanding.items() if who not in self.paused]
        for node in self._awake():
            deadline = self.world.core(node.node_id).next_deadline_ms()
            if deadline is not None:
                times.append(deadline)
        return min(times, default=None)

    def _pass_time(self) -> None:
        world = self.world
        for (who, cid), (_, due) in list(world.outstanding.items()):
            if due <= world.now and who not in self.paused:
                world.fail(who, cid, "timed out")
        for node in self._awake():
            deadline = world.core(node.node_id).next_deadline_ms()
            if deadline is not None and deadline <= world.now:
                world.input(node.node_id, lambda core: core.tick(now_ms=world.now))

    def _awake(self) -> list[Node]:
        return [node for node in self.world.live if node.node_id not in self.paused]

    def _quietly(self, action: Callable[[], object]) -> None:
        lines, self.lines = self.lines, []
        self.verbose = False
        action()
        self.lines, self.verbose = lines, True

    # ---- requests of the node around the core ----------------------------------------------------

    def do_append(self, node: str, text: str, observers: str = "wake") -> None:
        self.world.append(int(node), text, wake_observers=observers == "wake")

    def do_read(self, node: str, token: str) -> None:
        self.world.read(int(node), int(token))

    def do_transfer(self, node: str, target: str) -> None:
        self.world.input(int(node), lambda core: core.transfer_leadership(int(target), now_ms=self.world.now))

    def do_resign(self, node: str) -> None:
        self.world.input(int(node), lambda core: core.resign(now_ms=self.world.now))

    def do_snapshot(self, node: str, chunk: str = "40") -> None:
        self.world.snapshot(int(node), int(chunk))

    def do_damage(self, node: str) -> None:
        """damage 2: the snapshot that node 2 received is unreadable."""
        self.world.nodes[int(node)].disk.partial = None

    def do_forget_snapshots(self, node: str) -> None:
        """The node removed its older snapshots (it is told by a restart only)."""
        snapshots = self.world.nodes[int(node)].disk.snapshots
        latest = max(snapshots, key=lambda position: position.offset)
        self.world.nodes[int(node)].disk.snapshots = {latest: snapshots[latest]}

    def do_trim(self, node: str, offset: str) -> None:
        self.world.trim(int(node), int(offset))

    # ---- single requests, with any field ---------------------------------------------------------

    def do_vote(self, node: str, source: str, epoch: str, last: str, pre: str = "no", **other: str) -> None:
        """vote 1 source=2 epoch=5 last=3@1 [pre=yes cluster=x from_directory=9 to_directory=9 voter=2]"""
        request = ms.VoteRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            epoch=int(epoch),
            candidate_id=int(source),
            candidate_directory_id=directory(int(other.get("from_directory", source))),
            voter_id=int(other.get("voter", node)),
            voter_directory_id=directory(int(other.get("to_directory", node))),
            last_position=_position(last),
            pre_vote=pre == "yes",
            kraft_version=int(other.get("kraft_version", "0")),
        )
        self._ask(int(source), int(node), request)

    def do_begin(self, node: str, source: str, epoch: str, **other: str) -> None:
        request = ms.BeginQuorumEpochRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            epoch=int(epoch),
            leader_id=int(source),
            voter_id=int(other.get("voter", node)),
            voter_directory_id=directory(int(other.get("to_directory", node))),
            leader_endpoints=address(other["at"]) if "at" in other else (),
        )
        self._ask(int(source), int(node), request)

    def do_end(self, node: str, source: str, epoch: str, successors: str = "", **other: str) -> None:
        """end 1 source=2 epoch=1 [successors=1,3:9,4:any cluster=x]: 3 with directory 9, 4 with any"""
        request = ms.EndQuorumEpochRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            epoch=int(epoch),
            leader_id=int(source),
            preferred_candidates=tuple(_candidate(word) for word in successors.split(",") if word),
            leader_endpoints=address(other["at"]) if "at" in other else (),
        )
        self._ask(int(source), int(node), request)

    def do_fetch(self, node: str, source: str, epoch: str, last: str, **other: str) -> None:
        """fetch 1 source=2 epoch=1 last=3@1 [hw=0 wait=100 round=0 from_directory=9 cluster=x]"""
        at = _position(last)
        request = ms.FetchRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            replica_id=int(source),
            replica_directory_id=directory(max(0, int(other.get("from_directory", source)))),
            epoch=int(epoch),
            fetch_offset=at.offset,
            last_fetched_epoch=at.epoch,
            high_watermark=int(other.get("hw", "-1")),
            max_wait_ms=int(other.get("wait", "0")),
            max_bytes=int(other.get("max", "1000000")),
            read_round=int(other.get("round", "0")),
        )
        self._ask(int(source), int(node), request)

    def do_fetch_snapshot(
        self, node: str, source: str, epoch: str, snapshot: str, byte: str = "0", max_bytes: str = "1000000"
    ) -> None:
        request = ms.FetchSnapshotRequest(
            cluster_id=CLUSTER_ID,
            replica_id=int(source),
            replica_directory_id=directory(max(int(source), 0)),
            epoch=int(epoch),
            snapshot=_position(snapshot),
            position=int(byte),
            max_bytes=int(max_bytes),
        )
        self._ask(int(source), int(node), request)

    def _ask(self, source: int, target: int, request: ms.RaftRequest) -> None:
        """Deliver a request that no core sent, complete the writes, show the answer and do not deliver it."""
        before = set(map(id, self.world.messages))
        self._uncut(Message(source, target, -1, request, is_request=True))
        while self._complete_one():
            pass
        for message in [m for m in self.world.messages if id(m) not in before and m.correlation_id == -1]:
            self.world.messages.remove(message)
            self.lines.append(f"  {_line(message)}")

    def _uncut(self, message: Message) -> None:
        cuts, self.world.cuts = self.world.cuts, set()
        self.world.deliver(message)
        self.world.cuts = cuts

    def do_respond(self, node: str, source: str, kind: str, number: str = "", **fields: str) -> None:
        """respond 1 2 fetch epoch=1 leader=2 [number=7 hw=3 records=3@1,4@2 diverging=2@1 error=NAME ...]:
        node 1 gets this answer of node 2 to its newest request there, or to that number; records are batches
        of one record each, or garbage."""
        sent = self.world.core(int(node)).state.in_flight.items()
        asked = [key for key, at in sent if at.to == int(source)]
        assert asked or number, f"node {node} asks node {source} nothing now: {dict(sent)}"
        values = {_LONG_NAMES.get(name, name): _field(name, word) for name, word in fields.items()}
        self.world.spoiled = True
        response = _RESPONSES[kind](**{"error": ms.RaftError.NONE, "leader_id": None} | values)
        self._uncut(Message(int(source), int(node), int(number or asked[-1]), response, is_request=False))

    def do_fail(self, node: str, target: str, number: str) -> None:
        """fail 1 2 7: node 1 hears that its request 7 to node 2 failed."""
        self.world.input(
            int(node),
            lambda core: core.on_request_failed(int(target), int(number), "refused", now_ms=self.world.now),
        )

    def do_forge(self, source: str, target: str, **fields: str) -> None:
        """forge 2 1 epoch=9: change fields of the responses on their way from node 2 to node 1."""
        values: dict[str, object] = {}
        for name, value in fields.items():
            if name == "error":
                values[name] = ms.RaftError[value]
            elif "@" in value:
                values[name] = _position(value)
            else:
                values[name] = int(value)
        for index, message in enumerate(self.world.messages):
            if (message.source, message.target) == (int(source), int(target)) and not message.is_request:
                payload = structs.replace(message.payload, **values)
                self.world.messages[index] = dataclasses.replace(message, payload=payload)

    # ---- changes of voters -----------------------------------------------------------------------

    def do_add(self, leader: str, node: str, timeout: str = "5000", **other: str) -> None:
        """add 1 4 [directory=9 cluster=x levels=0-0 endpoints=no]: ask node 1 to make node 4 a voter."""
        request = ms.AddVoterRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            voter=self._voter(node, **other),
            timeout_ms=int(timeout),
        )
        self._ask(ADMIN, int(leader), request)

    def do_remove(self, leader: str, node: str, timeout: str = "5000", **other: str) -> None:
        """remove 1 3 [directory=9 cluster=x]: ask node 1 to make voter 3 an observer."""
        request = ms.RemoveVoterRequest(
            cluster_id=other.get("cluster", CLUSTER_ID),
            voter_id=int(node),
            voter_directory_id=directory(int(other.get("directory", node))),
            timeout_ms=int(timeout),
        )
        self._ask(ADMIN, int(leader), request)

    def do_update(self, leader: str, node: str, epoch: str, **other: str) -> None:
        """update 1 3 epoch=1 host=h [directory=9 levels=0-0]: what voter 3 says of itself."""
        request = ms.UpdateVoterRequest(
            cluster_id=other.get("cluster", CLUSTER_ID), epoch=int(epoch), voter=self._voter(node, **other)
        )
        self._ask(ADMIN, int(leader), request)

    def do_upgrade(
        self, leader: str, *nodes: str, level: str = "1", timeout: str = "5000", **other: str
    ) -> None:
        """upgrade 1 1 2 3 [level=1 directory=9 levels=0-0]: make the configured voters records; an option is
        the last node's."""
        voters = [self._voter(node) for node in nodes[:-1]] + [self._voter(nodes[-1], **other)]
        request = ms.UpgradeRequest(
            cluster_id=CLUSTER_ID, kraft_version=int(level), voters=VoterSet(voters), timeout_ms=int(timeout)
        )
        self._ask(ADMIN, int(leader), request)

    def _voter(self, node: str, **other: str) -> VoterNode:
        own = self.world.as_voter(int(node))
        if "directory" in other:
            number = int(other["directory"])
            own = structs.replace(own, directory_id=directory(number) if number else None)
        if "host" in other:
            own = structs.replace(own, endpoints=address(other["host"]))
        if "levels" in other:
            own = structs.replace(own, versions=VersionRange(*map(int, other["levels"].split("-"))))
        return structs.replace(own, endpoints=()) if other.get("endpoints") == "no" else own

    def do_rename(self, node: str, host: str) -> None:
        """rename 3 h: node 3 is killed, and listens elsewhere when it starts."""
        self.world.rename(int(node), host)

    def do_voters(self) -> None:
        """The voters in force on each node, and where the records stand that its log has of them."""
        for node in self.world.live:
            assert node.core is not None
            history = node.core.state.voter_history
            where = [str(offset) for offset, _ in history.entries]
            self.lines.append(
                f"  n{node.node_id} kraft.version={node.core.kraft_version} {show_voters(node.core.voters)}"
                f" at {','.join(where) or 'no record'}"
            )

    # ---- looking ---------------------------------------------------------------------------------

    def do_status(self) -> None:
        for node in self.world.nodes.values():
            core = node.core
            if core is None:
                self.lines.append(f"  n{node.node_id} down, log {node.disk.start}..{node.disk.end}")
                continue
            epochs = " ".join(f"{epoch}:{start}" for epoch, start in core.epochs.entries)
            self.lines.append(
                f"  n{node.node_id} {'observer ' if core.is_observer else ''}{core.role} epoch={core.epoch} "
                f"leader={core.leader_id or '-'} log={core.log_start_offset}..{core.log_end_offset} "
                f"synced={core.synced_offset} hw={core.high_watermark} epochs=[{epochs}]"
            )

    def do_describe(self, node: str) -> None:
        for replica in self.world.core(int(node)).describe(now_ms=self.world.now):
            kind = "voter" if replica.is_voter else "observer"
            self.lines.append(
                f"  n{replica.node_id} {kind} end={replica.log_end_offset} "
                f"fetched={replica.last_fetch_wall_ms} caught-up={replica.last_caught_up_wall_ms}"
            )


_RESPONSES: dict[str, Callable[..., ms.RaftResponse]] = {
    "vote": lambda **fields: ms.VoteResponse(**{"vote_granted": False, "pre_vote": False} | fields),
    "begin": ms.BeginQuorumEpochResponse,
    "end": ms.EndQuorumEpochResponse,
    "fetch": ms.FetchResponse,
    "snapshot": ms.FetchSnapshotResponse,
    "change": ms.VoterChangeResponse,
}
_LONG_NAMES = {
    "leader": "leader_id",
    "hw": "high_watermark",
    "start": "log_start_offset",
    "round": "read_round",
    "at": "leader_endpoints",
    "granted": "vote_granted",
    "pre": "pre_vote",
    "last": "last_position",
    "committed": "known_committed",
    "byte": "position",
    "size": "size_bytes",
}


def _field(name: str, word: str) -> object:
    match name:
        case "error":
            return ms.RaftError[word]
        case "granted" | "pre":
            return word == "yes"
        case "last" | "diverging" | "snapshot" | "committed":
            return _position(word)
        case "at":
            return address(word)
        case "data":
            return bytes(int(word))
        case "records":
            return b"garbage" if word == "garbage" else b"".join(map(_batch, word.split(",")))
        case "leader":
            return int(word) or None
        case "message":
            return word
        case _:
            return int(word)


def _position(word: str) -> LogPosition:
    offset, epoch = word.split("@")
    return LogPosition(int(epoch), int(offset))


def _batch(word: str) -> bytes:
    at = _position(word)
    value = f"record {at.offset} of epoch {at.epoch}".encode()
    return encode_batch(
        base_offset=at.offset, leader_epoch=at.epoch, timestamp_ms=START_WALL_MS, values=[value]
    )


def _line(message: Message) -> str:
    return describe_message(message.source, message.target, message.payload)


def _candidate(word: str) -> PreferredCandidate:
    node_id, _, number = word.partition(":")
    named = directory(int(number or node_id)) if number != "any" else b""
    return PreferredCandidate(int(node_id), named)


def _links(words: tuple[str, ...]) -> set[tuple[int, int]]:
    links: set[tuple[int, int]] = set()
    for word in words:
        if "->" in word:
            source, target = word.split("->")
            links.add((int(source), int(target)))
        else:
            source, target = word.split("-")
            links |= {(int(source), int(target)), (int(target), int(source))}
    return links
