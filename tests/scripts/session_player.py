"""The broker's session with the controller, driven by a script: requests, states and deadlines are shown."""

from __future__ import annotations

from typing import Any

from metaquorum.broker.channel import ChannelResponse, ControllerReported, NoAnswer, SendToController
from metaquorum.broker.events import LifecycleEffect
from metaquorum.broker.session import BrokerSession
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.metadata.requests.common import BrokerHeartbeatResponse, RegisterBrokerResponse
from tests.controllers import channel, reported, unanswered
from tests.scripts.player import Memory, Player, show

INCARNATION = b"i" * 16


def ids(letters: str) -> tuple[bytes, ...]:
    """`a,b`: the ids of sixteen equal letters."""
    return tuple(each.encode() * 16 for each in letters.split(",") if each)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


class SessionPlayer(Player):
    """Time begins at 1000. An answer takes 1 ms unless `after` says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.session: BrokerSession | None = None
        self.sent: list[SendToController] = []
        self._memory = Memory("_config", "_rng", "_out", "_kinds")

    @property
    def at(self) -> BrokerSession:
        assert self.session is not None, "begin with: session"
        return self.session

    def take(self, effects: list[LifecycleEffect]) -> None:
        self.say_all(effects)
        self.sent += [each for each in effects if isinstance(each, SendToController)]
        at = self.at
        due = at.next_deadline_ms()
        words = [
            f"{self.now_ms} {at.state.name}",
            f"epoch={show(at.broker_epoch)}",
            f"vouched={show(at.vouched_epoch)}",
            f"registered={show(at.registered)}",
            f"applied={at.applied_offset}",
            f"lease={show(at.lease.end_ms)}",
            f"due={show(due)}",
            f"failures={at.exchange.failures}",
            f"target={at.exchange.target}",
        ]
        flags = (
            ("caught_up", at.startup.is_caught_up),
            ("publishes", at.has_applied_registration()),
            ("serves", at.serves_before_ms > self.now_ms),
        )
        self.say(" ".join([*words, *(name for name, holds in flags if holds)]))
        remembered = self._memory.told(session=at)
        if remembered:
            self.say(f". {remembered}")

    # ---- the beginning

    def do_session(self, voters: str = "1,2,3", seed: str = "0", **options: str) -> None:
        """session previous=7 applied=0 offline=e config.<name>=<number or yes or no>: start it."""
        settings: dict[str, Any] = {
            name.removeprefix("config."): value == "yes" if value in ("yes", "no") else int(value)
            for name, value in options.items()
            if name.startswith("config.")
        }
        config = BrokerConfig(
            node_id=4,
            cluster_id="c",
            endpoints=(BrokerEndpoint("DATA", "h", 9, 0),),
            directories=ids(options.get("dirs", "d")),
            rack="r",
            **settings,
        )
        previous = options.get("previous")
        self.session = BrokerSession(
            config,
            incarnation_id=INCARNATION,
            channel=channel(*numbers(voters), seed=int(seed)),
            applied_offset=int(options.get("applied", "0")),
            previous_broker_epoch=None if previous is None else int(previous),
            offline_directories=ids(options.get("offline", "")),
        )
        self.take(self.at.start(self.now_ms))

    # ---- time and the log

    def do_after(self, ms: str) -> None:
        self.now_ms += int(ms)
        self.take(self.at.tick(self.now_ms))

    def do_late(self, ms: str) -> None:
        """Time passes and the timer does not fire."""
        self.now_ms += int(ms)

    def do_due(self, times: str = "1") -> None:
        """Let time pass to the next deadline."""
        for _ in range(int(times)):
            due = self.at.next_deadline_ms()
            assert due is not None, "nothing is waited for"
            self.now_ms = max(self.now_ms, due)
            self.take(self.at.tick(self.now_ms))

    def do_leader(self, leader: str) -> None:
        self.take(self.at.leader_known(self.now_ms, None if leader == "-" else int(leader)))

    def do_high_watermark(self, offset: str) -> None:
        self.take(self.at.high_watermark_known(self.now_ms, int(offset)))

    def do_apply(self, offset: str) -> None:
        self.take(self.at.applied(self.now_ms, int(offset)))

    def do_waited_for(self) -> None:
        self.take(self.at.waited_for(self.now_ms))

    def do_read(self, dirs: str = "-", leaving: str = "no") -> None:
        """read dirs=d,e leaving=yes: what the log says of the registration."""
        directories = None if dirs == "-" else frozenset(ids(dirs))
        self.take(self.at.registration_read(self.now_ms, directories=directories, leaving=leaving == "yes"))

    def do_offline(self, directories: str) -> None:
        self.take(self.at.directories_failed(self.now_ms, ids(directories)))

    # ---- answers

    def answer(self, response: ChannelResponse | ApiError, after: str, to: str) -> None:
        """`to`: which request, counted from the last one (-1)."""
        self.now_ms += int(after)
        request = self.sent[int(to)]
        self.take(self.at.reported(self.now_ms, reported(request, response)))

    def do_registered(self, epoch: str, session: str = "9000", after: str = "1", to: str = "-1") -> None:
        response = RegisterBrokerResponse(broker_epoch=int(epoch), session_timeout_ms=int(session))
        self.answer(response, after, to)

    def do_beat(self, *words: str, session: str = "9000", after: str = "1", to: str = "-1") -> None:
        """beat fenced behind down leaving: what the controller answers to a heartbeat."""
        response = BrokerHeartbeatResponse(
            is_caught_up="behind" not in words,
            is_fenced="fenced" in words,
            should_shut_down="down" in words,
            in_controlled_shutdown="leaving" in words,
            session_timeout_ms=int(session),
        )
        self.answer(response, after, to)

    def do_error(self, code: str, hint: str = "-", after: str = "1", to: str = "-1") -> None:
        error = ApiError(ErrorCode[code], "as scripted", None if hint == "-" else int(hint))
        self.answer(error, after, to)

    def do_from(self, source: str, correlation: str) -> None:
        """An answer that nobody asked for: an unfenced broker's, of another controller or question."""
        request = self.sent[-1]
        response = RegisterBrokerResponse(broker_epoch=999, session_timeout_ms=9000)
        at = request.correlation_id + int(correlation)
        for outcome in (response, NoAnswer("not its own")):
            report = ControllerReported(target=int(source), correlation_id=at, outcome=outcome)
            self.take(self.at.reported(self.now_ms, report))

    def do_fail(self, after: str = "1") -> None:
        self.now_ms += int(after)
        request = self.sent[-1]
        self.take(self.at.reported(self.now_ms, unanswered(request, "refused")))

    # ---- the end

    def do_shut_down(self) -> None:
        self.take(self.at.shut_down(self.now_ms))

    def do_node_fails(self) -> None:
        self.take(self.at.fail(self.now_ms, "a disk"))

    def do_refuse(self) -> None:
        self.take(self.at.refuse(self.now_ms, "another cluster"))

    def do_farewell(self) -> None:
        self.say(show(self.at.farewell()))
