"""The broker as a process: gRPC around the pure node."""

from metaquorum import grpc_variables as grpc_variables
