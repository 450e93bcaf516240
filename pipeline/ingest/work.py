"""Tasks for executors and their results: values that travel as bytes."""

from __future__ import annotations

import msgspec

from metaquorum.pipeline.ingest.layout import FileRow, ReportedDamage, WrittenFile
from metaquorum.pipeline.logs.clusters import Facts
from metaquorum.pipeline.logs.merged import MergedHistory
from metaquorum.pipeline.logs.pieces import HistorySpan, Piece
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import LogSurvey


class ExecutorError(Exception):
    """An executor does not see what the driver sees. The text names it and the path, and says what to do."""


class SurveyTask(msgspec.Struct, tag="survey", kw_only=True):
    """Survey the batch headers of one log, which has about this many bytes."""

    location: LogPlace
    size_bytes: int
    split_bytes: int


class FactsTask(msgspec.Struct, tag="facts", kw_only=True):
    """Read the facts that distinguish the cluster of one log from others with the same id."""

    log: LogSurvey


class PartFile(msgspec.Struct, frozen=True):
    """What the replay of one part left: an object in the folder of the tables, and files of tables."""

    name: str
    files: list[WrittenFile]


class ReplayTask(msgspec.Struct, tag="replay", kw_only=True):
    """Replay one cluster from `resume_offset` (0: its start) on, with the bytes of `state_file`. Writes to
    the tables in `out` for the run `run`, and its state to `state_target` plus a suffix."""

    merged: MergedHistory
    resume_offset: int
    state_file: str | None
    out: str
    run: str
    state_target: str
    final_below: int
    """The next run writes records from here on again."""
    spans: list[HistorySpan] = []
    """The parts that other tasks replayed before, and what they left."""
    parts: list[PartFile] = []
    store_below: int = 0
    """Records from here on are copied beside the tables."""
    learned: list[int] = []
    """End offsets of the snapshots that gave a state in earlier runs."""
    known_files: list[tuple[int, FileRow]] = []
    known_damage: list[ReportedDamage] = []
    """Damage that earlier runs reported. It stays in the tables if the logs are gone."""


class PartTask(msgspec.Struct, tag="part", kw_only=True):
    """Replay the part `number` of `replay.spans`, to be joined by that task."""

    replay: ReplayTask
    number: int


class RecordsTask(msgspec.Struct, tag="records", kw_only=True):
    """Write the records of one piece, about `records` of them. Those below `final_below` are final."""

    piece: Piece
    records: int
    final_below: int
    out: str
    run: str


Task = SurveyTask | FactsTask | ReplayTask | PartTask | RecordsTask


class TaskResult(msgspec.Struct, kw_only=True):
    """The result of a task for the driver."""

    cluster: str
    files: list[WrittenFile] = []
    surveys: list[LogSurvey] = []
    facts: Facts | None = None
    problem: str | None = None
    path: str | None = None
    """With a problem: the file or directory with the problem."""
    where: str = ""
    """The executor that ran the task."""
    part: str | None = None
    """For a part: the object with what it left."""
    records: int = 0
    resume_offset: int = 0
    resume_epoch: int = -1
    has_state: bool = False
    reported_files: list[tuple[int, FileRow]] = []
    reported_damage: list[ReportedDamage] = []
    learned: list[int] = []
    """End offsets of the snapshots that gave a state."""
    started_over: bool = False
    """The replay should have continued from a state, which could not be used, and started over."""
