"""How long brokers stayed fenced, and outages in which no broker was unfenced.

Which of these are events: a broker unfenced long after it registered, one still fenced at the end of the
log, and the total outage. A clean shutdown begins an outage like any other fence; its text says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.causes.table import is_orderly
from metaquorum.metadata.inspect.changes.change_steps import Place
from metaquorum.metadata.inspect.changes.changes import BatchChanges, BrokerStep
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration
from metaquorum.metadata.inspect.timeline.spans import EXACT, LEAST, OpenSpan

LONG_RETURN_MS = 30_000
"""After registering, a broker reads the metadata log and is normally unfenced within a second or two.
Recovery of its own logs after a crash precedes registration."""


@dataclass(slots=True)
class _Fenced:
    """Since when a broker has been fenced, and its first registration since then (None: none). `rule` says
    why it was fenced, None if the log does not say."""

    since: OpenSpan
    rule: str | None = None
    registered: tuple[int, int] | None = None
    registrations: int = 0


class BrokerSpans:
    """Feed it the steps of every batch."""

    def __init__(self, image: MetadataImage | None = None) -> None:
        self.unfenced: set[int] = set()
        self.fenced: dict[int, _Fenced] = {}
        self.outage: OpenSpan | None = None
        self._noted: tuple[dict[int, _Fenced], OpenSpan | None] = {}, None
        self.learned: list[Grouped] = []
        """Events for what began or ended according to the last snapshot, but has no record."""
        if image is not None:
            self.learn(image, (image.provenance.offset, image.provenance.timestamp_ms))

    def learn(self, image: MetadataImage, moment: Place) -> None:
        """Takes the fenced brokers from a snapshot. Spans that were open and still are keep their start."""
        begun = OpenSpan(*moment, LEAST)
        before, outage = self.fenced, self.outage
        self.fenced, self.unfenced = {}, set()
        for broker_id, known in image.brokers.items():
            if known.fenced:
                self.fenced[broker_id] = before.get(broker_id) or _Fenced(begun)
            else:
                self.unfenced.add(broker_id)
        if not self.fenced or self.unfenced:
            self.outage = None
        elif self.outage is None:
            self.outage = begun
        ended = {broker: found.since for broker, found in before.items() if broker not in self.fenced}
        self.learned = [_no_longer(broker, since, moment) for broker, since in sorted(ended.items())]
        if outage is not None and self.outage is None:
            lasted, bound = moment[1] - outage.time_ms, outage.over_lost().bound
            text = f"a broker is unfenced, after {bound}{duration(lasted)} without an unfenced broker"
            self.learned.append(
                Grouped(
                    moment[0],
                    "total outage ended",
                    "broker",
                    text,
                    "info",
                    None,
                    (),
                    span_ms=lasted,
                    bound=bound,
                )
            )
        for broker in sorted(self.fenced.keys() - before.keys()):
            entity, text = f"broker/{broker}", f"broker {broker}, since {moment[0]} or before"
            self.learned.append(
                Grouped(moment[0], "already fenced", entity, text, "info", None, (entity,), bound=LEAST)
            )
        if self.outage is not None and outage is None:
            text = f"no broker is unfenced, since {moment[0]} or before"
            self.learned.append(
                Grouped(moment[0], "already no broker", "broker", text, "critical", None, (), bound=LEAST)
            )

    def lose(self) -> None:
        """Records are lost: open spans may have ended there and begun again."""
        for found in self.fenced.values():
            found.since = found.since.over_lost()
        self.outage = None if self.outage is None else self.outage.over_lost()

    def alone(self, events: Iterable[Grouped], time_ms: int) -> Iterator[Grouped]:
        """Takes what records alone say about brokers while the state is unknown. Yields the end of fences
        that can only have ended among lost records."""
        for event in events:
            _, _, number = event.entity.partition("/")
            broker, moment = int(number), (event.offset, time_ms)
            fence = self.fenced.get(broker)
            match event.kind:
                case "broker fenced" | "broker registered":
                    is_new = event.kind == "broker fenced" or event.severity == "warning"
                    if fence is not None and is_new:
                        yield _no_longer(broker, fence.since, moment)
                        fence = None
                    if fence is None:
                        since = OpenSpan(*moment, EXACT if is_new else LEAST)
                        fence = self.fenced[broker] = _Fenced(
                            since, event.rule if event.kind == "broker fenced" else None
                        )
                    if event.kind == "broker registered":
                        fence.registered = fence.registered or moment
                        fence.registrations += 1
                case "broker unfenced" | "broker unregistered":
                    self.fenced.pop(broker, None)

    def forget_lost(self) -> None:
        """At the end of a log whose state is unknown, keeps only what began after the lost records."""
        self.fenced = {
            broker: found for broker, found in self.fenced.items() if found.since.bound in (EXACT, LEAST)
        }
        self.outage = None

    def note(self) -> None:
        """A transaction begins that may be aborted: saves the open spans."""
        fenced = {broker: replace(found) for broker, found in self.fenced.items()}
        self._noted = fenced, self.outage

    def take_back(self, image: MetadataImage, moment: Place) -> None:
        """Restores the spans from where a transaction without effect began."""
        self.fenced, self.outage = self._noted
        self.learn(image, moment)

    def batch(self, changes: BatchChanges, fences: Mapping[int, Grouped]) -> Iterator[Grouped]:
        """Events of one batch. `fences` are those of its brokers, by offset."""
        had = had_before = bool(self.unfenced)
        turn: BrokerStep | None = None
        for step in changes.brokers:
            fence = fences.get(step.offset)
            yield from self._step(step, changes.time_ms, None if fence is None else fence.rule)
            if bool(self.unfenced) != had:
                had, turn = not had, step
        last = turn  # others may follow it in the batch
        if last is None:
            return
        entity = f"broker/{last.broker_id}"
        if had_before and not self.unfenced:
            self.outage = OpenSpan(last.offset, changes.time_ms)
            how = _how(last, fences.get(last.offset))
            text = f"no broker is unfenced: broker {last.broker_id} was the last{how}"
            yield Grouped(last.offset, "total outage", entity, text, "critical", None, (entity,))
        elif self.outage is not None and self.unfenced:
            since, self.outage = self.outage, None
            lasted, bound = changes.time_ms - since.time_ms, since.bound
            text = (
                f"broker {last.broker_id} is unfenced, after {bound}{duration(lasted)} without an unfenced "
                "broker"
            )
            yield Grouped(
                last.offset,
                "total outage ended",
                entity,
                text,
                "info",
                None,
                (entity,),
                span_ms=lasted,
                bound=bound,
            )

    def _step(self, step: BrokerStep, now_ms: int, rule: str | None) -> Iterator[Grouped]:
        broker, moment = step.broker_id, (step.offset, now_ms)
        if step.after is None:
            self.fenced.pop(broker, None)
            self.unfenced.discard(broker)
            return
        if not step.after.fenced:
            self.unfenced.add(broker)
            fence = self.fenced.pop(broker, None)
            if fence is not None:
                yield from self._returned(step, fence, now_ms)
            return
        self.unfenced.discard(broker)
        fence = self.fenced.setdefault(broker, _Fenced(OpenSpan(*moment), rule))
        if step.is_registration:
            fence.registered = fence.registered or moment
            fence.registrations += 1

    def _returned(self, step: BrokerStep, fenced: _Fenced, now_ms: int) -> Iterator[Grouped]:
        if fenced.registered is None or now_ms - fenced.registered[1] <= LONG_RETURN_MS:
            return
        lasted = now_ms - fenced.registered[1]
        entity = f"broker/{step.broker_id}"
        more = fenced.registrations - 1
        times = f" and {'once more' if more == 1 else f'{more} more times'}" if more else ""
        text = (
            f"broker {step.broker_id} stayed fenced for {duration(lasted)} after it registered at"
            f" {fenced.registered[0]}{times}"
        )
        yield Grouped(step.offset, "slow to return", entity, text, "warning", None, (entity,), span_ms=lasted)

    def finish(self, offset: int, time_ms: int) -> Iterator[Grouped]:
        """Events for what is still open at the end of the log."""
        if self.outage is not None:
            lasted, bound = time_ms - self.outage.time_ms, self.outage.bound
            text = f"no broker is unfenced for {_long(lasted, self.outage)}"
            yield Grouped(
                offset,
                "still no broker",
                "broker",
                text,
                "critical",
                None,
                (),
                span_ms=lasted,
                bound=bound,
            )
        for broker, fence in sorted(self.fenced.items()):
            lasted, bound = time_ms - fence.since.time_ms, fence.since.bound
            entity = f"broker/{broker}"
            text = f"broker {broker} for {_long(lasted, fence.since)}"
            unclear = fence.rule == "stopped-or-silent" and lasted <= LONG_RETURN_MS
            severity = "info" if unclear or is_orderly(fence.rule) else "warning"
            if fence.registered is not None:
                waited = time_ms - fence.registered[1]
                severity = "warning" if waited > LONG_RETURN_MS else "info"
                text += f"; it registered {duration(waited)} ago, at {fence.registered[0]}"
            yield Grouped(
                offset,
                "still fenced",
                entity,
                text,
                severity,
                fence.rule,
                (entity,),
                span_ms=lasted,
                bound=bound,
            )


def _long(lasted_ms: int, since: OpenSpan) -> str:
    """`4.2 s, since 889`; for a span that a snapshot already had, with `at least`."""
    return f"{since.bound}{duration(lasted_ms)}, since {since.offset}{since.or_before}"


def _no_longer(broker: int, since: OpenSpan, moment: Place) -> Grouped:
    """An event at `moment` for a fence that ended among lost records."""
    over = since.over_lost()
    lasted, entity = moment[1] - since.time_ms, f"broker/{broker}"
    text = f"broker {broker}, after {_long(lasted, over)}"
    return Grouped(
        moment[0],
        "no longer fenced",
        entity,
        text,
        "info",
        None,
        (entity,),
        span_ms=lasted,
        bound=over.bound,
    )


def _how(step: BrokerStep, fence: Grouped | None) -> str:
    if step.after is None:
        return ", it was unregistered"
    if step.is_registration:
        return ", it restarted"
    if fence is None or fence.is_doubtful:
        return ""
    if fence.rule == "session-expired":
        return ", it sent no heartbeat in time"
    return ", it shut down cleanly" if is_orderly(fence.rule) else ""
