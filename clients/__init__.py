"""How a node, a command or a test calls a cluster: Kafka's protocol, and gRPC to the quorum."""

if __name__ == "clients":
    raise ImportError("import metaquorum.clients: this folder is a part of the package metaquorum")
