"""A node's configuration: its file and environment, the table of keys, addresses, principals, security."""

if __name__ == "config":
    raise ImportError("import metaquorum.config: this folder is a part of the package metaquorum")
