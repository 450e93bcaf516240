"""What is kept of a partition's end in memory is exactly what its log holds, or the disk is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.replica.events import AppendPartition, LogAppended, ReadPartition
from broker.server.data_tail import TailCache

DIRECTORY = b"d" * 16


def key(number: int) -> tuple[bytes, int]:
    return bytes([number]) * 16, number


def batch(base: int, size: int) -> bytes:
    return base.to_bytes(8, "big") + bytes(size)


def read(partition: int, start: int, end: int, max_bytes: int, incarnation: int = 1) -> ReadPartition:
    return ReadPartition(
        token=1,
        directory_id=DIRECTORY,
        key=key(partition),
        incarnation=incarnation,
        from_offset=start,
        to_offset=end,
        max_bytes=max_bytes,
    )


class Log:
    """A partition beside the cache: (base, end, bytes) of every append since it was created or cut."""

    def __init__(self, cache: TailCache, partition: int) -> None:
        self.cache = cache
        self.partition = partition
        self.incarnation = 1
        self.end = 0
        self.appends: list[tuple[int, int, bytes]] = []

    def append(self, records: int, size: int, *, report: bool = True) -> None:
        data = batch(self.end, size)
        work = AppendPartition(
            directory_id=DIRECTORY,
            key=key(self.partition),
            incarnation=self.incarnation,
            data=data,
            sync=True,
        )
        self.cache.handed_over(work)
        if report:
            self.appends.append((self.end, self.end + records, data))
            self.end += records
            self.reported()

    def reported(self) -> None:
        self.cache.appended(
            LogAppended(
                directory_id=DIRECTORY,
                key=key(self.partition),
                incarnation=self.incarnation,
                end_offset=self.end,
                size_bytes=0,
            )
        )

    def cut(self) -> None:
        self.cache.forget(key(self.partition))
        self.incarnation += 1
        if self.appends:
            self.end = self.appends.pop()[0]

    def expected(self, start: int, end: int, max_bytes: int) -> bytes:
        found = b""
        for base, stop, data in self.appends:
            if base >= start and stop <= end:
                if len(found) + len(data) > max_bytes:
                    break
                found += data
        return found


STEPS = st.lists(
    st.tuples(st.sampled_from("aaaaac"), st.integers(0, 2), st.integers(1, 5), st.integers(0, 40)),
    max_size=40,
)


@given(STEPS, st.integers(0, 200), st.integers(0, 200), st.integers(0, 300))
def test_an_answer_is_what_the_log_holds(
    steps: list[tuple[str, int, int, int]], start: int, end: int, max_bytes: int
) -> None:
    cache = TailCache(max_bytes=150)
    logs = [Log(cache, number) for number in range(3)]
    for what, number, records, size in steps:
        if what == "a":
            logs[number].append(records, size)
        else:
            logs[number].cut()
        assert 0 <= cache.size_bytes <= 150
    for log in logs:
        starts = {start, *(base for base, _, _ in log.appends)}
        for first in starts:
            data = cache.read(read(log.partition, first, end, max_bytes, log.incarnation))
            if data is not None:
                assert data == log.expected(first, end, max_bytes)
                assert data
                assert int.from_bytes(data[:8], "big") == first
        assert cache.read(read(log.partition, 0, 10**6, 10**6, log.incarnation + 1)) is None


def test_the_newest_appends_are_there_and_only_reported_ones() -> None:
    cache = TailCache()
    log = Log(cache, 1)
    log.append(10, 20)
    log.append(5, 30)
    log.append(1, 40, report=False)
    whole = cache.read(read(1, 0, 15, 1000))
    assert whole == batch(0, 20) + batch(10, 30)
    assert cache.read(read(1, 10, 15, 1000)) == batch(10, 30)
    assert cache.read(read(1, 10, 14, 1000)) is None  # a bound within a batch: the disk knows what to do
    assert cache.read(read(1, 12, 15, 1000)) is None  # so does it where an offset lies within one
    assert cache.read(read(1, 15, 99, 1000)) is None
    assert cache.read(read(1, 0, 15, 30)) == batch(0, 20)
    assert cache.read(read(1, 0, 15, 10)) is None


def test_old_appends_go_first() -> None:
    cache = TailCache(max_bytes=100)
    first, second = Log(cache, 1), Log(cache, 2)
    first.append(1, 42)
    second.append(1, 32)
    first.append(1, 2)
    assert cache.size_bytes == 100
    second.append(1, 0)
    assert cache.size_bytes == 58
    assert cache.read(read(1, 0, 9, 1000)) is None
    assert cache.read(read(1, 1, 9, 1000)) == batch(1, 2)
    assert cache.read(read(2, 0, 9, 1000)) == batch(0, 32) + batch(1, 0)
