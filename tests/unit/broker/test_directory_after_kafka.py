"""A log directory that Kafka has used, and that says so only by what it did to the logs."""

from __future__ import annotations

from metaquorum.storage.disk.interface import join, write_atomically
from tests.unit.broker.directory_bench import PATH, Bench
from tests.unit.broker.filled_directory import files, filled


def test_a_kafka_that_was_killed_has_left_no_such_file() -> None:
    """What it always writes when it trims is the epoch table, so the log is not taken for one with a lost
    file."""
    bench = Bench()
    filled(bench)
    bench.opened().close(clean=True)
    bench.store = None
    first, second, *_ = [name for name in files(bench) if name.endswith(".log")]
    bench.disk.remove(join(PATH, "t1-0/" + first))
    start = int(second[:20])
    table = f"0\n1\n1 {start}\n".encode()
    write_atomically(bench.disk, join(PATH, "t1-0/leader-epoch-checkpoint"), table)
    bench.opened()
    assert bench.found is not None and bench.found.damaged == ()
    (log,) = [one.log for one in bench.found.replicas]
    assert (log.start_offset, log.end_offset) == (start, 20)
