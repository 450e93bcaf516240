"""Local clusters: start, watch, stop; and the demo."""
