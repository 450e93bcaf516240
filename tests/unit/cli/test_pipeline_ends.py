"""How commands of the pipeline end early: at Ctrl-C, on a full disk, for a folder that holds no tables."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.local.watch import EndSignal
from metaquorum.cli.main import main
from metaquorum.cli.pipeline import ingest
from metaquorum.cli.pipeline.audit import replace_file
from metaquorum.pipeline.audit.gather import TablesError, TableSource
from metaquorum.pipeline.ingest import job
from metaquorum.pipeline.ingest.plan import IngestReport
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.metadata.made_logs import make_node


class Session:
    stopped = False

    def stop(self) -> None:
        Session.stopped = True


def test_an_interrupted_ingest_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark sets a handler of its own if it may, which must not run: it prints tracebacks."""
    before = signal.getsignal(signal.SIGINT)

    def session(*_: Any, **__: Any) -> Session:
        assert threading.current_thread() is not threading.main_thread()
        return Session()

    def run(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            assert not logging.getLogger().isEnabledFor(logging.CRITICAL), "py4j logs a traceback"
            raise

    monkeypatch.setattr(ingest, "spark_session", session)
    monkeypatch.setattr(job, "ingest", run)
    make_node(PosixDisk(), home=str(tmp_path / "n"))
    try:
        ended = CliRunner().invoke(
            main, ["pipeline", "ingest", str(tmp_path / "n"), "--out", str(tmp_path / "tables")]
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr == "metaquorum: interrupted before the end; run it again\n"
    assert Session.stopped and logging.getLogger().isEnabledFor(logging.CRITICAL)


def test_an_interrupt_waits_until_the_jvm_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def session(*_: Any, **__: Any) -> Session:
        os.kill(os.getpid(), signal.SIGINT)
        started.append(True)
        return Session()

    monkeypatch.setattr(ingest, "spark_session", session)
    monkeypatch.setattr(job, "ingest", lambda *_, **__: pytest.fail("it ran"))
    make_node(PosixDisk(), home=str(tmp_path / "n"))
    words = ["pipeline", "ingest", str(tmp_path / "n"), "--out", str(tmp_path / "tables")]
    Session.stopped = False
    ended = CliRunner().invoke(main, words)
    assert (ended.exit_code, started, Session.stopped) == (130, [True], True)
    assert ended.stderr == "metaquorum: interrupted before the end; run it again\n"


def test_an_interrupt_of_spark_s_stop_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Session):
        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            super().stop()

    Session.stopped = False
    monkeypatch.setattr(ingest, "spark_session", lambda *_, **__: Stopping())
    monkeypatch.setattr(job, "ingest", lambda *_, **__: IngestReport(version=1))
    make_node(PosixDisk(), home=str(tmp_path / "n"))
    words = ["pipeline", "ingest", str(tmp_path / "n"), "--out", str(tmp_path / "tables")]
    ended = CliRunner().invoke(main, words)
    assert (ended.exit_code, Session.stopped, ended.stderr) == (0, True, "")


def _fails(error: BaseException) -> Callable[..., int]:
    def write_half(path: Path, text: str, **_: Any) -> int:
        path.write_bytes(text.encode()[: len(text) // 2])
        raise error

    return write_half


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
@pytest.mark.parametrize("earlier", [None, "the earlier report"])
def test_a_report_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, earlier: str | None
) -> None:
    out, link = tmp_path / "report.html", tmp_path / "link.html"
    link.symlink_to(out)
    if earlier is not None:
        out.write_text(earlier)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", _fails(error))
        with pytest.raises(type(error)):
            replace_file(link, "the new report")
    assert (out.read_text() if out.exists() else None) == earlier
    assert {path.name for path in tmp_path.iterdir()} == {"link.html"} | ({out.name} if earlier else set())
    replace_file(link, "the new report")
    assert out.read_text() == "the new report" and link.is_symlink()


def test_a_report_goes_into_a_device_as_it_is() -> None:
    replace_file(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["__cluster_metadata-0/00000000000000000000.log", "notes.txt", "versions/1"])
def test_a_folder_without_tables_is_told_what_to_give(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    with pytest.raises(TablesError) as refused:
        TableSource(tmp_path)
    assert str(refused.value).endswith(
        "; give the directory of the tables, or write them with: metaquorum pipeline ingest LOGS --out TABLES"
    )


# A signal that interrupts the wait for it, at any moment.


def test_a_handler_may_interrupt_the_wait_anywhere() -> None:
    """At each call and return inside it, as the interpreter runs handlers between them."""
    found: list[bool] = []

    def wait() -> None:
        ended = EndSignal()

        def interrupt(frame: FrameType, event: str, argument: Any) -> None:
            sys.setprofile(None)
            ended.handle(signal.SIGTERM, None)
            sys.setprofile(interrupt)

        sys.setprofile(interrupt)
        try:
            found.append(ended.wait(60))
        finally:
            sys.setprofile(None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(30)
    assert found == [True]


def test_without_a_signal_the_wait_ends_by_itself() -> None:
    ended = EndSignal()
    assert not ended.wait(0.001)
    ended.handle(signal.SIGINT, None)
    assert ended.wait(60) and not ended.wait(0.001)
