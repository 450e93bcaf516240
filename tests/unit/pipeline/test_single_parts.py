"""Parts of a run by themselves: what is told of files, brokers and settings, and of tasks that fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.pipeline.arrow import damage_batches
from metaquorum.pipeline.ingest import job, tasks
from metaquorum.pipeline.ingest.job import left_out
from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.ingest.work import FactsTask, PartTask, RecordsTask, ReplayTask, SurveyTask, Task
from metaquorum.pipeline.intervals.moments import Moment
from metaquorum.pipeline.intervals.state import without_secrets
from metaquorum.pipeline.intervals.tables.brokers import Heard, heard_of
from metaquorum.pipeline.intervals.tables.settings import Configs, Topics
from metaquorum.pipeline.logs.merged import SHARED_ID, MergedHistory
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.pipeline.tables import TABLES, quoted, spark_schema
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError
from tests.unit.pipeline.logs.test_cut import log_of

# ---- tasks

PLACE = LogPlace(path="/x", cluster="c", node_id=1)
LOG = LogSurvey(location=PLACE, start_offset=0, end_offset=0, epochs=[], segments=[], sums={}, snapshots=[])
MERGED: Any = MergedHistory(cluster="c", sections=[], logs=[], conflicts=[])
REPLAY = ReplayTask(
    merged=MERGED, resume_offset=0, state_file=None, out="/o", run="r", state_target="s", final_below=0
)
PIECE = Piece(cluster="c", node_id=1, file="/x")
TASKS: list[Task] = [
    SurveyTask(location=PLACE, size_bytes=1, split_bytes=1),
    FactsTask(log=LOG),
    REPLAY,
    PartTask(replay=REPLAY, number=0),
    RecordsTask(piece=PIECE, records=1, final_below=0, out="/o", run="r"),
]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("error", "path"),
    [
        (FileNotFoundError(2, "gone", "/f"), "/f"),
        (DiskError("/d", "read", "broken"), "/d"),
        (ValueError("odd"), None),
    ],
)
def test_a_task_that_fails_says_whose_and_where(
    monkeypatch: pytest.MonkeyPatch, task: Task, error: Exception, path: str | None
) -> None:
    def fail(task: Task) -> Any:
        raise error

    monkeypatch.setattr(tasks, "_run", fail)
    found = run_task(task)
    named = path or getattr(error, "path", None) or ("/x" if isinstance(task, SurveyTask) else None)
    assert (found.cluster, found.problem, found.path) == ("c", str(error), named)


def test_the_size_of_a_log_is_that_of_its_segments(tmp_path: Path) -> None:
    place = log_of(tmp_path / "a", 1, ())
    disk: Any = PosixDisk()
    size = MetadataLog(disk, place.path).size_bytes()
    kept = LogPlace(path=place.path, cluster="c", node_id=1, is_retained=True)
    gone = LogPlace(path=str(tmp_path / "b"), cluster="c", node_id=1)
    assert size > 0
    assert [job._size_bytes(disk, each) for each in (place, kept, gone)] == [size, 0, 0]


# ---- what is told of files


def segment(start: int, end: int, size: int = 9) -> Any:
    return SimpleNamespace(start_offset=start, end_offset=end, size_bytes=size)


def merged(cluster: str, *told: tuple[Any, str | None], retained: bool = False, **more: Any) -> Any:
    """A history with one log of these segments, each with why it was not used."""
    place = SimpleNamespace(is_retained=retained)
    why = {id(at): reason for at, reason in told}
    return SimpleNamespace(
        cluster=cluster,
        logs=[SimpleNamespace(location=place, segments=[at for at, _ in told])],
        holes=more.get("holes", []),
        conflicts=[SimpleNamespace(kind=kind) for kind in more.get("conflicts", [])],
        why_unused=lambda log, at: why[id(at)],
    )


COPY, OTHER = "its records were read from node 2, /y", "superseded: other"


def test_what_is_not_in_the_tables_is_summed_by_reason() -> None:
    histories = [
        merged("a", (segment(0, 10), None), (segment(10, 15), COPY), (segment(20, 27), COPY)),
        merged("b", (segment(0, 1500), OTHER), (segment(5, 5), OTHER), (segment(5, 5, 0), None)),
        merged("c", (segment(0, 99), OTHER), (segment(5, 5), OTHER), retained=True),
        merged("d", holes=[(3, 7), (10, 12)], conflicts=[SHARED_ID]),
        merged("e", holes=[(0, 1)], conflicts=["mismatch", SHARED_ID]),
    ]
    assert left_out(histories) == [
        "1 file with 1,500 records that contradict the history of their cluster: "
        "see `reason` in the table files, and the table damage",
        "7 records inside the history that no log holds: offsets 3 to 6 of cluster d and 2 more; "
        "see the table coverage",
        "2 clusters share the cluster id of another and get their own names: d, e",
        "1 file without a readable record: see the table damage",
        "2 files with 12 records that were read from another node's log",
    ]
    many = [merged(str(at), conflicts=[SHARED_ID]) for at in range(6)]
    assert [line[-19:] for line in left_out(many)] == [": 0, 1, 2, 3, 4 ..."]
    assert left_out(histories[:0]) == []


def test_damage_is_a_batch_of_rows(tmp_path: Path) -> None:
    place = log_of(tmp_path / "a", 1, ())
    assert list(damage_batches(place, None)) == []
    last = Path(place.path, f"{31:020d}.log")
    size = last.stat().st_size
    last.write_bytes(last.read_bytes() + b"torn")
    (batch,) = damage_batches(place, None)
    (row,) = batch.to_pylist()
    assert row.pop("reason")
    assert row == {
        "cluster": "c1",
        "node_id": 1,
        "file": str(last),
        "position": size,
        "offset": 41,
        "kind": "tail",
    }


@pytest.mark.parametrize("name", TABLES)
def test_spark_reads_the_columns_of_a_table_by_name(name: str) -> None:
    table = TABLES[name]
    said = [f"`{at.name}` {at.type} COMMENT '{quoted(at.meaning)}'" for at in table.columns]
    assert spark_schema(table) == ", ".join([*said[1:-1], said[0], said[-1]])


def test_text_in_quotes_stays_in_them() -> None:
    assert quoted("it's \\ so") == "it\\'s \\\\ so"


# ---- brokers, settings and topics

DIR_A, DIR_B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("record", "before", "expected"),
    [
        (r.FenceBrokerRecord(1, 7), None, Heard(7, "fenced", None)),
        (r.FenceBrokerRecord(1, 7), Heard(6, "active", (DIR_A,)), Heard(7, "fenced", (DIR_A,))),
        (r.UnfenceBrokerRecord(1, 7), None, Heard(7, "active", None)),
        (r.UnfenceBrokerRecord(1, 7), Heard(6, "fenced", (DIR_A,)), Heard(7, "active", (DIR_A,))),
        (r.BrokerRegistrationChangeRecord(1, 7), None, None),
        (r.BrokerRegistrationChangeRecord(1, 7, fenced=1), None, Heard(7, "fenced", None)),
        (r.BrokerRegistrationChangeRecord(1, 7, fenced=-1), None, Heard(7, "active", None)),
        (
            r.BrokerRegistrationChangeRecord(1, 7, in_controlled_shutdown=1),
            Heard(7, "active", None),
            Heard(7, "controlled_shutdown", None),
        ),
        (
            r.BrokerRegistrationChangeRecord(1, 7, in_controlled_shutdown=1),
            Heard(7, "fenced", None),
            Heard(7, "fenced", None),
        ),
        (
            r.BrokerRegistrationChangeRecord(1, 7, log_dirs=(DIR_B, DIR_A)),
            Heard(7, "active", None),
            Heard(7, "active", (DIR_A, DIR_B)),
        ),
        (r.UnregisterBrokerRecord(1, 7), Heard(7, "active", None), None),
    ],
)
def test_what_records_say_of_a_broker_whose_registration_is_in_no_log(
    record: object, before: Heard | None, expected: Heard | None
) -> None:
    assert heard_of(record, before) == expected


@pytest.mark.parametrize("directories", [None, (DIR_A,), (DIR_B,)])
@pytest.mark.parametrize("epoch", [7, 8])
@pytest.mark.parametrize("state", ["active", "fenced"])
def test_a_snapshot_says_the_same_or_not(
    directories: tuple[bytes, ...] | None, epoch: int, state: str
) -> None:
    registration = BrokerRegistration(
        broker_id=1, epoch=7, incarnation_id=bytes(16), fenced=False, directories=(DIR_A,)
    )
    expected = directories != (DIR_B,) and (epoch, state) == (7, "active")
    assert Heard(epoch, state, directories).fits(registration) is expected


def test_a_topics_own_setting_comes_before_the_one_for_all() -> None:
    configs, at = Configs(), Moment(5, 50, 50)
    own, everybody = ConfigResource(TOPIC_RESOURCE, "t"), ConfigResource(BROKER_RESOURCE, "")
    one = ConfigResource(BROKER_RESOURCE, "1")
    configs.changed(everybody, {"a": at, "b": at}, {"a": "1", "b": "2"})
    configs.changed(own, {"a": at}, {"a": "3"})
    configs.changed(one, {"c": at}, {"c": "4"})
    assert [configs.setting("t", name) for name in "abc"] == ["3", "2", None]
    configs.learn([(everybody, {"a": "1"})], Moment(9, 90, 90))
    assert [configs.setting("t", name) for name in "abc"] == ["1", None, None]


def test_topics_that_a_snapshot_lacks_are_gone() -> None:
    topics, ids = Topics(), (b"a" * 16, b"b" * 16, b"c" * 16)
    for topic_id, name in zip(ids[:2], "ab", strict=True):
        topics.created(topic_id, name, Moment(1, 10, 10))
    topics.learn({ids[1]: "b", ids[2]: "c"}, Moment(5, 50, 50), lambda topic_id: topic_id[0])
    assert topics.names == {ids[1]: "b", ids[2]: "c"}
    (gone,) = topics.take()
    assert (gone[0], *gone[2:9]) == ("a", ids[0][0], 1, 10, 5, 50, True, False)
    rows = {row[0]: row[3:9] for row in topics.open_rows(lambda _: 0)}
    assert rows == {"b": (1, 10, None, None, True, True), "c": (5, 50, None, None, False, True)}


def test_no_state_holds_a_secret() -> None:
    records = [
        r.FeatureLevelRecord("metadata.version", 19),
        r.UserScramCredentialRecord(
            "u", 1, salt=b"salt", stored_key=b"stored", server_key=b"key", iterations=4096
        ),
        r.ConfigRecord(4, "", "ssl.key.password", "hush"),
        r.ConfigRecord(4, "", "num.io.threads", "8"),
        r.ConfigRecord(2, "t", "retention.ms", "5"),
    ]
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    shown: MetadataImage = without_secrets(state.image)
    ((_, credential),) = shown.scram.items_sorted()
    assert (credential.salt, credential.stored_key, credential.server_key) == (bytes(4), bytes(6), bytes(3))
    assert credential.iterations == 4096
    settings = {resource.name: dict(values) for resource, values in shown.configs.items_sorted()}
    assert settings == {
        "": {"num.io.threads": "8", "ssl.key.password": "(redacted)"},
        "t": {"retention.ms": "5"},
    }
