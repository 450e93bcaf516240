"""What a node shows of itself: log lines, audit lines, and metrics."""

if __name__ == "observability":
    raise ImportError("import metaquorum.observability: this folder is a part of the package metaquorum")
