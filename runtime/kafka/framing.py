"""Frames out of a stream of bytes, without input or output.

Owns where received bytes go: small frames share one buffer, a longer one is received into pieces of its own.
Memory grows with what has arrived (at most twice as much), never with what a length announces.
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">i")
_SHARED_BYTES = 64 * 1024
REQUEST_MAX_BYTES = "socket.request.max.bytes"
_PIECE_MAX_BYTES = 1024 * 1024


class FrameError(ValueError):
    """A length that no frame may have; the stream cannot be read on."""


class FrameBuffer:
    """`get_buffer` says where the next bytes go, `received` how many came; it returns whole frames."""

    def __init__(self, max_bytes: int, key: str = REQUEST_MAX_BYTES) -> None:
        self.allow(max_bytes, key)
        self._shared = bytearray(_SHARED_BYTES)
        self._filled = 0
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
        return memoryview(self._shared)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames that `count` more bytes complete, without their lengths.

        Raises FrameError at a negative length and at one above the limit.
        """
        if not self._missing:
            self._filled += count
            return self._cut()
        self._missing -= count
        self._piece_filled += count
        if self._missing:
            if self._piece_filled == len(self._pieces[-1]):
                self._next_piece()
            return []
        frame = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        return [frame]

    def _cut(self) -> list[bytes | bytearray]:
        """The whole frames in the shared buffer; what is left moves to its front or to a piece of its own."""
        frames: list[bytes | bytearray] = []
        view = memoryview(self._shared)
        position = 0
        while self._filled - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._max_bytes:
                raise FrameError(
                    f"a frame announces {length} bytes; {self._key} allows 0 to {self._max_bytes}"
                )
            begin, end = position + _LENGTH.size, position + _LENGTH.size + length
            if end > self._filled:
                if end - position > _SHARED_BYTES:
                    self._begin_long_frame(view[begin : self._filled], length)
                    return frames
                break
            frames.append(bytes(view[begin:end]))
            position = end
        left = self._filled - position
        if position:
            self._shared[:left] = view[position : self._filled].tobytes()
        self._filled = left
        return frames

    def _begin_long_frame(self, first: memoryview, length: int) -> None:
        self._missing = length
        self._pieces = []
        self._next_piece()
        self._pieces[0][: len(first)] = first
        self._piece_filled = len(first)
        self._missing -= len(first)
        self._filled = 0

    def _next_piece(self) -> None:
        arrived = sum(len(piece) for piece in self._pieces)
        size = min(max(arrived, _SHARED_BYTES), _PIECE_MAX_BYTES, self._missing)
        self._pieces.append(bytearray(size))
        self._piece_filled = 0
