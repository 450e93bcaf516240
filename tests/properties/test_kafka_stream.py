"""Laws of a connection's stream: any split gives the same frames, responses keep the requests' order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.listeners.answers import AnswerQueue
from metaquorum.network.framing import SCRATCH_BYTES, FrameBuffer, FrameError

SIZES = st.integers(0, 40) | st.sampled_from(
    [65_536, 200_000, *range(SCRATCH_BYTES - 6, SCRATCH_BYTES + 2), 300_000, 2_500_000]
)

STEPS = [1, 3, 4, 5, 100, 65_536, SCRATCH_BYTES - 1, SCRATCH_BYTES, 10**7]


def feed(buffer: FrameBuffer, data: bytes, steps: list[int]) -> list[bytes]:
    """Frames from `data`, passed in pieces of at most the given sizes, repeatedly."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(data):
        room = buffer.get_buffer()
        assert room
        size = min(steps[turn % len(steps)], len(room), len(data) - position)
        room[:size] = data[position : position + size]
        frames += map(bytes, buffer.received(size))
        position += size
        turn += 1
    return frames


@settings(max_examples=60)
@given(
    sizes=st.lists(SIZES, max_size=8),
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
)
def test_any_split_of_the_stream_gives_the_same_frames(sizes: list[int], steps: list[int]) -> None:
    if sum(sizes) / max(steps) > 20_000:
        sizes = [size for size in sizes if size <= 65_536][:2]
    expected = [bytes([n % 251]) * size for n, size in enumerate(sizes, 1)]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in expected)
    assert feed(FrameBuffer(3_000_000), stream, steps) == expected


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 2**31 - 1])
def test_a_length_that_no_frame_may_have_is_refused(length: int) -> None:
    buffer = FrameBuffer(100)
    stream = b"\0\0\0\3abc" + length.to_bytes(4, "big", signed=True)
    with pytest.raises(FrameError, match=rf"announces {length} bytes.* allows 0 to 100"):
        feed(buffer, stream, [1])


def test_memory_follows_what_has_arrived_and_not_what_is_announced() -> None:
    buffer = FrameBuffer(2**31 - 1)
    feed(buffer, (2**31 - 1).to_bytes(4, "big") + bytes(300_000), [300_004])
    assert sum(map(len, buffer._pieces)) <= 2 * 300_004


def test_connections_share_a_scratch_buffer_and_mix_nothing() -> None:
    scratch = bytearray(SCRATCH_BYTES)
    buffers = [FrameBuffer(10**6, scratch=scratch) for _ in range(3)]
    sizes = [5, 0, 1_000, 270_000, 3, SCRATCH_BYTES, 7]
    streams = [
        b"".join(size.to_bytes(4, "big") + bytes([place + 65]) * size for size in sizes) for place in range(3)
    ]
    found: list[list[bytes]] = [[], [], []]
    while any(streams):
        for place, buffer in enumerate(buffers):
            data = streams[place][:999]
            found[place] += feed(buffer, data, [777])
            streams[place] = streams[place][len(data) :]
    for place, frames in enumerate(found):
        assert frames == [bytes([place + 65]) * size for size in sizes]


@given(data=st.data(), count=st.integers(1, 30))
def test_answers_leave_in_the_order_of_the_requests(data: st.DataObject, count: int) -> None:
    sizes: list[int] = []
    queue = AnswerQueue(max_requests=count, max_bytes=10**6, left=sizes.append)
    places = [queue.begin(10) for _ in range(count)]
    assert not queue.has_room
    left: list[bytes] = []
    for place in data.draw(st.permutations(places)):
        # Every third request has no response; it does not hold back those after it.
        left += map(bytes, queue.finish(place, [] if place % 3 == 2 else [b"%d" % place]))
    assert left == [b"%d" % place for place in places if place % 3 != 2]
    assert (len(queue), queue.bytes_in_progress, queue.has_room) == (0, 0, True)
    assert sizes == [10] * count


def test_a_request_above_the_bound_of_bytes_goes_alone() -> None:
    queue = AnswerQueue(max_requests=9, max_bytes=100, left=[].append)
    first = queue.begin(500)
    assert not queue.has_room
    queue.finish(first, [b"x"])
    assert queue.has_room
    queue.begin(60)
    queue.begin(60)
    assert not queue.has_room
