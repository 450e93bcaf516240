"""The bytes of Kafka's protocol, without input or output: values to frames and back.

Owns the primitives of the encoding, the one code generator (for requests, responses and the records of the
metadata log) and the table of every request and response. Does not know logs, state or sockets.
"""
