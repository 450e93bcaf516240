"""Frames out of a stream of bytes, without input or output.

Owns where received bytes go: small frames into a scratch buffer, out of which they are taken at once, a
longer one into pieces of its own. Memory grows with what has arrived (at most twice as much), never with what
a length announces; a connection whose frames are whole holds none. A gate says whether there is room for
more: without it a frame's length is read and nothing else, until the gate has a place for the frame.
"""

from __future__ import annotations

import struct
from typing import Protocol

_LENGTH = struct.Struct(">i")
SCRATCH_BYTES = 256 * 1024
_PIECE_MIN_BYTES = 64 * 1024
_PIECE_MAX_BYTES = 1024 * 1024
REQUEST_MAX_BYTES = "socket.request.max.bytes"


class FrameError(ValueError):
    """A length that no frame may have; the stream cannot be read on."""


class Gate(Protocol):
    """What counts the bytes that frames hold."""

    @property
    def has_room(self) -> bool:
        """Whether a whole scratch buffer of short frames may be read."""

    def reserve(self, length: int) -> bool:
        """Whether a frame of `length` bytes, that is not whole, has a place; else it waits for one."""

    def keeps(self, size: int) -> None:
        """`size` bytes of a frame that waits were read already."""

    def arrived(self, size: int) -> None:
        """A frame is whole."""


class _OpenGate:
    has_room = True

    def reserve(self, length: int) -> bool:
        return True

    def keeps(self, size: int) -> None: ...

    def arrived(self, size: int) -> None: ...


class FrameBuffer:
    """`get_buffer` says where the next bytes go, `received` how many came; it returns whole frames.

    `scratch` may be that of other buffers, too, as long as none is asked between the two calls. While a frame
    `waits` for the gate neither is called, until `go_on`."""

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
        self._has_place = False
        """Whether the gate has room for all of the frame that is not whole."""
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self._rest = b""
        """The begin of a frame that fits into the scratch buffer."""
        self._missing = 0
        """Bytes of the long frame that have not come yet; 0: no long frame is being received."""
        self._pieces: list[bytearray] = []
        self._piece_filled = 0

    def allow(self, max_bytes: int, key: str = REQUEST_MAX_BYTES) -> None:
        """The longest frame from now on, and the key of the configuration that says so."""
        self._max_bytes = max_bytes
        self._key = key

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._missing:
            return memoryview(self._pieces[-1])[self._piece_filled :]
        rest = self._rest
        if not rest and self._gate.has_room:
            return self._scratch
        self._scratch[: len(rest)] = rest
        if self._gate.has_room:
            return self._scratch[len(rest) :]
        end = _LENGTH.size
        if len(rest) >= end:
            end += _LENGTH.unpack_from(rest)[0]
        return self._scratch[len(rest) : end]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames that `count` more bytes complete, without their lengths.

        Raises FrameError at a negative length and at one above the limit.
        """
        if not self._missing:
            size = count - _LENGTH.size
            if (
                not self._rest
                and 0 <= size <= self._max_bytes
                and _LENGTH.unpack_from(self._scratch)[0] == size
            ):
                # One whole frame and nothing else, as most clients send them.
                self._is_whole(size)
                return [self._scratch[_LENGTH.size : count].tobytes()]
            return self._cut(len(self._rest) + count)
        self._missing -= count
        self._piece_filled += count
        if self._missing:
            if self._piece_filled == len(self._pieces[-1]):
                self._next_piece()
            return []
        frame = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self._is_whole(len(frame))
        return [frame]

    def go_on(self) -> None:
        """The gate has a place for the frame that waited."""
        self.waits, self._has_place = False, True
        (length,) = _LENGTH.unpack_from(self._rest)
        if _LENGTH.size + length > len(self._scratch):
            first, self._rest = self._rest[_LENGTH.size :], b""
            self._begin_long_frame(first, length)

    def drop(self) -> None:
        """Forgets what has arrived: no more frames are taken."""
        self.waits = self._has_place = False
        self._rest, self._missing, self._pieces = b"", 0, []

    def _is_whole(self, size: int) -> None:
        self._has_place = False
        self._gate.arrived(size)

    def _cut(self, filled: int) -> list[bytes | bytearray]:
        """The whole frames in the scratch buffer; what is left is kept, or begins pieces of its own."""
        frames: list[bytes | bytearray] = []
        view = self._scratch
        position = 0
        self._rest = b""
        while filled - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._max_bytes:
                raise FrameError(
                    f"a frame announces {length} bytes; {self._key} allows 0 to {self._max_bytes}"
                )
            begin, end = position + _LENGTH.size, position + _LENGTH.size + length
            if end > filled:
                self._has_place = self._has_place or self._gate.reserve(length)
                self.waits = not self._has_place
                if self._has_place and end - position > len(view):
                    self._begin_long_frame(view[begin:filled], length)
                    return frames
                break
            frames.append(view[begin:end].tobytes())
            self._is_whole(length)
            position = end
        if position < filled:
            self._rest = view[position:filled].tobytes()
        if self.waits:
            self._gate.keeps(len(self._rest))
        return frames

    def _begin_long_frame(self, first: memoryview | bytes, length: int) -> None:
        self._missing = length
        self._pieces = []
        self._next_piece(len(first))
        self._pieces[0][: len(first)] = first
        self._piece_filled = len(first)
        self._missing -= len(first)
        if self._piece_filled == len(self._pieces[0]):
            self._next_piece()

    def _next_piece(self, arrived: int = 0) -> None:
        arrived += sum(len(piece) for piece in self._pieces)
        size = min(max(arrived, _PIECE_MIN_BYTES), _PIECE_MAX_BYTES, self._missing)
        self._pieces.append(bytearray(size))
        self._piece_filled = 0
