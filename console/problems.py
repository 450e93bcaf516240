"""What is wrong at a moment, the worst first: lines for people, each with what `why` explains about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from metaquorum.console.partitions import UNDER_MIN_ISR, offline_replicas, topics_in_trouble
from metaquorum.console.strip import ACTIVE, DIRECTORY_FAILED, SHUTDOWN, TOPIC_DELETED, UNCLEAN_ELECTION
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.image.chunk import RowArray
from metaquorum.metadata.inspect.causes.brokers import STATES
from metaquorum.metadata.inspect.causes.rule import CRITICAL, DETAIL, INFO, WARNING
from metaquorum.metadata.inspect.causes.table import severity_of
from metaquorum.metadata.inspect.changes.changes import MIN_INSYNC_REPLICAS
from metaquorum.metadata.inspect.entities.views import config_path
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.timeline.spans import min_isr_setting
from metaquorum.metadata.inspect.walk.states import FoundState
from metaquorum.storage.uuids import uuid_to_text

Problem = dict[str, Any]
TOPICS_MAX = 20
"""How many topics have a line of their own for each kind of trouble."""
ACTIVE_BROKERS = "active"
"""What `show` of a line about brokers says, beside the kinds of partitions in trouble."""
_ORDER = {CRITICAL: 0, WARNING: 1, INFO: 2, DETAIL: 3}


def problems(
    state: FoundState,
    brokers: Mapping[int, str],
    rows: Mapping[str, RowArray],
    losses: Sequence[TimelineEvent],
) -> list[Problem]:
    """Lines for a state: `brokers` are their states, `rows` those of the partitions in each kind of
    trouble, `losses` the log's events after which records may be lost, those that delete topics, and log
    directories that failed. Lines about the past, which have the moment `at`, are behind those about what
    goes on."""
    image = state.image
    so_far = [event for event in losses if event.offset < state.end_offset]
    offline = offline_replicas(image)
    lines = [
        *_of_brokers(image, brokers),
        *_of_directories(image, offline),
        *_of_empty_directories(image, offline, so_far),
        *_of_partitions(image, rows),
        *_lost_records(so_far),
    ]
    return sorted(lines, key=_rank)


def severities(lines: Iterable[Problem]) -> dict[str, str]:
    """The worst severity of the lines for each of the five numbers."""
    worst: dict[str, str] = {}
    for line in sorted(lines, key=_rank, reverse=True):
        worst[line["show"]] = line["severity"]
    return worst


def _rank(problem: Problem) -> tuple[int, bool, bool, int]:
    is_rest = problem["path"] == "topic"
    return _ORDER[problem["severity"]], problem["at"] != "", is_rest, -problem["count"]


def _of_brokers(image: MetadataImage, brokers: Mapping[int, str]) -> Iterator[Problem]:
    if brokers and ACTIVE not in brokers.values():
        path = f"broker/{min(brokers)}"
        yield _problem(CRITICAL, "no broker is active", "broker", path, len(brokers), show=ACTIVE_BROKERS)
    held = image.topics.replica_counts()
    for broker_id, name in brokers.items():
        if name != ACTIVE:
            number, path = held.get(broker_id, 0), f"broker/{broker_id}"
            severity = WARNING if number else INFO
            holds = f"holds {count(number, 'replica')}"
            text = f"broker {broker_id} is fenced; it {holds}"
            if name == SHUTDOWN:
                led = count(len(image.topics.rows_led_by(broker_id)), "partition")
                text = f"broker {broker_id} is in controlled shutdown; it leads {led} and {holds}"
            yield _problem(severity, text, path, path, number, show=ACTIVE_BROKERS)


def _of_directories(image: MetadataImage, offline: Mapping[int, Mapping[bytes, int]]) -> Iterator[Problem]:
    """The replicas of registered brokers that are in no directory which their broker has online."""
    severity = severity_of(STATES, "directory-failed", WARNING)
    for broker_id, directories in sorted(offline.items()):
        if broker_id in image.brokers:
            path, number = f"broker/{broker_id}", sum(directories.values())
            text = f"broker {broker_id} has {count(number, 'replica')} in log directories that are offline"
            yield _problem(severity, text, path, f"{path}.logDirs", number)


def _of_empty_directories(
    image: MetadataImage, offline: Mapping[int, Mapping[bytes, int]], losses: Iterable[TimelineEvent]
) -> Iterator[Problem]:
    """Log directories that failed since their broker registered, if no replica is offline in them."""
    for event in {event.text: event for event in losses if event.kind == DIRECTORY_FAILED}.values():
        broker_id = int(event.entity.partition("/")[2])
        known = image.brokers.get(broker_id)
        is_said = any(uuid_to_text(directory) in event.text for directory in offline.get(broker_id, ()))
        if known is not None and event.offset > known.epoch and not is_said:
            path = f"broker/{broker_id}"
            text = f"{event.text.partition(';')[0]}; no replica is in it now"
            yield _problem(event.severity, text, path, f"{path}.logDirs", 0)


def _of_partitions(image: MetadataImage, rows: Mapping[str, RowArray]) -> Iterator[Problem]:
    texts = {
        "leaderless": (CRITICAL, "is ", "without a leader", ".leader"),
        "underMinIsr": (WARNING, "is ", "under min ISR", ".isr"),
        "outOfSync": (INFO, "", "with replicas out of the ISR", ".isr"),
        "reassigning": (INFO, "is ", "being reassigned", ""),
    }
    for show, words in texts.items():
        if len(rows[show]):
            yield from _by_topic(image, show, rows[show], words)


def _by_topic(
    image: MetadataImage, show: str, rows: RowArray, words: tuple[str, str, str, str]
) -> Iterator[Problem]:
    """A problem per topic; of the others, how many there are."""
    severity, verb, text, field = words
    worst, more, rest = topics_in_trouble(image, rows, TOPICS_MAX)
    for name, number, index in worst:
        first = f"topic/{name}/{index}"
        said = f"{name}-{index} {verb}{text}" if number == 1 else f"{name}: {number} partitions {text}"
        path = first if number == 1 else f"topic/{name}"
        problem = _problem(severity, said, path, first + field, number, show=show)
        if show == UNDER_MIN_ISR and (setting := min_isr_setting(image, name)) is not None:
            problem["text"] += f" ({MIN_INSYNC_REPLICAS}={setting})"
            problem["also"] = f"{_setting_of(image, name)}/{MIN_INSYNC_REPLICAS}"
        yield problem
    if more:
        others = f"{count(more, 'more topic')}: {count(rest, 'partition')} {text}"
        yield _problem(severity, others, "topic", "", rest, show=show)


def _setting_of(image: MetadataImage, topic: str) -> str:
    """Where the min.insync.replicas of a topic is set."""
    own = ConfigResource(TOPIC_RESOURCE, topic)
    is_own = MIN_INSYNC_REPLICAS in (image.configs.get(own) or {})
    return config_path(own if is_own else ConfigResource(BROKER_RESOURCE, ""))


def _lost_records(losses: Iterable[TimelineEvent]) -> Iterator[Problem]:
    """A line for each topic with an unclean election since it was created: `why` explains the last one. Of
    the topics, those where it was last."""
    elected: dict[str, dict[str, TimelineEvent]] = {}
    for event in losses:
        if event.kind == TOPIC_DELETED:
            elected.pop(event.entity, None)
        if event.kind != UNCLEAN_ELECTION:
            continue
        for path in event.entities:
            if not path.startswith("topic/"):
                continue
            topic = path.rpartition("/")[0]
            elected[topic] = {**elected.pop(topic, {}), path: event}
    for topic, partitions in list(reversed(elected.items()))[:TOPICS_MAX]:
        last, event = max(partitions.items(), key=lambda item: item[1].offset)
        number, name = len(partitions), topic.partition("/")[2]
        path, who = topic, f"{name}: {number} partitions"
        if number == 1:
            path, who = last, f"{name}-{last.rpartition('/')[2]}"
        text = f"{who} had an unclean election: records may be lost"
        yield _problem(event.severity, text, path, f"{last}.leader", number, moment=f"{event.offset}+")
    if len(elected) > TOPICS_MAX:
        rest = list(reversed(elected.values()))[TOPICS_MAX:]
        number = sum(map(len, rest))
        text = (
            f"{count(len(rest), 'more topic')}: {count(number, 'partition')} had an unclean election earlier"
        )
        yield _problem(CRITICAL, text, "events", "", number, moment="0")


def _problem(
    severity: str, text: str, path: str, target: str, number: int, *, moment: str = "", show: str = ""
) -> Problem:
    """`path` is what the line is about, `target` what `why` explains, at `moment` or (empty) at that
    of the page; `also` is a second target, if there is one; `show` the number that counts the same."""
    return {
        "severity": severity,
        "text": text,
        "path": path,
        "target": target,
        "also": "",
        "show": show,
        "count": number,
        "at": moment,
    }
