"""How long brokers stayed fenced, and stretches in which no broker was unfenced. Knows no files.

Owns what of it is an event: a broker that is unfenced long after it registered, one that is fenced at the end
of the log, and the total outage. An orderly stop begins an outage like any other; its text says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.changes.changes import BatchChanges, BrokerStep
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration

LONG_RETURN_MS = 30_000
"""A broker that has registered reads the metadata log and is unfenced, within a second or two where all is
well; a recovery of its own logs after a crash comes before it registers."""

ORDERLY = ("shutdown-finished", "stopped-idle")
"""Rules of fences that are no fault."""


@dataclass(slots=True)
class _Fenced:
    """Since when a broker is fenced, and its first registration since then; None: there was none. `rule` says
    why it was fenced, None where the log does not say. `at_least`: it may have been fenced before, too."""

    since: tuple[int, int]
    rule: str | None = None
    registered: tuple[int, int] | None = None
    registrations: int = 0
    at_least: bool = False


class BrokerSpans:
    """Feed it the steps of every batch. Places are (offset, Unix ms)."""

    def __init__(self, image: MetadataImage | None = None) -> None:
        self.unfenced: set[int] = set()
        self.fenced: dict[int, _Fenced] = {}
        self.outage: tuple[int, int] | None = None
        self._outage_at_least = False
        self._noted: tuple[dict[int, _Fenced], tuple[int, int] | None, bool] = {}, None, False
        if image is not None:
            self.learn(image)

    def learn(self, image: MetadataImage) -> None:
        """A snapshot says who is fenced. Spans that were open, and are, began where they did."""
        begun = (image.provenance.offset, image.provenance.timestamp_ms)
        before = self.fenced
        self.fenced, self.unfenced = {}, set()
        for broker_id, known in image.brokers.items():
            if known.fenced:
                self.fenced[broker_id] = before.get(broker_id) or _Fenced(begun, at_least=True)
            else:
                self.unfenced.add(broker_id)
        if not self.fenced or self.unfenced:
            self.outage = None
        elif self.outage is None:
            self.outage, self._outage_at_least = begun, True

    def note(self) -> None:
        """A transaction begins, which may be aborted."""
        fenced = {broker: replace(found) for broker, found in self.fenced.items()}
        self._noted = fenced, self.outage, self._outage_at_least

    def take_back(self, image: MetadataImage) -> None:
        """After a transaction that had no effect: what was so where it began went on."""
        self.fenced, self.outage, self._outage_at_least = self._noted
        self.learn(image)

    def batch(self, changes: BatchChanges, rules: Mapping[int, str | None]) -> Iterator[Grouped]:
        """Events of one batch; `rules` tells for offsets of its fences why they were made."""
        had = bool(self.unfenced)
        for step in changes.brokers:
            yield from self._step(step, changes.time_ms, rules.get(step.offset))
        if not changes.brokers:
            return
        last = changes.brokers[-1]
        entity = f"broker/{last.broker_id}"
        if had and not self.unfenced:
            self.outage, self._outage_at_least = (last.offset, changes.time_ms), False
            how = _how(last, rules.get(last.offset))
            text = f"no broker is unfenced: broker {last.broker_id} was the last{how}"
            yield Grouped(last.offset, "total outage", entity, text, "critical", None, (entity,))
        elif self.outage is not None and self.unfenced:
            since, self.outage = self.outage, None
            lasted = changes.time_ms - since[1]
            least = "at least " if self._outage_at_least else ""
            text = (
                f"broker {last.broker_id} is unfenced, after {least}{duration(lasted)} without an unfenced "
                "broker"
            )
            yield Grouped(
                last.offset, "total outage ended", entity, text, "info", None, (entity,), span_ms=lasted
            )

    def _step(self, step: BrokerStep, now_ms: int, rule: str | None) -> Iterator[Grouped]:
        broker, place = step.broker_id, (step.offset, now_ms)
        if step.after is None:
            self.fenced.pop(broker, None)
            self.unfenced.discard(broker)
            return
        if not step.after.fenced:
            self.unfenced.add(broker)
            found = self.fenced.pop(broker, None)
            if found is not None:
                yield from self._returned(step, found, now_ms)
            return
        self.unfenced.discard(broker)
        found = self.fenced.setdefault(broker, _Fenced(place, rule))
        if step.is_registration:
            found.registered = found.registered or place
            found.registrations += 1

    def _returned(self, step: BrokerStep, found: _Fenced, now_ms: int) -> Iterator[Grouped]:
        if found.registered is None or now_ms - found.registered[1] <= LONG_RETURN_MS:
            return
        lasted = now_ms - found.registered[1]
        entity = f"broker/{step.broker_id}"
        more = found.registrations - 1
        times = f" and {'once more' if more == 1 else f'{more} more times'}" if more else ""
        text = (
            f"broker {step.broker_id} stayed fenced for {duration(lasted)} after it registered at"
            f" {found.registered[0]}{times}"
        )
        yield Grouped(step.offset, "slow to return", entity, text, "warning", None, (entity,), span_ms=lasted)

    def finish(self, offset: int, time_ms: int) -> Iterator[Grouped]:
        """What is still open at the end of the log."""
        if self.outage is not None:
            lasted = time_ms - self.outage[1]
            text = f"no broker is unfenced for {_long(lasted, self.outage[0], self._outage_at_least)}"
            yield Grouped(offset, "still no broker", "broker", text, "critical", None, (), span_ms=lasted)
        for broker, found in sorted(self.fenced.items()):
            lasted = time_ms - found.since[1]
            entity = f"broker/{broker}"
            text = f"broker {broker} for {_long(lasted, found.since[0], found.at_least)}"
            unclear = found.rule == "stopped-or-silent" and lasted <= LONG_RETURN_MS
            severity = "info" if unclear or found.rule in ORDERLY else "warning"
            if found.registered is not None:
                waited = time_ms - found.registered[1]
                severity = "warning" if waited > LONG_RETURN_MS else "info"
                text += f"; it registered {duration(waited)} ago, at {found.registered[0]}"
            yield Grouped(
                offset, "still fenced", entity, text, severity, found.rule, (entity,), span_ms=lasted
            )


def _long(lasted_ms: int, since: int, at_least: bool) -> str:
    """`4.2 s, since 889`; for what was so in a snapshot already, that it is so at least."""
    if at_least:
        return f"at least {duration(lasted_ms)}, since {since} or before"
    return f"{duration(lasted_ms)}, since {since}"


def _how(step: BrokerStep, rule: str | None) -> str:
    if step.after is None:
        return ", it was unregistered"
    if step.is_registration:
        return ", it restarted"
    if rule == "session-expired":
        return ", no heartbeat came in time"
    return ", it stopped in order" if rule in ("shutdown-finished", "stopped-idle") else ""
