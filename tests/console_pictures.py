"""Makes the pictures of docs/console in a real browser: `python -m tests.console_pictures`.

With `--looks DIRECTORY`, writes every view there at 400, 1,440 and 2,560 pixels, in light and dark, for a
person's eye, and leaves the documents alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import tempfile
from pathlib import Path
from typing import Any

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.storage.disk.posix import PosixDisk
from tests.browser import Browser
from tests.e2e.served import Served
from tests.unit.metadata.made_logs import ORDERS, PAYMENTS, Batch, leads, make_node
from tests.unit.pipeline.local_tables import write_tables

PICTURES = Path(__file__).resolve().parents[1] / "docs/console"
SIZE, FLEET_SIZE = (1200, 760), (1200, 860)
WIDTHS, HEIGHT = (400, 1440, 2560), 1000
BEGUN_MS = 1_795_921_882_000
IDLE_MS, APART_MS = 1_000, 16_000
"""How often an idle controller writes, and how long after the first broker the second one dies."""
MIN_ISR = "min.insync.replicas", "2"
VIEWS = ("overview", "events", "brokers", "topics", "partitions", "acls", "groups", "records", "find")
FLEET_READY = (
    "document.querySelectorAll('.cluster svg.time').length === 6 && document.querySelector('main td')"
)


def night() -> Story:
    """Batches of records, and when each was written: a broker dies, then another, then both return."""
    story = Story()
    story.add(0, [leads(3002)])
    story.add(0, [r.FeatureLevelRecord("metadata.version", 19)])
    for broker_id in range(3):
        story.add(100, [registration(broker_id, story.end)])
        story.epochs[broker_id] = story.end - 1
        story.add(900, [r.UnfenceBrokerRecord(broker_id, story.epochs[broker_id])])
    for name, topic_id, count in (("orders", ORDERS, 6), ("payments", PAYMENTS, 3)):
        made = asked("CreateTopics"), r.TopicRecord(name, topic_id), r.ConfigRecord(2, name, *MIN_ISR)
        held = {index: (index % 3, (index + 1) % 3) for index in range(count)}
        listed = [
            r.PartitionRecord(
                index, topic_id, replicas=nodes, isr=nodes, leader=nodes[0], leader_epoch=0, partition_epoch=0
            )
            for index, nodes in held.items()
        ]
        story.add(5_000, [*made, *listed])
        places = [
            r.PartitionChangeRecord(index, topic_id, directories=tuple(map(directory, nodes)))
            for index, nodes in held.items()
        ]
        story.add(400, [cause_record(BatchCause(request="AssignReplicasToDirs")), *places])
        story.partitions |= {(topic_id, index): nodes for index, nodes in held.items()}
    for broker_id, after_ms in ((1, 60_000), (2, APART_MS)):
        story.idle(after_ms)
        story.fence(broker_id)
    story.idle(9_000)
    for broker_id in (2, 1):
        story.back(broker_id)
    story.idle(12_000)
    return story


def directory(broker_id: int) -> bytes:
    return hashlib.sha256(b"directory of %d" % broker_id).digest()[:16]


def registration(broker_id: int, epoch: int) -> object:
    incarnation = hashlib.sha256(b"%d at %d" % (broker_id, epoch)).digest()[:16]
    return r.BrokerRecord(broker_id, incarnation, epoch, log_dirs=(directory(broker_id),))


def asked(request: str) -> object:
    return cause_record(BatchCause(request=request, principal="User:deploy", client_id="ci"))


class Story:
    """A log as it is made; every partition has two replicas."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.stamps: list[int] = []
        self.end = 0
        self.epochs: dict[int, int] = {}
        self.partitions: dict[tuple[bytes, int], tuple[int, ...]] = {}
        """The ISR of each."""
        self._now = BEGUN_MS

    def add(self, after_ms: int, records: list[object]) -> None:
        self._now += after_ms
        self.batches.append((1, records))
        self.stamps.append(self._now)
        self.end += len(records)

    def idle(self, for_ms: int) -> None:
        for _ in range(for_ms // IDLE_MS):
            self.add(IDLE_MS, [r.NoOpRecord()])

    def fence(self, broker_id: int) -> None:
        """As a controller does it whose broker sent no heartbeat in time."""
        records: list[object] = [cause_record(BatchCause(rule="session-expired"))]
        for (topic_id, index), isr in self.partitions.items():
            left = tuple(each for each in isr if each != broker_id)
            if left == isr:
                continue
            changed = {"leader": left[0], "isr": left} if left else {"leader": -1}
            self.partitions[topic_id, index] = left or isr
            records.append(r.PartitionChangeRecord(index, topic_id, **changed))
        fence = r.BrokerRegistrationChangeRecord(broker_id, self.epochs[broker_id], fenced=r.FENCED)
        self.add(0, [*records, fence])

    def back(self, broker_id: int) -> None:
        """It registers, is unfenced, leads what waited for it, and joins every ISR."""
        self.add(300, [registration(broker_id, self.end)])
        self.epochs[broker_id] = self.end - 1
        alone = [key for key, isr in self.partitions.items() if isr == (broker_id,)]
        led = [r.PartitionChangeRecord(index, topic_id, leader=broker_id) for topic_id, index in alone]
        self.add(700, [r.UnfenceBrokerRecord(broker_id, self.epochs[broker_id]), *led])
        joined: list[object] = []
        for (topic_id, index), isr in self.partitions.items():
            replicas = (index % 3, (index + 1) % 3)
            if broker_id in replicas and broker_id not in isr:
                self.partitions[topic_id, index] = (*isr, broker_id)
                joined.append(r.PartitionChangeRecord(index, topic_id, isr=(*isr, broker_id)))
        if joined:
            self.add(400, [cause_record(BatchCause(request="AlterPartition")), *joined])


class Night:
    """What the pictures show: the moment when partitions lost their leader, and what led to it."""

    def __init__(self, console: Served) -> None:
        console.wait(lambda log: log["progress"] == 1, "whole log")
        every = console.ask("events", severity="warning", size="1000")["events"]
        lost: dict[str, Any] = next(each for each in every if each["kind"] == "leaderless")
        self.at = f"{lost['offset']}+"
        self.partition = next(path for path in lost["entities"] if path.startswith("topic/orders/"))
        first = next(each for each in every if each["kind"] == "broker fenced")
        before = [each for each in every if each["offset"] <= first["offset"]]
        self.since = str(min(each["offset"] for each in before if "broker" in each["entity"]))
        why = console.ask("why", target=f"{self.partition}.leader", at=self.at, last="1")
        self.record = why["records"][0]["offset"]

    def fragments(self) -> dict[str, str]:
        """The pictures' views by name."""
        return {
            "overview": f"overview?at={self.at}",
            "topic": f"entity?path=topic/orders&at={self.at}",
            "why": f"entity?path={self.partition}&at={self.at}",
            "record": f"record?offset={self.record}&at={self.at}",
            "difference": f"entity?path=topic/orders&at={self.at}&since={self.since}",
        }


def take(browser: Browser, shown: Night, out: Path) -> None:
    """The pictures of the walk."""
    for name, fragment in shown.fragments().items():
        browser.go(f"#/{fragment.replace('+', '%2B')}")
        if name == "overview":
            browser.run("document.querySelector('.problems button').click()")
            browser.wait("document.querySelector('.problems .why a')", "why")
        browser.screenshot(out / f"{name}.png")


def look(console: Served, shown: Night, out: Path) -> None:
    """Every view in every size, light and dark."""
    fragments = {view: f"{view}?at={shown.at}" for view in VIEWS} | shown.fragments()
    for width in WIDTHS:
        for dark in (False, True):
            with Browser(width, HEIGHT, dark=dark) as browser:
                browser.open(console.url)
                browser.settled()
                for name, fragment in fragments.items():
                    browser.go(f"#/{fragment.replace('+', '%2B')}")
                    browser.screenshot(out / f"{name}-{width}-{'dark' if dark else 'light'}.png")


def fleet(home: Path) -> Served:
    """A console of six clusters."""
    write_fleet(FleetPlan(clusters=6, records=60_000, seed=5, damaged_every=0), home / "logs")
    nodes = sorted(path / "controller-3000" for path in (home / "logs" / CLUSTERS).iterdir())
    write_tables(nodes, home / "tables")
    return Served(home / "tables", nodes[0])


def look_at_fleet(console: Served, out: Path) -> None:
    """The fleet and one incident, in every size."""
    for width in WIDTHS:
        for dark in (False, True):
            with Browser(width, HEIGHT, dark=dark) as browser:
                browser.open(console.url)
                browser.wait(FLEET_READY, "strips")
                kind = f"{width}-{'dark' if dark else 'light'}"
                browser.screenshot(out / f"fleet-{kind}.png")
                browser.run("document.querySelector('main td[data-column=what] a').click()")
                browser.wait("document.querySelector('main section:not([aria-busy])')", "incident")
                browser.screenshot(out / f"incident-{kind}.png")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.console_pictures", description=__doc__)
    parser.add_argument("--looks", type=Path, metavar="DIRECTORY")
    chosen: Path | None = parser.parse_args().looks
    looks = None if chosen is None else chosen.absolute()
    # The titles show the paths as they are given, so these are short and the same everywhere.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        story = night()
        make_node(PosixDisk(), story.batches, home="night", stamps=story.stamps)
        console = Served("night")
        shown = Night(console)
        if looks is None:
            with Browser(*SIZE) as browser:
                browser.open(console.url)
                browser.settled()
                take(browser, shown, PICTURES)
        else:
            looks.mkdir(parents=True, exist_ok=True)
            look(console, shown, looks)
        console.end()
        several = fleet(Path())
        if looks is None:
            with Browser(*FLEET_SIZE) as browser:
                browser.open(several.url)
                browser.wait(FLEET_READY, "strips")
                browser.screenshot(PICTURES / "fleet.png")
        else:
            look_at_fleet(several, looks)
        several.end()


if __name__ == "__main__":
    main()
