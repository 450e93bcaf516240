"""Frames from a stream of bytes, without input or output.

Small frames are received into a scratch buffer, from which they are taken at once, a longer one into pieces
of its own. Memory grows with the bytes that have arrived (at most twice as much), never with an announced
length; a connection without a partial frame holds none. A gate decides whether there is room for more: if
there is not, only the frame's length is read, and the rest into pieces that there is room for.
"""

from __future__ import annotations

import struct
from typing import Protocol

_LENGTH = struct.Struct(">i")
SCRATCH_BYTES = 256 * 1024
_PIECE_MIN_BYTES, _SHORT_PIECE_MIN_BYTES = 64 * 1024, 4 * 1024
_PIECE_MAX_BYTES = 1024 * 1024
REQUEST_MAX_BYTES = "socket.request.max.bytes"


class FrameError(ValueError):
    """An invalid length of a frame; the stream is then unusable."""


_BEGINNINGS = {
    b"PRI ": "HTTP/2, as gRPC does",
    **dict.fromkeys((b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP"), "HTTP"),
    b"SSH-": "SSH",
}


def other_protocol(first: bytes) -> str | None:
    """The protocol that begins with these four bytes, which as a length would be far above every limit."""
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "TLS"
    return _BEGINNINGS.get(first)


class Gate(Protocol):
    """Counts the bytes that frames hold."""

    @property
    def has_room(self) -> bool:
        """True if a full scratch buffer of short frames may be read."""

    def reserve(self, length: int, wanted: int) -> bool:
        """True if there is room for the first `wanted` bytes of a frame of `length`; otherwise the frame
        waits."""

    def filled(self, size: int) -> None:
        """`size` of the reserved bytes have arrived."""

    def keeps(self, size: int) -> None:
        """`size` bytes of a frame were read without room for it."""

    def arrived(self, size: int) -> None:
        """A frame of `size` bytes is complete."""


class _OpenGate:
    has_room = True

    def reserve(self, length: int, wanted: int) -> bool:
        return True

    def filled(self, size: int) -> None: ...

    def keeps(self, size: int) -> None: ...

    def arrived(self, size: int) -> None: ...


class FrameBuffer:
    """Call `get_buffer` for the place of the next bytes, then `received` with their number; it returns
    complete frames.

    Several buffers may share `scratch`, if no other is used between the two calls. While a frame `waits` for
    the gate, call neither before `resume`.
    """

    def __init__(
        self,
        max_bytes: int,
        key: str = REQUEST_MAX_BYTES,
        scratch: bytearray | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.allow(max_bytes, key)
        self._gate: Gate = gate or _OpenGate()
        self.waits = False
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self._rest = b""
        """The first bytes of a frame that is not received in pieces."""
        self._pieces: list[bytearray] = []
        self._missing = self._piece_filled = self._room = 0
        """For the frame in pieces: the missing bytes, the filled bytes of its last piece, and the size of all
        pieces. `_missing` 0: there is none."""

    def allow(self, max_bytes: int, key: str = REQUEST_MAX_BYTES) -> None:
        """Sets the longest frame from now on, and the configuration key of this limit."""
        self._max_bytes = max_bytes
        self._key = key

    def get_buffer(self) -> memoryview:
        """The place for the next bytes of the stream; never empty."""
        if self._missing:
            return memoryview(self._pieces[-1])[self._piece_filled :]
        rest = self._rest
        if not rest and self._gate.has_room:
            return self._scratch
        self._scratch[: len(rest)] = rest
        if self._gate.has_room:
            return self._scratch[len(rest) :]
        # Read no more than the length, or one byte if room ran out within a frame.
        return self._scratch[len(rest) : max(_LENGTH.size, len(rest) + 1)]

    def received(self, count: int) -> list[bytes | bytearray]:
        """Takes `count` bytes; returns the frames that they complete, without their lengths.

        Raises FrameError for a negative length and for one above the limit.
        """
        if not self._missing:
            size = count - _LENGTH.size
            if (
                not self._rest
                and 0 <= size <= self._max_bytes
                and _LENGTH.unpack_from(self._scratch)[0] == size
            ):
                # One complete frame and nothing else, as most clients send.
                self._gate.arrived(size)
                return [self._scratch[_LENGTH.size : count].tobytes()]
            return self._cut(len(self._rest) + count)
        self._missing -= count
        self._piece_filled += count
        self._gate.filled(count)
        if self._missing:
            if self._piece_filled == len(self._pieces[-1]):
                self._next_piece()
            return []
        frame = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self._gate.arrived(len(frame))
        return [frame]

    def resume(self) -> None:
        """Called when the gate has room for the waiting frame."""
        self.waits = False
        if self._pieces:
            self._next_piece()
            return
        rest, self._rest = self._rest, b""
        (length,) = _LENGTH.unpack_from(rest)
        self._begin_pieces(rest[_LENGTH.size :], length)

    def drop(self) -> None:
        """Drops everything that has arrived; no more frames are taken."""
        self.waits = False
        self._rest, self._missing, self._pieces = b"", 0, []

    def _cut(self, filled: int) -> list[bytes | bytearray]:
        """The complete frames in the scratch buffer; keeps the rest, or starts pieces for it."""
        frames: list[bytes | bytearray] = []
        view = self._scratch
        position = 0
        self._rest = b""
        while filled - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._max_bytes:
                other = other_protocol(bytes(view[position : position + _LENGTH.size]))
                raise FrameError(
                    f"a frame announces {length} bytes; {self._key} allows 0 to {self._max_bytes}"
                    + ("" if other is None else f" (it speaks {other}, for which this port is not)")
                )
            begin, end = position + _LENGTH.size, position + _LENGTH.size + length
            if end > filled:
                if _LENGTH.size + length > len(view) or not self._gate.has_room:
                    self._begin_pieces(view[begin:filled], length)
                    return frames
                break
            frames.append(view[begin:end].tobytes())
            self._gate.arrived(length)
            position = end
        if position < filled:
            self._rest = view[position:filled].tobytes()
            self._gate.keeps(len(self._rest) - _LENGTH.size)
        return frames

    def _begin_pieces(self, first: memoryview | bytes, length: int) -> None:
        self._missing, self._room = length, 0
        if not self._next_piece(len(first)):
            self._rest = _LENGTH.pack(length) + first
            self._missing = 0
            self._gate.keeps(len(first))
            return
        self._pieces[0][: len(first)] = first
        self._piece_filled = len(first)
        self._missing -= len(first)
        if self._piece_filled == len(self._pieces[0]):
            self._next_piece()

    def _next_piece(self, at_least: int = 0) -> bool:
        """Adds a piece as large as all earlier ones, if the gate has room; otherwise the frame `waits`."""
        length = self._room + self._missing
        fewest = _PIECE_MIN_BYTES if length > len(self._scratch) else _SHORT_PIECE_MIN_BYTES
        size = min(max(self._room, fewest, at_least), max(_PIECE_MAX_BYTES, at_least), self._missing)
        self.waits = not self._gate.reserve(length, self._room + size)
        if not self.waits:
            self._pieces.append(bytearray(size))
            self._room += size
            self._piece_filled = 0
        return not self.waits
