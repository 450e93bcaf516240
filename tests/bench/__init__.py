"""Benchmarks: each measures real code, prints figures beside their targets, and cleans up."""

import metaquorum.grpc_variables  # noqa: F401 -- sets gRPC up as our own clients do, before anything here imports it
