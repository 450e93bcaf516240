"""gRPC between nodes: servers and channels, rights, limits, and the transport of Raft."""

if __name__ == "rpc":
    raise ImportError("import metaquorum.rpc: this folder is a part of the package metaquorum")

from metaquorum import grpc_variables as grpc_variables
