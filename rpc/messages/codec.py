"""A codec between a class of values and a class of protobuf messages, derived from their fields.

When it is compiled: at the first use, so that a command only compiles codecs of messages that it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from metaquorum.metadata.errors import ApiError
from metaquorum.rpc.messages.codegen import compile_decoder, compile_encoder
from metaquorum.rpc.messages.errors import NO_HINTS, Hints, error_from_pb, error_to_pb
from metaquorum.rpc.messages.shapes import FieldRule, Shape, shape_of

Value = TypeVar("Value")
Pb = TypeVar("Pb", bound=Message)


class MessageCodec(Generic[Value, Pb]):
    """`fields`: deviations from the rules in `shapes`, by the name of the value's field."""

    def __init__(self, value: type[Value], message: type[Pb], **fields: FieldRule | str) -> None:
        self.value = value
        self.message = message
        self.fields = fields

    @property
    def shape(self) -> Shape:
        return shape_of(self.value, self.message.DESCRIPTOR, self.fields)

    @cached_property
    def to_pb(self) -> Callable[[Value], Pb]:
        return compile_encoder(self.shape)

    @cached_property
    def from_pb(self) -> Callable[[Pb], Value]:
        """The function from a message to a value. It raises the errors of a rule's `check` or `decode`, and
        ValueError for a value that an enum does not have (ErrorCode has a member for every code)."""
        return compile_decoder(self.shape)

    def answer_to_pb(self, answer: Value | ApiError, hints: Hints = NO_HINTS) -> Pb:
        """A response message, with the refusal of the whole request in its `error` if there is one."""
        if isinstance(answer, ApiError):
            return self.message(error=error_to_pb(answer, hints))
        return self.to_pb(answer)

    def answer_from_pb(self, message: Any) -> Value | ApiError:
        """The response, or the refusal of the whole request. Raises the errors of `from_pb`."""
        if message.HasField("error"):
            return error_from_pb(message.error)
        return self.from_pb(message)
