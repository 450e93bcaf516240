"""Sockets of every port: TLS, limits at accept, frames, the plan for descriptors."""

if __name__ == "network":
    raise ImportError("import metaquorum.network: this folder is a part of the package metaquorum")

from metaquorum import grpc_variables as grpc_variables
