"""A controller and a broker in one process, with one replica of the metadata log (ADR 17)."""

if __name__ == "combined":
    raise ImportError("import metaquorum.combined: this folder is a part of the package metaquorum")
