"""Calls to the quorum and its nodes by gRPC."""

from metaquorum import grpc_variables as grpc_variables
