"""Event loops, clocks, configuration, logging and RPC plumbing: the only home of OS randomness."""

import os

# gRPC's library reads both once, when it is first imported. Without its event engine a message passes through
# one thread less on its way to the loop, which saves a tenth of the CPU of a write (docs/benchmarks.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# Its own lines on standard error, for every handshake that fails, are nothing for people or for JSON logs. A
# node takes them and says what they mean (`native_lines`); all others see the error where it belongs.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
