"""Replays a run of batches with one record each as if they were one batch.

Owns the framing of such a run. Whatever is unusual is left to the caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import BARRIER, CLASS_OF_KEY, Engine, apply_places
from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames, lengths_at, varint_widths
from metaquorum.storage.batches.batch import HEADER_BYTES, parse_header
from metaquorum.storage.batches.places import Places
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
    """Which records are NoOps as every controller writes them."""
    idle: npt.NDArray[np.bool_] = (frames.keys == _NO_OP) & (frames.versions == 0)
    idle &= frames.lengths == _NO_OP_BYTES
    idle &= frames.octets[frames.starts + FRAME_BYTES] == 0
    return idle


def read_run(run: BatchRun) -> Frames | None:
    """The frame of every batch's record; None if one has a key, headers, another time than its batch, or
    numbers that a record of a metadata log does not have."""
    octets = np.frombuffer(run.data, dtype=np.uint8)
    records: Places = run.places[:-1] + HEADER_BYTES
    body = records + varint_widths(octets, records)
    # Attributes, timestamp delta and offset delta are 0, the key is null.
    if (
        octets[body].any()
        or octets[body + 1].any()
        or octets[body + 2].any()
        or (octets[body + 3] != 1).any()
    ):
        return None
    widths = varint_widths(octets, body + 4)
    lengths = lengths_at(octets, body + 4, widths)
    values = body + 4 + widths
    ends = values + lengths
    if (ends + 1 != run.places[1:]).any() or (lengths < FRAME_BYTES + 1).any() or octets[ends].any():
        return None
    if (lengths_at(octets, records, body - records) != ends + 1 - body).any():
        return None
    keys, versions = octets[values + 1], octets[values + 2]
    if (octets[values] != 1).any() or ((keys | versions) & 0x80).any():
        return None
    return Frames(run.data, octets, values, lengths, keys, versions)
