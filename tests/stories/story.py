"""Runs one story: commands write a metadata log record by record, and ask the log tools what they make of it.

A batch is a Python expression of `records_of` names; an answer is what `metaquorum log` prints (`answers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.node.formatted import first_checkpoint
from metaquorum.storage.batches.batch import (
    RecordBatch,
    encode_batch,
    iter_batches,
    parse_header,
    seal_batch,
)
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.known_committed import FILE_NAME as KNOWN_COMMITTED
from metaquorum.storage.files.known_committed import encode as encode_known
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, store_quorum_state
from metaquorum.storage.files.snapshots import BOOTSTRAP_SNAPSHOT, snapshot_name
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.images import replay_all
from tests.scripts.player import play
from tests.stories.answers import shown
from tests.stories.records_of import Records, voter
from tests.unit.metadata.made_logs import CLUSTER, START_MS

METADATA = "__cluster_metadata-0"
NAMED = 12
"""Of so many entities `all` asks why they are as they are."""
STEP_MS = 100
"""From one batch to the next, unless a story waits."""


def run_story(text: str, home: Path) -> str:
    return play(text, Story(home).run)


class Story:
    """One method a command. The log that is written is that of the node named last, `n` at first."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._disk: Disk = PosixDisk()
        self._records = Records()
        self._offset = 0
        self._epoch = 1
        self._time_ms = START_MS
        self._segment = 0
        self._name = ""
        self.do_node("n")

    def run(self, command: str) -> list[str]:
        name, _, rest = command.partition(" ")
        if name == "log":
            return self.ask(shlex.split(rest))
        method: Callable[[str], list[str] | None] | None = getattr(self, f"do_{name}", None)
        if method is None:
            names = sorted(each.removeprefix("do_") for each in dir(self) if each.startswith("do_"))
            raise ValueError(f"a story has no command {name!r}, but log, {', '.join(names)}")
        return method(rest.strip()) or []

    # ---- what is written -------------------------------------------------------------------------

    @property
    def _directory(self) -> Path:
        return self._home / self._name / METADATA

    def do_node(self, rest: str) -> None:
        """node NAME [ID]: another node's directory; its log goes on where the one before it stands."""
        name, _, node_id = rest.partition(" ")
        self._name = name
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            number = int(node_id or 3000)
            identity = MetaProperties(
                cluster_id=CLUSTER, node_id=number, directory_id=b"made" + number.to_bytes(12, "big")
            )
            store_meta_properties(self._disk, str(self._home / name), identity)
        self._segment = max((int(path.stem) for path in self._directory.glob("*.log")), default=self._offset)

    def do_copy(self, rest: str) -> None:
        """copy NAME ID: another node with the same log so far, written to from now on."""
        source = self._directory
        self.do_node(rest)
        for path in source.iterdir():
            (self._directory / path.name).write_bytes(path.read_bytes())
        self.do_node(self._name)

    def do_to(self, rest: str) -> None:
        """to NAME: go on with the log of that node, at its end."""
        self._name = rest
        for path, content, start, _ in self.frames():
            head = content[start : start + 61]
            self._segment = int(path.stem)
            self._offset = int.from_bytes(head[:8], "big") + int.from_bytes(head[23:27], "big") + 1
            self._epoch = int.from_bytes(head[12:16], "big", signed=True)
            self._time_ms = int.from_bytes(head[35:43], "big") + STEP_MS

    def do_add(self, rest: str) -> None:
        """add RECORDS: one batch (see `records_of`)."""
        values = self._records.values(rest, self._offset)
        self._write(values, None)

    def do_raw(self, rest: str) -> None:
        """raw HEX...: one batch of values as they are."""
        self._write([bytes.fromhex(word) for word in rest.split()], None)

    def do_leads(self, rest: str) -> None:
        """leads ID [EPOCH] [votes=ID,ID] [voters=ID,ID]: another leader, of the next epoch unless it is
        given."""
        words = rest.split()
        plain = [word for word in words if "=" not in word]
        said = dict(word.split("=") for word in words if "=" in word)
        if len(plain) > 1:
            self._epoch = int(plain[1])
        elif self._offset:
            self._epoch += 1
        keys, values = self._records.leader_change(int(plain[0]), said.get("votes"), said.get("voters"))
        self._write(values, keys)

    def do_control(self, rest: str) -> None:
        """control RECORD...: a batch with other control records."""
        keys, values = self._records.control(rest)
        self._write(values, keys)

    def do_first(self, rest: str) -> None:
        """first IDS: the checkpoint of a directory that is formatted for these dynamic voters."""
        content = first_checkpoint([voter(int(one)) for one in rest.split()], timestamp_ms=self._time_ms)
        (self._directory / snapshot_name(BOOTSTRAP_SNAPSHOT)).write_bytes(content)

    def do_hollow(self, rest: str) -> None:
        """hollow N: a batch of N offsets without a record, as a cleaner leaves one behind."""
        data = encode_batch(
            base_offset=self._offset, leader_epoch=self._epoch, timestamp_ms=self._time_ms, values=[b""]
        )
        header = parse_header(data)._replace(records_count=0, last_offset_delta=int(rest) - 1)
        self._append(seal_batch(header, b""), int(rest))

    def do_future(self, rest: str) -> None:
        """future TYPE: a batch with a control record of a type from the future."""
        self._write([b"\x00\x00"], [(0).to_bytes(2, "big") + int(rest).to_bytes(2, "big")])

    def do_idle(self, rest: str) -> None:
        """idle N [MS]: batches with a NoOpRecord, 500 ms apart or as given."""
        words = rest.split()
        for _ in range(int(words[0])):
            self._time_ms += (int(words[1]) if len(words) > 1 else 500) - STEP_MS
            self.do_add("NoOp()")

    def do_wait(self, rest: str) -> None:
        """wait MS: the next batch comes so much later (or, below 0, is stamped so much earlier)."""
        self._time_ms += int(rest)

    def do_stray(self, rest: str) -> None:
        """stray MS RECORDS: one batch whose stamp is so far off."""
        off, _, records = rest.partition(" ")
        self._time_ms += int(off)
        self.do_add(records)
        self._time_ms -= int(off)

    def do_skip(self, rest: str) -> None:
        """skip N: the next batch stands so many offsets later."""
        self._offset += int(rest)

    def do_roll(self, rest: str) -> None:
        """roll: the next batch begins a segment."""
        self._segment = self._offset

    def do_snapshot(self, rest: str) -> None:
        """snapshot [OFFSET]: of the state at the log's end, or before that offset."""
        end = int(rest or self._offset)
        batches = [one for one in self._batches() if one.header.next_offset <= end]
        image = replay_all(ReplayState(), batches, on_error=lambda error: None).image
        position = LogPosition(batches[-1].header.leader_epoch, end)
        quorum = self._quorum(batches).snapshot_records()
        content = b"".join(snapshot_batches(image, position=position, quorum=quorum))
        (self._directory / snapshot_name(position)).write_bytes(content)

    def _quorum(self, batches: list[RecordBatch]) -> QuorumView:
        """The voter set behind `batches`, which may be that of the first checkpoint."""
        view = QuorumView()
        first = self._directory / snapshot_name(BOOTSTRAP_SNAPSHOT)
        if first.exists():
            batches = [*iter_batches(first.read_bytes(), file=str(first)), *batches]
        for batch in batches:
            if batch.header.is_control:
                view = view.after(batch.header.leader_epoch, decode_batch(batch, tolerant=True))
        return view

    def do_trim(self, rest: str) -> None:
        """trim OFFSET: segments and snapshots that end at or before it are gone."""
        bases = sorted(int(path.stem) for path in self._directory.glob("*.log"))
        for base, following in pairwise(bases):
            if following <= int(rest):
                (self._directory / segment_name(base)).unlink()
        for path in self._directory.glob("*.checkpoint"):
            if int(path.stem.split("-")[0]) < int(rest):
                path.unlink()

    def do_flip(self, rest: str) -> None:
        """flip OFFSET: the batch that begins there is damaged in its last byte."""
        path, content, _, end = self._found(int(rest))
        content[end - 1] ^= 0xFF
        path.write_bytes(content)

    def do_lose(self, rest: str) -> None:
        """lose OFFSET: the batch that begins there is cut out of its file."""
        path, content, start, end = self._found(int(rest))
        del content[start:end]
        path.write_bytes(content)

    def do_ends(self, rest: str) -> None:
        """ends OFFSET: what the log has from there on is gone; the next batch is written there."""
        for path in sorted(self._directory.glob("*.log"), reverse=True):
            if int(path.stem) >= int(rest):
                path.unlink()
                continue
            self._segment = int(path.stem)
            _, content, start, _ = self._found(int(rest))
            path.write_bytes(content[:start])
            break
        self.do_to(self._name)

    def do_epoch(self, rest: str) -> None:
        """epoch OFFSET N: the leader epoch in the header of the batch that begins there is another."""
        offset, number = rest.split()
        path, content, start, _ = self._found(int(offset))
        content[start + 12 : start + 16] = int(number).to_bytes(4, "big", signed=True)
        path.write_bytes(content)

    def do_base(self, rest: str) -> None:
        """base OFFSET N: the base offset in the header of the batch that begins there is another."""
        offset, number = rest.split()
        path, content, start, _ = self._found(int(offset))
        content[start : start + 8] = int(number).to_bytes(8, "big")
        path.write_bytes(content)

    def do_wrong(self, rest: str) -> None:
        """wrong OFFSET OTHER: the snapshot of OFFSET holds the state of an OTHER place."""
        offset, other = rest.split()
        self.do_snapshot(offset)
        (right,) = self._directory.glob(f"{int(offset):020}-*.checkpoint")
        self.do_snapshot(other)
        (wrong,) = self._directory.glob(f"{int(other):020}-*.checkpoint")
        wrong.replace(right)

    def do_tells(self, rest: str) -> None:
        """tells OFFSET EPOCH: up to there the node knew records to be committed."""
        offset, epoch = rest.split()
        path = self._directory / KNOWN_COMMITTED
        path.write_bytes(encode_known(LogPosition(int(epoch), int(offset))))

    def do_cut(self, rest: str) -> None:
        """cut N: the last N bytes of the last segment are gone."""
        path = self._directory / segment_name(self._segment)
        path.write_bytes(path.read_bytes()[: -int(rest)])

    def do_unlink(self, rest: str) -> None:
        """unlink PATTERN: the files of that name are gone."""
        for path in self._directory.glob(rest):
            path.unlink()

    def do_knows(self, rest: str) -> None:
        """knows EPOCH: the node's quorum-state."""
        state = QuorumState(epoch=int(rest), voters=(3000, 3001, 3002))
        store_quorum_state(self._disk, str(self._directory), state)

    def _write(self, values: list[bytes], keys: list[bytes] | None) -> None:
        data = encode_batch(
            base_offset=self._offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._time_ms,
            values=values,
            keys=keys,
            is_control=keys is not None,
        )
        self._append(data, len(values))

    def _append(self, data: bytes, offsets: int) -> None:
        with (self._directory / segment_name(self._segment)).open("ab") as file:
            file.write(data)
        self._offset += offsets
        self._time_ms += STEP_MS

    def _batches(self) -> Iterator[RecordBatch]:
        """Those before the first damage."""
        with contextlib.suppress(StorageError):
            for path in sorted(self._directory.glob("*.log")):
                yield from iter_batches(path.read_bytes(), file=str(path))

    def frames(self) -> Iterator[tuple[Path, bytearray, int, int]]:
        """The file of each batch, what is in it, and where the batch begins and ends; sound or not."""
        for path in sorted(self._directory.glob("*.log")):
            content, start = bytearray(path.read_bytes()), 0
            while start < len(content):
                end = start + 12 + int.from_bytes(content[start + 8 : start + 12], "big")
                yield path, content, start, end
                start = end

    def _found(self, offset: int) -> tuple[Path, bytearray, int, int]:
        for path, content, start, end in self.frames():
            if int.from_bytes(content[start : start + 8], "big") == offset:
                return path, content, start, end
        raise ValueError(f"no batch begins at offset {offset}")

    def do_bare(self, rest: str) -> None:
        """bare: the node's snapshots are gone."""
        for path in self._directory.glob("*.checkpoint"):
            path.unlink()

    def do_drop(self, rest: str) -> None:
        """drop NAME: a file of the node's log directory, or of the node's, is gone."""
        at = self._directory / rest
        (at if at.exists() else self._directory.parent / rest).unlink()

    def do_files(self, rest: str) -> list[str]:
        """files DIRECTORY: what was written there, with the sums of what is in it."""
        root = self._home / rest
        lines = []
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            content = path.read_bytes()
            sum_ = hashlib.sha256(content).hexdigest()[:8]
            lines.append(f"  {path.relative_to(self._home)} {len(content)} {sum_}")
        return lines

    # ---- what is asked ---------------------------------------------------------------------------

    def ask(self, words: list[str]) -> list[str]:
        """The tools' own words; `n` stands for the node's directory."""
        names = {path.name for path in self._home.iterdir()}
        args = [self._placed(word, names) for word in words]
        result = CliRunner().invoke(main, ["log", *args], catch_exceptions=False)
        lines = []
        for line in result.stdout.splitlines():
            lines += shown(line) if "--json" in words else [line]
        lines += [f"! {line}" for line in result.stderr.splitlines()]
        if result.exit_code:
            lines.append(f"exit code {result.exit_code}")
        placed = (f"  {line.replace(f'{self._home}/', '')}".rstrip() for line in lines)
        return [line for line in placed if line]  # blank lines are the story's own

    def do_all(self, rest: str) -> list[str]:
        """all NAME...: what every tool says of the whole log, and why of what happened to something."""
        lines = []
        for name in rest.split():
            every = [
                ["timeline", name, "--severity", "detail", "--json"],
                ["summary", name, "--json"],
                ["check", name, "--json"],
                ["state", name, "--json"],
                *(["why", name, entity, "--json"] for entity in self._happened(name)[:NAMED]),
            ]
            for words in every:
                lines += [f"  {' '.join(words)}", *(f"  {line}" for line in self.ask(words))]
        return lines

    def _happened(self, name: str) -> list[str]:
        args = ["log", "timeline", self._placed(name, {name}), "--severity", "detail", "--json"]
        found = CliRunner().invoke(main, args, catch_exceptions=False).stdout.splitlines()
        paths = {each for line in found for each in json.loads(line).get("entities", ())}
        return sorted(path for path in paths if not re.match("config/.*/.*/", path))  # but not each setting

    def _placed(self, word: str, names: set[str]) -> str:
        """Words that are a node, or a path in it or beside it (`./new`), are below the story's directory."""
        name, at, place = word.partition("@")
        first = name.partition("/")[0]
        return f"{self._home / name}{at}{place}" if first in names or first == "." else word
