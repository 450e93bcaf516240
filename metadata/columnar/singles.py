"""Replays a run of one-record batches as if they were one batch.

Owns the framing of such a run. Does not know what its records mean: `apply` does. Anything unusual is left to
the caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import BARRIER, CLASS_OF_KEY, Engine, apply_places
from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames, frames_at, lengths_at, varint_widths
from metaquorum.storage.batches.batch import HEADER_BYTES, parse_header
from metaquorum.storage.log.runs import BatchRun

_NO_OP = 20
_NO_OP_BYTES = 4


def apply_run(engine: Engine, run: BatchRun) -> bool:
    """Applies every record of `run`; False, with nothing applied, if the batches must be applied one by one.

    The caller moves the engine's position to the end of the run.
    """
    try:
        frames = read_run(run)
    except IndexError:  # a record that ends before its frame does
        return False
    if frames is None or (CLASS_OF_KEY[frames.keys] == BARRIER).any():
        return False
    header = parse_header(run.data, int(run.places[-2]))._replace(base_offset=run.base_offset)
    apply_places(engine, frames, header, np.flatnonzero(~idle_frames(frames)))
    return True


def idle_frames(frames: Frames) -> npt.NDArray[np.bool_]:
    """Which records are NoOps in the form that every controller writes."""
    idle: npt.NDArray[np.bool_] = (frames.keys == _NO_OP) & (frames.versions == 0)
    idle &= frames.lengths == _NO_OP_BYTES
    idle &= frames.octets[frames.starts + FRAME_BYTES] == 0
    return idle


def read_run(run: BatchRun) -> Frames | None:
    """The frame of every batch's record; None if one has a key, headers, a time other than its batch's, or
    numbers that a record of a metadata log does not have."""
    octets = np.frombuffer(run.data, dtype=np.uint8)
    records, ends = run.places[:-1] + HEADER_BYTES, run.places[1:]
    frames = frames_at(run.data, octets, records, ends, np.zeros(len(records), dtype=np.int64))
    if frames is None or (frames.lengths < FRAME_BYTES + 1).any():
        return None
    widths = varint_widths(octets, records)
    is_whole = (lengths_at(octets, records, widths) == ends - records - widths).all()
    return frames if is_whole else None
