"""Turns schemas into straight-line code, once per structure and version.

Owns the generated source and nothing else: it names no message. `decoders` and `encoders` create functions,
`source` has what both use to write them.
"""

from metaquorum.wire.generator.decoders import Decoder, compile_decoder
from metaquorum.wire.generator.encoders import Encoder, Writer, compile_encoder, compile_writer

__all__ = ["Decoder", "Encoder", "Writer", "compile_decoder", "compile_encoder", "compile_writer"]
