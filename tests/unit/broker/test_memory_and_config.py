"""What was just appended, kept in memory against a model of it; and what a broker's configuration may say."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from metaquorum.broker.replica.requests.tail import BATCH_MAX_BYTES, Tail
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.metadata.requests.data import PartitionKey

MOST = 100
KEYS: tuple[PartitionKey, ...] = ((b"x" * 16, 0), (b"x" * 16, 1), (b"y" * 16, 0))
Batch = tuple[PartitionKey, int, int, bytes]

ops = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.sampled_from(KEYS), st.integers(1, 3), st.integers(1, MOST + 2)),
        st.tuples(st.just("small"), st.sampled_from(KEYS), st.integers(1, 3), st.integers(1, 4)),
        st.tuples(st.just("forget"), st.sampled_from(KEYS), st.just(0), st.just(0)),
    ),
    max_size=120,
)


class Model:
    """The newest batches of all partitions together, oldest first."""

    def __init__(self) -> None:
        self.kept: list[Batch] = []
        self.ends: Counter[PartitionKey] = Counter()

    def note(self, key: PartitionKey, count: int, size: int) -> Batch:
        base = self.ends[key]
        self.ends[key] += count
        batch = key, base, base + count, bytes([len(self.kept) % 250 + 1]) * size
        if size <= MOST:
            self.kept.append(batch)
            while sum(len(each[3]) for each in self.kept) > MOST:
                del self.kept[0]
        return batch

    def read(self, key: PartitionKey, start: int, end: int, max_bytes: int) -> bytes | None:
        data, at = b"", start
        by_base = {each[1]: each for each in self.kept if each[0] == key}
        while at < end and at in by_base and by_base[at][2] <= end:
            if data and len(data) + len(by_base[at][3]) > max_bytes:
                break
            data, at = data + by_base[at][3], by_base[at][2]
        return data or None


@settings(max_examples=150)
@given(ops)
def test_the_tail_of_logs_in_memory_is_the_newest_of_all(
    steps: list[tuple[str, PartitionKey, int, int]],
) -> None:
    tail, model = Tail(MOST), Model()
    for what, key, count, size in steps:
        if what == "forget":
            tail.forget(key)
            model.kept = [each for each in model.kept if each[0] != key]
        else:
            tail.note(*model.note(key, count, size))
        assert tail.kept_bytes == sum(len(each[3]) for each in model.kept)
        assert len(tail._order) <= len(model.kept) + max(64, len(model.kept)) + 1, "it must not grow for ever"
    for key in KEYS:
        for start in range(model.ends[key] + 2):
            for end, most in (
                (start, 9),
                (start + 1, 9),
                (start + 4, 5),
                (model.ends[key], 1),
                (start + 99, 200),
            ):
                assert tail.read(key, start, end, most) == model.read(key, start, end, most)


@pytest.mark.parametrize(("size", "kept"), [(BATCH_MAX_BYTES, True), (BATCH_MAX_BYTES + 1, False)])
def test_a_batch_that_is_worth_the_room_is_kept(size: int, kept: bool) -> None:
    tail = Tail(4 * BATCH_MAX_BYTES)
    tail.note(KEYS[0], 0, 1, bytes(size))
    assert (tail.read(KEYS[0], 0, 1, 1) is not None) == kept
    assert BATCH_MAX_BYTES == 2_097_152


# ---- configuration --------------------------------------------------------------------------------

SOUND = BrokerConfig(node_id=0, cluster_id="c", endpoints=(BrokerEndpoint("DATA", "h", 9, 0),))
DEFAULTS = {
    "initial_broker_registration_timeout_ms": 60_000,
    "broker_heartbeat_interval_ms": 2_000,
    "registration_lease_timeout_ms": 18_000,
    "self_fencing_enable": True,
    "controller_request_timeout_ms": 1_000,
    "retry_backoff_ms": 50,
    "retry_backoff_max_ms": 1_000,
    "controlled_shutdown_poll_ms": 100,
    "controlled_shutdown_timeout_ms": 30_000,
}


def test_defaults_of_a_broker() -> None:
    assert SOUND.problems() == []
    assert {name: getattr(SOUND, name) for name in DEFAULTS} == DEFAULTS
    told = {each.name for each in fields(SOUND) if each.name.endswith(("_ms", "_enable"))}
    assert told == set(DEFAULTS), "a new setting: say its default here"


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name.endswith("_ms")])
def test_durations_are_at_least_a_millisecond(name: str) -> None:
    key = name.replace("_", ".")
    assert [line for line in replace(SOUND, **{name: 1}).problems() if line.startswith(f"{key} is 1")] == []
    lines = replace(SOUND, **{name: 0}).problems()
    said = {"retry.backoff.max.ms": "retry.backoff.max.ms is below"}.get(key, f"{key} is 0: set it to 1")
    assert len([line for line in lines if line.startswith(said)]) == 1


@pytest.mark.parametrize(
    ("fields_", "problem"),
    [
        ({"node_id": -1}, "node.id is -1"),
        ({"retry_backoff_ms": 9, "retry_backoff_max_ms": 9}, None),
        ({"retry_backoff_ms": 9, "retry_backoff_max_ms": 8}, "retry.backoff.max.ms is below"),
        ({"broker_heartbeat_interval_ms": 17_999}, None),
        ({"broker_heartbeat_interval_ms": 18_000}, "broker.heartbeat.interval.ms (18000) must be below"),
        ({"controller_request_timeout_ms": 17_999}, None),
        ({"controller_request_timeout_ms": 18_000}, "controller.request.timeout.ms (18000) must be below"),
        ({"binding_key": "host"}, None),
        ({"binding_key": ""}, "broker.id.binding.key:"),
        ({"endpoints": ()}, "listeners is empty"),
    ],
)
def test_each_problem_is_one_line(fields_: dict[str, object], problem: str | None) -> None:
    lines = replace(SOUND, **fields_).problems()  # type: ignore[arg-type]
    assert [line[: len(problem or "")] for line in lines] == ([] if problem is None else [problem])
